"""Who may connect, and use which model, is decided before the app is asked.

    uvicorn examples.authorize_app:app

It is decided again for each turn: a key that is revoked stops working on an open socket.
"""

from examples.starlette_app import api
from ws_responses import Forbidden, Handshake, Principal, ResponsesWebSocketMiddleware

TEAMS = {"key-1": "red", "key-2": "red", "key-3": "blue"}  # yours are looked up by their hash, in a database
MODELS = {"red": {"small", "large"}, "blue": {"small"}}


async def authorize(handshake: Handshake, model: str | None) -> Principal | None:
    team = TEAMS.get(handshake.bearer_token or "")
    if team is None:
        return None  # 401: at the upgrade before any socket exists, later as an error frame
    if model is not None and model not in MODELS[team]:
        raise Forbidden(f"Your team may not use {model!r}.", code="model_not_allowed", param="model")
    return Principal(id=team, tenant=team)  # all keys of a team own its responses


app = ResponsesWebSocketMiddleware(api, authorize=authorize)
