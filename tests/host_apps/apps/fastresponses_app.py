"""fastresponses: `create_app` gives a FastAPI object around an adapter. It keeps responses, and has a socket of its own."""

# It is installed in an environment of its own.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastresponses import create_app
from fastresponses.adapter import AgentAdapter, ItemDone, TextDelta
from fastresponses.models import FunctionCallItem

from tests.host_apps import script


class Adapter(AgentAdapter):  # type: ignore[misc]
    name = "fake"

    async def run(self, run: Any) -> AsyncIterator[Any]:
        model = run.request.model
        script.begin(model)
        kinds = [item.type for item in run.context_items]
        if script.wants_call(model, kinds, tools=bool(run.request.tools)):
            yield ItemDone(
                FunctionCallItem(
                    id=f"fc_{uuid.uuid4().hex}",
                    call_id=f"call_{uuid.uuid4().hex}",
                    name=script.TOOL_NAME,
                    arguments=script.ARGUMENTS,
                    status="completed",
                )
            )
            return
        async for piece in script.pieces(model, len(kinds)):
            yield TextDelta(piece)


api = create_app(Adapter())
