"""Images and files of a turn's new items, as the backend can take them.

Without a resolver nothing is fetched: what is in the request itself passes, an ``https:`` image URL too (the backend fetches
it), and what only an API with uploads could know is refused by its path.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, cast

import anyio
import msgspec

from ws_responses.errors import InvalidRequest, WireError
from ws_responses.rendering.cache import Kept
from ws_responses.routing import Route
from ws_responses.state.node import ResponseNode

Attachment = Literal["image", "file"]
"""``input_image`` or ``input_file``."""

MAX_ATTACHMENTS: Final = 128
"""Images and files to be resolved for one turn: a resolver may fetch each."""

MAX_RESOLVED_BYTES: Final = 64 * 1024 * 1024
"""What they may have become, all in all: it is kept with the turn."""

AT_ONCE: Final = 4
"""Attachments of a turn that are resolved at the same time."""

_KINDS: Final[dict[str, Attachment]] = {"input_image": "image", "input_file": "file"}

_PARTS: Final = ("content", "output")
"""Members of items that hold parts: of messages, of what tools gave."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Resolver(Protocol):
    """Turns what a request only names into what a backend takes.

    Called once for each image and file that is not in the request itself; the result is kept with the turn's response, so
    that later turns of the chain do not ask again.
    """

    async def resolve(self, kind: Attachment, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part to be used in place of this one.

        Args:
            kind: What it is.
            part: ``input_image`` with ``image_url`` or ``file_id``, or ``input_file`` with ``file_url`` or ``file_id``.

        Returns:
            An ``input_image`` with an ``image_url``, or an ``input_file`` with ``file_data``.

        Raises:
            WireError: It cannot be had. Its ``param`` is set to the part's path if it names none.
        """
        ...


class _Task(msgspec.Struct):
    """One attachment.

    Attributes:
        kind: What it is.
        path: Where it is, from ``input`` on.
        parts: The list that holds it.
        at: Its place there.
        item: Index of its item.
    """

    kind: Attachment
    path: str
    parts: list[object]
    at: int
    item: int

    @property
    def part(self) -> dict[str, Any]:
        """The attachment itself."""
        return cast("dict[str, Any]", self.parts[self.at])


async def resolve_items(items: Sequence[bytes], route: Route, resolver: Resolver | None) -> dict[int, bytes]:
    """Return the items that had to be changed, encoded, by their index.

    Args:
        items: New items of a turn.
        route: Who is to take them.
        resolver: Resolves what is only named; None if nobody does.

    Raises:
        WireError: Something cannot be given to the backend; ``param`` is its path.
    """
    decoded: dict[int, dict[str, Any]] = {}
    tasks: list[_Task] = []
    for index, item in enumerate(items):
        if _may_attach(item):
            decoded[index] = members = _decode(item)
            tasks += _attachments(members, index)
    named = [task for task in tasks if not _passes(task, route, resolver)]
    if not named:
        return {}
    if len(named) > MAX_ATTACHMENTS:
        raise InvalidRequest(f"At most {MAX_ATTACHMENTS} images and files are fetched for a request.", param="input")
    assert resolver is not None
    await _resolve(named, route, resolver)
    resolved = {index: msgspec.json.encode(decoded[index]) for index in sorted({task.item for task in named})}
    if sum(map(len, resolved.values())) > MAX_RESOLVED_BYTES:
        raise InvalidRequest(f"The images and files of the request exceed {MAX_RESOLVED_BYTES} bytes.", param="input")
    return resolved


async def resolve_chain(parent: ResponseNode, route: Route, resolver: Resolver) -> ResponseNode:
    """Return a chain whose images and files are resolved where that was not kept: a store has the items as they came.

    Args:
        parent: The newest node; its chain is copied where something was resolved.
        route: Who is to take them.
        resolver: Resolves what is only named.

    Raises:
        WireError: Something cannot be given to the backend.
    """
    nodes = list(parent.joined())
    nodes.reverse()
    found: dict[int, dict[int, bytes]] = {}
    for place, node in enumerate(nodes):
        if isinstance(node.kept, Kept) or not _may_attach(node.record.items):
            continue
        try:
            found[place] = await resolve_items(node.record.input_items(), route, resolver)
        except InvalidRequest as error:
            raise InvalidRequest(f"An earlier item of this conversation: {error.message}", code=error.code) from None
    if not any(found.values()):
        return parent
    copy: ResponseNode | None = None
    for place, node in enumerate(nodes):
        kept = Kept(resolved=found[place]) if place in found else node.kept
        copy = ResponseNode(node.record, copy, tenant=node.tenant, lane=node.lane, kept=kept)
    return copy or parent


def _may_attach(item: bytes) -> bool:
    """Whether an item may hold an attachment; a type may be spelled with escapes."""
    return b"input_image" in item or b"input_file" in item or b"\\u00" in item


def _attachments(members: dict[str, Any], index: int) -> Iterator[_Task]:
    for name in _PARTS:
        value = members.get(name)
        parts = cast("list[object]", value) if isinstance(value, list) else []
        for at, part in enumerate(parts):
            attachment = _attachment(part)
            if attachment is not None:
                yield _Task(attachment, f"input[{index}].{name}[{at}]", parts, at, index)


def _attachment(part: object) -> Attachment | None:
    kind = cast("dict[str, Any]", part).get("type") if isinstance(part, dict) else None
    return _KINDS.get(kind) if isinstance(kind, str) else None


def _passes(task: _Task, route: Route, resolver: Resolver | None) -> bool:
    """Whether an attachment can be given to the backend as it is; False if the resolver has to look at it.

    Raises:
        InvalidRequest: Neither.
    """
    accepts = route.backend.accepts
    if route.renderer.produces != "chat" or not (accepts.images if task.kind == "image" else accepts.files):
        raise InvalidRequest(f"Model does not support {task.kind} inputs.", param=task.path, code="unsupported_input")
    if _is_whole(task):
        return True
    if resolver is not None:
        return False
    if task.kind == "image" and _text(task.part, "image_url").startswith("https://"):
        return True
    field = next((name for name in ("file_id", "file_url", "image_url") if _text(task.part, name)), None)
    where = task.path if field is None else f"{task.path}.{field}"
    if field is None:
        raise InvalidRequest(f"The {task.kind} has no content.", param=where)
    raise InvalidRequest(
        f"The {task.kind} cannot be fetched here: send it in the request itself.", param=where, code="unsupported_input"
    )


def _is_whole(task: _Task) -> bool:
    """Whether all of an attachment is in the request."""
    if task.kind == "file":
        return bool(_text(task.part, "file_data"))
    return _text(task.part, "image_url").startswith("data:")


def _text(part: Mapping[str, Any], name: str) -> str:
    value = part.get(name)
    return value if isinstance(value, str) else ""


async def _resolve(tasks: Sequence[_Task], route: Route, resolver: Resolver) -> None:
    limiter = anyio.CapacityLimiter(AT_ONCE)
    failures: list[WireError] = []

    async def one(task: _Task) -> None:
        async with limiter:
            try:
                task.parts[task.at] = dict(await resolver.resolve(task.kind, task.part))
                _require_usable(task, route)
            except WireError as error:
                error.param = error.param or task.path
                failures.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(one, task)
    if failures:
        raise failures[0]


def _require_usable(task: _Task, route: Route) -> None:
    if not _passes_resolved(task):
        raise WireError(
            f"The {task.kind} was resolved to something that the route {route.name!r} does not take.", param=task.path
        )


def _passes_resolved(task: _Task) -> bool:
    return _is_whole(task) or (task.kind == "image" and _text(task.part, "image_url").startswith("https://"))
