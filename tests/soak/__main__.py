"""A bounded soak: hundreds of sockets and all kinds of faults on one server, then a look at what is left.

``python -m tests.soak [--seconds 30]``. Everything runs on this machine. It fails (exit status 1) if memory grows beyond a
bound, if anything is left when all clients have gone, or if a healthy client is served wrongly once.
"""

import argparse
import asyncio
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.soak.clients import BAD, GOOD, Peer, Tally, run_bad, run_good
from tests.soak.server import SABOTAGE

MIB = 1024 * 1024
GROWTH_MIB = 8.0
"""Bound on the growth of the server's memory between two moments of rest: what fragmentation may cost."""
MORE = {"tasks": 0, "descriptors": 0, "objects": 500}
"""How many more there may be after the second round than after the first. Objects: caches of the interpreter's library."""
SETTLE_S = 20.0
"""Time for what runs to end after the clients have gone: above all limits of the server."""
BEGIN_SHARE = 0.3
"""Share of the time for the first round, after which memory is looked at first: all code has run by then."""

Figures = dict[str, Any]


@contextmanager
def server(sabotage: str | None) -> Iterator[int]:
    """Run the server in a process of its own; give its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        # Connections inherit it; uvicorn does not set it on sockets that were handed down.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port: int = listener.getsockname()[1]
        command = [sys.executable, "-m", "tests.soak.server", str(listener.fileno()), *([sabotage] if sabotage else [])]
        # Its log is full of what the clients did to it; errors that count are among the figures.
        process = subprocess.Popen(
            command,
            pass_fds=(listener.fileno(),),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def figures(port: int) -> Figures:
    """Ask the server for its figures."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/figures")
        answer: Figures = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


async def settled(port: int) -> Figures:
    """Wait until nothing is left, but not for ever; return the figures then."""
    until = time.monotonic() + SETTLE_S
    while True:
        now = await asyncio.to_thread(figures, port)
        if not any(now["gauges"].values()) or time.monotonic() > until:
            return now
        await asyncio.sleep(0.25)


async def load(port: int, seconds: float, tally: Tally, progress: "Progress") -> None:
    """Let all clients do what they do for so long, and wait until each has come to an end."""
    over = asyncio.Event()
    number = 0
    async with asyncio.TaskGroup() as tasks:
        for run, kinds in ((run_good, GOOD), (run_bad, BAD)):
            for kind, count in kinds.items():
                for _ in range(count):
                    number += 1
                    tasks.create_task(run(kind, Peer(port, number, tally, over)))
        until = time.monotonic() + seconds
        while time.monotonic() < until and not tally.wrong:
            progress.show(tally)
            await asyncio.sleep(0.25)
        over.set()


class Progress:
    """A line that says how far it is, on a terminal."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = time.monotonic()
        self._tty = sys.stderr.isatty()

    def show(self, tally: Tally) -> None:
        """Write it anew."""
        if self._tty:
            passed = time.monotonic() - self._begun
            faults = tally.faults.total()
            line = (
                f"{passed:4.0f} of {self._seconds:.0f} s: {tally.turns} turns, {tally.sockets} sockets, {faults} faults"
            )
            print(f"\r{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take it away."""
        if self._tty:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


async def soak(port: int, seconds: float, progress: Progress) -> tuple[Tally, Figures, Figures]:
    """Run both rounds; return what happened, and the figures at rest after each."""
    tally = Tally()
    await load(port, seconds * BEGIN_SHARE, tally, progress)
    before = await settled(port)
    await load(port, seconds * (1 - BEGIN_SHARE), tally, progress)
    after = await settled(port)
    progress.clear()
    return tally, before, after


def complaints(tally: Tally, before: Figures, after: Figures) -> list[str]:
    """Return what is wrong; nothing if all is well."""
    found = [f"a healthy client was served wrongly: {text}" for text in tally.wrong[:5]]
    if not (tally.turns and tally.faults):
        found.append("nothing happened")
    found += [f"{name}: {value} left" for name, value in after["gauges"].items() if value]
    for name, more in MORE.items():
        if after[name] > before[name] + more:
            found.append(f"{name}: {after[name]} left, {before[name]} before")
    growth = (after["rss"] - before["rss"]) / MIB
    if growth > GROWTH_MIB:
        found.append(f"memory grew by {growth:.1f} MiB, more than {GROWTH_MIB:g}")
    found += [f"the server logged: {text[:500]}" for text in after["errors"][:3]]
    return found


def report(tally: Tally, before: Figures, after: Figures, seconds: float) -> None:
    """Print the figures."""
    facts: dict[str, int] = after["facts"]
    finished = {name.partition(" ")[2]: count for name, count in facts.items() if name.startswith("TurnFinished")}
    rows = {
        "time": f"{seconds:.1f} s",
        "turns": f"{sum(finished.values())}: " + ", ".join(f"{n} {name}" for name, n in sorted(finished.items())),
        "turns checked": f"{tally.turns}, all as they should be" if not tally.wrong else f"{tally.turns} right ones",
        "sockets": f"{tally.sockets}, up to {sum(GOOD.values()) + sum(BAD.values())} at once",
        "frames refused": str(facts.get("FrameRefused", 0)),
        "faults": f"{tally.faults.total()} of {len(tally.faults)} kinds",
        "memory": f"{before['rss'] / MIB:.1f} MiB before, {after['rss'] / MIB:.1f} MiB after",
        "objects": f"{before['objects']} before, {after['objects']} after",
        "tasks left": f"{before['tasks']} before, {after['tasks']} after",
        "descriptors": f"{before['descriptors']} before, {after['descriptors']} after",
        "gauges": ", ".join(f"{name} {value}" for name, value in after["gauges"].items()),
        "event loop": f"late by {after['lag_ms']} ms at most",
    }
    for name, value in rows.items():
        print(f"{name:<15} {value}")
    for name, count in sorted(tally.faults.items()):
        print(f"    {name:<50} {count:>7}")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the clients go on (default: 30)")
    parser.add_argument("--sabotage", choices=SABOTAGE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    begun = time.monotonic()
    with server(options.sabotage) as port:
        tally, before, after = asyncio.run(soak(port, options.seconds, Progress(options.seconds)))
    report(tally, before, after, time.monotonic() - begun)
    found = complaints(tally, before, after)
    for text in found:
        print(f"soak: {text}", file=sys.stderr)
    print("soak: failed" if found else "soak: nothing is left, nothing has grown, nobody was served wrongly")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
