"""The environments of packages whose dependencies clash with ours; `setup.sh` makes them."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import require

FOLDER: Final = Path(__file__).parent
REQUIREMENTS: Final = FOLDER / "requirements"

_PIN: Final = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def python_of(name: str) -> str:
    """Return the interpreter of an environment; skip where the system has none that it could use; skip or fail where it is not set up."""
    python = FOLDER / ".venvs" / name / "bin" / "python"
    without = FOLDER / ".venvs" / f"{name}.without"
    if without.exists():
        pytest.skip(without.read_text(encoding="utf-8").strip(), allow_module_level=True)
    require(f"{name} (tests/host_apps/setup.sh installs it)", present=python.exists())
    return str(python)


def version_of(name: str, package: str) -> str:
    """Return the version of a package that an environment has."""
    pins = dict(_PIN.findall((REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")))
    return str(pins[package])
