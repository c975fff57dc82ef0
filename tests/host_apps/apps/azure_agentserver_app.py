"""azure-ai-agentserver-responses: the host object is the app. It keeps responses, and has no compaction: the operator's own."""

# It is installed in an environment of its own.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from azure.ai.agentserver.responses import ResponseEventStream, ResponsesAgentServerHost
from starlette.requests import Request
from starlette.responses import JSONResponse

from tests.host_apps import script

api = ResponsesAgentServerHost(prefix="/v1")


async def answer(request: Any, context: Any, cancellation_signal: asyncio.Event) -> AsyncIterator[Any]:
    model = request.get("model")
    script.begin(model)
    given = request.get("input")
    history = await context.get_history() if request.get("previous_response_id") else []
    items = [*history, *([{"type": "message"}] if isinstance(given, str) else given)]
    kinds = [str(item.get("type", "message")) for item in items]
    stream = ResponseEventStream(response_id=context.response_id, request=request)
    yield stream.emit_created()
    yield stream.emit_in_progress()
    if script.wants_call(model, kinds, tools=bool(request.get("tools"))):
        call = stream.add_output_item_function_call(name=script.TOOL_NAME, call_id=f"call_{uuid.uuid4().hex}")
        yield call.emit_added()
        yield call.emit_arguments_delta(script.ARGUMENTS)
        yield call.emit_arguments_done(script.ARGUMENTS)
        yield call.emit_done()
    else:
        message = stream.add_output_item_message()
        yield message.emit_added()
        text = message.add_text_content()
        yield text.emit_added()
        async for piece in until(cancellation_signal, script.pieces(model, len(kinds))):
            yield text.emit_delta(piece)
        yield text.emit_text_done()
        yield text.emit_done()
        yield message.emit_done()
    yield stream.emit_completed()


async def until(signal: asyncio.Event, pieces: AsyncGenerator[str]) -> AsyncIterator[str]:
    """Give pieces until the host signals that nobody wants them any more, as its documentation asks of handlers."""
    stop = asyncio.create_task(signal.wait())
    try:
        while not stop.done():
            following = asyncio.ensure_future(anext(pieces))
            await asyncio.wait({stop, following}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                await asyncio.wait({following})
                return
            if isinstance(following.exception(), StopAsyncIteration):
                return
            yield following.result()
    finally:
        stop.cancel()
        await pieces.aclose()


async def compact(request: Request) -> JSONResponse:
    """Compact as an operator's own route may: by an item that says how many items it stands for."""
    body = await request.json()
    if "model" not in body:
        return JSONResponse({"error": {"message": "'model' is missing", "param": "model"}}, 400)
    item = {"id": f"cmp_{uuid.uuid4().hex}", "type": "compaction", "encrypted_content": f"{len(body['input'])} items"}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, **details}
    answer = {"id": f"resp_{uuid.uuid4().hex}", "object": "response.compaction", "created_at": int(time.time())}
    return JSONResponse({**answer, "output": [item], "usage": usage})


api.add_route("/v1/responses/compact", compact, methods=["POST"])
api.response_handler(answer)
