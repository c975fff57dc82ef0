"""Where ``serve`` keeps the chains of its clients beyond their sockets."""

import argparse
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from ws_responses.command_line import UsageError
from ws_responses.counters import TenantCounters
from ws_responses.serve.arguments import STORE, TENANT_KEY
from ws_responses.state.store import ResponseStore

_MEMORY: Final = "memory"
_SQLITE: Final = "sqlite:"
_REDIS_SCHEMES: Final = ("redis", "rediss", "unix")
_MIN_KEY_CHARS: Final = 16


class ChainOptions(Struct, frozen=True, kw_only=True):
    """Where chains are kept, and whose they are.

    Attributes:
        store: Name of the shared store; None for the memory of each process.
        fails_closed: A turn whose parent cannot be read is refused, instead of told that there is none.
        shared_limits: What a tenant has open and running is counted there, too.
        durable: A turn that is to be stored ends when the store has it.
        tenant_key: Key of the hash that names tenants; the same in all workers.
        key_is_given: It comes from the operator, so that other hosts and later runs have the same.
    """

    store: str | None
    fails_closed: bool
    shared_limits: bool
    durable: bool
    tenant_key: bytes
    key_is_given: bool

    @property
    def compaction_key(self) -> bytes:
        """What signs compaction items: the same in all workers, and nothing that tells the other key."""
        return hmac.digest(self.tenant_key, b"ws_responses compaction", hashlib.sha256)


def chain_options(given: argparse.Namespace, environment: Mapping[str, str]) -> ChainOptions:
    """Read what a command line and the environment say of it.

    Raises:
        UsageError: They say what cannot be, or too little.
    """
    named: str | None = given.store or environment.get(STORE) or None
    if named is None and given.workers > 1:
        raise UsageError(
            f"--workers {given.workers} needs a store, or a client that comes to another worker finds nothing of its own: "
            "--store sqlite:FILE (one host) or --store redis://HOST (several); --store memory if each is to know its own only"
        )
    store = None if named in (None, _MEMORY) else named
    if store is not None:
        _check(store)
    for name, value in (("--store-fails", given.store_fails), ("--durable", given.durable)):
        if value and store is None:
            raise UsageError(f"{name} goes with --store sqlite:FILE or redis://HOST only")
    if given.shared_limits and (store is None or store.startswith(_SQLITE)):
        raise UsageError("--shared-limits goes with --store redis://HOST only")
    key = environment.get(TENANT_KEY) or None
    if key is not None and len(key) < _MIN_KEY_CHARS:
        raise UsageError(f"{TENANT_KEY} must have at least {_MIN_KEY_CHARS} characters")
    return ChainOptions(
        store=store,
        fails_closed=given.store_fails == "closed",
        shared_limits=given.shared_limits,
        durable=given.durable,
        tenant_key=secrets.token_bytes(32) if key is None else key.encode("utf-8", "surrogateescape"),
        key_is_given=key is not None,
    )


def _check(store: str) -> None:
    if store.startswith(_SQLITE):
        if store.removeprefix(_SQLITE) in ("", ":memory:"):
            raise UsageError("--store sqlite:FILE needs the name of a file")
    elif store.partition("://")[0] not in _REDIS_SCHEMES:
        # Not repeated: it may hold a password.
        raise UsageError("--store takes sqlite:FILE, redis://HOST:PORT/DB, rediss://..., unix://... or memory")


def open_store(options: ChainOptions) -> ResponseStore | None:
    """Return the shared store; None if there is none.

    Raises:
        ConfigurationError: Its address is none.
        ImportError: A package is missing.
    """
    if options.store is None:
        return None
    how: Any = {"fail": "closed" if options.fails_closed else "miss"}
    if options.store.startswith(_SQLITE):
        from ws_responses.adapters.sqlite import SqliteStore  # noqa: PLC0415 - only what is named is imported

        return SqliteStore(options.store.removeprefix(_SQLITE), **how)
    from ws_responses.adapters.redis import RedisStore  # noqa: PLC0415

    return RedisStore(options.store, **how)


def open_counters(options: ChainOptions) -> TenantCounters | None:
    """Return what counts over all workers; None if each counts for itself.

    Raises:
        ConfigurationError: Its address is none.
        ImportError: A package is missing.
    """
    if not options.shared_limits:
        return None
    from ws_responses.adapters.redis_counters import RedisCounters  # noqa: PLC0415

    assert options.store is not None
    return RedisCounters(options.store)


def describe(options: ChainOptions, workers: int) -> str | None:
    """Return where chains are kept, for people and without passwords; None if that goes without saying."""
    if options.store is None:
        return "in the memory of each worker: no other one knows them" if workers > 1 else None
    if options.store.startswith(_SQLITE):
        return f"in the file {options.store.removeprefix(_SQLITE)}"
    parts = urlsplit(options.store)
    return f"in Redis at {parts.netloc.rpartition('@')[2] or parts.path}"
