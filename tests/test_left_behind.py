"""A run of the tests that leaves files in the working tree says so, and fails where it is the only one at work there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require
from tests.left_behind import REQUIRE_ALL
from tests.servers.process import ROOT

require("git")

LITTERS = """
import pathlib

def test_litters():
    pathlib.Path("log").mkdir()
    pathlib.Path("log/app.log").write_text("x")
"""
LOOKS = "def test_looks():\n    pass\n"


def run_in(folder: Path, test: str, *, clone: bool = True, in_ci: bool = True) -> "subprocess.CompletedProcess[str]":
    """Run one test in a folder that may be a clone, in which somebody has begun something."""
    (folder / "test_it.py").write_text(test)
    (folder / ".gitignore").write_text("__pycache__/\n")
    if clone:
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    environment = {name: value for name, value in os.environ.items() if name != REQUIRE_ALL}
    if in_ci:
        environment[REQUIRE_ALL] = "1"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.left_behind", "-p", "no:cacheprovider", "--rootdir=.", "."],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_in_ci_it_fails_and_names_what_is_left(tmp_path: Path) -> None:
    """Else a tool that writes where it runs is noticed by the next person who commits everything."""
    done = run_in(tmp_path, LITTERS)

    assert (done.returncode, "?? log/" in done.stdout) == (1, True), done.stdout
    assert "test_it.py" not in done.stdout, "that was there before"


def test_elsewhere_it_is_said_and_no_failure(tmp_path: Path) -> None:
    """A person may have written the new file while the tests ran."""
    done = run_in(tmp_path, LITTERS, in_ci=False)

    assert (done.returncode, "?? log/" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize(("test", "clone"), [(LOOKS, True), (LITTERS, False)], ids=["nothing is left", "no clone"])
def test_without_a_reason_nothing_is_said(test: str, clone: bool, tmp_path: Path) -> None:
    """A run from an sdist has no git to ask, and most runs leave nothing."""
    done = run_in(tmp_path, test, clone=clone)

    assert (done.returncode, "working tree" in done.stdout) == (0, False), done.stdout
