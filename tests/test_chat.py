"""The chat, spoken to by lines as from a script, against a real server over real sockets."""

import io
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.from_thread import run as run_in_loop

from tests.conftest import require
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import ScriptedApp, steps

require("websockets")
require("uvicorn")

from websockets.asyncio.server import ServerConnection, serve  # noqa: E402

from tests.adapters.proxy_servers import running  # noqa: E402
from ws_responses.chat.command import socket_url  # noqa: E402
from ws_responses.chat.conversation import Conversation  # noqa: E402
from ws_responses.chat.display import Display  # noqa: E402
from ws_responses.chat.loop import Chat  # noqa: E402

PATIENCE_S = 30.0

Step = str | Callable[[], Coroutine[Any, Any, object]]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


class Endpoint:
    """A server for chats.

    Attributes:
        app: What answers.
        middleware: Its sockets.
        url: Its base URL.
    """

    def __init__(self, app: ScriptedApp, middleware: ResponsesWebSocketMiddleware, url: str) -> None:
        self.app = app
        self.middleware = middleware
        self.url = url

    async def hang_up(self) -> None:
        """End all connections, as a proxy in between may do."""
        for tenant in {connection.tenant for connection in self.middleware.registry.connections}:
            self.middleware.disconnect(tenant, "bye")
        with anyio.fail_after(PATIENCE_S):
            while self.middleware.connections:
                await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def endpoint(**options: Any) -> AsyncIterator[Endpoint]:
    """Serve a scripted app."""
    app = ScriptedApp(listen=True, auth=options.pop("auth", None), timeout=PATIENCE_S)
    middleware = ResponsesWebSocketMiddleware(app, **options)
    async with running(middleware) as url:
        yield Endpoint(app, middleware, url)


@pytest.fixture
async def served() -> AsyncIterator[Endpoint]:
    async with endpoint() as made:
        yield made


class Talk:
    """A chat that is over.

    Attributes:
        out: The answers.
        err: All else.
        code: Its exit code.
    """

    def __init__(self, out: str, err: str, code: int) -> None:
        self.out = out
        self.err = err
        self.code = code


async def talk(
    url: str,
    *lines: Step,
    fields: Mapping[str, Any] | None = None,
    interactive: bool = False,
    silence_s: float = PATIENCE_S,
) -> Talk:
    """Say these lines, in a thread as the chat blocks; functions among them are run here when their time has come.

    The chat shows a key, so that the server knows its stored chains on a new socket.
    """
    waiting = list(lines)

    def read_line(prompt: str) -> str | None:
        while waiting:
            line = waiting.pop(0)
            if isinstance(line, str):
                return line + "\n"
            run_in_loop(line)
        return None

    out, err = io.StringIO(), io.StringIO()
    display = Display(out, err)
    conversation = Conversation(socket_url(url), display, fields=fields or {}, api_key="key-1", silence_s=silence_s)
    chat = Chat(conversation, display, read_line, interactive=interactive)
    with anyio.fail_after(PATIENCE_S):
        code = await anyio.to_thread.run_sync(chat.run)
    assert "key-1" not in out.getvalue() + err.getvalue()
    return Talk(out.getvalue(), err.getvalue(), code)


async def test_lines_are_turns_of_one_chain_and_answers_alone_are_on_the_output(served: Endpoint) -> None:
    """Without this a script could not use what it reads, and each line would be a conversation of its own."""
    served.app.script([steps.reasoning("hm"), steps.text("Hello there.")], [steps.text("Again.", deltas=3)])
    said = await talk(served.url, "hi", "more", fields={"model": "m", "instructions": "Be short."})

    assert (said.code, said.out) == (0, "Hello there.\nAgain.\n")
    assert "hm" in said.err
    first, second = served.app.requests
    assert (first.body["model"], first.body["instructions"]) == ("m", "Be short.")
    assert [item.get("role") or item["type"] for item in second.input] == ["user", "reasoning", "assistant", "user"]
    assert first.header(b"authorization") == b"Bearer key-1"


async def test_each_turn_says_what_it_has_cost(served: Endpoint) -> None:
    """Without this nobody would see what a warm chain saves."""
    usage = {"input_tokens": 12, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 5, "total_tokens": 17}
    served.app.script([steps.set_field("response.usage", usage, event="response.completed"), steps.text("hi")])
    served.app.script([steps.set_field("response.usage", None, event="response.completed"), steps.text("hi")])
    said = await talk(served.url, "hi", "more")

    assert "s in all; 12 tokens in (8 cached), 5 out]" in said.err
    assert "s in all; tokens unknown]" in said.err
    assert said.err.count("[first event ") == 2


async def test_new_begins_a_new_conversation_and_quit_ends(served: Endpoint) -> None:
    """Without this the only way out of a conversation would be out of the program."""
    said = await talk(served.url, "one", "/new", "", "two", "/help", "/quit", "never")

    assert said.code == 0
    assert [[item["content"] for item in request.input] for request in served.app.requests] == [["one"], ["two"]]
    assert "/quit or Ctrl-D ends" in said.err


async def test_calls_are_shown_and_their_output_is_typed(served: Endpoint) -> None:
    """Without this a model with tools could not be tried at all."""
    calls = [steps.tool_call("look", {"at": 1}, "call_1"), steps.tool_call("edit", "x", "call_2", "custom")]
    served.app.script(calls, [steps.text("Seen.")])
    said = await talk(served.url, "hi", "it is red", "done")

    assert (said.code, said.out) == (0, "Seen.\n")
    assert '[function_call] look({"at": 1})' in said.err
    outputs = [(item["type"], item["call_id"], item["output"]) for item in served.app.requests[1].input[-2:]]
    assert outputs == [
        ("function_call_output", "call_1", "it is red"),
        ("custom_tool_call_output", "call_2", "done"),
    ]


@pytest.mark.parametrize(("line", "approved"), [("yes", True), ("no", False), ("", False)])
async def test_an_approval_is_given_by_yes_only(served: Endpoint, line: str, approved: bool) -> None:
    """Without this an empty line could let a server run something."""
    request = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "rm", "server_label": "s", "arguments": "{}"}
    served.app.script([steps.item(request)], [steps.text("Done.")])
    await talk(served.url, "hi", line)

    answer = served.app.requests[1].input[-1]
    assert answer == {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approved}


@pytest.mark.parametrize("lines", [["/new"], ["it is red", "/new"]])
async def test_calls_that_stay_open_end_the_conversation(served: Endpoint, lines: list[str]) -> None:
    """Without this every further line would be refused: the model waits for its tools."""
    served.app.script(
        [steps.tool_call("look", {}, "call_1"), steps.tool_call("look", {}, "call_2")], [steps.text("New.")]
    )
    said = await talk(served.url, "hi", *lines, "again")

    assert said.out == "New.\n"
    assert "a new conversation begins" in said.err
    assert [item["content"] for item in served.app.requests[-1].input] == ["again"]


async def test_a_call_that_no_line_can_answer_ends_the_conversation(served: Endpoint) -> None:
    """Without this the answer would have a shape that the server refuses."""
    call = {"type": "computer_call", "id": "cu_1", "call_id": "c", "action": {"type": "wait"}, "status": "completed"}
    served.app.script([steps.item(call)], [steps.text("New.")])
    said = await talk(served.url, "hi", "again")

    assert "a computer_call cannot be answered by a line of text" in said.err
    assert said.out == "New.\n"


async def test_errors_are_told_by_message_and_code_and_a_script_sees_them(served: Endpoint) -> None:
    """Without this a script would take silence for an answer."""
    limited = [steps.status(429, headers=[(b"retry-after", b"7")])]
    served.app.script(limited, [steps.text("a", finish=False), steps.fail()], [steps.text("Fine.")])
    said = await talk(served.url, "one", "two", "three")

    assert said.code == 1
    assert "status 429); try again in 7 s" in said.err
    assert "error: The model failed. (server_error)" in said.err
    assert len(served.app.requests) == 3


async def test_a_person_has_seen_the_errors(served: Endpoint) -> None:
    """Without this each chat in which something went wrong would end as a failed command."""
    served.app.script([steps.status(429)])

    assert (await talk(served.url, "one", interactive=True)).code == 0


async def test_an_answer_that_comes_whole_is_shown(served: Endpoint) -> None:
    """Without this a server that does not stream would seem to say nothing."""
    served.app.script([steps.drop_event("response.output_text.delta"), steps.text("Whole.")])

    assert (await talk(served.url, "hi")).out == "Whole.\n"


async def test_an_answer_that_is_cut_off_says_why(served: Endpoint) -> None:
    """Without this half an answer would look like a whole one."""
    served.app.script([steps.text("Half"), steps.incomplete("max_output_tokens")])
    said = await talk(served.url, "hi")

    assert (said.code, said.out) == (0, "Half\n")
    assert "[cut off: max_output_tokens]" in said.err


async def test_a_socket_that_is_gone_is_opened_anew_and_a_stored_chain_goes_on(served: Endpoint) -> None:
    """Without this each restart of a proxy in between would cost the conversation."""
    said = await talk(served.url, "one", served.hang_up, "two")

    assert said.code == 0
    assert "a new one is opened" in said.err
    assert [item["content"] for item in served.app.requests[1].input if item.get("role") == "user"] == ["one", "two"]


async def test_a_chain_that_the_server_has_forgotten_begins_anew_and_says_so() -> None:
    """Without this every further line would be refused for the same reason."""
    async with endpoint(store=None) as served:
        said = await talk(served.url, "one", served.hang_up, "two", "three")

    assert said.code == 0
    assert "no longer knows this conversation: a new one begins" in said.err
    inputs = [
        [item["content"] for item in request.input if item.get("role") == "user"] for request in served.app.requests
    ]
    assert inputs == [["one"], ["two"], ["two", "three"]]


async def test_outputs_for_a_forgotten_chain_are_not_sent_to_a_new_one() -> None:
    """Without this the server would be told of calls that it knows nothing of."""
    async with endpoint(store=None) as served:
        served.app.script([steps.tool_call("look", {}, "call_1")], [steps.text("New.")])
        said = await talk(served.url, "one", served.hang_up, "it is red", "two")

    assert said.out == "New.\n"
    assert "say something to begin a new one" in said.err
    assert [item["content"] for item in served.app.requests[-1].input] == ["two"]


@asynccontextmanager
async def sockets(*answers: Sequence[Mapping[str, Any]]) -> AsyncIterator[tuple[str, list[Any]]]:
    """A server whose n-th connection answers its first frame by the n-th of these; give its URL, and the frames."""
    frames: list[Any] = []
    waiting = list(answers)

    async def serve_one(ws: ServerConnection) -> None:
        events = waiting.pop(0)
        async for frame in ws:
            frames.append(json.loads(frame))
            for event in events:
                await ws.send(json.dumps(event))

    async with serve(serve_one, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/v1", frames


async def test_a_connection_that_is_too_old_is_replaced_without_a_loss() -> None:
    """Without this a long conversation would lose a line each hour."""
    error = {"code": "websocket_connection_limit_reached", "message": "Too old."}
    completed = {"type": "response.completed", "response": {"id": "resp_1", "output": []}}
    async with sockets([{"type": "error", "status": 400, "error": error}], [completed]) as (url, frames):
        said = await talk(url, "one")

    assert said.code == 0
    assert "once more on a new one" in said.err
    assert len(frames) == 2
    assert frames[0] == frames[1]


async def test_events_of_an_unknown_kind_are_passed_over() -> None:
    """Without this a server with extensions of its own could not be talked to."""
    delta = {"type": "response.output_text.delta", "delta": "hi"}
    unknown: list[dict[str, Any]] = [
        {"type": "ws_responses:keepalive"},
        {"type": "codex.rate_limits", "x": 1},
        {"no": "type"},
    ]
    completed = {"type": "response.completed", "response": {"id": "resp_1"}}
    async with sockets([*unknown, delta, completed]) as (url, _):
        said = await talk(url, "one")

    assert (said.code, said.out) == (0, "hi\n")


async def test_a_server_that_says_nothing_is_given_up() -> None:
    """Without this a script would hang for ever."""
    async with sockets([]) as (url, _):
        said = await talk(url, "one", silence_s=0.05)

    assert said.code == 1
    assert "nothing came for 0.05 s" in said.err


async def test_a_connection_that_breaks_off_within_a_turn_is_told_and_not_tried_again(served: Endpoint) -> None:
    """Without this a turn could be paid for twice."""
    served.app.script([steps.text("Half", finish=False), steps.call(served.hang_up)], [steps.text("Whole.")])
    said = await talk(served.url, "one", "two")

    assert said.code == 1
    assert said.out == "Half\nWhole.\n"
    assert len(served.app.requests) == 2


async def test_who_is_refused_is_told_why() -> None:
    """Without this a wrong key would be a traceback of the library below."""
    async with endpoint(auth="key-2") as served:
        said = await talk(served.url, "hi")

    assert said.code == 1
    assert said.err == "error: the server refused the connection: Incorrect API key provided. (status 401)\n"


async def test_a_server_that_is_not_there_is_told() -> None:
    """Without this a wrong port would be a traceback."""
    said = await talk("http://127.0.0.1:9/v1", "hi")

    assert said.code == 1
    assert said.err.startswith("error: cannot connect to ws://127.0.0.1:9/v1/responses: ")


# -- what is shown ---------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_not_ruled_by_what_a_model_says() -> None:
    """Without this an answer could move the cursor, set the title or type for its reader."""
    out, err = Terminal(), Terminal()
    display = Display(out, err)
    display.text("a\x1b[2J\x9b2Jb\x07\tc\n")
    display.reasoning("x\x1b]0;title\x07y")
    display.error("z\x1b[31m")

    assert out.getvalue() == "a[2J2Jb\tc\n\n"
    assert err.getvalue() == "\x1b[2mx]0;titley\x1b[0m\nerror: z[31m\n"


def test_a_script_gets_what_was_said_to_the_byte() -> None:
    """Without this an answer that is saved would differ from what the model said."""
    out = io.StringIO()
    Display(out, io.StringIO()).text("a\x1b[2Jb")

    assert out.getvalue() == "a\x1b[2Jb"


def test_thoughts_and_answers_have_lines_of_their_own() -> None:
    """Without this nobody could tell at a terminal where the answer begins."""
    out, err = Terminal(), Terminal()
    display = Display(out, err)
    display.reasoning("think")
    display.text("say")
    display.note("[done]")

    assert out.getvalue() == "say\n"
    assert err.getvalue() == "\x1b[2mthink\x1b[0m\n\x1b[2m[done]\x1b[0m\n"
