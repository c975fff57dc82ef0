"""Images and files: what passes as it is, what is fetched once, and what is refused by its path."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from tests.engine.schema import assert_turn
from tests.engine.service import LetterRenderer, ScriptedService, last, socket_to
from ws_responses.app import ResponsesApp
from ws_responses.engine import resolving
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.engine.resolving import Attachment
from ws_responses.errors import InvalidRequest
from ws_responses.testing import MemorySocket

DATA = "data:image/png;base64,AAAA"
HTTPS = "https://example.org/a.png"


def user(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": "Look."}, {"role": "user", "content": list(parts)}]


def image(**members: Any) -> dict[str, Any]:
    return {"type": "input_image", "detail": "auto", **members}


def file(**members: Any) -> dict[str, Any]:
    return {"type": "input_file", **members}


class Shelf:
    """A resolver that knows all ids and URLs, but one."""

    def __init__(self) -> None:
        self.asked: list[tuple[Attachment, Any]] = []
        self.gives: dict[str, Any] = {"image_url": DATA, "file_data": "AAAA"}
        self.closed = False

    async def resolve(self, kind: Attachment, part: Mapping[str, Any]) -> Mapping[str, Any]:
        name = part.get("file_id") or part.get("image_url") or part.get("file_url")
        self.asked.append((kind, name))
        await anyio.lowlevel.checkpoint()
        if name == "unknown":
            raise InvalidRequest("There is no such file.", code="file_not_found")
        return {"type": part["type"], **self.gives}

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("part", "passed"),
    [
        (image(image_url=DATA), {"type": "image_url", "image_url": {"url": DATA, "detail": "auto"}}),
        (image(image_url=HTTPS), {"type": "image_url", "image_url": {"url": HTTPS, "detail": "auto"}}),
        (
            file(file_data="AAAA", filename="a.pdf"),
            {"type": "file", "file": {"file_data": "AAAA", "filename": "a.pdf"}},
        ),
    ],
)
async def test_what_a_backend_takes_passes_as_it_is(part: Any, passed: Any) -> None:
    service = ScriptedService("chat", images=True, files=True)
    async with socket_to(ResponsesEngine(service)) as ws:
        assert_turn(await ws.turn({"model": "m", "input": user(part)}))
    assert service.messages()[-1]["content"] == [passed]


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (image(image_url="http://example.org/a.png"), ".image_url"),
        (image(image_url="file:///etc/passwd"), ".image_url"),
        (image(file_id="file-1"), ".file_id"),
        (image(), ""),
        (image(image_url=None), ""),
        (image(image_url={"url": DATA}), ""),
        (file(file_id="file-1"), ".file_id"),
        (file(file_url=HTTPS), ".file_url"),
        (file(), ""),
    ],
)
async def test_without_a_resolver_nothing_is_fetched(part: Any, field: str) -> None:
    service = ScriptedService("chat", images=True, files=True)
    async with socket_to(ResponsesEngine(service)) as ws:
        events = await ws.turn({"model": "m", "input": user(part)})
        assert (events[0]["status"], events[0]["error"]["param"]) == (400, f"input[1].content[0]{field}")
        assert_turn(await ws.turn({"model": "m", "input": "x"}))


@pytest.mark.parametrize("part", [image(image_url=DATA), file(file_data="AAAA")])
@pytest.mark.parametrize("kinds", [("chat",), ("tokens",)])
async def test_a_model_without_eyes_is_shown_nothing(part: Any, kinds: Any) -> None:
    service = ScriptedService(*kinds, images=kinds == ("tokens",), files=kinds == ("tokens",))
    renderer = LetterRenderer() if kinds == ("tokens",) else None
    async with socket_to(ResponsesEngine(service, renderer=renderer, resolver=Shelf())) as ws:
        events = await ws.turn({"model": "m", "input": user(part)})
    assert events[0]["error"]["message"].startswith("Model does not support ")
    assert events[0]["error"]["param"] == "input[1].content[0]"


@pytest.mark.parametrize(
    "part", [image(file_id="file-1"), image(image_url=HTTPS), file(file_id="file-1"), file(file_url=HTTPS)]
)
async def test_each_is_resolved_once_in_a_chain(part: Any) -> None:
    """A hop for each image and turn is what keeping them with the response is to save."""
    service, shelf = ScriptedService("chat", images=True, files=True), Shelf()
    async with socket_to(ResponsesEngine(service, resolver=shelf)) as ws:
        parent = last(await ws.turn({"model": "m", "input": user(part)}))["id"]
        parent = last(await ws.turn({"model": "m", "input": "and?", "previous_response_id": parent}))["id"]
        # Other instructions: all is rendered anew, and nothing asked for again.
        await ws.turn({"model": "m", "input": "and?", "instructions": "x", "previous_response_id": parent})
    assert len(shelf.asked) == 1
    for index in range(3):
        pictures = [message for message in service.messages(index) if isinstance(message["content"], list)]
        kind = "image_url" if part["type"] == "input_image" else "file"
        assert [one["type"] for message in pictures for one in message["content"]] == [kind]


async def test_a_chain_that_comes_from_a_store_is_resolved_again() -> None:
    """A store has the items as they came; the backend must not be given what only we could fetch."""
    service, shelf = ScriptedService("chat", images=True), Shelf()
    app = ResponsesApp(ResponsesEngine(service, resolver=shelf), authorize="open")
    key = [(b"authorization", b"Bearer k")]
    async with MemorySocket(app, headers=key) as ws:
        parent = last(await ws.turn({"model": "m", "input": user(image(file_id="file-1"))}))["id"]
    async with MemorySocket(app, headers=key) as ws:
        assert_turn(await ws.turn({"model": "m", "input": "and?", "previous_response_id": parent}))
    assert service.messages()[1]["content"] == [{"type": "image_url", "image_url": {"url": DATA}}]
    assert len(shelf.asked) == 2


async def test_what_cannot_be_had_is_told_with_its_path() -> None:
    service, shelf = ScriptedService("chat", images=True), Shelf()
    async with socket_to(ResponsesEngine(service, resolver=shelf)) as ws:
        events = await ws.turn({"model": "m", "input": user(image(file_id="a"), image(file_id="unknown"))})
        assert events[0]["error"]["code"] == "file_not_found"
        assert events[0]["error"]["param"] == "input[1].content[1]"
        assert_turn(await ws.turn({"model": "m", "input": "x"}))


@pytest.mark.parametrize("gives", [{}, {"image_url": "http://example.org"}, {"file_id": "file-2"}])
async def test_a_resolver_that_resolves_nothing_is_our_fault(gives: dict[str, Any]) -> None:
    service, shelf = ScriptedService("chat", images=True), Shelf()
    shelf.gives = gives
    async with socket_to(ResponsesEngine(service, resolver=shelf)) as ws:
        events = await ws.turn({"model": "m", "input": user(image(file_id="a"))})
    assert (events[0]["status"], events[0]["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize(("count", "refused"), [(3, False), (4, False), (5, True)])
async def test_there_are_bounds(count: int, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "MAX_ATTACHMENTS", 4)
    service, shelf = ScriptedService("chat", images=True), Shelf()
    async with socket_to(ResponsesEngine(service, resolver=shelf)) as ws:
        parts = [image(file_id=f"file-{number}") for number in range(count)]
        events = await ws.turn({"model": "m", "input": user(*parts)})
    assert (events[0]["type"] == "error") == refused
    assert len(shelf.asked) == (0 if refused else count)


async def test_what_they_become_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "MAX_RESOLVED_BYTES", 1000)
    service, shelf = ScriptedService("chat", images=True), Shelf()
    shelf.gives = {"image_url": DATA + "A" * 1000}
    async with socket_to(ResponsesEngine(service, resolver=shelf)) as ws:
        events = await ws.turn({"model": "m", "input": user(image(file_id="a"))})
    assert events[0]["error"]["param"] == "input"


async def test_a_type_spelled_with_escapes_is_found() -> None:
    service = ScriptedService("chat", images=True)
    frame = (
        '{"type":"response.create","model":"m","input":[{"role":"user","content":'
        '[{"type":"input\\u005fimage","file_id":"a"}]}]}'
    )
    async with socket_to(ResponsesEngine(service)) as ws:
        await ws.send_text(frame)
        events = await ws.collect()
    assert events[0]["error"]["param"] == "input[0].content[0].file_id"


async def test_closing_the_engine_closes_the_resolver() -> None:
    shelf = Shelf()
    await ResponsesEngine(ScriptedService(), resolver=shelf).aclose()
    assert shelf.closed
