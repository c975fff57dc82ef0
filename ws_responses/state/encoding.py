"""Records as bytes, for stores outside of the process: versioned, compressed where that pays, sealed if there is a key.

    codec = RecordCodec(seal=fernet.encrypt, unseal=fernet.decrypt)

A stored record is two bytes (the format, and what was done to the rest) and a body: a MessagePack array, compressed, then
sealed. The body names its tenant, its id and its parent's, so that whatever a store or its connection mixes up, a chain
either is the one that was asked for, or is none.
"""

import zlib
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from sys import byteorder, intern
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ws_responses.errors import ConfigurationError, RecordUnreadable, StoreError
from ws_responses.protocol.calls import START, UNKNOWN_BASE, CallState, OpenCall
from ws_responses.protocol.withheld import withheld
from ws_responses.state.node import Record, Sampled
from ws_responses.state.store import StoreKey

__all__ = ["FORMAT", "RecordCodec", "Transform"]

Transform = Callable[[bytes], bytes]
"""Seals bytes, or opens what was sealed: ``Fernet.encrypt`` and ``Fernet.decrypt``, for example."""

FORMAT: Final = 1
"""Format of what is written. A reader refuses any other one."""

MAX_OPEN_CALLS: Final = 65_536
"""Unanswered calls that a record may carry. Decoded they take fifty times their bytes, so these must be few."""

_COMPRESSED: Final = 1
_SEALED: Final = 2

_LEVEL: Final = 1
"""Of zlib: JSON shrinks to a third at 100 MB/s; higher levels win a few per cent and take three times as long."""


class _Body(Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """A record as it is stored.

    New members go to the end, with a default: older records lack them. A reader that does not know them refuses the record,
    because it could not continue the chain as the writer meant it.
    """

    tenant: bytes
    id: str
    parent_id: str | None
    model: str | None
    items: bytes
    output_at: int
    history_at: int
    base: bool
    known: bool
    open: Annotated[tuple[tuple[str, str, bool], ...], Meta(max_length=MAX_OPEN_CALLS)]
    generated: bool
    status: str
    vocabulary: str | None = None
    sampled: bytes = b""
    response: bytes | None = None
    known_to_app: bool = False
    app_parent_id: str | None = None
    app_id: str | None = None
    part: bool = False
    safety: bytes | None = None

    __repr__ = withheld


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Body).decode


class RecordCodec:
    """Turns records into bytes and back.

    Args:
        compress_from: Bytes from which on a record is compressed; None for never.
        seal: Encrypts a record before it is written.
        unseal: Opens what ``seal`` made, and raises if that is damaged or was sealed with another key. Needed with ``seal``.
            With it, records that are not sealed are refused.
        max_bytes: Bound of a decoded chain. A chain that is larger than what a connection may keep
            (``Limits.max_connection_bytes``) could not be continued.

    Attributes:
        max_bytes: As given.

    Raises:
        ConfigurationError: One of ``seal`` and ``unseal`` is missing, or a number is wrong.
    """

    def __init__(
        self,
        *,
        compress_from: int | None = 1024,
        seal: Transform | None = None,
        unseal: Transform | None = None,
        max_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        if (seal is None) != (unseal is None):
            raise ConfigurationError("seal and unseal must be given together")
        if max_bytes <= 0 or (compress_from is not None and compress_from < 0):
            raise ConfigurationError("max_bytes must be positive, and compress_from not negative")
        self._compress_from = compress_from
        self._seal = seal
        self._unseal = unseal
        self.max_bytes = max_bytes

    def encode(self, tenant: str, record: Record) -> bytes:
        """Return a record as bytes.

        Raises:
            StoreError: It must not be stored, is too large, or cannot be sealed.
        """
        if not record.store:
            raise StoreError("this response is not to be stored")
        if len(record.calls.open) > MAX_OPEN_CALLS:
            raise StoreError(f"more than {MAX_OPEN_CALLS} calls of this chain are not answered")
        try:
            body = _encode(_as_body(tenant, record))
        except UnicodeEncodeError:
            raise StoreError("a name in this record has no form in UTF-8") from None
        if len(body) > self.max_bytes:
            raise StoreError(f"a record of {len(body)} bytes is above the limit of {self.max_bytes}")
        flags = 0
        if self._compress_from is not None and len(body) >= self._compress_from:
            smaller = zlib.compress(body, _LEVEL)
            if len(smaller) < len(body):
                body, flags = smaller, _COMPRESSED
        if self._seal is not None:
            flags |= _SEALED
            try:
                body = self._seal(body)
            except Exception as error:
                raise StoreError("the record could not be sealed") from error
        return bytes((FORMAT, flags)) + body

    def decode(self, tenant: str, stored: bytes) -> Record:
        """Return the record of some bytes.

        Raises:
            RecordUnreadable: They are no record of this tenant that can be read here.
        """
        return self._read(tenant, stored, self.max_bytes)[0]

    def decode_chain(self, key: StoreKey, stored: Sequence[bytes]) -> list[Record]:
        """Return the chain of some bytes, of which each is a record, the oldest first.

        Raises:
            RecordUnreadable: They are not the whole chain of ``key``, or more than the bound.
        """
        records: list[Record] = []
        left = self.max_bytes
        for each in stored:
            record, size = self._read(key.tenant, each, left)
            left -= size
            parent = records[-1] if records else None
            if not _follows(record, parent):
                raise RecordUnreadable("the records of this chain do not follow each other")
            if parent is not None and record.calls == parent.calls:
                record = msgspec.structs.replace(record, calls=parent.calls)
            records.append(record)
        if records and records[-1].id != key.response_id:
            raise RecordUnreadable("this is the chain of another response")
        return records

    def _read(self, tenant: str, stored: bytes, limit: int) -> tuple[Record, int]:
        if len(stored) < 2 or stored[0] != FORMAT:
            raise RecordUnreadable("a record of another format: was it written by another version?")
        flags, body = stored[1], stored[2:]
        if bool(flags & _SEALED) != (self._unseal is not None):
            raise RecordUnreadable("a record that is sealed without a key here, or not sealed although there is one")
        if self._unseal is not None:
            try:
                body = self._unseal(body)
            except Exception as error:
                raise RecordUnreadable("a record is damaged, or was sealed with another key") from error
        if flags & _COMPRESSED:
            body = _decompressed(body, limit)
        if len(body) > limit:
            raise RecordUnreadable(f"a chain of more than {self.max_bytes} bytes")
        try:
            read = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise RecordUnreadable("a record is damaged, or was written by a newer version") from None
        return _as_record(tenant, read), len(body)


def _follows(record: Record, parent: Record | None) -> bool:
    """Whether a record stands where it belongs: a chain begins with a first response or a new base, and with nothing else."""
    if parent is None:
        return record.base or record.parent_id is None
    return not record.base and record.parent_id == parent.id


def _decompressed(body: bytes, limit: int) -> bytes:
    """Return what was compressed; never takes more memory than ``limit`` and as much again for the joined result."""
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(body, limit + 1)
    except zlib.error:
        raise RecordUnreadable("a record is damaged") from None
    if not reader.eof or reader.unused_data:
        raise RecordUnreadable("a record is damaged, or above the limit")
    return plain


def _digest(tenant: str) -> bytes:
    return blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _as_body(tenant: str, record: Record) -> _Body:
    sampled = record.sampled
    return _Body(
        tenant=_digest(tenant),
        id=record.id,
        parent_id=record.parent_id,
        model=record.model,
        items=record.items,
        output_at=record.output_at,
        history_at=record.history_at,
        base=record.base,
        known=record.calls.known,
        open=tuple((call.type, call.key, call.required) for call in record.calls.open),
        generated=record.generated,
        status=record.status,
        vocabulary=None if sampled is None else sampled.vocabulary,
        sampled=b"" if sampled is None else _little_endian(sampled.packed),
        response=record.response,
        known_to_app=record.known_to_app,
        app_parent_id=record.app_parent_id,
        app_id=record.app_id,
        part=record.part,
        safety=record.safety,
    )


def _as_record(tenant: str, body: _Body) -> Record:
    if body.tenant != _digest(tenant):
        raise RecordUnreadable("a record of another tenant")
    if (
        not 0 <= body.output_at <= len(body.items)
        or not 0 <= body.history_at <= len(body.items)
        or len(body.sampled) % 4
    ):
        raise RecordUnreadable("a record is damaged")
    sampled = None if body.vocabulary is None else Sampled(intern(body.vocabulary), _little_endian(body.sampled))
    return Record(
        id=body.id,
        parent_id=body.parent_id,
        model=None if body.model is None else intern(body.model),
        store=True,
        items=body.items,
        output_at=body.output_at,
        history_at=body.history_at,
        base=body.base,
        calls=_calls(body),
        generated=body.generated,
        status=intern(body.status),
        sampled=sampled,
        response=body.response,
        known_to_app=body.known_to_app,
        app_parent_id=body.app_parent_id,
        app_id=body.app_id,
        part=body.part,
        safety=body.safety,
    )


def _calls(body: _Body) -> CallState:
    if not body.open:
        return START if body.known else UNKNOWN_BASE
    return CallState(tuple(OpenCall(intern(kind), key, required) for kind, key, required in body.open), body.known)


def _little_endian(packed: bytes) -> bytes:
    """Return ids in the other order of bytes where the machine's is not the one that is stored."""
    if byteorder == "little":
        return packed
    ids = array("I", packed)
    ids.byteswap()
    return ids.tobytes()
