"""``tool_choice`` of what follows a call."""

from typing import cast

import msgspec

_decode = msgspec.json.Decoder().decode


def relaxed(raw: bytes) -> bytes:
    """Return a ``tool_choice`` for what follows the call that it demands: tools may be called, none must."""
    try:
        choice = _decode(raw)
    except msgspec.DecodeError:
        return raw
    if isinstance(choice, dict):
        members = cast("dict[str, object]", choice)
        if members.get("type") == "allowed_tools":
            return msgspec.json.encode({**members, "mode": "auto"})
    return raw if choice in (None, "none", "auto") else b'"auto"'
