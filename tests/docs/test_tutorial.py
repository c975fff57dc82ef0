"""The tutorial, as a reader follows it: the app under uvicorn, the client beside it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.server import Server
from tests.conftest import require

from .pages import blocks, fences
from .source import REPO

PAGE = REPO / "docs" / "tutorial" / "first-socket.md"


@pytest.mark.servers
def test_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    """Without this the first thing that a reader does could fail."""
    for package in ("fastapi", "uvicorn", "openai", "websockets"):
        require(package)
    app, client = blocks(PAGE)
    (tmp_path / "first_app.py").write_text(app.text, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    with Server("first_app:app", tmp_path, env={"PYTHONPATH": path}) as server:
        code = client.text.replace("http://127.0.0.1:8000/v1", server.base_url)
        (tmp_path / "first_client.py").write_text(code, encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "first_client.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        given = [line for line in server.output.splitlines() if line.startswith("the app is given")]

    assert code != client.text
    assert run.returncode == 0, run.stderr
    printed = run.stdout.splitlines()
    assert len(printed) == 2
    assert [line for line in printed if f"    {line}\n" not in PAGE.read_text(encoding="utf-8")] == []
    assert len(given) == 2


def test_the_client_of_the_tutorial_is_short() -> None:
    """Without this the tutorial would grow into a program."""
    (_, client) = blocks(PAGE)

    assert len(client.text.splitlines()) <= 16
    assert [language for language, *_ in fences(PAGE)] == ["python", "python"]
