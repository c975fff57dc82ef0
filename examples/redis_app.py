"""Workers and hosts that share their chains by Redis or Valkey: a client that reconnects may land anywhere.

    export REDIS_URL=redis://localhost:6379/0 TENANT_KEY=$(openssl rand -hex 32)
    uvicorn examples.redis_app:app --workers 4

DELETE /keys/{tenant} ends the sockets of a tenant on all of them.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
from fastapi import FastAPI

from examples.fastapi_app import api as responses
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses.adapters.redis import RedisBroadcast, RedisStore

URL = os.environ["REDIS_URL"]
store = RedisStore(URL, fail="closed")
broadcast = RedisBroadcast(URL)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(broadcast.listen, disconnect=app.disconnect))
        yield
        tasks.cancel_scope.cancel()


api = FastAPI(lifespan=lifespan)
api.delete("/keys/{tenant}")(broadcast.disconnect)
api.mount("/", responses)
limits = Limits(store_ttl_s=30 * 24 * 3600)
app = ResponsesWebSocketMiddleware(api, store=store, tenant_key=bytes.fromhex(os.environ["TENANT_KEY"]), limits=limits)
