"""Compaction items: what is sealed comes back, and nothing else passes."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_responses import ConfigurationError, ResponsesEngine
from ws_responses.engine.sealing import MAX_SEALED_CHARS, InvalidCompaction, Seal, Window
from ws_responses.errors import InvalidRequest, UpstreamError
from ws_responses.testing.backends import ScriptedBackend

KEY = b"k" * 16
WINDOW = Window([b'{"role":"developer","content":"Be brief."}'], "They said hello.", [b'{"role":"user","content":"x"}'])


def item(window: Window = WINDOW, key: bytes = KEY) -> bytes:
    return Seal(key).item("cmp_1", window)


def with_content(content: Any) -> bytes:
    return json.dumps({"type": "compaction", "id": "cmp_1", "encrypted_content": content}).encode()


def content_of(sealed: bytes) -> str:
    content: str = json.loads(sealed)["encrypted_content"]
    return content


texts = st.text(st.characters(codec="utf-8"), max_size=200)
windows = st.builds(Window, st.lists(st.binary(max_size=80)), texts, st.lists(st.binary(max_size=80)))


class TestRoundTrip:
    @given(windows)
    def test_gives_the_window_back(self, window: Window) -> None:
        assert Seal(KEY).readable([item(window)]) == window.items()

    def test_is_by_the_key_and_not_by_the_object(self) -> None:
        """Without this another worker could not read it."""
        assert Seal(KEY).readable([item()]) == Seal(bytes(KEY)).readable([item()])

    def test_has_the_summary_as_a_users_message_between_what_stays(self) -> None:
        before, summary, after = WINDOW.items()
        message = json.loads(summary)

        assert (before, after) == (WINDOW.before[0], WINDOW.after[0])
        assert (message["type"], message["role"]) == ("message", "user")
        assert message["content"].endswith(WINDOW.summary)

    def test_leaves_other_items_as_they_are(self) -> None:
        others = [b'{"role":"user","content":"compaction"}', b'{"type":"\\u006dessage","role":"user"}', b"7"]
        assert Seal(KEY).readable(others) == others

    def test_knows_a_type_that_is_spelled_with_escapes(self) -> None:
        """Without this a renderer would be given what it does not know."""
        spelled = item().replace(b'"compaction"', b'"\\u0063ompaction"')
        assert Seal(KEY).readable([spelled]) == WINDOW.items()

    def test_tells_which_item_became_which(self) -> None:
        items = [b'{"role":"user"}', item(), b'{"role":"assistant"}']
        seal = Seal(KEY)
        assert [seal.original_index(items, index) for index in range(5)] == [0, 1, 1, 1, 2]


class TestForeign:
    @given(st.data())
    def test_any_other_bytes_are_refused(self, data: st.DataObject) -> None:
        """Without this a client could put words into the mouth of the service."""
        sealed = bytearray(base64.urlsafe_b64decode(content_of(item())))
        place = data.draw(st.integers(0, len(sealed) - 1))
        sealed[place] ^= data.draw(st.integers(1, 255))
        with pytest.raises(InvalidCompaction):
            Seal(KEY).readable([with_content(base64.urlsafe_b64encode(bytes(sealed)).decode())])

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "gAAAAABk",
            "scripted-compaction-of-3-items",
            "é" * 44,
            "=" * 44,
            content_of(item())[:-4],
            content_of(item()) + "AAAA",
            content_of(item())[:43],
            content_of(item(key=b"another key, 23 bytes..")),
            "A" * (MAX_SEALED_CHARS + 4),
            None,
            7,
            ["x"],
        ],
    )
    def test_what_is_none_of_ours_is_refused_by_its_path(self, content: Any) -> None:
        with pytest.raises(InvalidCompaction) as caught:
            Seal(KEY).readable([b'{"role":"user"}', with_content(content)], of_input=True)

        assert (caught.value.code, caught.value.status) == ("invalid_compaction", 400)
        assert caught.value.param == "input[1].encrypted_content"
        assert "x" * 20 not in str(caught.value)

    def test_one_without_content_is_refused(self) -> None:
        with pytest.raises(InvalidCompaction):
            Seal(KEY).readable([b'{"type":"compaction"}'])

    def test_in_the_history_it_has_no_path(self) -> None:
        with pytest.raises(InvalidRequest, match="An earlier item") as caught:
            Seal(KEY).readable_history([with_content("x")])

        assert (caught.value.code, caught.value.param) == ("invalid_compaction", None)

    def test_a_key_that_serves_other_ends_does_not_sign_windows(self) -> None:
        """Without this anything that an operator signs with the key would pass."""
        import hashlib
        import hmac
        import zlib

        import msgspec

        body = zlib.compress(msgspec.msgpack.encode(WINDOW))
        signed = hmac.digest(KEY, body, hashlib.sha256) + body
        with pytest.raises(InvalidCompaction):
            Seal(KEY).readable([with_content(base64.urlsafe_b64encode(signed).decode())])


class TestKeys:
    def test_one_is_drawn_for_each_process(self) -> None:
        with pytest.raises(InvalidCompaction):
            Seal().readable([Seal().item("cmp_1", WINDOW)])

    @pytest.mark.parametrize("length", [0, 15])
    def test_a_short_one_is_refused(self, length: int) -> None:
        with pytest.raises(ConfigurationError, match="16 bytes"):
            ResponsesEngine(ScriptedBackend(), compaction_key=b"k" * length)

    def test_the_shortest_is_taken(self) -> None:
        ResponsesEngine(ScriptedBackend(), compaction_key=b"k" * 16)


def test_what_is_too_large_is_not_sealed() -> None:
    import random

    noise = random.Random(1).randbytes(8_000_000)
    with pytest.raises(UpstreamError) as caught:
        item(Window([], "", [noise]))
    assert caught.value.code == "upstream_output_too_large"
