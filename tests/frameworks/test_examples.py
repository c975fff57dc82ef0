"""The examples of the frameworks, as they stand, under uvicorn."""

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import interpreter
from tests.frameworks.process import Server
from tests.frameworks.test_turns import TOOL, text_of
from tests.servers.client import response_of
from tests.servers.process import ROOT

pytestmark = pytest.mark.servers

EXAMPLES = {
    "plain": "asgi_app:app",
    "litestar": "litestar_app:app",
    "quart": "quart_app:app",
    "django": "django_app:application",
    "blacksheep": "blacksheep_app:app",
    "falcon": "falcon_app:app",
    "sanic": "sanic_app:app",
}


class Example(Server):
    """An example that runs; it has no control but what any client has."""

    def ask(self, action: str, **query: str) -> dict[str, Any]:
        """Ask for an answer over HTTP, whatever the action: it serves."""
        status, _, body = self.post({"stream": False})
        assert status == 200
        return {"bytes": len(body)}


@pytest.mark.parametrize("framework", EXAMPLES)
def test_example(framework: str, tmp_path: Path) -> None:
    """Without this a reader could copy what does not even start."""
    app = f"examples.{EXAMPLES[framework]}"
    with Example(framework, tmp_path, app=app, python=interpreter(framework)) as server:
        with server.connect() as client:
            first = client.turn(tools=[TOOL])
            output = {
                "type": "function_call_output",
                "call_id": response_of(first)["output"][-1]["call_id"],
                "output": "1",
            }
            last = client.turn(tools=[TOOL], input=[output], previous_response_id=response_of(first)["id"])
        assert text_of(last) == "This answers 3 input items, 1 of them tool outputs."
    assert not server.complaints(), server.log


@pytest.mark.parametrize("framework", EXAMPLES)
def test_example_is_short(framework: str) -> None:
    """Without this the examples would grow into apps."""
    path = ROOT / "examples" / f"{EXAMPLES[framework].partition(':')[0]}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
