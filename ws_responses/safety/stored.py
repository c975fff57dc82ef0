"""What a chain carries of its judgements as bytes, for the store: so that a chain that was judged is not judged again when it is loaded.

It counts only where the same classifiers would judge: the bytes begin with a fingerprint of those that did.
"""

from hashlib import blake2b
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from ws_responses.safety.options import Safety
from ws_responses.safety.text import as_list
from ws_responses.safety.verdict import Carried, SafetyState

_FINGERPRINT_BYTES: Final = 16

_encode = msgspec.msgpack.Encoder().encode


class _Stored(Struct, array_like=True, forbid_unknown_fields=True):
    fingerprint: bytes
    tail: str
    settings: tuple[tuple[str, bytes], ...]
    carried: tuple[tuple[str, Any], ...]
    flags: tuple[str, ...]


_decode = msgspec.msgpack.Decoder(_Stored).decode


def fingerprint_of(safety: Safety) -> bytes:
    """Return what is the same in all processes that judge alike: names, versions, stages and failures of the classifiers."""
    screens = [(screen.name, screen.version, sorted(screen.stages), screen.fail) for screen in safety.screens]
    what = [sorted(screens), sorted(safety.members), safety.output, safety.overlap_chars]
    return blake2b(_encode(what), digest_size=_FINGERPRINT_BYTES).digest()


def stored_state(state: SafetyState, fingerprint: bytes) -> bytes | None:
    """Return a state as bytes; None if it has no such form: a whole number beyond 64 bits, half of a character."""
    try:
        return _encode(_Stored(fingerprint, state.tail, state.settings, state.carried, state.flags))
    except (OverflowError, UnicodeEncodeError):
        return None


def loaded_state(stored: bytes | None, fingerprint: bytes) -> SafetyState | None:
    """Return the state of some bytes; None if nobody has judged that chain, other classifiers have, or it cannot be read."""
    if stored is None:
        return None
    try:
        read = _decode(stored)
        if read.fingerprint != fingerprint:
            return None
        carried = tuple((name, _as_carried(value)) for name, value in read.carried)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        return None
    return SafetyState(tail=read.tail, settings=read.settings, carried=carried, flags=read.flags)


def _as_carried(value: Any) -> Carried:
    """Return what a classifier carries: MessagePack knows no tuples.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, list):
        return tuple(_as_carried(each) for each in as_list(value))
    if value is None or type(value) in (bool, int, float, str, bytes):
        return cast("Carried", value)
    raise TypeError(type(value).__name__)
