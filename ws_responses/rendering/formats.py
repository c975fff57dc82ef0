"""``text.format`` of a request: what the answer must look like."""

from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from ws_responses.rendering.renderer import CannotRender

ANY_OBJECT: Final = b'{"type":"object"}'
"""JSON Schema of ``json_object``."""


class TextFormat(Struct, frozen=True):
    """``text.format``, decoded.

    Attributes:
        type: Its kind.
        name: Of the schema.
        schema: JSON Schema, encoded; empty but for ``json_schema``.
        description: For the model.
        strict: As the client asked.
    """

    type: Literal["text", "json_object", "json_schema"]
    name: str = "response"
    schema: Raw = Raw()
    description: str | None = None
    strict: bool | None = None

    @property
    def json_schema(self) -> bytes | None:
        """JSON Schema that the answer must follow, encoded; None for text."""
        if self.type == "text":
            return None
        return bytes(self.schema) if self.type == "json_schema" else ANY_OBJECT


_decode = msgspec.json.Decoder(TextFormat).decode


def read_format(raw: bytes) -> TextFormat:
    """Return ``text.format`` (encoded), typed.

    Raises:
        CannotRender: It is of a kind that is not known here, or lacks its schema; ``param`` is the path in the request.
    """
    try:
        known = _decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        raise CannotRender("The field 'text.format' has no form known here.", param="text.format") from None
    if known.type == "json_schema" and not bytes(known.schema).startswith(b"{"):
        raise CannotRender("The field 'text.format.schema' must be an object.", param="text.format.schema")
    return known
