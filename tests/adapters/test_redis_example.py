"""The example with Redis does what it says, in several worker processes of a real server."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.adapters.redis_server import RedisServer
from tests.ports import free_port
from ws_responses import Handshake

TENANT_KEY = secrets.token_hex(32)


@pytest.fixture(scope="module")
def address() -> Generator[str]:
    port = free_port()
    with RedisServer("redis") as server:
        environment = {**os.environ, "REDIS_URL": server.url, "TENANT_KEY": TENANT_KEY}
        command = [sys.executable, "-m", "uvicorn", "examples.redis_app:app", "--workers", "3", "--port", str(port)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as workers:
            try:
                until = time.monotonic() + 40
                while True:
                    with suppress(httpx.TransportError):
                        httpx.get(f"http://127.0.0.1:{port}/docs")
                        break
                    assert time.monotonic() < until
                    time.sleep(0.05)
                yield f"127.0.0.1:{port}"
            finally:
                os.killpg(workers.pid, signal.SIGKILL)


def socket(address: str, key: str = "k") -> Connection:
    return connect(f"ws://{address}/v1/responses", additional_headers={"Authorization": f"Bearer {key}"})


def turn(ws: Connection, text: str, parent: str | None) -> dict[str, object]:
    frame = {"type": "response.create", "model": "m", "input": text}
    ws.send(json.dumps(frame if parent is None else {**frame, "previous_response_id": parent}))
    while True:
        event: dict[str, object] = json.loads(ws.recv(timeout=20))
        if event["type"] in {"response.completed", "response.failed", "error"}:
            return event


def turn_when_written(ws: Connection, text: str, parent: str | None) -> dict[str, object]:
    """Take a turn whose parent may still be on its way to the store: until it has landed, another worker does not know it."""
    for _ in range(200):
        event = turn(ws, text, parent)
        if event["type"] != "error":
            return event
        time.sleep(0.01)
    raise AssertionError("the parent was never stored")


@pytest.mark.slow
def test_a_chain_goes_on_at_any_worker(address: str) -> None:
    """The kernel hands each new socket to some worker."""
    parent: str | None = None
    for number in range(20):
        with socket(address) as ws:
            event = turn_when_written(ws, f"turn {number}", parent)
        response = event["response"]
        assert isinstance(response, dict)
        parent = response["id"]
        assert f"{2 * number + 1} input items" in json.dumps(response["output"])


@pytest.mark.slow
def test_a_tenant_is_disconnected_from_all_workers(address: str) -> None:
    """Whichever of them is asked; the sockets of another tenant stay."""
    headers = [(b"authorization", b"Bearer gone")]
    scope = {"type": "websocket", "path": "/v1/responses", "query_string": b"", "headers": headers}
    tenant = Handshake(scope).credentials_tenant(bytes.fromhex(TENANT_KEY))
    with ExitStack() as stack:
        theirs = [stack.enter_context(socket(address, "gone")) for _ in range(9)]
        other = stack.enter_context(socket(address))
        assert httpx.delete(f"http://{address}/keys/{tenant}").status_code == 200
        for ws in theirs:
            with pytest.raises(ConnectionClosed) as closed:
                ws.recv(timeout=20)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
        assert turn(other, "still here", None)["type"] == "response.completed"
