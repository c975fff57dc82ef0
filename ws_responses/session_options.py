"""What the protocol of a connection allows, by the options, the client's handshake, and what the upstream can do."""

from ws_responses.handshake import Handshake
from ws_responses.ids import Ids
from ws_responses.protocol import injecting
from ws_responses.protocol.session import Session
from ws_responses.settings import Settings, Steering
from ws_responses.upstreams.base import Upstream


def new_session(settings: Settings, handshake: Handshake, upstream: Upstream, ids: Ids, now: float) -> Session:
    """Return the protocol state of a new connection."""
    return Session(
        settings.limits,
        now=now,
        turn_ids=ids.new_turn,
        accept_wrapped=settings.accept_wrapped,
        accept_cancel=settings.accept_cancel,
        keepalive_s=settings.keepalive_s,
        age_notice=settings.age_notice,
        lanes=settings.profile == "openai",
        steer_ids=ids.new_steer,
        appends=rolls(settings, handshake),
        injects=_takes_injections(settings, handshake, upstream),
    )


def rolls(settings: Settings, handshake: Handshake) -> bool:
    """Whether each response is a whole rollout (prototype mode)."""
    return settings.prototype and handshake.scope["type"] == "websocket"


def steering_of(settings: Settings, handshake: Handshake, upstream: Upstream) -> Steering | None:
    """Return how its responses are steered; None if they are not."""
    if settings.profile != "openai" or handshake.scope["type"] == "http":
        return None
    return "native" if getattr(upstream, "steers", False) else settings.steering


def _takes_injections(settings: Settings, handshake: Handshake, upstream: Upstream) -> bool:
    """Whether its responses can take tool outputs while they run: the client asks for it, and the upstream can wait."""
    if settings.profile != "openai" or handshake.scope["type"] == "http":
        return False
    return getattr(upstream, "injects", False) and injecting.is_served(handshake.headers.get("openai-beta", ""))
