"""A real uvicorn in the event loop of the test, so that the test can wait for what its app does."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from ws_responses._types import ASGIApp


@asynccontextmanager
async def running(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an app; give the base URL of its API."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, ws="websockets-sansio", log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        # Not `serve()`: signals are pytest's affair.
        serving = asyncio.create_task(server._serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await serving
