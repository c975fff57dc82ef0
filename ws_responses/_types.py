"""The five ASGI types, so that the core needs no framework."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
# Frameworks type scope and messages each in its own way: with `Any` a user's type checker lets all of their apps in.
ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]
