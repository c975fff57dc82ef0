"""What a run of the tests leaves in the working tree: nothing. For pytest; `conftest.py` takes it in.

A tool that writes where it happens to run leaves files that somebody commits by mistake, and that the next run may find.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

REQUIRE_ALL: Final = "WS_RESPONSES_REQUIRE_ALL"
_BEFORE: Final = pytest.StashKey[frozenset[str]]()
_LEFT: Final = pytest.StashKey[list[str]]()


def states(root: Path) -> frozenset[str] | None:
    """Return what git says of the files that differ from the last commit; None without git, or outside of a clone."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    told = subprocess.run(
        # Nothing is written: another git may be at work.
        [git, "--no-optional-locks", "-C", str(root), "status", "--porcelain", "-z"],
        capture_output=True,
        text=True,
        check=False,
    )
    return frozenset(filter(None, told.stdout.split("\0"))) if told.returncode == 0 else None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Look what is there before; once, not in each process of a run that has several."""
    before = None if hasattr(session.config, "workerinput") else states(session.config.rootpath)
    if before is not None:
        session.config.stash[_BEFORE] = before


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail the run where nobody else writes there (CI); anywhere else its end says what has come."""
    before = session.config.stash.get(_BEFORE, None)
    after = None if before is None else states(session.config.rootpath)
    if before is None or after is None:
        return
    session.config.stash[_LEFT] = left = sorted(after - before)
    if left and exitstatus == pytest.ExitCode.OK and os.environ.get(REQUIRE_ALL):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was left."""
    left = config.stash.get(_LEFT, [])
    if left:
        terminalreporter.section("left in the working tree", red=True)
        terminalreporter.line(
            "since the tests began (by one of them, or by you), as `git status --porcelain` names it:"
        )
        for line in left:
            terminalreporter.line(line)
