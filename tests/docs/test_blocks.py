"""Every piece of Python in the pages compiles, runs, and passes mypy as a user's own code would."""

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import pages
from .source import REPO

BLOCKS = pages.all_blocks()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the path, with the package of all blocks."""
    folder = tmp_path_factory.mktemp("pages")
    pages.write_modules(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == pages.PACKAGE]:
        del sys.modules[name]


def test_there_are_blocks() -> None:
    """Without this a change of the fences could leave nothing to test."""
    assert len({block.page for block in BLOCKS}) > 8


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.runs], ids=lambda block: block.place)
async def test_a_block_runs(block: pages.Block, folder: Path) -> None:
    """Without this a reader could copy code that fails."""
    module = importlib.import_module(f"{pages.PACKAGE}.{block.module}")

    for name, function in vars(module).items():
        if name.startswith("test_") and function.__module__ == module.__name__:
            result = function()
            if inspect.isawaitable(result):
                await result


@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.runs], ids=lambda block: block.place)
def test_a_block_that_needs_a_server_compiles(block: pages.Block) -> None:
    """Without this a reader could copy code that does not even begin."""
    compile(block.text, block.place, "exec")


@pytest.mark.timeout(300)  # with a cold cache
def test_blocks_and_examples_pass_mypy(tmp_path: Path) -> None:
    """Without this what a reader copies could fail the reader's own checks."""
    files = pages.write_modules(tmp_path)
    command = [sys.executable, "-m", "mypy", "--config-file", str(REPO / "pyproject.toml"), "--explicit-package-bases"]
    checked = [*files.values(), *sorted((REPO / "examples").glob("*.py"))]
    run = subprocess.run(
        [*command, *map(str, checked)],
        cwd=REPO,
        env={**os.environ, "MYPYPATH": f"{tmp_path}{os.pathsep}{REPO}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout
