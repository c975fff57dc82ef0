"""The Redis store on real servers: the conformance suite, its keys, what an operation costs, and a cluster."""

import secrets
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from tests.adapters.redis_server import RedisServer, RedisTime
from ws_responses.adapters.redis import RedisStore
from ws_responses.errors import ConfigurationError, RecordUnreadable, StoreError
from ws_responses.state.encoding import RecordCodec
from ws_responses.state.store import StoreKey
from ws_responses.testing.store_conformance import StoreConformance, make_record

TTL_S = 1000.0


@pytest.fixture(scope="module", params=[("asyncio", {"use_uvloop": False})], ids=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """redis-py is for asyncio."""
    return request.param


@pytest.fixture(scope="module", params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Generator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


@pytest.fixture
async def store(server: RedisServer) -> AsyncGenerator[RedisStore]:
    store = RedisStore(server.url)
    yield store
    await store.aclose()


@pytest.fixture
def tenant() -> str:
    return secrets.token_hex(8)


async def append(store: RedisStore, tenant: str, name: str, parent: str | None = None, **options: Any) -> None:
    ttl_s = options.pop("ttl_s", TTL_S)
    above = None if parent is None else StoreKey(tenant, parent)
    await store.append(StoreKey(tenant, name), make_record(name, parent, **options), above, ttl_s)


async def load(store: RedisStore, tenant: str, name: str) -> list[str]:
    return [record.id for record in await store.load(StoreKey(tenant, name))]


def keys_of(server: RedisServer, store: RedisStore, tenant: str) -> list[bytes]:
    from ws_responses.adapters.redis import _Keys

    stem = _Keys(store._prefix, tenant)._stem
    with server.client() as client:
        return sorted(key for key in client.scan_iter(count=1000) if key.startswith(stem))


class TestRedisStore(StoreConformance):
    slack_s = 60.0

    @pytest.fixture
    def clock(self, server: RedisServer) -> RedisTime:
        return RedisTime(server)

    @pytest.fixture
    async def store(self, server: RedisServer) -> AsyncGenerator[RedisStore]:
        store = RedisStore(server.url, prefix=secrets.token_hex(4), timeout_s=5)
        yield store
        await store.aclose()
        with server.client() as client:
            client.flushall()


# -- keys -------------------------------------------------------------------------------------------------------------


async def test_keys_tell_no_tenant_and_content_can_be_sealed(server: RedisServer) -> None:
    def turned(sealed: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in sealed)

    store = RedisStore(server.url, codec=RecordCodec(seal=turned, unseal=turned))
    await append(store, "anna@example.com", "a", items=b'"secret"')
    with server.client() as client:
        dump = b"".join(key + (client.dump(key) or b"") for key in client.scan_iter(count=1000))
    assert b"anna" not in dump
    assert b"secret" not in dump
    assert await load(store, "anna@example.com", "a") == ["a"]
    other = RedisStore(server.url)
    with pytest.raises(RecordUnreadable):
        await load(other, "anna@example.com", "a")
    for each in (store, other):
        await each.aclose()


async def test_all_keys_expire(server: RedisServer, store: RedisStore, tenant: str) -> None:
    """One without would stay for ever."""
    for name, parent in (("a", None), ("b", "a"), ("fork", "a"), ("c", "b"), ("b", "a")):
        await append(store, tenant, name, parent)
    await append(store, tenant, "base", "c", base=True)
    await store.delete(StoreKey(tenant, "c"))
    with server.client() as client:
        lives = {key: client.pttl(key) / 1000 for key in keys_of(server, store, tenant)}
    assert len(lives) > 5
    for key, life in lives.items():
        low, high = (0.9 * TTL_S, TTL_S) if b":b:" in key else (1.9 * TTL_S, 2 * TTL_S)
        assert low < life <= high


async def test_what_is_deleted_leaves_the_server_when_nothing_hangs_on_it(
    server: RedisServer, store: RedisStore, tenant: str
) -> None:
    for name, parent in (("a", None), ("b", "a"), ("c", "b")):
        await append(store, tenant, name, parent, items=b'"%s"' % name.encode())
    await store.delete(StoreKey(tenant, "b"))
    with server.client() as client:
        (branch,) = (key for key in keys_of(server, store, tenant) if b":b:" in key)
        assert sorted(client.hkeys(branch)) == [b"0", b"1", b"2", b"i0", b"i2", b"n", b"p"]
        await store.delete(StoreKey(tenant, "c"))
        assert sorted(client.hkeys(branch)) == [b"0", b"i0", b"n", b"p"]
    await store.delete(StoreKey(tenant, "a"))
    assert keys_of(server, store, tenant) == []


async def test_prefixes_keep_stores_apart(server: RedisServer, store: RedisStore, tenant: str) -> None:
    other = RedisStore(server.url, prefix="other")
    await append(store, tenant, "a")
    assert await load(other, tenant, "a") == []
    await other.aclose()


# -- time -------------------------------------------------------------------------------------------------------------


async def test_pointers_outlive_the_branch_however_long_it_lives(
    server: RedisServer, store: RedisStore, tenant: str
) -> None:
    """The ids of a chain's beginning must be found as long as the chain is, without a command for each at each append."""
    time = RedisTime(server)
    await append(store, tenant, "0")
    await append(store, tenant, "fork", "0")
    for number in range(1, 40):
        await append(store, tenant, str(number), str(number - 1), ttl_s=TTL_S if number % 7 else TTL_S * 2.5)
        await time.advance(TTL_S / 2)
        assert await load(store, tenant, "0") == ["0"]
        assert await load(store, tenant, str(number // 2)) == [str(each) for each in range(number // 2 + 1)]
    await time.advance(TTL_S * 3)
    assert [key for key in keys_of(server, store, tenant) if b":b:" in key] == []
    await time.advance(TTL_S * 3)
    assert keys_of(server, store, tenant) == [], "nor for ever after it"


async def test_long_branches_are_refreshed_in_pieces(
    server: RedisServer, store: RedisStore, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ws_responses.adapters import redis as adapter

    monkeypatch.setattr(adapter, "_AT_ONCE", 10)
    time = RedisTime(server)
    names = [str(number) for number in range(35)]
    for parent, name in zip((None, *names), names, strict=False):
        await append(store, tenant, name, parent)
    await time.advance(TTL_S / 2)
    await append(store, tenant, "35", "34", ttl_s=3 * TTL_S)
    await time.advance(2.5 * TTL_S)
    for name in (*names, "35"):
        assert (await load(store, tenant, name))[-1:] == [name]


async def test_what_is_added_during_a_refresh_is_not_forgotten(
    server: RedisServer, store: RedisStore, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pointer was not among those that were extended: the branch must not be marked as if it was."""
    time = RedisTime(server)
    await append(store, tenant, "a")
    real = store._client.execute_command
    other = RedisStore(server.url)

    async def meanwhile(*command: Any, **options: Any) -> Any:
        answer = await real(*command, **options)
        if command[0] == "HGET" and command[2] == "n":
            await append(other, tenant, "late", "b", ttl_s=1)
        return answer

    monkeypatch.setattr(store._client, "execute_command", meanwhile)
    await append(store, tenant, "b", "a", ttl_s=10 * TTL_S)
    monkeypatch.undo()
    await append(other, tenant, "c", "late", ttl_s=10 * TTL_S)
    await time.advance(9 * TTL_S)
    assert await load(store, tenant, "late") == ["a", "b", "late"]
    await other.aclose()


# -- at the same time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["deleted", "replaced", "forked", "stored", "deleted and stored"])
async def test_what_changes_between_two_commands_is_looked_at_anew(
    server: RedisServer, store: RedisStore, tenant: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Another worker comes in between: no record is hung on what has gone, nor on what has taken its place half-way."""
    await append(store, tenant, "a")
    await append(store, tenant, "b", "a", items=b'"first"')
    other = RedisStore(server.url)
    real = store._client.execute_command
    changed = False

    async def meanwhile(*command: Any, **options: Any) -> Any:
        nonlocal changed
        answer = await real(*command, **options)
        if command[0] == "MGET" and not changed:
            changed = True
            if change.startswith("deleted"):
                await other.delete(StoreKey(tenant, "b"))
            if change.endswith("replaced"):
                await append(other, tenant, "b", "a", items=b'"second"')
            if change == "forked":
                await append(other, tenant, "x", "b")
            if change == "stored":
                await append(other, tenant, "c", "b", items=b'"theirs"')
            if change == "deleted and stored":
                await append(other, tenant, "b", items=b'"root"')
        return answer

    monkeypatch.setattr(store._client, "execute_command", meanwhile)
    if change == "deleted":
        with pytest.raises(StoreError, match="not stored"):
            await append(store, tenant, "c", "b")
        assert await load(store, tenant, "c") == []
    else:
        await append(store, tenant, "c", "b", items=b'"mine"')
        expected = {"replaced": [b"{}", b'"second"'], "deleted and stored": [b'"root"']}
        chain = await store.load(StoreKey(tenant, "c"))
        assert [record.items for record in chain] == [*expected.get(change, [b"{}", b'"first"']), b'"mine"']
    assert changed
    with server.client() as client:
        branches = [key for key in keys_of(server, store, tenant) if b":b:" in key]
        ids = [value for key in branches for field, value in client.hgetall(key).items() if field.startswith(b"i")]
    assert ids.count(b"c") == (0 if change == "deleted" else 1), "what was replaced is not left behind"
    await other.aclose()


async def test_an_id_that_comes_and_goes_for_ever_is_an_error_in_the_end(
    server: RedisServer, store: RedisStore, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(store, tenant, "a")
    other = RedisStore(server.url)
    real = store._client.execute_command

    async def meanwhile(*command: Any, **options: Any) -> Any:
        answer = await real(*command, **options)
        if command[0] in {"MGET", "GET"}:
            await append(other, tenant, "a")
        return answer

    monkeypatch.setattr(store._client, "execute_command", meanwhile)
    with pytest.raises(StoreError, match="at the same time"):
        await append(store, tenant, "b", "a")
    with pytest.raises(StoreError, match="at the same time"):
        await store.delete(StoreKey(tenant, "a"))
    await other.aclose()


# -- what an operation costs ------------------------------------------------------------------------------------------


class Counting:
    """A client that counts commands and the bytes in them."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.commands: list[str] = []
        self.sent = 0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        self.commands.append(str(args[0]))
        self.sent += sum(len(each) if isinstance(each, bytes | str) else 8 for each in args)
        return await self._client.execute_command(*args, **options)

    async def aclose(self) -> None:
        raise AssertionError("the client is its maker's")

    def get_encoder(self) -> Any:
        return self._client.get_encoder()

    def taken(self) -> tuple[list[str], int]:
        taken = self.commands, self.sent
        self.commands, self.sent = [], 0
        return taken


async def test_a_write_costs_the_same_at_the_end_of_a_long_chain(server: RedisServer, tenant: str) -> None:
    """Two round trips and the record's own bytes."""
    raw = Redis.from_url(server.url)
    client = Counting(raw)
    store = RedisStore(client)
    await append(store, tenant, "0000")
    await append(store, tenant, "0001", "0000")
    client.taken()
    costs: list[tuple[list[str], int]] = []
    for number in range(2, 500):
        await append(store, tenant, f"{number:04}", f"{number - 1:04}", items=b"x" * 900)
        costs.append(client.taken())
    assert all(commands == ["MGET", "EVALSHA"] for commands, _ in costs)
    sizes = {size for _, size in costs}
    assert max(sizes) - min(sizes) <= 2, "the digits of a position"
    assert max(sizes) < 900 + 600

    assert len(await load(store, tenant, "0499")) == 500
    assert client.taken()[0] == ["GET", "HMGET"]
    await append(store, tenant, "fork", "0100")
    assert client.taken()[0] == ["MGET", "EVALSHA"]
    await append(store, tenant, "fork 2", "fork")
    assert client.taken()[0] == ["MGET", "HGET", "EVALSHA"], "where a branch comes from is asked once"
    await append(store, tenant, "fork 3", "fork 2")
    assert client.taken()[0] == ["MGET", "EVALSHA"]
    assert len(await load(store, tenant, "fork 3")) == 104
    assert client.taken()[0] == ["GET", "HMGET", "HMGET"], "one more for a fork"
    await store.aclose()
    await raw.aclose()


# -- what is not right on the server ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["branch", "origin", "pointer", "record", "all pointers"])
async def test_what_the_server_has_evicted_is_missing_and_never_half_there(
    server: RedisServer, store: RedisStore, tenant: str, lost: str
) -> None:
    """A server with an eviction policy drops keys one by one, whatever belongs together."""
    for name, parent in (("a", None), ("b", "a"), ("c", "b"), ("fork", "a"), ("fork 2", "fork")):
        await append(store, tenant, name, parent)
    with server.client() as client:
        keys = keys_of(server, store, tenant)
        origin, branch = sorted((key for key in keys if b":b:" in key), key=lambda key: client.hexists(key, "o"))
        if lost == "record":
            client.hdel(branch, "0")
        elif lost == "all pointers":
            client.delete(*(key for key in keys if b":i:" in key))
        else:
            pointer = next(key for key in keys if key.endswith(b":i:fork 2"))
            client.delete({"branch": branch, "origin": origin, "pointer": pointer}[lost])
    if lost == "record":
        with pytest.raises(RecordUnreadable):
            await load(store, tenant, "fork 2")
        return
    assert await load(store, tenant, "fork 2") == []
    with server.client() as client:
        before = {key: client.dump(key) for key in keys_of(server, store, tenant)}
        with pytest.raises(StoreError, match="not stored"):
            await append(store, tenant, "fork 3", "fork 2")
        assert {key: client.dump(key) for key in keys_of(server, store, tenant)} == before


@pytest.mark.parametrize("value", [b"", b"x", b"abc", b"abc:", b"abc:x", b"abc:-1", b"abc:99999999999", b":0"])
async def test_a_damaged_pointer_is_an_error_in_bounded_time(
    server: RedisServer, store: RedisStore, tenant: str, value: bytes
) -> None:
    await append(store, tenant, "a")
    with server.client() as client:
        (pointer,) = (key for key in keys_of(server, store, tenant) if b":i:" in key)
        client.set(pointer, value)
    if value == b":0":
        assert await load(store, tenant, "a") == []
        return
    with pytest.raises(RecordUnreadable):
        await load(store, tenant, "a")


@pytest.mark.parametrize("swapped", ["records", "pointers"])
async def test_what_was_mixed_up_is_refused(server: RedisServer, store: RedisStore, tenant: str, swapped: str) -> None:
    """B007: whatever a server, a proxy or a connection does, nobody is given another's chain."""
    other = tenant + "x"
    for each in (tenant, other):
        await append(store, each, "a")
        await append(store, each, "b", "a")
    with server.client() as client:
        if swapped == "records":
            mine, yours = (
                next(key for key in keys_of(server, store, each) if b":b:" in key) for each in (tenant, other)
            )
            client.copy(yours, mine, replace=True)
        else:
            first, second = (key for key in keys_of(server, store, tenant) if b":i:" in key)
            client.rename(first, second)
    with pytest.raises(RecordUnreadable):
        await load(store, tenant, "b")


async def test_what_is_not_to_be_stored_is_refused(server: RedisServer, store: RedisStore, tenant: str) -> None:
    with pytest.raises(StoreError, match="not to be stored"):
        await store.append(StoreKey(tenant, "a"), replace(make_record("a"), store=False), None, TTL_S)
    with pytest.raises(StoreError, match="another tenant"):
        await store.append(StoreKey(tenant, "b"), make_record("b", "a"), StoreKey("other", "a"), TTL_S)
    assert keys_of(server, store, tenant) == []


async def test_a_name_without_a_form_in_utf8_is_an_error(store: RedisStore, tenant: str) -> None:
    with pytest.raises(StoreError):
        await load(store, tenant, "\ud800")


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"server": "redis://localhost", "fail": "open"},
        {"server": "redis://localhost", "timeout_s": 0},
        {"server": "redis://localhost", "prefix": "{x}"},
        {"server": "redis://localhost?decode_responses=true"},
        {"server": "postgres://user:password@localhost"},
        {"server": "redis://:password@localhost:port"},
    ],
    ids=str,
)
async def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisStore(**options)
    assert "password" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_it_says_whether_it_fails_closed() -> None:
    assert RedisStore("redis://localhost").fails_closed is False
    assert RedisStore("redis://localhost", fail="closed").fails_closed is True


@pytest.mark.parametrize("anyio_backend", [("trio", {})], ids=["trio"])
async def test_on_trio_it_says_what_it_needs(anyio_backend: Any) -> None:
    store = RedisStore("redis://localhost")
    with pytest.raises(ConfigurationError, match="asyncio"):
        await load(store, "t", "a")
