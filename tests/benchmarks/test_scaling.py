"""The scaling model: its page shows what it says, and what it says follows from the costs."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import require
from tests.docs.source import section
from ws_responses.__main__ import main
from ws_responses.bench.scaling import NUMBERS, SIZES, Costs, Load, costs_text, plan, plans_text, read_costs

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "scaling.md"

UNIT = Costs(**{field.name: 1.0 for field in dataclasses.fields(Costs)})


def part(name: str) -> str:
    """What stands between two marks of the page."""
    (found,) = re.findall(rf"<!-- {name} -->\n?(.*?)<!-- /{name} -->", PAGE.read_text(), re.DOTALL)
    return str(found)


def written() -> dict[str, str]:
    """What must stand there."""
    costs, measured = read_costs()
    meant = section(Load, "Attributes")
    rows = [
        f"| `{_option(field.name)}` | {field.default:,} | {meant[field.name]} |" for field in dataclasses.fields(Load)
    ]
    return {
        "costs": f"```text\n{costs_text(costs)}\n```\n",
        "plans": f"```text\n{plans_text([plan(load, costs) for load in SIZES])}\n```\n",
        "assumptions": "\n".join(["| option | value | |", "| --- | --- | --- |", *rows, ""]),
        "machine": f"{measured['machine']}, Python {measured['python']}, load average {measured['load']}, {measured['on']}",
    }


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def write() -> None:
    """Put it there: `python -m tests.benchmarks.test_scaling`."""
    text = PAGE.read_text()
    for name, content in written().items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        line = "\n" if content.endswith("\n") else ""
        text = before + begin + line + content + end + rest.partition(end)[2]
    PAGE.write_text(text)


@pytest.mark.parametrize("name", ["costs", "plans", "assumptions", "machine"])
def test_the_page_shows_what_the_command_prints(name: str) -> None:
    """Numbers that nobody checks are those of another version: `python -m tests.benchmarks.test_scaling` writes them."""
    assert part(name) == written()[name]


def test_the_command_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scaling"]) == 0
    printed = capsys.readouterr().out
    for name in ("costs", "plans"):
        assert part(name).removeprefix("```text\n").removesuffix("```\n") in printed


def test_a_load_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With costs of one's own."""
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"measured": {}, "costs": dataclasses.asdict(UNIT)}))
    assert main(["bench", "scaling", "--connections", "5000", "--turn-kb", "9.5", "--numbers", str(mine)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"connections +5,000\n", printed)
    assert re.search(r"turns a second +100,000\n", printed)


def test_the_large_plan_by_hand() -> None:
    """The formulas, once more and in another order: an error in a unit is an error by a thousand."""
    costs, _ = read_costs()
    found = plan(Load(), costs)
    node_us = 1e5 * (costs.shared_turn_us + 98 * costs.event_us) + 1e6 * costs.connection_us_per_s
    node_us += 1e6 / 3600 * costs.load_us
    assert found.nodes["CPU"] == pytest.approx(node_us / 1e6 / 0.5 / 16)
    kib = 1e6 * (costs.connection_kib + 100 * 1000 / 1024 * costs.kept_kb_per_kb)
    assert found.nodes["memory"] == pytest.approx(kib / 1024**2 / 0.7 / 64)
    stored = 1e5 * 3600
    assert found.redis_gib == pytest.approx(
        stored * (costs.redis_record_bytes + 4000 * costs.redis_kb_per_kb) / 1024**3
    )
    assert found.shards["memory"] == pytest.approx(found.redis_gib / 0.7 / 32)
    assert found.tenant_turns_per_s == pytest.approx(1e6 / costs.redis_turn_us / 2)


@given(times=st.integers(1, 1000), stored=st.floats(0, 1))
def test_twice_the_load_takes_twice_as_much(times: int, stored: float) -> None:
    """Nothing in it is shared by all tenants; what is not stored costs Redis nothing but reloads."""
    one = plan(Load(connections=1000, turns_per_s=1000, stored=stored), UNIT)
    more = plan(Load(connections=1000 * times, turns_per_s=1000 * times, stored=stored), UNIT)
    for name in ("CPU", "memory"):
        assert more.nodes[name] == pytest.approx(times * one.nodes[name])
        assert more.shards[name] == pytest.approx(times * one.shards[name])
    assert (one.redis_gib == 0) == (stored == 0)
    assert more.tenant_turns_per_s == one.tenant_turns_per_s


def test_the_costs_come_with_the_package() -> None:
    """And say on what they were measured."""
    costs, measured = read_costs(NUMBERS)
    assert all(value > 0 for value in dataclasses.astuple(costs))
    assert {"on", "machine", "load", "python"} <= set(measured)


@pytest.mark.slow
def test_the_costs_can_be_measured_anew(tmp_path: Path) -> None:
    for package in ("picows", "psutil", "redis"):
        require(package)
    out = tmp_path / "costs.json"
    assert main(["bench", "scaling", "--measure", "--quick", "--out", str(out)]) == 0
    costs, _ = read_costs(out)
    assert all(value > 0 for value in dataclasses.astuple(costs))
    assert costs.shared_turn_us > costs.turn_us > costs.event_us


if __name__ == "__main__":
    write()
