"""What is not to be stored never reaches a store, whatever it is mixed with."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shell import KEY, Shell, code_of, create
from ws_responses.state.encoding import RecordCodec
from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey
from ws_responses.testing import ScriptedApp, settle

TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "store": st.sampled_from([True, False, None]),
            "parent": st.one_of(st.none(), st.integers(0, 30), st.just(-1), st.just(-1)),
            "lane": st.sampled_from([None, None, "a", "b"]),
            "warm_up": st.sampled_from([False, False, False, True]),
            "reconnects": st.sampled_from([False, False, False, True]),
        }
    ),
    max_size=12,
)


class RecordingStore:
    """Keeps all that it is given, as the bytes that a disk or a network would see."""

    def __init__(self) -> None:
        self.codec = RecordCodec(compress_from=None)
        self.contents: dict[StoreKey, tuple[bytes, StoreKey | None]] = {}
        self.written: list[bytes] = []

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        content = self.codec.encode(key.tenant, record)
        self.written.append(content)
        self.contents[key] = (content, parent)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        chain: list[bytes] = []
        at: StoreKey | None = key
        while at is not None and at in self.contents:
            content, at = self.contents[at]
            chain.append(content)
        return self.codec.decode_chain(key, chain[::-1])

    async def delete(self, key: StoreKey) -> None:
        self.contents.pop(key, None)

    async def aclose(self) -> None:
        self.contents.clear()


class Run:
    """Turns on sockets of one client; each says a word of its own, and is answered with another one."""

    def __init__(self, history: Any) -> None:
        self.app = ScriptedApp(stateful=history == "forward")
        self.store = RecordingStore()
        self.shell = Shell(self.app, store=self.store, history=history)
        self.made: list[tuple[str, bool]] = []
        self.here: set[str] = set()
        self.secrets: list[str] = []
        self.number = 0
        self.forwards = history == "forward"

    async def turns(self, turns: Sequence[dict[str, Any]]) -> None:
        at = 0
        while at < len(turns):
            self.here.clear()
            async with self.shell.socket(KEY) as ws:
                while at < len(turns):
                    turn = turns[at]
                    at += 1
                    await self.turn(ws, turn)
                    if turn["reconnects"]:
                        break
                await settle()

    async def turn(self, ws: Any, turn: dict[str, Any]) -> None:
        self.number += 1
        word = f"word-{self.number}-of-the-client"
        fields: dict[str, Any] = {} if turn["store"] is None else {"store": turn["store"]}
        parent_stored = True
        if turn["parent"] is not None and self.made:
            parent_id, parent_stored = self.made[turn["parent"] % len(self.made)]
            if self.forwards and parent_id not in self.here:
                parent_stored = True  # as far as is known here: it is the app's to say
            fields["previous_response_id"] = parent_id
        if turn["lane"] is not None:
            fields["stream_id"] = turn["lane"]
        if turn["warm_up"]:
            fields["generate"] = False
        events = await ws.turn(create(word, **fields))
        # On top of what was not to be stored nothing is, unless the client insists, which is refused.
        stored = turn["store"] is not False and parent_stored
        if events[-1]["type"] != "response.completed":
            stored = False
            assert turn["store"] is True or code_of(events[-1]) == "previous_response_not_found"
        else:
            self.made.append((events[-1]["response"]["id"], stored))
            self.here.add(events[-1]["response"]["id"])
        if not stored:
            self.secrets.append(word)
            self.secrets += [item["id"] for item in events[-1].get("response", {}).get("output", [])]


@pytest.mark.parametrize("history", ["replay", "forward", "turn"])
@given(turns=TURNS)
@settings(max_examples=40, deadline=None)
def test_what_is_not_to_be_stored_reaches_no_store(history: str, turns: list[dict[str, Any]]) -> None:
    """B008: neither the words of a ``store: false`` turn, nor those of what was built on one, on any lane or socket."""
    run = Run(history)
    anyio.run(run.turns, turns)
    written = b"".join(run.store.written)
    for secret in run.secrets:
        assert secret.encode() not in written
    for response_id, stored in run.made:
        assert (response_id in {key.response_id for key in run.store.contents}) == stored
