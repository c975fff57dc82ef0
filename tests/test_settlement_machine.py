"""Nothing is lost, nothing is out of order, and nothing comes twice but for an attempt that seemed to fail: whatever happens."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.sinks import FATES, meet
from tests.test_settlement import record
from ws_responses.settlement import Settlement, Settler, Settling, TurnRecord
from ws_responses.testing import FakeClock, settle


class Connection:
    """A socket: its tasks, and what it has to settle."""

    def __init__(self, settler: Settler, tasks: TaskGroup) -> None:
        self.settling = Settling(settler, tasks.start_soon)
        self.draining: asyncio.Task[list[TurnRecord]] | None = None


class SettlementMachine(RuleBasedStateMachine):
    """Connections make turns, the sink does what it likes with each attempt, time passes, connections end."""

    ATTEMPTS = 3

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.parents: dict[str, str | None] = {}
        self.fates: list[str] = []
        self.attempts: dict[str, int] = {}
        self.taken: list[str] = []
        self.reported: list[str] = []
        self.wrong: list[str] = []
        self.connections: list[Connection] = []
        settlement = Settlement(
            self.sink,
            attempts=self.ATTEMPTS,
            attempt_timeout_s=2.0,
            backoff_s=1.0,
            drain_timeout_s=3.0,
            max_pending=8,
            on_undelivered=lambda record, error: self.reported.append(record.turn_id),
        )
        self.settler = Settler(settlement, self.clock, chance=lambda: 0.5)
        self.over = asyncio.Event()
        self.ready: asyncio.Future[TaskGroup] = self.loop.create_future()
        self.main = self.loop.create_task(self.serve())
        self.tasks: TaskGroup = self.loop.run_until_complete(self.ready)

    async def serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            self.ready.set_result(tasks)
            await self.over.wait()

    def do(self, work: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(work)
        self.loop.run_until_complete(settle())

    def pick(self, data: st.DataObject) -> Connection | None:
        open_ones = [each for each in self.connections if each.draining is None]
        return data.draw(st.sampled_from(open_ones)) if open_ones else None

    async def sink(self, record: TurnRecord) -> None:
        turn_id = record.turn_id
        self.attempts[turn_id] = self.attempts.get(turn_id, 0) + 1
        parent = self.parents[turn_id]
        # Kept, not raised: what a hook raises is the settler's business.
        if parent is not None and parent not in self.taken and parent not in self.reported:
            self.wrong.append(f"{turn_id} was tried before {parent} was settled")
        if turn_id in self.reported:
            self.wrong.append(f"{turn_id} was tried after it was reported")
        await meet(self.fates.pop(0) if self.fates else "takes", partial(self.taken.append, turn_id))

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule()
    def connect(self) -> None:
        if len(self.connections) < 3:
            self.connections.append(Connection(self.settler, self.tasks))

    @rule(fates=st.lists(st.sampled_from(FATES), min_size=1, max_size=4))
    def decide(self, fates: list[str]) -> None:
        self.fates += fates

    @rule(data=st.data(), again=st.booleans(), failed=st.booleans())
    def turn(self, data: st.DataObject, again: bool, failed: bool) -> None:
        connection = self.pick(data)
        if connection is None:
            return
        parent = data.draw(st.sampled_from([None, *list(self.parents)[-4:]])) if self.parents else None
        if parent is not None and parent.endswith("failed"):
            parent = None  # nothing can go on from it
        turn_id = f"t{len(self.parents)}{'failed' if failed else ''}"
        self.parents[turn_id] = parent
        made = record(turn_id, parent, response=None if failed else "")

        async def submit() -> None:
            connection.settling.submit(made)
            if again:
                await asyncio.sleep(0)

        self.do(submit())

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.do(self.clock.advance(seconds))

    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        connection = self.pick(data)
        if connection is None:
            return

        async def drain() -> None:
            connection.draining = self.loop.create_task(connection.settling.drain())

        self.do(drain())

    @rule()
    def collect(self) -> None:
        for connection in list(self.connections):
            if connection.draining is not None and connection.draining.done():
                left = {each.turn_id for each in connection.draining.result()}
                assert left <= set(self.reported), "named as left, but not reported"
                self.connections.remove(connection)

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def a_record_has_one_end(self) -> None:
        assert len(self.reported) == len(set(self.reported)), "reported twice"
        assert self.settler.delivered + self.settler.undelivered + self.settler.pending == len(self.parents)
        assert self.settler.undelivered == len(self.reported)
        assert self.settler.pending <= 8

    @invariant()
    def the_sink_saw_nothing_wrong(self) -> None:
        assert self.wrong == []

    @invariant()
    def attempts_are_bounded(self) -> None:
        assert all(count <= self.ATTEMPTS for count in self.attempts.values())

    def teardown(self) -> None:
        for connection in self.connections:
            if connection.draining is None:
                connection.draining = self.loop.create_task(connection.settling.drain())
        self.do(self.clock.advance(100.0))
        self.over.set()
        self.loop.run_until_complete(self.main)
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        assert self.wrong == []
        lost = set(self.parents) - set(self.taken) - set(self.reported)
        assert not lost
        assert self.settler.pending == 0
        twice = {turn_id for turn_id in self.taken if self.taken.count(turn_id) > 1}
        assert all(self.attempts[turn_id] > 1 for turn_id in twice)
        firsts = {turn_id: self.taken.index(turn_id) for turn_id in self.taken}
        for turn_id, parent in self.parents.items():
            if turn_id in firsts and parent in firsts:
                assert firsts[parent] < firsts[turn_id]


TestSettlement = SettlementMachine.TestCase
TestSettlement.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
