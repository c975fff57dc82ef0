"""The built wheel and sdist hold what a checkout holds: the adapters as `ws_responses.adapters`, and the typing mark."""

import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.distributions import ROOT, run

pytestmark = pytest.mark.timeout(300)


def names_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def names_in_sdist(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}


def expected_modules() -> Iterator[str]:
    for folder, package in ((ROOT / "ws_responses", "ws_responses"), (ROOT / "adapters", "ws_responses/adapters")):
        for path in folder.rglob("*.py"):  # does not follow the link, so nothing counts twice
            if not path.is_relative_to(ROOT / "ws_responses" / "adapters"):
                yield f"{package}/{path.relative_to(folder).as_posix()}"


def test_wheel_holds_every_module_of_the_checkout_and_the_typing_mark(wheel: Path) -> None:
    assert names_in_wheel(wheel) == {*expected_modules(), "ws_responses/py.typed", "ws_responses/bench/scaling.json"}


def test_wheel_has_one_top_level_name(wheel: Path) -> None:
    assert {name.partition("/")[0] for name in names_in_wheel(wheel)} == {"ws_responses"}


def test_wheel_from_the_checkout_equals_the_wheel_from_the_sdist(tree: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "direct", cwd=tree)

    (direct,) = (tree / "direct").glob("*.whl")
    assert names_in_wheel(direct) == names_in_wheel(wheel)


def test_sdist_holds_sources_and_papers_and_no_tests(sdist: Path) -> None:
    names = names_in_sdist(sdist)

    assert {"ws_responses/py.typed", "adapters/__init__.py", "LICENSE", "README.md", "CHANGELOG.md"} <= names
    assert not {name for name in names if name.startswith(("tests/", "ws_responses/adapters/"))}


def test_version_of_the_metadata_is_the_version_at_the_head_of_the_changelog() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## [")]

    assert version("ws-responses") == declared
    assert headings[0].startswith(f"## [{declared}]")


def test_core_dependencies_are_the_agreed_three() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]

    assert [dependency.partition(">")[0] for dependency in dependencies] == ["anyio", "cachetools", "msgspec"]


def test_link_to_the_adapters_is_relative() -> None:
    assert (ROOT / "ws_responses" / "adapters").readlink() == Path("../adapters")
