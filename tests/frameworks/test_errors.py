"""Handlers that refuse or break: one closing event, and the next turn is served."""

from typing import Any

import pytest

from tests.frameworks.matrix import cell
from tests.frameworks.process import Server
from tests.frameworks.source import GUARDED, HELPED, KEY, PATH

pytestmark = pytest.mark.servers

OURS = "The server had an error while processing the request."
BARE = "The app answered with an error (status 500)."


def turn_and_next(server: Server, script: str, name: str = "none", path: str = PATH) -> list[dict[str, Any]]:
    """Return the events of a turn with this script, if the next turn on the same socket is served."""
    with server.connect(name, path=path, key=KEY) as client:
        events = client.turn(metadata={"do": script})
        assert client.turn()[-1]["type"] == "response.completed"
    return events


@pytest.mark.parametrize("name", ["none", "key", "gzip"])
def test_error_of_the_app(server: Server, name: str) -> None:
    """Without this a client could not tell when to come back."""
    (event,) = turn_and_next(server, "refuse", name)
    assert (event["status"], event["error"]["code"], event["error"]["message"]) == (
        429,
        "slow_down",
        "Come back later.",
    )
    assert event["headers"] == {"retry-after": "7"}
    server.shows("error", "kept")


def test_handler_that_raises(server: Server) -> None:
    """Without this the page of a framework (markup, a traceback) could be passed on, or the exception end the socket."""
    server.tolerate(".*")
    (event,) = turn_and_next(server, "raise")
    message = event["error"]["message"]
    assert "handler is broken" not in message
    text = "" if message == BARE else ", ours" if message.startswith(OURS) else ", its text"
    server.shows("raise", f"{event['status']}{text}")


@pytest.mark.parametrize("path", [PATH, HELPED])
def test_generator_that_raises(server: Server, path: str) -> None:
    """Without this a stream that broke off could be taken for a finished one."""
    if path == HELPED and cell("helper", server.framework) == "has none":
        pytest.skip("it has no helper")
    server.tolerate(".*")
    events = turn_and_next(server, "break", path=path)
    assert [each["type"] for each in events].count("response.failed") == 1
    server.shows("break", f"`{events[-1]['response']['error']['code']}`")


def test_generator_that_raises_below_a_layer(server: Server) -> None:
    """The same where a layer around the handler keeps the exception to itself."""
    server.tolerate(".*")
    last = turn_and_next(server, "break", "key")[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] in {"server_error", "upstream_stream_truncated"}


# -- keys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "name", "path"), [("layer", "key", PATH), ("route", "none", GUARDED)])
@pytest.mark.parametrize("key", [None, "wrong"])
def test_wrong_key(server: Server, row: str, name: str, path: str, key: str | None) -> None:
    """Without this a client without the key could get an answer: the app's own checks are all that there is."""
    with server.connect(name, path=path, key=key) as client:
        if client.response.status_code != 101:
            assert client.response.status_code == 401
            server.shows(row, "the upgrade")
            return
        for _ in range(2):
            (event,) = client.turn()
            assert (event["type"], event["status"], event["error"]["code"]) == ("error", 401, "invalid_api_key")
        server.shows(row, "each turn")


@pytest.mark.parametrize(("name", "path"), [("key", PATH), ("none", GUARDED)])
def test_right_key(server: Server, name: str, path: str) -> None:
    """Without this the refusals above could be of everybody."""
    with server.connect(name, path=path, key=KEY) as client:
        assert client.turn()[-1]["type"] == "response.completed"
