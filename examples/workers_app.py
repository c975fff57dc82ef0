"""One's own app in several workers of uvicorn: they share their chains by a file, and drain when they are told to stop.

    export CHAINS=/var/lib/chains.db TENANT_KEY=$(openssl rand -hex 32)
    uvicorn examples.workers_app:app --workers 2

Or `gunicorn examples.workers_app:app --workers 2 --worker-class uvicorn_worker.UvicornWorker --graceful-timeout 90`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from examples.fastapi_app import api as responses
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses.adapters.sqlite import SqliteStore
from ws_responses.signals import drain_at_sigterm


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app, drain_at_sigterm(app):
        yield


api = FastAPI(lifespan=lifespan)
api.mount("/", responses)
app = ResponsesWebSocketMiddleware(
    api,
    store=SqliteStore(os.environ["CHAINS"]),
    durable=True,
    tenant_key=bytes.fromhex(os.environ["TENANT_KEY"]),
    limits=Limits(age_grace_s=60),
)
