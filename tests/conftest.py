"""What all tests share: the async backends, Hypothesis profiles, and `require` for tools that may be missing."""

import gc
import importlib.util
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.distributions import dist, sdist, tree, wheel
from tests.left_behind import REQUIRE_ALL, pytest_sessionfinish, pytest_sessionstart, pytest_terminal_summary

__all__ = ["dist", "pytest_sessionfinish", "pytest_sessionstart", "pytest_terminal_summary", "sdist", "tree", "wheel"]

# Examples are the same on every CI run; no deadlines, because machines differ and a slow one is no bug.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

# A shell lets what it runs in the background ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("trio", {}), id="trio"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run each async test on both backends; a test of one only overrides this fixture or parametrises it."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests out of each search for garbage: some tests ask for many, and count what is found."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo what a test's app sets up for the whole process: Litestar's own logging would show later tests more records."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)


def require(name: str, *, present: bool | None = None) -> None:
    """Go on only if a tool is there: skip with its name otherwise, or fail where everything must be there (CI).

    Args:
        name: A program on the PATH or an importable module.
        present: The answer, for tools which are found in another way.
    """
    __tracebackhide__ = True
    if present is None:
        present = shutil.which(name) is not None or _importable(name)
    if present:
        return
    if os.environ.get(REQUIRE_ALL):
        pytest.fail(f"{name} is missing, and {REQUIRE_ALL} is set", pytrace=False)
    pytest.skip(f"{name} is missing", allow_module_level=True)


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a dotted name whose parent is missing, or no module name at all
        return False
