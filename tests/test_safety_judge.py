"""Several classifiers at once: the first block wins, each has its time, nonsense is a failure, and state is carried."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.safety_room import ABOUT, Scripted, TimelessClock, blocking
from tests.state.drive import drive
from ws_responses import ConfigurationError
from ws_responses.clock import MonotonicClock
from ws_responses.safety import (
    Carried,
    ContentBlocked,
    Judge,
    Judgement,
    Piece,
    Safety,
    SafetyInput,
    SafetyState,
    SafetyUnavailable,
    Screen,
    TermClassifier,
    Verdict,
)
from ws_responses.safety.verdict import MAX_CARRIED_BYTES, MAX_FLAGS, merged
from ws_responses.testing import FakeClock, settle

ALLOW, FLAG, BLOCK = Verdict(), Verdict(action="flag", categories=("c",)), Verdict(action="block", categories=("c",))


def delta(text: str = "text", stage: Any = "input") -> SafetyInput:
    return SafetyInput(stage=stage, pieces=(Piece(text=text),), about=ABOUT)


async def judged(*classifiers: Any, text: str = "text", state: SafetyState | None = None, **options: Any) -> Judgement:
    judge = Judge(Safety(*classifiers, **options), FakeClock())
    return await judge.judge(delta(text), state or SafetyState())


def answering(verdict: Any, name: str = "c") -> Scripted:
    return Scripted(lambda _: verdict, name=name)


# -- the verdict ---------------------------------------------------------------------------------------------------------


async def test_a_block_by_one_is_a_block() -> None:
    judgement = await judged(answering(ALLOW, "a"), answering(BLOCK, "b"), answering(FLAG, "c"))
    assert (judgement.blocked, judgement.categories, judgement.unavailable) == (True, ("b:c",), False)
    assert isinstance(judgement.error(), ContentBlocked)
    assert (judgement.error().status, judgement.error().code, judgement.error().ran) == (400, "invalid_prompt", True)


async def test_a_flag_passes_and_is_carried_on() -> None:
    first = await judged(answering(FLAG, "a"), answering(Verdict(action="flag"), "b"))
    assert (first.action, first.categories, first.state.flags) == ("flag", ("a:c", "b"), ("a:c", "b"))
    second = await judged(answering(ALLOW, "a"), state=first.state)
    assert (second.action, second.categories, second.state.flags) == ("allow", (), ("a:c", "b"))


async def test_flags_are_bounded() -> None:
    names = tuple(f"n{number}" for number in range(MAX_FLAGS + 5))
    judgement = await judged(answering(Verdict(action="flag", categories=names), "a"))
    assert len(judgement.state.flags) == MAX_FLAGS


async def test_the_first_block_ends_the_others() -> None:
    """A slow service would else hold up a refusal that is certain."""
    slow, sure = answering(ALLOW, "slow"), answering(BLOCK, "sure")
    slow.gate = anyio.Event()
    judgement = await judged(slow, sure)
    assert judgement.categories == ("sure:c",)


async def test_quick_ones_come_first_and_spare_the_others() -> None:
    """What a list of terms finds need not be sent to a service that is paid by the call."""
    service = answering(ALLOW, "service")
    judgement = await judged(service, TermClassifier(["text"]))
    assert judgement.blocked
    assert service.deltas == []


async def test_a_classifier_hears_only_its_stages() -> None:
    inputs, outputs = answering(ALLOW, "i"), answering(ALLOW, "o")
    safety = Safety(Screen(inputs, stages=["input"]), Screen(outputs, stages=["output"]))
    await Judge(safety, FakeClock()).judge(delta(), SafetyState())
    assert (len(inputs.deltas), len(outputs.deltas)) == (1, 0)
    assert Safety(Screen(inputs, stages=["input"])).output == "off"


async def test_functions_are_classifiers_too() -> None:
    async def later(delta: SafetyInput, state: Carried) -> Verdict:
        return BLOCK if "later" in delta.text else ALLOW

    assert (await judged(later, text="later")).categories == ("later:c",)
    assert (await judged(later, text="sooner")).action == "allow"


async def test_what_is_not_async_runs_in_a_thread() -> None:
    """A model that computes for 10 ms in the event loop holds up all connections for as long."""
    seen: list[int] = []

    def compute(delta: SafetyInput, state: Carried) -> Verdict:
        seen.append(threading.get_ident())
        return BLOCK

    assert (await judged(compute)).blocked
    assert seen != [threading.get_ident()]


# -- carried state -------------------------------------------------------------------------------------------------------


async def test_each_classifier_is_given_back_its_own_state() -> None:
    one, two = answering(Verdict(state=("one", 1)), "one"), answering(Verdict(state=b"two"), "two")
    first = await judged(one, two)
    second = await judged(one, two, state=first.state)
    assert (one.states, two.states) == ([None, ("one", 1)], [None, b"two"])
    assert second.state == first.state


async def test_a_block_changes_no_state() -> None:
    before = SafetyState(tail="before", carried=(("a", 1),))
    judgement = await judged(answering(Verdict(action="block", state=2), "a"), state=before)
    assert judgement.state is before


async def test_the_end_of_what_passed_is_the_next_overlap() -> None:
    judgement = await judged(answering(ALLOW), text="one  two\nthree", overlap_chars=9)
    assert judgement.state.tail == "two three"


@given(
    texts=st.lists(st.text("ab ", max_size=6), max_size=6),
    verdicts=st.lists(st.sampled_from([ALLOW, FLAG, Verdict(state=7), Verdict(state="x")]), min_size=6, max_size=6),
)
def test_the_state_after_a_chain_is_a_function_of_the_chain(texts: list[str], verdicts: list[Verdict]) -> None:
    """A fork must go on from its parent's state, not from what another branch has left in an object."""

    def run() -> SafetyState:
        state = SafetyState()
        for text, verdict in zip(texts, verdicts, strict=False):
            judge = Judge(Safety(answering(verdict)), TimelessClock())
            state = drive(judge.judge(delta(text), state)).state
        return state

    assert run() == run()


# -- failures --------------------------------------------------------------------------------------------------------------


NONSENSE = [
    None,
    "allow",
    Verdict(action="maybe"),  # type: ignore[arg-type]
    Verdict(categories=["c"]),  # type: ignore[arg-type]
    Verdict(categories=(1,)),  # type: ignore[arg-type]
    Verdict(categories=("x" * 129,)),
    Verdict(categories=("x",) * 65),
    Verdict(state=[1]),  # type: ignore[arg-type]
    Verdict(state=({"a": 1},)),  # type: ignore[arg-type]
    Verdict(state="x" * MAX_CARRIED_BYTES),
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=repr)
async def test_nonsense_is_a_failure(nonsense: Any) -> None:
    """A classifier that answers with something that is no verdict has allowed nothing."""
    closed = await judged(answering(nonsense, "c"))
    assert (closed.blocked, closed.unavailable, closed.failed) == (True, True, ("c",))
    assert (closed.error().status, closed.error().code) == (503, "safety_unavailable")
    assert closed.error().headers == {"retry-after": "1"}
    opened = await judged(Screen(answering(nonsense, "c"), fail="open"))
    assert (opened.action, opened.unavailable, opened.failed) == ("allow", False, ("c",))


@pytest.mark.parametrize("size", [MAX_CARRIED_BYTES - 100, MAX_CARRIED_BYTES + 100])
async def test_the_state_of_a_classifier_is_bounded(size: int) -> None:
    judgement = await judged(answering(Verdict(state=b"x" * size)))
    assert judgement.blocked is (size > MAX_CARRIED_BYTES)


@pytest.mark.parametrize("fail", ["closed", "open"])
async def test_what_raises_has_failed_and_its_text_is_not_logged(fail: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Errors of services repeat what they were sent."""
    caplog.set_level(logging.INFO)

    def raising(_: str) -> Verdict:
        raise RuntimeError("the secret text")

    judgement = await judged(Screen(Scripted(raising, name="c"), fail=fail))
    assert judgement.blocked is (fail == "closed")
    assert "c failed: RuntimeError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_failure_keeps_the_state_of_before() -> None:
    before = SafetyState(carried=(("c", "kept"),))
    judgement = await judged(Screen(answering(None), fail="open"), state=before)
    assert judgement.state.carried == (("c", "kept"),)


@pytest.mark.parametrize("fail", ["closed", "open"])
@pytest.mark.parametrize("alone", [True, False])
async def test_what_is_late_has_failed(fail: Any, alone: bool) -> None:
    slow = answering(BLOCK, "slow")
    slow.gate = anyio.Event()
    others = [] if alone else [answering(ALLOW, "fast")]
    clock = FakeClock()
    judge = Judge(Safety(Screen(slow, fail=fail, time_limit_s=2.0), *others), clock)
    done: list[Judgement] = []

    async def run() -> None:
        done.append(await judge.judge(delta(), SafetyState()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await clock.advance(1.9)
        assert done == []
        await clock.advance(0.1)
    assert (done[0].blocked, done[0].failed) == (fail == "closed", ("slow",))


async def test_a_thread_that_hangs_is_left_behind_and_counts() -> None:
    """A model that never answers must not take all the threads that the app's own handlers need."""
    hang, hung = threading.Event(), []

    def hangs(delta: SafetyInput, state: Carried) -> Verdict:
        hung.append(1)
        if not hang.is_set():
            hang.wait(30)
        return ALLOW

    judge = Judge(Safety(Screen(hangs, time_limit_s=0.05), max_threads=2), MonotonicClock())
    try:
        for _ in range(4):
            assert (await judge.judge(delta(), SafetyState())).unavailable
        assert len(hung) == 2
    finally:
        hang.set()
    while (await judge.judge(delta(), SafetyState())).unavailable:
        await anyio.lowlevel.checkpoint()  # until the threads have ended and given their places back
    assert len(hung) > 2


async def test_cancellation_is_no_failure() -> None:
    """The client has gone: nobody may read a verdict out of that."""
    slow = answering(ALLOW)
    slow.gate = anyio.Event()
    judge = Judge(Safety(slow), FakeClock())
    done: list[Judgement] = []

    async def run() -> None:
        done.append(await judge.judge(delta(), SafetyState()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await settle()
        tasks.cancel_scope.cancel()
    assert done == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_the_classifier_made_itself_is_a_failure(anyio_backend: str) -> None:
    """On asyncio, awaiting what another task has cancelled raises the same as being cancelled: the turn would end in silence."""

    async def classify(delta: SafetyInput, state: Carried) -> Verdict:
        request = asyncio.get_running_loop().create_future()
        request.cancel()
        return await request  # type: ignore[no-any-return]

    judgement = await judged(classify)
    assert (judgement.unavailable, judgement.failed) == (True, ("classify",))


# -- options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        Safety,
        lambda: Safety(answering(ALLOW), answering(ALLOW)),
        lambda: Safety(answering(ALLOW), mode="after"),  # type: ignore[arg-type]
        lambda: Safety(answering(ALLOW), output="some"),  # type: ignore[arg-type]
        lambda: Safety(answering(ALLOW), window_chars=0),
        lambda: Safety(answering(ALLOW), hold_back_chars=-1),
        lambda: Safety(answering(ALLOW), hold_back_chars=10, overlap_chars=9),
        lambda: Safety(answering(ALLOW), overlap_chars=1.5),  # type: ignore[arg-type]
        lambda: Safety(answering(ALLOW), max_held_bytes=True),
        lambda: Safety(answering(ALLOW), members="tools"),
        lambda: Screen(answering(ALLOW), fail="ajar"),  # type: ignore[arg-type]
        lambda: Screen(answering(ALLOW), stages=[]),
        lambda: Screen(answering(ALLOW), stages=["middle"]),  # type: ignore[list-item]
        lambda: Screen(answering(ALLOW), time_limit_s=0),
        lambda: Screen(answering(ALLOW), time_limit_s=float("inf")),
        lambda: Screen(5),  # type: ignore[arg-type]
        lambda: Screen(lambda delta, state: ALLOW, quick=True),
    ],
)
def test_wrong_options_are_refused_at_once(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


def test_judgements_of_a_turn_are_merged_to_the_strictest() -> None:
    state = SafetyState(tail="later")
    allow, flag = (
        Judgement(action="allow", state=state),
        Judgement(action="flag", state=SafetyState(), categories=("a",)),
    )
    block = Judgement(action="block", state=state, categories=("b",), failed=("c",), unavailable=True)

    assert merged(None, flag) is flag
    assert merged(flag, allow) == Judgement(action="flag", state=state, categories=("a",))
    assert merged(flag, block) == Judgement(
        action="block", state=state, categories=("a", "b"), failed=("c",), unavailable=True
    )
    assert isinstance(block.error(), SafetyUnavailable)


@given(actions=st.lists(st.sampled_from(["allow", "flag", "block"]), min_size=1, max_size=5))
def test_the_judgement_is_the_strictest_whatever_the_order(actions: list[Any]) -> None:
    safety = Safety(*(TermLike(action, f"n{index}") for index, action in enumerate(actions)))
    judgement = drive(Judge(safety, TimelessClock()).judge(delta(), SafetyState()))
    assert judgement.action == max(actions, key=["allow", "flag", "block"].index)


class TermLike:
    quick = True

    def __init__(self, action: Any, name: str) -> None:
        self.name = name
        self._verdict = Verdict(action=action)

    async def classify(self, delta: SafetyInput, state: Carried, /) -> Verdict:
        return self._verdict


def test_what_blocks_is_told_from_what_does_not() -> None:
    """The helper of these tests itself."""
    assert blocking("x")("ax").action == "block"
    assert blocking("x")("a").action == "allow"
