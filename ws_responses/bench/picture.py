"""The pictures of the report."""

from collections.abc import Sequence
from itertools import product
from typing import Any, Final

from ws_responses.bench.model import CALLS, FIRST_BAR, LOOP_BAR, RATES, ROUND_TRIPS_MS, TOKENS, Loop, Saving
from ws_responses.bench.results import Outcome, compared_text, sign

_GOOD: Final = "#4c8c4a"
_BAD: Final = "#c0504d"


def shares(plt: Any, outcomes: Sequence[Outcome]) -> Any:
    """Draw each row's number as a share of its bar.

    Args:
        plt: ``matplotlib.pyplot``.
        outcomes: Rows without a bar are left out.
    """
    drawn = [(outcome, share) for outcome in reversed(outcomes) if (share := outcome.share) is not None]
    figure, axes = plt.subplots(figsize=(10, 0.9 + 0.5 * len(drawn)), layout="constrained")
    for at, (outcome, share) in enumerate(drawn):
        low, high = sorted(outcome.share_of(edge) or 0.0 for edge in outcome.spread)
        axes.barh(at, share, height=0.6, color=_GOOD if outcome.ok else _BAD)
        axes.hlines(at, low, high, color="black", linewidth=1.5)
        row = outcome.row
        unit = sign(row) or f" {row.unit}"
        label = f" {compared_text(row, outcome.compared).removesuffix('x')}{unit} (bar {row.bar:g}{unit})"
        axes.text(max(share, high, 1.0) + 0.02, at, label, va="center", fontsize=8)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(drawn)), [f"{o.row.key.partition('.')[0]}  {o.row.title}" for o, _ in drawn])
    axes.set_xlim(0, max([1.0, *(share for _, share in drawn)]) * 1.35)
    axes.set_xlabel("share of the bar (dashed: the bar; line: quartiles)")
    return figure


def loops(plt: Any, found: Sequence[Saving]) -> Any:
    """Draw what the socket saves of agents' loops: of their time above, of the time to the first token below.

    Args:
        plt: ``matplotlib.pyplot``.
        found: For all loops of the table.
    """
    by_loop = {saving.loop: saving for saving in found}
    columns = list(product(CALLS, ROUND_TRIPS_MS))
    figure, axes = plt.subplots(2, len(columns), figsize=(15, 5.6), layout="constrained", sharex=True, sharey=True)
    for (row, bar), (column, (calls, ms)) in product(enumerate((LOOP_BAR, FIRST_BAR)), enumerate(columns)):
        savings = [[by_loop[Loop(calls, rate, tokens, ms)] for tokens in TOKENS] for rate in RATES]
        cells = [[saving.first if row else saving.time for saving in line] for line in savings]
        at = axes[row][column]
        at.imshow(cells, cmap="Greens", vmin=0, vmax=0.9, aspect="auto")
        for (y, line), x in product(enumerate(cells), range(len(TOKENS))):
            reached = line[x] >= bar
            at.text(
                x,
                y,
                f"{line[x]:.0%}",
                ha="center",
                va="center",
                fontsize=10,
                fontweight="bold" if reached else "normal",
                bbox={"boxstyle": "round", "facecolor": "none", "edgecolor": "black"} if reached else None,
            )
        at.set_xticks(range(len(TOKENS)), [f"{tokens // 1000}k" for tokens in TOKENS])
        at.set_yticks(range(len(RATES)), [f"{rate:,}/s" for rate in RATES])
        if not row:
            at.set_title(f"{calls} calls, {ms} ms away", fontsize=10)
    axes[0][0].set_ylabel(f"loop time saved\n(framed: {LOOP_BAR:.0%} and more)")
    axes[1][0].set_ylabel(f"time to first token saved\n(framed: {FIRST_BAR:.0%} and more)")
    figure.supxlabel("tokens of the conversation when the loop begins; rows: tokens per second of the backend")
    return figure
