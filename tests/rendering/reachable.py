"""What a rendered conversation keeps alive, found without its own methods."""

import sys

from ws_responses.rendering.rendered import DETOUR_BYTES, RENDERED_BYTES, Detour, Rendered


def reachable(state: Rendered | None) -> dict[int, int]:
    """Return all objects that a state keeps alive, by their identity, with the bytes charged for each."""
    found: dict[int, int] = {}
    waiting: list[Rendered | Detour | None] = [state]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in found:
            continue
        if isinstance(one, Detour):
            found[id(one)] = DETOUR_BYTES
            waiting.append(one.instead)
            continue
        found[id(one)] = RENDERED_BYTES + (0 if one.memo is None else sys.getsizeof(one.memo))
        if one.own_ids:
            found[id(one.own_ids)] = 4 * len(one.own_ids)
        if one.encoded:
            found[id(one.encoded)] = len(one.encoded)
        waiting += [one.before, one.detour]
    return found


def bytes_since(state: Rendered, ancestor: Rendered | None) -> int:
    """Return the bytes that a state keeps alive and another does not."""
    known = reachable(ancestor)
    return sum(size for key, size in reachable(state).items() if key not in known)
