"""With `durable=True` what a client was told and what the store has are the same, whoever stops a turn, and when."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.held_store import SharedStore
from tests.wires import Wire
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses.errors import StoreError
from ws_responses.settlement import Settlement, TurnRecord
from ws_responses.testing import FakeClock, ScriptedApp, settle

ENDS = ("response.completed", "response.failed", "response.incomplete")


class DurableMachine(RuleBasedStateMachine):
    """One client at a time makes turns and cancels them, on a store (and books) that take their time, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.store = SharedStore()
        self.wires: list[Wire] = []
        self.ids: list[str] = []

    @initialize(before_terminal=st.booleans())
    def open(self, before_terminal: bool) -> None:
        self.app = ScriptedApp()
        self.middleware = ResponsesWebSocketMiddleware(
            self.app,
            store=self.store,
            durable=True,
            tenant_key=b"of all",
            accept_cancel=True,
            probe=False,
            clock=self.clock,
            limits=Limits(store_timeout_s=2.0, event_timeout_s=1.0, send_timeout_s=None),
            settlement=Settlement(self.book, before_terminal=before_terminal),
        )
        self.connect()

    async def book(self, record: TurnRecord) -> None:
        """Take a record when the store takes a write: both are held together."""
        del record
        await self.store.go.wait()

    def connect(self) -> None:
        self.wire = Wire(self.middleware, self.loop)
        self.wires.append(self.wire)
        self.do(asyncio.sleep(0))

    def do(self, work: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(work)
        self.loop.run_until_complete(settle())
        told = [frame for frame in self.wire.frames if frame["type"] == "response.created"]
        self.ids += [frame["response"]["id"] for frame in told if frame["response"]["id"] not in self.ids]
        if self.wire.gone:
            self.connect()

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(data=st.data(), lane=st.sampled_from([None, None, "a"]))
    def create(self, data: st.DataObject, lane: str | None) -> None:
        parent = data.draw(st.sampled_from([None, *self.ids[-3:]]))
        frame: dict[str, Any] = {"type": "response.create", "model": "m", "input": "hi"}
        frame |= {} if parent is None else {"previous_response_id": parent}
        frame |= {} if lane is None else {"stream_id": lane}
        self.wire.send(frame)
        self.do(asyncio.sleep(0))

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), lane=st.sampled_from([None, "a"]), by_id=st.booleans())
    def cancel(self, data: st.DataObject, lane: str | None, by_id: bool) -> None:
        frame: dict[str, Any] = {"type": "response.cancel"}
        if by_id:
            frame["response_id"] = data.draw(st.sampled_from(self.ids[-2:]))
        elif lane is not None:
            frame["stream_id"] = lane
        self.wire.send(frame)
        self.do(asyncio.sleep(0))

    @rule(fails=st.booleans(), takes_late=st.booleans())
    def hold(self, fails: bool, takes_late: bool) -> None:
        """From now on the store waits; then it fails or not, and may have taken what it was given all the same."""
        if self.store.go.is_set():
            self.store.hold()
        self.store.fault = StoreError("down") if fails else None
        self.store.takes_late = takes_late

    @rule()
    def let_go(self) -> None:
        self.do(self.set_go())

    async def set_go(self) -> None:
        self.store.go.set()

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def wait(self, seconds: float) -> None:
        self.do(self.clock.advance(seconds))

    @rule(how=st.sampled_from(["never", "never", "client", "operator"]))
    def end(self, how: str) -> None:
        if how == "client":
            self.wire.leave()
        elif how == "operator":
            self.do(self.end_all())
        self.do(asyncio.sleep(0))

    async def end_all(self) -> None:
        for tenant in {connection.tenant for connection in self.middleware.registry.connections}:
            self.middleware.disconnect(tenant)

    # -- what holds ----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if hasattr(self, "middleware"):
                self.store.fault = None
                self.let_go()
                self.wire.leave()
                for _ in range(8):
                    self.loop.run_until_complete(self.clock.advance(10.0))
                    self.loop.run_until_complete(settle())
                assert all(wire.call.done() for wire in self.wires)
                self.compare()
        finally:
            self.loop.close()

    def compare(self) -> None:
        """Of each response one end was told (or none, to a client that had left), and the store says the same."""
        for wire in self.wires:
            ends = [(frame["response"]["id"], frame["type"]) for frame in wire.frames if frame["type"] in ENDS]
            assert len(dict(ends)) == len(ends)
            for response_id, end in ends:
                assert (response_id in self.store.ids) == (end == "response.completed"), end


TestDurable = DurableMachine.TestCase
TestDurable.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
