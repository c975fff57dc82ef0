"""The router of a single backend."""

import pytest

from tests.engine.service import LetterRenderer, ScriptedService
from ws_responses.errors import ConfigurationError, InvalidRequest
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.routing import SingleRouter, UnknownModel


def router(**options: object) -> SingleRouter:
    return SingleRouter(ScriptedService(), ChatRenderer(), **options)  # type: ignore[arg-type] # as a test gives them


async def test_every_name_is_let_through_if_none_is_given() -> None:
    route = await router(context_window=8, max_output_tokens=4, name="r").resolve("any", "tenant", None)
    assert (route.model, route.backend_model, route.name) == ("any", "any", "r")
    assert (route.context_window, route.max_output_tokens) == (8, 4)
    assert router().models("tenant") == []


async def test_names_may_be_others_than_the_backends() -> None:
    named = router(models={"fast": "model-8b", "good": "model-70b"})
    assert (await named.resolve("good", "tenant", None)).backend_model == "model-70b"
    assert named.models("tenant") == ["fast", "good"]
    with pytest.raises(UnknownModel) as caught:
        await named.resolve("model-8b", "tenant", None)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "model_not_found", "model")


async def test_a_single_model_need_not_be_named() -> None:
    for one in ("m", ["m"], {"m": "x"}):
        assert (await router(models=one).resolve(None, "tenant", None)).model == "m"
    for several in (None, ["m", "n"]):
        with pytest.raises(InvalidRequest, match="'model' is missing"):
            await router(models=several).resolve(None, "tenant", None)


async def test_the_route_of_the_turn_before_is_used_again() -> None:
    """It may have learned something: that the backend takes no token ids, for example."""
    one, other = router(), router()
    first = await one.resolve("m", "tenant", None)
    assert await one.resolve("m", "tenant", first) is first
    assert await one.resolve("n", "tenant", first) is not first
    assert await other.resolve("m", "tenant", first) is not first, "another router's route is none of ours"


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        router(models=[])
    with pytest.raises(ConfigurationError):
        router(models={})
    with pytest.raises(ConfigurationError, match="takes chat"):
        SingleRouter(ScriptedService("chat"), LetterRenderer())
