"""A handler that is given the new items only.

    uvicorn examples.current_turn_app:app

It goes on from what it kept of the turn before, and rebuilds that from the history where it is gone.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from cachetools import LRUCache
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from ws_responses import ResponsesWebSocketMiddleware, current_turn
from ws_responses.testing import ResponseBuilder

api = FastAPI()
prompts: LRUCache[str, list[Any]] = LRUCache(1000)  # by response: yours are tokens, or a KV cache


@api.post("/v1/responses")
async def create_response(body: dict[str, Any]) -> StreamingResponse:
    turn = current_turn()
    kept = prompts.get(turn.previous_response_id or "")  # None also after a warm-up, which is not sent here
    before = kept or [json.loads(item) for item in turn.history()]
    prompt = before + [json.loads(item) for item in turn.delta]
    return StreamingResponse(answer(body, prompt), media_type="text/event-stream")


async def answer(body: dict[str, Any], prompt: list[Any]) -> AsyncIterator[str]:
    builder = ResponseBuilder(body)  # your model goes here
    text = f"{len(prompt)} items, {len(body['input'])} of them sent."
    for event in [*builder.start(), *builder.message(text), *builder.complete()]:
        prompts[builder.id] = prompt + builder.output
        yield f"data: {json.dumps(event)}\n\n"


app = ResponsesWebSocketMiddleware(api, history="turn")
