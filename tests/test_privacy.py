"""`store: false`: what is said in such a turn is in no store, log, metric, hook or dump of ours, however the turn ends."""

import gc
import io
import json
import logging
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from tests.rooms import Books, Post
from tests.shell import KEY, Shell, create, id_of, kinds
from tests.test_stored_or_not import RecordingStore
from ws_responses import ResponsesApp, ResponsesEngine, Safety, Verdict
from ws_responses.adapters.prometheus import PrometheusMetrics
from ws_responses.backends import Delta
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.safety import Screen
from ws_responses.testing import FakeClock, MemorySocket, ScriptedApp, settle, steps
from ws_responses.testing.backends import Fault, ScriptedBackend

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # what is looked for is the same on both

MARK = "xyzzy-marker"
OURS = ("ws_responses.",)
NOT_OURS = ("ws_responses.testing", "ws_responses.bench")


class Watch:
    """Gathers all that leaves the package but on the socket, and all that it would show of itself in a dump.

    Attributes:
        log: Everything that any logger was given, formatted as a handler does it, tracebacks included.
    """

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.log = io.StringIO()
        self._handler = logging.StreamHandler(self.log)
        self.metrics = PrometheusMetrics()
        self.facts: list[str] = []
        self.dumped: list[str] = []
        self.books = Books()
        self.store = RecordingStore()
        caplog.set_level(logging.DEBUG)

    @contextmanager
    def listening(self) -> Generator[None]:
        logging.getLogger().addHandler(self._handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(self._handler)

    def hook(self, fact: Any) -> None:
        """A hook that shows what it is told, and looks at what is alive at that moment."""
        self.metrics(fact)
        self.facts.append(repr(fact))
        self.dump()

    def dump(self) -> None:
        """Note the `repr` of all objects of ours, as a debugger or a reporter of crashes shows the variables of a frame."""
        for each in all_objects():
            if MARK in repr(each):
                self.dumped.append(f"{type(each).__module__}.{type(each).__qualname__}")

    @property
    def options(self) -> dict[str, Any]:
        """For the middleware."""
        return {
            "hooks": [self.hook],
            "store": self.store,
            "settlement": self.books.settlement(attempts=2, backoff_s=0.0),
        }

    def check(self) -> None:
        """Nothing of it holds the mark."""
        assert MARK not in self.log.getvalue()
        assert MARK not in "".join(self.facts)
        assert MARK not in self.metrics.render()
        records = (*self.books.records, *self.books.lost)
        assert MARK not in repr(records)
        assert MARK.encode() not in b"".join(self.store.written)
        assert sorted(set(self.dumped)) == []


def is_ours(each: object) -> bool:
    name = type(each).__module__
    return name.startswith(OURS) and not name.startswith(NOT_OURS)


def all_objects() -> Iterator[object]:
    """All objects of our classes that are alive, those that the garbage collector does not know included."""
    seen: set[int] = set()
    for each in gc.get_objects():
        for found in (each, *gc.get_referents(each)):
            if is_ours(found) and id(found) not in seen and not isinstance(found, type):
                seen.add(id(found))
                yield found


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> Generator[Watch]:
    watch = Watch(caplog)
    gc.collect()
    gc.freeze()  # what there was before is not looked at
    with watch.listening(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield watch
    gc.unfreeze()
    assert MARK not in "".join(str(warning.message) for warning in warned)
    watch.check()


def private(**fields: Any) -> dict[str, Any]:
    """A create with the mark wherever a client can say something."""
    said = {
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": MARK}]}],
        "instructions": MARK,
        "metadata": {MARK: MARK},
        "tools": [
            {"type": "function", "name": "look", "description": MARK, "parameters": {"type": "object", "title": MARK}}
        ],
        "user": MARK,
        "store": False,
    }
    return create(**{**said, **fields})


def says_the_mark(*more: steps.Step) -> list[steps.Step]:
    return [steps.reasoning(MARK), steps.text(MARK), steps.tool_call("look", {"q": MARK}, call_id="call_1"), *more]


class Raises(Exception):
    """An error of somebody else's that tells what it was given, as pydantic's do."""


def raising(*_: Any) -> Any:
    raise Raises(f"cannot handle {MARK!r}")


WRAPPED: dict[str, tuple[list[steps.Step], dict[str, Any]]] = {
    "success": (says_the_mark(), {}),
    "incomplete": (says_the_mark(steps.incomplete()), {}),
    "failed": ([steps.text(MARK), steps.fail(message=MARK)], {}),
    "an error status": (
        [steps.status(400, {"error": {"message": MARK, "code": "invalid", "type": MARK, "param": MARK}})],
        {},
    ),
    "an error page": ([steps.status(500, MARK.encode())], {}),
    "raises": ([steps.raise_error(Raises(MARK))], {}),
    "raises in the middle": ([steps.text(MARK), steps.raise_error(Raises(MARK))], {}),
    "a truncated stream": ([steps.text(MARK), steps.truncate(3)], {}),
    "no event at all": ([steps.raw_sse(b"data: " + MARK.encode() + b"\n\n")], {}),
    "no JSON": ([steps.created(), steps.raw_sse(b'data: {"type":"' + MARK.encode() + b"\n\n")], {}),
    "a large event": ([steps.text(MARK * 100)], {"limits": {"max_event_bytes": 1000}}),
    "a large request": ([], {"limits": {"max_request_bytes": 100}}),
    "no room": (says_the_mark(), {"limits": {"max_connection_bytes": 100}}),
    "prepare raises": ([], {"prepare": raising}),
    "quota raises": ([], {"quota": lambda _: 1 / 0}),
    "a classifier raises": (says_the_mark(), {"safety": Safety(raising)}),
    "a classifier that lets pass raises": (says_the_mark(), {"safety": Safety(Screen(raising, fail="open"))}),
    "blocked": (says_the_mark(), {"safety": Safety(lambda *_: Verdict(action="block", categories=("category",)))}),
    "judged": (
        says_the_mark(),
        {"safety": Safety(lambda *_: Verdict(action="flag", categories=("category",)), output="windows")},
    ),
    "on close raises": (says_the_mark(), {"on_close": lambda _: 1 / 0}),
}


@pytest.mark.parametrize("case", WRAPPED)
async def test_of_a_wrapped_app(watch: Watch, case: str) -> None:
    """Each way in which a turn can go on and end."""
    script, options = WRAPPED[case]
    app = ScriptedApp()
    app.script(script)
    shell = Shell(app, **{**watch.options, **options})
    async with shell.socket(KEY) as ws:
        events = await ws.turn(private())
        if case in {"success", "judged"}:
            output = {"type": "function_call_output", "call_id": "call_1", "output": MARK}
            # What goes on from it is to be stored as little, whether it says so or not.
            events = await ws.turn(create([output], previous_response_id=id_of(events)))
            assert kinds(events)[-1] == "completed"
        watch.dump()
        await shell.clock.advance(1)
    assert (
        MARK in str(app.requests) or case in {"a large request", "prepare raises", "quota raises", "blocked"} or options
    )


@pytest.mark.parametrize("how", ["leaves", "is cut off", "is disconnected", "is too slow", "steers"])
async def test_of_a_turn_that_is_ended(watch: Watch, how: str) -> None:
    app = ScriptedApp()
    app.script([steps.text(MARK), steps.stall()])
    shell = Shell(app, {"event_timeout_s": 5.0}, steering="interrupt", **watch.options)
    async with shell.socket(KEY) as ws:
        await ws.send_json(private())
        await app.wait_requests(1)
        await settle()
        events = [await ws.receive_json() for _ in range(ws.unread)]
        watch.dump()
        if how == "leaves":
            await ws.close()
        elif how == "is cut off":
            await ws.abort()
        elif how == "is disconnected":
            (connection,) = shell.middleware.registry.connections
            shell.middleware.disconnect(connection.tenant)
        elif how == "steers":
            steer = {"type": "response.steer", "response_id": events[0]["response"]["id"], "input": MARK}
            await ws.send_json(steer)
            await ws.send_json({**steer, "input": {"type": MARK}})
            await settle()
            watch.dump()
        await shell.clock.advance(10)


FRAMES: dict[str, Any] = {
    "no JSON": '{"type": "response.create", "input": "' + MARK,
    "no object": json.dumps([MARK]),
    "another type": {"type": MARK},
    "no type": {"input": MARK},
    "a wrong lane": create(MARK, stream_id=[MARK]),
    "a wrong model": create(MARK, model={MARK: MARK}),
    "a wrong input": create({MARK: MARK}, store=False),
    "a wrong item": create([MARK, 5, {"type": 7, "x": MARK}], store=False),
    "a lone surrogate": '{"type":"response.create","model":"m","store":false,"input":"' + MARK + '\\ud800"}',
    "nested too deeply": '{"type":"response.create","input":' + "[" * 100_000 + f'"{MARK}"' + "]" * 100_000 + "}",
    "an unknown call": private(input=[{"type": "function_call_output", "call_id": MARK, "output": MARK}]),
    "in the background": private(background=True),
    "a warm-up": private(generate=False),
}


@pytest.mark.parametrize("case", FRAMES)
async def test_of_a_frame_that_is_refused(watch: Watch, case: str) -> None:
    """Errors of decoders like to quote what they could not read."""
    frame = FRAMES[case]
    shell = Shell(ScriptedApp(), {"max_queued_creates": 1}, **watch.options)
    async with shell.socket(KEY) as ws:
        await ws.send_text(frame if isinstance(frame, str) else json.dumps(frame))
        await settle()
        watch.dump()


async def test_of_creates_that_wait_and_that_are_too_many(watch: Watch) -> None:
    app, go = ScriptedApp(), anyio.Event()
    app.script([steps.wait_for(go)])
    shell = Shell(app, {"max_queued_creates": 1}, **watch.options)
    async with shell.socket(KEY) as ws:
        for _ in range(4):
            await ws.send_json(private())
        await settle()
        watch.dump()
        go.set()
        for _ in range(2):
            await ws.collect()


@pytest.mark.parametrize("how", ["raises", "raises for good"])
async def test_of_a_settlement_that_fails(watch: Watch, how: str) -> None:
    """Whose record tells no content, and whose errors are its own."""
    shell = Shell(ScriptedApp(), **watch.options)
    watch.books.fault = lambda record: (
        Raises(MARK) if how == "raises for good" or record.turn_id not in watch.books.tries[1:] else None
    )
    async with shell.socket(KEY) as ws:
        await ws.turn(private())
        await shell.clock.advance(100)
    assert len(watch.books.tries) >= 1


@pytest.mark.parametrize("case", ["success", *Fault])
async def test_of_the_engine(watch: Watch, case: Any) -> None:
    """Whatever the backend does."""
    backend = ScriptedBackend()
    if case == "success":
        backend.will_answer([Delta(reasoning=MARK), Delta(text=MARK), Delta(finish="stop")])
    else:
        backend.will_fail(case, after=[Delta(text=MARK)] if case.in_stream else ())
    clock = FakeClock()
    app = ResponsesApp(
        ResponsesEngine(backend, renderer=ChatRenderer()),
        authorize="open",
        tenant_key=b"k" * 32,
        clock=clock,
        **watch.options,
    )
    async with MemorySocket(app, headers=[KEY]) as ws:
        await ws.send_json(private())
        await settle()
        watch.dump()
        await clock.advance(1000)


async def test_of_a_post(watch: Watch) -> None:
    """Over HTTP as over the socket."""
    app = ScriptedApp()
    app.script(says_the_mark())
    shell = Shell(app, **watch.options)
    async with Post(shell.middleware, {**private(), "stream": True}) as post:
        await post.answered()
    assert MARK in post.body.decode()
    async with Post(shell.middleware, f'{{"input": "{MARK}'.encode()) as post:
        await post.answered()
