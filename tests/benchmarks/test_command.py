"""The command: what it prints and writes, and its exit codes, with benchmarks that measure nothing."""

import builtins
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from tests.conftest import require
from ws_responses.__main__ import main
from ws_responses.bench import command
from ws_responses.bench.results import Details, Outcome, Row, Sample, Unexpected

for package in command.PACKAGES:
    require(package)


class Scripted:
    """A benchmark of three rows: one keeps its bar, one misses it, one has none. Notes what is done with it."""

    name = "P0"
    rows = (
        Row("P0.good", "a good one", "us", bar=2),
        Row("P0.bad", "a bad one", "us", bar=1),
        Row("P0.note", "a note", "us", bar=None),
    )

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.done: list[str] = []

    async def __aenter__(self) -> Self:
        self.done.append("enter")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.done.append("leave")

    async def round(self, number: int) -> Mapping[str, Sample]:
        self.done.append(f"round {number}")
        # The first round, which does not count, would spoil every median.
        value = 1000.0 if number < 0 else 3.0
        return {"P0.good": Sample(value, 2), "P0.bad": Sample(value, 2), "P0.note": Sample(value, 2)}


class Failing(Scripted):
    async def round(self, number: int) -> Mapping[str, Sample]:
        raise Unexpected("three frames came, not two")


class Talkative(Scripted):
    def details(self, outcomes: Mapping[str, Outcome]) -> Details:
        def draw(plt: Any) -> Any:
            return plt.figure()

        return Details(name="more", text="and a table", data=[outcomes["P0.good"].value], draw=draw)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, Scripted]]:
    """Run the command with one scripted benchmark; gives its exit code and that benchmark."""

    def run(*arguments: str, kind: type[Scripted] = Scripted) -> tuple[int, Scripted]:
        made: list[Scripted] = []

        def make(*, quick: bool) -> Scripted:
            made.append(kind(quick=quick))
            return made[-1]

        monkeypatch.setattr(command, "_benchmarks", lambda: {"P0": make})
        code = main(["bench", "--out", str(tmp_path / "out"), *arguments])
        return code, made[-1] if made else kind(quick=False)

    return run


def test_rounds_that_count_come_after_one_that_does_not(bench: Callable[..., tuple[int, Scripted]]) -> None:
    """Else the first round, with cold caches and allocators, would be part of the result."""
    _, benchmark = bench("--rounds", "2")

    assert benchmark.done == ["enter", "round -1", "round 0", "round 1", "leave"]


def test_table_says_for_each_row_whether_it_keeps_its_bar(
    bench: Callable[..., tuple[int, Scripted]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the reader would have to compare numbers by hand."""
    bench("--rounds", "2")

    lines = capsys.readouterr().out.splitlines()
    good = next(line for line in lines if "a good one" in line)
    bad = next(line for line in lines if "a bad one" in line)
    note = next(line for line in lines if "a note" in line)
    assert "1.50x" in good
    assert good.endswith("ok")
    assert bad.endswith("MISSED")
    assert not note.endswith(("ok", "MISSED"))


def test_json_holds_every_sample_and_the_machine(bench: Callable[..., tuple[int, Scripted]], tmp_path: Path) -> None:
    """Else a result could not be looked at again, or compared with one of another machine."""
    bench("--rounds", "2", "--quick")

    report: dict[str, Any] = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert report["rounds"] == 2
    assert report["quick"] is True
    assert report["machine"]["packages"]["uvicorn"]
    assert report["machine"]["load"] >= 0
    good, bad, _ = report["rows"]
    assert good["key"] == "P0.good"
    assert good["samples"] == [[3.0, 2], [3.0, 2]]
    assert (good["compared"], good["bar"], good["ok"]) == (1.5, 2, True)
    assert bad["ok"] is False


def test_missed_bar_is_an_error_only_when_asked(bench: Callable[..., tuple[int, Scripted]]) -> None:
    """Else a look at the numbers would fail on a busy machine, or a check would pass on a slow build."""
    assert bench("--rounds", "1")[0] == 0
    assert bench("--rounds", "1", "--check")[0] == 1


def test_app_that_answers_wrongly_is_no_result(
    bench: Callable[..., tuple[int, Scripted]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a middleware that fails at once would look fast."""
    code, _ = bench(kind=Failing)

    assert code == 2
    assert "three frames came, not two" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--only", "P0,P77"], ["--only", ""]], ids=["unknown", "all"])
def test_only_names_known_benchmarks(
    arguments: list[str], bench: Callable[..., tuple[int, Scripted]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a typing error would measure nothing and report success."""
    code, _ = bench("--rounds", "1", *arguments)

    assert code == (2 if "P77" in arguments[1] else 0)
    assert ("P77" in capsys.readouterr().err) == (code == 2)


def test_rounds_must_be_positive(bench: Callable[..., tuple[int, Scripted]]) -> None:
    """Else no round would give a median of nothing."""
    with pytest.raises(SystemExit):
        bench("--rounds", "0")


def test_picture_is_drawn_where_matplotlib_is(bench: Callable[..., tuple[int, Scripted]], tmp_path: Path) -> None:
    """Else the report would promise a file that is not there."""
    require("matplotlib")

    bench("--rounds", "1")

    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_what_a_benchmark_says_beside_its_rows_is_printed_written_and_drawn(
    bench: Callable[..., tuple[int, Scripted]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the table of loops would be measured for nobody."""
    require("matplotlib")

    bench("--rounds", "2", kind=Talkative)

    assert "and a table" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "bench.json").read_text())["more"] == [3.0]
    assert (tmp_path / "out" / "more.png").read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_costs_the_picture_only(
    bench: Callable[..., tuple[int, Scripted]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else a measurement of minutes would end in a traceback."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    code, _ = bench("--rounds", "1")

    assert code == 0
    assert "no picture" in capsys.readouterr().out
    assert (tmp_path / "out" / "bench.json").exists()
    assert not (tmp_path / "out" / "bench.png").exists()


def test_missing_packages_are_named(
    bench: Callable[..., tuple[int, Scripted]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a user without the extra would see a traceback of an import."""
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "picows" else builtins.object())

    code, _ = bench()

    assert code == 2
    assert "picows" in capsys.readouterr().err
