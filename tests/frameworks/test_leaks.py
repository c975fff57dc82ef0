"""Nothing stays behind in the process: frameworks start tasks of their own for each request."""

import pytest

from tests.frameworks.process import Server

pytestmark = pytest.mark.servers

SOCKETS = 5


def test_no_task_stays_behind(server: Server) -> None:
    """Without this each upgrade and each turn could cost memory for as long as the process lives."""
    for _ in range(SOCKETS):
        with server.connect() as client:
            client.turn()
            client.turn(metadata={"do": "json"})
            client.turn(metadata={"do": "refuse"})
            client.create(metadata={"do": "stall"})
            client.until_text()
    server.until_empty()
    server.until(lambda: server.ask("tasks") == server.tasks, "has the tasks of the beginning only", within=3.0)
