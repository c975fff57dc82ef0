"""The report: a table on the terminal, JSON, and a picture."""

import importlib
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ws_responses.bench import picture
from ws_responses.bench.results import Details, Outcome, compared_text, digits, sign

_PACKAGES = ("ws-responses", "anyio", "msgspec", "uvicorn", "uvloop", "websockets", "httptools", "fastapi", "starlette")


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the rows as text, in columns."""
    head = ("", "what", "unit", "ours", "floor", "compared", "quartiles", "bar", "")
    lines = [head, *(_cells(outcome) for outcome in outcomes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 3 or i == 8 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(outcome: Outcome) -> tuple[str, ...]:
    row = outcome.row
    low, high = outcome.spread
    least = ">=" if row.compare == "gain" else "<="
    return (
        row.key.partition(".")[0],
        row.title,
        row.unit,
        _number(outcome.value),
        _number(outcome.floor),
        compared_text(row, outcome.compared),
        f"{digits(low)}-{digits(high)}",
        "" if row.bar is None else f"{least} {row.bar:g}{sign(row)}",
        "" if row.bar is None else "ok" if outcome.ok else "MISSED",
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def as_json(
    outcomes: Sequence[Outcome], details: Sequence[Details] = (), *, rounds: int, quick: bool, seconds: float
) -> dict[str, Any]:
    """Return everything that was measured."""
    return {
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "packages": {name: _version(name) for name in _PACKAGES},
        },
        "rounds": rounds,
        "quick": quick,
        "seconds": round(seconds, 1),
        "rows": [
            {
                "key": outcome.row.key,
                "title": outcome.row.title,
                "unit": outcome.row.unit,
                "value": outcome.value,
                "floor": outcome.floor,
                "compare": outcome.row.compare,
                "compared": outcome.compared,
                "quartiles": outcome.spread,
                "bar": outcome.row.bar,
                "ok": outcome.ok,
                "samples": [[sample.value, sample.floor] for sample in outcome.samples],
            }
            for outcome in outcomes
        ],
        **{one.name: one.data for one in details},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Write the report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def draw(folder: Path, outcomes: Sequence[Outcome], details: Sequence[Details] = ()) -> list[Path]:
    """Draw each row's number as a share of its bar, and what the benchmarks want to show beside it.

    Returns:
        The files; none if matplotlib is missing.
    """
    try:
        mpl: Any = importlib.import_module("matplotlib")
    except ImportError:
        return []
    mpl.use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    figures = {folder / "bench.png": picture.shares(plt, outcomes)}
    figures |= {folder / f"{one.name}.png": one.draw(plt) for one in details if one.draw is not None}
    for path, figure in figures.items():
        figure.savefig(path, dpi=110)
        plt.close(figure)
    return [*figures]
