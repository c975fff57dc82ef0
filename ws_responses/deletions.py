"""Responses that their owner deletes by HTTP: what the app says is deleted is dropped here as well."""

from ws_responses._types import Message, Scope, Send
from ws_responses.errors import Refused
from ws_responses.handshake import Handshake
from ws_responses.registry import Registry
from ws_responses.upstreams.scope import route_path


class Deletions:
    """Watches the app's answers to ``DELETE path/{id}``.

    Args:
        registry: What the connections share.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        settings = registry.settings
        self._paths = (*settings.paths, settings.inner_path)

    def concerns(self, scope: Scope) -> bool:
        """Whether an HTTP request deletes a response."""
        return scope["method"] == "DELETE" and self._deleted_id(scope) is not None

    def watch(self, scope: Scope, send: Send) -> Send:
        """Drop an id here as well when the app says that it is deleted, before the client hears of it."""

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start" and 200 <= message["status"] < 300:
                await self._forget(scope)
            await send(message)

        return watch

    def _deleted_id(self, scope: Scope) -> str | None:
        base, _, response_id = route_path(scope).rpartition("/")
        return response_id if response_id and base in self._paths else None

    async def _forget(self, scope: Scope) -> None:
        response_id = self._deleted_id(scope)
        handshake = Handshake(scope)
        try:
            guest = await self._registry.admission.identify(handshake)
        except Refused:
            return  # not ours to judge: the app has let it pass, but we do not know who it is
        if response_id is not None:
            await self._registry.forget(guest.tenant, response_id)
