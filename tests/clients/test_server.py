"""The harness of these tests is tested too: a server that complains must not go unnoticed."""

import http.client
from pathlib import Path

import pytest

from .server import Server

pytestmark = pytest.mark.clients

GOOD = """\
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})
"""
BROKEN = GOOD.replace(
    "    await send", "    if scope['path'] != '/':\n        raise OSError('broken')\n    await send", 1
)
UNIMPORTABLE = "raise ImportError('no such thing')\n"


def serve(source: str, folder: Path) -> Server:
    (folder / "app_under_test.py").write_text(source, encoding="utf-8")
    return Server("app_under_test:app", folder, env={"PYTHONPATH": str(folder)})


def post(server: Server) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("POST", "/v1/responses", b"{}")
        return connection.getresponse().status
    finally:
        connection.close()


def test_requests_are_on_record(tmp_path: Path) -> None:
    with serve(GOOD, tmp_path) as server:
        assert post(server) == 204

    assert [(request.path, request.status) for request in server.recording.posts] == [("/v1/responses", 204)]
    assert server.recording.sockets == []


def test_a_server_that_logs_an_error_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="OSError: broken"), serve(BROKEN, tmp_path) as server:
        assert post(server) == 500


def test_a_server_that_does_not_start_fails_the_test_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, serve(UNIMPORTABLE, tmp_path):
        pass

    assert "ImportError: no such thing" in caught.value.__notes__[0]
