"""The wheel, as users have it: in an environment without the checkout, and without anything that we have not asked for."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.distributions import ROOT, clean_environment, new_venv, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

USER_CODE: Final = ROOT / "tests" / "user_code.py"

# Each of these is wrong, and a type checker has to say so at its own line.
WRONG: Final = """
from ws_responses import Handshake, Limits, Principal, ResponsesWebSocketMiddleware
from ws_responses.testing import MemorySocket

async def app(scope, receive, send): ...

ResponsesWebSocketMiddleware(app, history="everything")
ResponsesWebSocketMiddleware(app, pathh="/v1/responses")
ResponsesWebSocketMiddleware(app, limits=Limits(max_lanes="four"))
Principal(id=3)
MemorySocket(app).colour
"""

IMPORT: Final = """
import json, sys, time
begin = time.process_time()
import asyncio
known = time.process_time()
import ws_responses
bare = time.process_time()
ws_responses.ResponsesWebSocketMiddleware
end = time.process_time()
ours = [name for name in sys.modules if name.partition(".")[0] == "ws_responses"]
packages = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(json.dumps([known - begin, bare - known, end - begin, len(sys.modules), len(ours), sorted(packages)]))
"""


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, and what that depends on."""
    python = new_venv(tmp_path_factory.mktemp("plain") / "venv")
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=python.parent, env=clean_environment())
    return python


@pytest.fixture
def user_code(tmp_path: Path) -> Path:
    """What a user has written, where nothing of the checkout is near."""
    file = tmp_path / "user.py"
    file.write_text(USER_CODE.read_text(encoding="utf-8"), encoding="utf-8")
    return file


def test_it_runs_outside_the_checkout(python: Path, user_code: Path) -> None:
    """Without this the wheel could lack what the checkout has."""
    path, _ = run(python, "-I", user_code, cwd=user_code.parent, env=clean_environment()).split()
    stray = subprocess.run([python, "-I", "-c", "import adapters"], check=False, capture_output=True)

    assert Path(path).is_relative_to(python.parents[1])
    assert b"ModuleNotFoundError" in stray.stderr


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_what_users_write_passes_their_type_checker(checker: str, python: Path, user_code: Path) -> None:
    """Without this a user who checks strictly could have no clean way to call us."""
    run(*_check(checker, python, user_code), cwd=user_code.parent, env=clean_environment())


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_what_users_write_wrongly_is_found_by_their_type_checker(checker: str, python: Path, tmp_path: Path) -> None:
    """Without this the checkers could take the whole package for `Any`, and be content with everything."""
    file = tmp_path / "wrong.py"
    file.write_text(WRONG, encoding="utf-8")
    said = subprocess.run(
        _check(checker, python, file),
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    lines = {int(line) for line in re.findall(r"wrong\.py:(\d+):.*error", said.stdout)}
    assert {7, 8, 9, 10, 11} <= lines, said.stdout


def test_import_is_quick(python: Path, tmp_path: Path) -> None:
    """Without this every command, worker and test of a user waits for modules that it never uses.

    Time is asserted here, and nowhere else: it is what users feel. What is asserted does not hang on the machine: the number of
    modules; and CPU time, the best of nine, beside that of asyncio alone, which every server loads: the middleware and asyncio take less
    than 100 ms together, more on a machine that needs more than 33 ms for asyncio.
    """
    runs = [json.loads(run(python, "-I", "-c", IMPORT, cwd=tmp_path, env=clean_environment())) for _ in range(9)]
    asyncio_s, bare_s, all_s = (min(column) for column in list(zip(*runs, strict=True))[:3])
    *_, modules, ours, packages = runs[0]

    assert set(packages) <= {
        "anyio",
        "cachetools",
        "idna",
        "msgspec",
        "sniffio",
        "typing_extensions",
        "ws_responses",
    } | {name for name in packages if name.startswith(("_", "org", "sitecustomize"))}
    assert ours < 140
    assert modules < 380
    assert bare_s < asyncio_s / 3
    assert all_s < 0.1 * max(1.0, asyncio_s / 0.033)


def test_an_extra_of_the_wheel_brings_its_adapter(wheel: Path, tmp_path: Path) -> None:
    """Without this `pip install ws-responses[cerebras]` could install less than the adapter imports."""
    python = new_venv(tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[cerebras]", cwd=tmp_path, env=clean_environment())
    code = (
        "from ws_responses import ResponsesEngine; from ws_responses.adapters.cerebras import CerebrasBackend; "
        "print(sorted(CerebrasBackend(api_key='csk-1').accepts.kinds)); ResponsesEngine(CerebrasBackend(api_key='csk-1'))"
    )

    assert run(python, "-I", "-c", code, cwd=tmp_path, env=clean_environment()) == "['chat', 'tokens']\n"


def _check(checker: str, python: Path, file: Path) -> list[str]:

    if checker == "mypy":
        return [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--python-executable",
            str(python),
            "--cache-dir",
            str(file.parent),
            str(file),
        ]
    (file.parent / "pyrightconfig.json").write_text(
        '{"typeCheckingMode": "strict", "reportUnusedExpression": false}', encoding="utf-8"
    )
    return [sys.executable, "-m", "pyright", "--pythonpath", str(python), "--project", str(file.parent)]
