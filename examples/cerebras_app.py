"""gpt-oss at Cerebras, behind the Responses API: over HTTP and over the socket, on the same path.

    CEREBRAS_API_KEY=csk-... APP_KEY=secret uvicorn examples.cerebras_app:app

A client is given APP_KEY as its API key, and never sees that of Cerebras.
"""

import os
import secrets

from ws_responses import Handshake, Principal, ResponsesApp, ResponsesEngine
from ws_responses.adapters.cerebras import CerebrasBackend
from ws_responses.rendering.chat import ChatRenderer

APP_KEY = os.environ["APP_KEY"]


async def authorize(handshake: Handshake, model: str | None) -> Principal | None:
    del model  # everybody may use the one that is served
    given = handshake.bearer_token or ""
    return Principal(id="me") if secrets.compare_digest(given.encode(), APP_KEY.encode()) else None


engine = ResponsesEngine(
    CerebrasBackend(),
    renderer=ChatRenderer(reasoning_field="reasoning"),  # earlier reasoning goes back where Cerebras reads it
    models=["gpt-oss-120b"],
    hosted_tools="drop",  # Codex offers web_search, which nobody runs here
)
app = ResponsesApp(engine, authorize=authorize)
