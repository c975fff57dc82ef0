"""``POST /responses/compact``: served as a turn that nothing can continue, and answered in a shape of its own.

API reference, "Compact a response": ``{id, object: "response.compaction", created_at, output, usage}``.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from ws_responses._types import Receive, Send
from ws_responses.errors import InvalidRequest
from ws_responses.http_turn import Closing, HttpTurn, send_json
from ws_responses.protocol import events

_TAIL: Final = ',"store":false,"context_management":null,"prompt_cache_options":null,"truncation":null}'
"""Members that a compaction has whatever was sent (duplicate keys: the last one wins)."""


class _Head(Struct):
    model: str | None = None


class _Response(Struct):
    id: str
    created_at: int
    output: Raw
    usage: Raw


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class CompactTurn(HttpTurn):
    """The peer of a connection that serves one request to compact.

    Args:
        body: The request.
        receive: Of the HTTP request, from behind its body on.
        send: Of the HTTP request.

    Raises:
        InvalidRequest: The body is no JSON object, or names no model.
    """

    def __init__(self, body: bytes, receive: Receive, send: Send) -> None:
        super().__init__(body, receive, send, tail=_TAIL, streams=False)
        if not _model(body):
            raise InvalidRequest("The field 'model' is missing.", param="model", code="missing_required_parameter")

    async def answer(self, closing: Closing) -> None:
        """Send the answer."""
        if closing.type != events.COMPLETED or not isinstance(closing.response, Raw):
            await super().answer(closing)
            return
        response = _decode_response(closing.response)
        await send_json(
            self.send_http,
            200,
            {
                "id": response.id,
                "object": "response.compaction",
                "created_at": response.created_at,
                "output": response.output,
                "usage": response.usage,
            },
        )


def _model(body: bytes) -> str | None:
    try:
        return _decode_head(body).model
    except msgspec.ValidationError:
        raise InvalidRequest("The field 'model' must be a string.", param="model") from None
