"""Small pictures for the pages, as SVG: each brings its own background, and colours for light and for dark screens."""

from collections.abc import Sequence
from typing import Final, Literal
from xml.sax.saxutils import escape

Role = Literal["paper", "ink", "faint", "http", "socket"]

_LIGHT: Final[dict[Role, str]] = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "faint": "#6e7781",
    "http": "#bc4c00",
    "socket": "#0969da",
}
_DARK: Final[dict[Role, str]] = {
    "paper": "#161b22",
    "ink": "#e6edf3",
    "faint": "#8d96a0",
    "http": "#f0883e",
    "socket": "#58a6ff",
}


class Picture:
    """What is drawn so far; coordinates are pixels from the upper left corner.

    Args:
        width: In pixels.
        height: In pixels.
        title: What a reader who does not see it is told.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width = width
        self.height = height
        self._title = escape(title)
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, *, role: Role = "ink", at: str = "start", size: int = 13) -> None:
        """Write words; `at` is where `x` is in them: start, middle or end."""
        place = f'x="{x:g}" y="{y:g}" text-anchor="{at}" font-size="{size}"'
        self._parts.append(f'<text class="fill-{role}" {place}>{escape(words)}</text>')

    def line(self, points: Sequence[tuple[float, float]], *, role: Role, width: float = 1.5, dash: str = "") -> None:
        """Draw a line through points."""
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<polyline class="line-{role}" fill="none" stroke-width="{width:g}"{dashes} points="{way}"/>'
        )

    def arrow(self, start: float, end: float, y: float, *, role: Role, dash: str = "") -> None:
        """Draw a level arrow."""
        back = 7 if end < start else -7
        self.line([(start, y), (end, y)], role=role, dash=dash)
        self.line([(end + back, y - 4), (end, y), (end + back, y + 4)], role=role)

    def box(self, x: float, y: float, width: float, height: float, *, role: Role) -> None:
        """Draw the outline of a box, filled with the background."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
        self._parts.append(f'<rect class="line-{role} fill-paper" stroke-width="1.5" {place}/>')

    def __str__(self) -> str:
        """The file."""
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui, sans-serif">',
                f"<title>{self._title}</title>",
                f"<style>{_rules(_LIGHT)} @media (prefers-color-scheme: dark) {{ {_rules(_DARK)} }}</style>",
                f'<rect class="fill-paper" width="{self.width}" height="{self.height}" rx="8"/>',
                *self._parts,
                "</svg>\n",
            ]
        )


def _rules(colours: dict[Role, str]) -> str:
    fills = (f".fill-{role} {{ fill: {colour} }}" for role, colour in colours.items())
    lines = (f".line-{role} {{ stroke: {colour} }}" for role, colour in colours.items())
    return " ".join([*fills, *lines])
