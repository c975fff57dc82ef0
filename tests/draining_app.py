"""An app as its users would deploy it in several workers: it drains at SIGTERM. What it asks is in the environment."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Mount

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.adapters.proxy import ProxyApp
from ws_responses.signals import drain_at_sigterm


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[None]:
    async with app, drain_at_sigterm(app):
        yield


app = ResponsesWebSocketMiddleware(
    Starlette(routes=[Mount("/", ProxyApp(os.environ["UPSTREAM"]))], lifespan=lifespan), probe=False
)
