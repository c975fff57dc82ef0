"""The report: a table on the terminal, JSON, and a picture."""

import importlib
import json
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ws_responses.bench.results import Outcome, Row

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
        _compared(row, outcome.compared),
        f"{_digits(low)}-{_digits(high)}",
        "" if row.bar is None else f"{least} {row.bar:g}{_sign(row)}",
        "" if row.bar is None else "ok" if outcome.ok else "MISSED",
    )


def _compared(row: Row, compared: float) -> str:
    return f"{compared:+.2f}" if row.compare == "difference" else f"{_digits(compared)}{_sign(row)}"


def _sign(row: Row) -> str:
    return "x" if row.compare in ("ratio", "gain") else ""


def _digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def as_json(outcomes: Sequence[Outcome], *, rounds: int, quick: bool, seconds: float) -> dict[str, Any]:
    """Return everything that was measured."""
    return {
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
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


def draw(path: Path, outcomes: Sequence[Outcome]) -> bool:
    """Draw each row's number as a share of its bar; return False if matplotlib is missing."""
    try:
        mpl: Any = importlib.import_module("matplotlib")
    except ImportError:
        return False
    mpl.use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    drawn = [(outcome, share) for outcome in reversed(outcomes) if (share := outcome.share) is not None]
    figure, axes = plt.subplots(figsize=(10, 0.9 + 0.5 * len(drawn)), layout="constrained")
    for at, (outcome, share) in enumerate(drawn):
        low, high = sorted(outcome.share_of(edge) or 0.0 for edge in outcome.spread)
        axes.barh(at, share, height=0.6, color="#4c8c4a" if outcome.ok else "#c0504d")
        axes.hlines(at, low, high, color="black", linewidth=1.5)
        row = outcome.row
        sign = _sign(row) or f" {row.unit}"
        label = f" {_compared(row, outcome.compared).removesuffix('x')}{sign} (bar {row.bar:g}{sign})"
        axes.text(max(share, high, 1.0) + 0.02, at, label, va="center", fontsize=8)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(drawn)), [f"{o.row.key.partition('.')[0]}  {o.row.title}" for o, _ in drawn])
    axes.set_xlim(0, max([1.0, *(share for _, share in drawn)]) * 1.35)
    axes.set_xlabel("share of the bar (dashed: the bar; line: quartiles)")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True
