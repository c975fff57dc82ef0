"""Importing the package is cheap, and brings in nothing that the user did not ask for."""

import json
import subprocess
import sys
from pathlib import Path

OPTIONAL = {"cerebras", "fastapi", "hypothesis", "openai", "starlette", "tiktoken", "uvicorn"}

# Printed by a fresh interpreter: CPU seconds for the dependencies (and the event loop), for us on top, and all modules.
PROBE = """
import json, sys, time
begin = time.process_time()
import anyio, asyncio, cachetools, msgspec
between = time.process_time()
import ws_responses
end = time.process_time()
print(json.dumps([between - begin, end - between, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def probe(tmp_path: Path) -> tuple[float, float, set[str]]:
    # -I: neither the working directory nor the environment decides what is imported; the installed package is.
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROBE], check=True, capture_output=True, text=True, cwd=tmp_path, timeout=30
    )
    dependencies_s, ours_s, modules = json.loads(done.stdout)
    return dependencies_s, ours_s, set(modules)


def test_import_loads_no_optional_package(tmp_path: Path) -> None:
    _, _, modules = probe(tmp_path)

    assert "ws_responses" in modules
    assert modules & OPTIONAL == set()


def test_import_is_cheap(tmp_path: Path) -> None:
    """The best of five, as a ratio: taking twice as long to import as all that it builds on is too much."""
    best_dependencies_s, best_ours_s = (
        min(column) for column in zip(*(probe(tmp_path)[:2] for _ in range(5)), strict=True)
    )

    assert best_ours_s < 2 * best_dependencies_s
