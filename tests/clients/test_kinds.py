"""The openai packages for Python and Node, over HTTP and over a socket, with all kinds of answers: four times the same events."""
# ruff: noqa: E402 - the package is optional

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conftest import require
from tests.engine.schema import assert_turn

from .programs import Script, installed
from .server import Server

require("openai")

from openai import APIStatusError, AsyncOpenAI

pytestmark = pytest.mark.clients

Event = dict[str, Any]

FIND: Event = {"type": "function", "name": "find", "parameters": {"type": "object"}}
PATCH: Event = {"type": "custom", "name": "patch", "format": {"type": "text"}}
FILES: Event = {"type": "namespace", "name": "files", "description": "Files.", "tools": [{**FIND, "name": "read"}]}
SCHEMA: Event = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": False}


def call(name: str, arguments: str) -> Event:
    return {"name": name, "arguments": arguments}


def asking(said: Event, **members: Any) -> Event:
    return {"model": "m", "input": json.dumps(said), "store": False, **members}


KINDS: dict[str, Event] = {
    "text": asking({"text": 'Hello \u2028 \U0001f642 "there"\n'}),
    "reasoning": asking({"reasoning": "I think.", "text": "So."}, reasoning={"effort": "low"}),
    "calls": asking({"text": "I look.", "calls": [call("find", '{"a":1}'), call("find", "")]}, tools=[FIND]),
    "custom": asking({"calls": [call("patch", '{"input":"*** Begin"}')]}, tools=[PATCH]),
    "namespace": asking({"calls": [call("files__read", "{}")]}, tools=[FILES]),
    "forced": asking({"calls": [call("find", "{}")]}, tools=[FIND], tool_choice={"type": "function", "name": "find"}),
    "one": asking({"calls": [call("find", "{}"), call("find", "{}")]}, tools=[FIND], parallel_tool_calls=False),
    "refusal": asking({"refusal": "I will not."}),
    "format": asking({"text": '{"a":1}'}, text={"format": SCHEMA, "verbosity": "low"}),
    "length": asking({"text": "one two three four"}, max_output_tokens=2),
    "cut_call": asking({"calls": [call("find", '{"a":')], "finish": "length"}, tools=[FIND]),
    "filter": asking({"text": "so far", "finish": "content_filter"}),
    "nothing": asking({}),
    "metadata": asking({"text": "Hi"}, metadata={"a": "b"}, user="u", temperature=0.5, prompt_cache_key="k"),
}

ERRORS: dict[str, tuple[Event, int, str, str | None]] = {
    "model": ({"model": "x", "input": "hi"}, 400, "model_not_found", "model"),
    "image": (
        {"model": "m", "input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        400,
        "unsupported_input",
        "input[0].content[0].file_id",
    ),
    "hosted": (
        {"model": "m", "input": "hi", "tools": [{"type": "web_search"}]},
        400,
        "unsupported_tool",
        "tools[0].type",
    ),
    "parent": (
        {"model": "m", "input": "hi", "previous_response_id": "resp_0"},
        400,
        "previous_response_not_found",
        "previous_response_id",
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server("tests.clients.kinds_app:app", tmp_path_factory.mktemp("server")) as server:
        yield server


def plain(events: list[Event]) -> list[Event]:
    """Take away what is new each time: numbers, times, random ids."""
    events = [{name: value for name, value in event.items() if name != "sequence_number"} for event in events]
    text = json.dumps(events, sort_keys=True)
    for number, own in enumerate(dict.fromkeys(_ids(events))):
        text = text.replace(own, f"id-{number}")
    return [_timeless(event) for event in json.loads(text)]


def _ids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (value[name] for name in ("id", "item_id", "call_id") if isinstance(value.get(name), str))
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _ids(entry)


def _timeless(event: Event) -> Event:
    response = {name: one for name, one in event.get("response", {}).items() if not name.endswith("_at")}
    return {**event, "response": response}


async def python_http(client: AsyncOpenAI, body: Event) -> list[Event]:
    try:
        stream = await client.responses.create(**body, stream=True)
    except APIStatusError as error:
        return [{"type": "error", "status": error.status_code, "error": error.body}]
    return [event.model_dump(exclude_unset=True, by_alias=True) async for event in stream]


async def python_socket(client: AsyncOpenAI, body: Event) -> list[Event]:
    events: list[Event] = []
    async with client.responses.connect() as connection:
        create: Any = {"type": "response.create", **body}
        await connection.send(create)
        with anyio.fail_after(20):
            async for event in connection:
                events.append(event.model_dump(exclude_unset=True, by_alias=True))
                if event.type in {"response.completed", "response.incomplete", "response.failed", "error"}:
                    break
    return events


def node(server: Server, bodies: list[Event], folder: Path) -> list[dict[str, list[Event]]]:
    require("node")
    require("openai for Node (tests/clients/setup.sh installs it)", present=installed("openai") and installed("ws"))
    with Script("kinds.mjs", server.base_url, json.dumps(bodies), home=folder / "home") as script:
        return list(script.lines())


async def test_all_kinds_of_answers_are_the_same_in_both_packages_both_ways(server: Server, tmp_path: Path) -> None:
    """A client may change the way, or the language, in the middle of a conversation."""
    told = node(server, list(KINDS.values()), tmp_path)
    assert len(told) == len(KINDS)
    async with AsyncOpenAI(base_url=server.base_url, api_key="k") as client:
        for (kind, body), by_node in zip(KINDS.items(), told, strict=True):
            ways = [*by_node.values(), await python_http(client, body), await python_socket(client, body)]
            assert_turn(ways[0])  # Node gives them as they came
            for events in ways:
                assert [event["sequence_number"] for event in events] == list(range(len(events)))
                assert plain(events) == plain(ways[0]), kind


async def test_errors_are_the_same_in_both_packages_both_ways(server: Server, tmp_path: Path) -> None:
    told = node(server, [body for body, *_ in ERRORS.values()], tmp_path)
    async with AsyncOpenAI(base_url=server.base_url, api_key="k") as client:
        for (body, status, code, param), by_node in zip(ERRORS.values(), told, strict=True):
            ways = [*by_node.values(), await python_http(client, body), await python_socket(client, body)]
            for (error,) in ways:
                assert (error["type"], error["status"]) == ("error", status)
                assert (error["error"]["code"], error["error"]["param"]) == (code, param)
            assert len({error["error"]["message"] for (error,) in ways}) == 1
