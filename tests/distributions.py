"""The sdist and the wheel, built once for all tests that install them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
_SOURCES: Final = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "adapters", "ws_responses")


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a program that must end well; return what it printed."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd, env=env)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def clean_environment(**more: str) -> dict[str, str]:
    """The environment of somebody who has never seen the checkout, and has set up nothing for it."""
    foreign = ("PYTHON", "VIRTUAL_ENV", "WS_RESPONSES_", "CEREBRAS_", "OPENAI_", "CODEX_", "UVICORN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | more


def new_venv(folder: Path) -> Path:
    """Make a virtual environment without anything in it; return its Python."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that building leaves nothing in the checkout."""
    tree = tmp_path_factory.mktemp("tree")
    for name in _SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    return tree


@pytest.fixture(scope="session")
def dist(tree: Path) -> Path:
    """The sdist, and the wheel built from that sdist."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", cwd=tree)
    return tree / "dist"


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """The wheel."""
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    """The sdist."""
    (sdist,) = dist.glob("*.tar.gz")
    return sdist
