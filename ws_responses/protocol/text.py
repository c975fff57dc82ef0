"""JSON text of an app made fit for the wire."""

import re
from typing import Final

_SURROGATE_ESCAPES: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def mended(text: bytes) -> bytes:
    """Return JSON text in which U+FFFD stands for every lone surrogate escape and for what is not UTF-8.

    Escapes in pairs, and escaped backslashes before a ``u``, stay as they are.
    """
    utf8 = text.decode("utf-8", "replace").encode()
    return _SURROGATE_ESCAPES.sub(lambda match: match[0] if match[2] else match[1] + b"\\ufffd", utf8)
