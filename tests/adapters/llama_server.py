"""Asks a llama.cpp server what it thinks, past our own code."""

import http.client
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ws_responses.adapters.local_model import LocalModel


class LlamaServer:
    """A plain client; one connection, used again."""

    def __init__(self, model: LocalModel) -> None:
        address = urlsplit(model.base_url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
        self._headers = {"authorization": f"Bearer {model.api_key}"}

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the decoded answer to a POST, or to a GET if there is no body."""
        return json.loads(self._ask(path, body))

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        encoded = None if body is None else json.dumps(body)
        self._connection.request("GET" if body is None else "POST", path, encoded, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    def ids_of(self, text: str) -> list[int]:
        """Return how llama.cpp encodes text in which nothing is special."""
        ids: list[int] = self.ask("/tokenize", {"content": text, "parse_special": False, "add_special": False})[
            "tokens"
        ]
        return ids

    def processing(self) -> int:
        """Return how many slots are at work."""
        return sum(slot["is_processing"] for slot in self.ask("/slots"))

    def sampled(self) -> int:
        """Return how many tokens were sampled for answers that have ended, however they did."""
        (line,) = re.findall(rb"^llamacpp:tokens_predicted_total (\d+)", self._ask("/metrics", None), re.MULTILINE)
        return int(line)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
