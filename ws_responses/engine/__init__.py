"""Turns answered here, by an inference backend."""

from ws_responses.engine.answer import EngineCounts
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.engine.fetching import HttpResolver
from ws_responses.engine.generation import Retry
from ws_responses.engine.resolving import Resolver

__all__ = ["EngineCounts", "HttpResolver", "Resolver", "ResponsesEngine", "Retry"]
