"""A classifier that asks a moderation service (``POST /v1/moderations``): OpenAI's, or any server that speaks the same.

    safety = Safety(Screen(ModerationClassifier(), fail="open", time_limit_s=2))

For asyncio only, because aiohttp is.
"""

import os
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct

from ws_responses.adapters._event_stream import HttpLimits, RefusedError
from ws_responses.adapters._http import HttpService
from ws_responses.errors import ConfigurationError, UpstreamError
from ws_responses.safety import Action, Carried, SafetyInput, Verdict

__all__ = ["ModerationClassifier", "ModerationFailed"]

DEFAULT_MODEL: Final = "omni-moderation-latest"
_MAX_CATEGORIES: Final = 64
_BATCH: Final = 32
"""Texts in one request; the service's own bound is not documented."""


class ModerationFailed(UpstreamError):
    """The service refused, or answered nonsense; the safety room takes it for a failure of the classifier."""

    code = "moderation_failed"


class _Result(Struct):
    flagged: bool
    categories: dict[str, bool | None] = {}
    category_scores: dict[str, float | None] = {}


class _Answer(Struct):
    results: list[_Result]


_decode = msgspec.json.Decoder(_Answer).decode


class ModerationClassifier:
    """Has a service judge the new text, with its overlap.

    A category blocks or flags if its score reaches the threshold given for it; without thresholds, what the service calls flagged
    blocks. Opens its connections at the first use, one pool per event loop.

    Args:
        api_key: None for ``OPENAI_API_KEY``; "" for a service without keys.
        base_url: With the path before ``/moderations``.
        model: As the service names it; None leaves it out.
        block_at: Scores (0..1) from which a category blocks, by its name; "*" for all that are not named.
        flag_at: Scores from which one is flagged.
        max_text_chars: Longest text in one piece; a longer one is cut into pieces that overlap.
        overlap_chars: How far.
        headers: Further headers.
        timeout_s: For one request; the screen's own time limit ends all of them.
        name: Names it in flags and logs.

    Raises:
        ConfigurationError: An option is wrong, or there is no key.
    """

    def __init__(
        self,
        api_key: str | None = None,
        *,
        base_url: str = "https://api.openai.com/v1",
        model: str | None = DEFAULT_MODEL,
        block_at: Mapping[str, float] | None = None,
        flag_at: Mapping[str, float] | None = None,
        max_text_chars: int = 8000,
        overlap_chars: int = 200,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        name: str = "moderation",
    ) -> None:
        key = os.environ.get("OPENAI_API_KEY") if api_key is None else api_key
        if key is None:
            raise ConfigurationError("a ModerationClassifier needs api_key=, or OPENAI_API_KEY in the environment")
        if not 0 <= overlap_chars < max_text_chars:
            raise ConfigurationError("overlap_chars must be below max_text_chars, and not negative")
        for given in (block_at, flag_at):
            for category, score in (given or {}).items():
                if not 0 <= score <= 1:
                    raise ConfigurationError(f"the threshold of {category!r} must be from 0 to 1, not {score!r}")
        self.name = name
        self._model = model
        self._block_at = dict(block_at or {})
        self._flag_at = dict(flag_at or {})
        # Where the service is does not decide; which model, and from which score on, does.
        decides = [model, sorted(self._block_at.items()), sorted(self._flag_at.items())]
        self.version = blake2b(msgspec.msgpack.encode(decides), digest_size=16).hexdigest()
        self._max_text_chars = max_text_chars
        self._overlap_chars = overlap_chars
        credentials = {"Authorization": f"Bearer {key}"} if key else {}
        limits = HttpLimits(first_event_s=timeout_s, event_s=timeout_s, connect_s=timeout_s, max_connections=64)
        sent = {"Content-Type": "application/json", **credentials, **(headers or {})}
        self._service = HttpService(base_url, headers=sent, limits=limits)

    async def classify(self, delta: SafetyInput, state: Carried = None, /) -> Verdict:
        """Judge a delta.

        Raises:
            WireError: The service failed, or cannot be reached.
        """
        del state
        texts = list(self._texts(delta.text))
        strictest: Action = "allow"
        categories: dict[str, None] = {}
        for at in range(0, len(texts), _BATCH):
            for result in await self._ask(texts[at : at + _BATCH]):
                action, reasons = self._read(result)
                if _STRICTNESS[action] > _STRICTNESS[strictest]:
                    strictest, categories = action, {}
                if action == strictest and action != "allow":
                    categories |= dict.fromkeys(reasons)
            if strictest == "block":
                break
        return Verdict(action=strictest, categories=tuple(categories)[:_MAX_CATEGORIES])

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._service.aclose()

    def _texts(self, text: str) -> Iterator[str]:
        step = self._max_text_chars - self._overlap_chars
        for at in range(0, max(len(text) - self._overlap_chars, 1), step):
            yield text[at : at + self._max_text_chars]

    async def _ask(self, texts: list[str]) -> list[_Result]:
        body: dict[str, object] = {"input": texts}
        if self._model is not None:
            body["model"] = self._model
        try:
            answer = _decode(await self._service.ask("/moderations", [msgspec.json.encode(body)]))
        except RefusedError as error:
            raise ModerationFailed(f"The moderation service answered with status {error.status}.") from None
        except msgspec.DecodeError:
            raise ModerationFailed("The moderation service's answer cannot be read.") from None
        if len(answer.results) != len(texts):
            raise ModerationFailed(f"{len(texts)} texts were sent, and {len(answer.results)} judged.")
        return answer.results

    def _read(self, result: _Result) -> tuple[Action, list[str]]:
        """Return what a result means, and by which categories."""
        if not self._block_at and not self._flag_at:
            if not result.flagged:
                return "allow", []
            return "block", [name for name, flagged in result.categories.items() if flagged]
        blocking = self._reached(result, self._block_at)
        if blocking:
            return "block", blocking
        flagged = self._reached(result, self._flag_at)
        return ("flag", flagged) if flagged else ("allow", [])

    @staticmethod
    def _reached(result: _Result, thresholds: Mapping[str, float]) -> list[str]:
        others = thresholds.get("*")
        reached: list[str] = []
        for name, score in result.category_scores.items():
            threshold = thresholds.get(name, others)
            if threshold is not None and score is not None and score >= threshold:
                reached.append(name)
        return reached


_STRICTNESS: Final[dict[Action, int]] = {"allow": 0, "flag": 1, "block": 2}
