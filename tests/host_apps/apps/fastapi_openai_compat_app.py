"""fastapi-openai-compat: a router in one's own FastAPI object, around a callable. It keeps nothing."""

# It is installed in an environment of its own.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import time
import uuid
from typing import Any

from fastapi import FastAPI
from fastapi_openai_compat import create_responses_router
from fastapi_openai_compat.responses import Response

from tests.host_apps import script


async def run_response(model: str, input_items: list[dict[str, Any]], body: dict[str, Any]) -> Any:
    script.begin(model)
    kinds = [str(item.get("type", "message")) for item in input_items]
    if not script.wants_call(model, kinds, tools=bool(body.get("tools"))):
        return script.pieces(model, len(kinds))
    call = {
        "type": "function_call",
        "id": f"fc_{uuid.uuid4().hex}",
        "call_id": f"call_{uuid.uuid4().hex}",
        "name": script.TOOL_NAME,
        "arguments": script.ARGUMENTS,
        "status": "completed",
    }
    return Response(
        id=f"resp_{uuid.uuid4().hex}",
        object="response",
        created_at=int(time.time()),
        status="completed",
        model=model,
        output=[call],
    )


api = FastAPI()
api.include_router(create_responses_router(list_models=lambda: list(script.MODELS), run_response=run_response))
