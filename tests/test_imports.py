"""Importing the package brings in nothing that the user did not ask for. (How long it takes: `test_installed.py`.)"""

import json
import subprocess
import sys
from pathlib import Path

OPTIONAL = {"cerebras", "fastapi", "hypothesis", "openai", "starlette", "tiktoken", "uvicorn"}


def imported(tmp_path: Path) -> set[str]:
    """The top-level names that a fresh interpreter has imported with the package."""
    code = "import json, sys, ws_responses; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    # -I: neither the working directory nor the environment decides what is imported; the installed package is.
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, timeout=30
    )
    return set(json.loads(done.stdout))


def test_import_loads_no_optional_package(tmp_path: Path) -> None:
    modules = imported(tmp_path)

    assert "ws_responses" in modules
    assert modules & OPTIONAL == set()
