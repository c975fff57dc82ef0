"""The pictures of the readme: ``python -m tests.docs.pictures`` draws them into ``docs/pictures``.

One shows the way of a turn. The other one is a chart of what ``--measure 9`` measures, in so many rounds, and keeps beside it.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Final

from .measured_loop import Measured, keep, kept, measure
from .source import REPO
from .svg import Picture, Role

FOLDER: Final = REPO / "docs" / "pictures"

_CLIENT, _HERE, _APP = 90, 360, 640
_STEPS: Final[list[tuple[int, int, str, Role]]] = [
    (_CLIENT, _HERE, "GET /v1/responses, upgrade", "socket"),
    (_HERE, _APP, "GET: do your layers refuse?", "http"),
    (_HERE, _CLIENT, "101, once", "socket"),
    (_CLIENT, _HERE, "response.create: question", "socket"),
    (_HERE, _APP, "POST: question", "http"),
    (_APP, _HERE, "events: a tool call", "http"),
    (_HERE, _CLIENT, "one frame per event", "socket"),
    (_CLIENT, _HERE, "response.create: tool output", "socket"),
    (_HERE, _HERE, "finds the parent in memory, checks what is new", "faint"),
    (_HERE, _APP, "POST: question, call, output", "http"),
    (_APP, _HERE, "events: the answer", "http"),
    (_HERE, _CLIENT, "one frame per event", "socket"),
]
_TOP, _STEP = 62, 32


def turn() -> Picture:
    """The way of two turns, from the client to the app and back."""
    bottom = _TOP + _STEP * len(_STEPS)
    picture = Picture(
        730, bottom + 14, "Two turns on one socket: the client sends what is new, the app gets whole requests."
    )
    for x, name in ((_CLIENT, "client"), (_HERE, "middleware"), (_APP, "your app")):
        picture.line([(x, 44), (x, bottom)], role="faint", dash="2 4")
        picture.box(x - 62, 14, 124, 30, role="ink")
        picture.text(x, 34, name, at="middle", size=14)
    for place, (start, end, words, role) in enumerate(_STEPS):
        y = _TOP + _STEP * place + 18
        if start == end:
            picture.box(start - 152, y - 18, 304, 24, role=role)
            picture.text(start, y - 2, words, at="middle", size=12)
            continue
        picture.text((start + end) / 2, y - 6, words, at="middle", size=12)
        picture.arrow(start, end, y, role=role, dash="" if words.startswith(("GET", "POST", "resp")) else "5 3")
    return picture


def loop(measured: Measured) -> Picture:
    """Time and size of each model call of an agent's loop, over HTTP and over a socket."""
    title = f"An agent's loop of {len(measured.http.ms) - 1} tool calls: time and size of each request, over HTTP and over a socket."
    picture = Picture(730, 290, title)
    picture.text(20, 26, title.partition(":")[0], size=14)
    _panel(picture, 56, "ms until the answer is complete", measured.http.ms, measured.socket.ms)
    kilobytes = [[sent / 1000 for sent in way.sent] for way in (measured.http, measured.socket)]
    _panel(picture, 416, "kB sent", *kilobytes)
    about = f"model call 1 to {len(measured.http.ms)}; medians of {measured.rounds} rounds, {measured.date}; {measured.machine}"
    picture.text(20, 278, about, role="faint", size=11)
    return picture


def _panel(picture: Picture, left: int, title: str, http: Sequence[float], socket: Sequence[float]) -> None:
    width, top, bottom = 230, 64, 240
    most = max(*http, *socket)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if most / step <= 5)
    high = step * (int(most / step) + 1)
    picture.text(left - 36, 50, title, size=12)
    for value in range(0, high + 1, step):
        y = bottom - (bottom - top) * value / high
        picture.line([(left, y), (left + width, y)], role="faint", width=0.4)
        picture.text(left - 6, y + 4, str(value), role="faint", at="end", size=11)
    lines: list[tuple[str, Sequence[float], Role]] = [("HTTP", http, "http"), ("socket", socket, "socket")]
    for name, values, role in lines:
        across = width / (len(values) - 1)
        points = [(left + across * at, bottom - (bottom - top) * value / high) for at, value in enumerate(values)]
        picture.line(points, role=role, width=2.5)
        picture.text(points[-1][0] + 6, points[-1][1] + 4, name, role=role, size=12)


PICTURES: Final[dict[str, Callable[[], Picture]]] = {"turn.svg": turn, "agent-loop.svg": lambda: loop(kept())}


def main() -> None:
    """Draw the pictures; measure before, if that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.pictures")
    parser.add_argument("--measure", type=int, metavar="ROUNDS", help="measure the loop anew, in so many rounds")
    rounds = parser.parse_args().measure
    if rounds:
        keep(measure(rounds))
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
