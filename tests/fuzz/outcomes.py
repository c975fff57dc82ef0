"""What may come out, whatever goes in: the documented outcomes, as a check of the frames of a connection."""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

Event = dict[str, Any]

TERMINAL: Final = {"response.completed", "response.failed", "response.incomplete"}


def assert_documented(frames: Sequence[str | bytes]) -> dict[str | None, list[list[Event]]]:
    """Fail unless the frames are whole turns and errors; return them by lane."""
    lanes: dict[str | None, list[Event]] = defaultdict(list)
    for frame in frames:
        assert isinstance(frame, str), "text frames only"
        event = json.loads(frame)
        assert isinstance(event, dict)
        if event["type"].startswith(("response.steer.", "response.inject.")):
            assert type(event["sequence_number"]) is int
            continue  # the answer to a steer, or an injection, stands between the events of turns, and belongs to none
        lanes[event.get("stream_id")].append(event)
    return {lane: list(_turns(events)) for lane, events in lanes.items()}


def _turns(events: Sequence[Event]) -> Iterator[list[Event]]:
    turn: list[Event] = []
    for event in events:
        turn.append(event)
        kind = event["type"]
        if kind == "error":
            _assert_error(event)
            assert not any(each["type"].startswith("response.") for each in turn), (
                "an error only before response.created"
            )
        elif kind in TERMINAL:
            _assert_response(turn)
        else:
            continue
        yield turn
        turn = []
    assert not turn, f"a turn without an end: {[event['type'] for event in turn]}"


def _assert_error(event: Event) -> None:
    assert type(event["status"]) is int
    assert 400 <= event["status"] <= 599
    assert type(event["sequence_number"]) is int
    error = event["error"]
    for name in ("code", "message", "type"):
        assert isinstance(error[name], str)
        assert error[name]
    assert error["param"] is None or isinstance(error["param"], str)
    assert "Traceback" not in json.dumps(event)


def _assert_response(turn: Sequence[Event]) -> None:
    ours = [event for event in turn if event["type"].startswith("response.")]
    assert ours[0]["type"] == "response.created"
    assert [event["type"] for event in ours].count("response.created") == 1
    numbers = [event["sequence_number"] for event in turn]
    assert all(type(number) is int for number in numbers)
    assert all(a < b for a, b in pairwise(numbers)), f"numbers rise: {numbers}"
    objects = [event["response"] for event in (ours[0], ours[-1])]
    assert len({response["id"] for response in objects}) == 1, "one id"
    known: set[int] = set()
    for event in turn:
        if event["type"] == "response.output_item.added":
            known.add(event["output_index"])
        elif event["type"] == "response.output_item.done":
            assert event["output_index"] in known, "an item is announced before it is done"
    # Further members of a response object are the app's own, as it sends them; the output is what later turns build on.
    if turn[-1]["type"] != "response.failed":
        assert all(isinstance(item, dict) for item in turn[-1]["response"]["output"])


@contextmanager
def no_fault_of_ours() -> Iterator[None]:
    """Fail if the package logs an error meanwhile; that an app raised is none."""
    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR and not record.msg.startswith("turn %s: the app raised"):
                records.append(self.format(record))

    logger, keep = logging.getLogger("ws_responses"), Keep()
    logger.addHandler(keep)
    try:
        yield
    finally:
        logger.removeHandler(keep)
    assert records == []
