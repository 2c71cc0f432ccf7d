"""Pictures in SVG, on a card of their own that follows the reader's light or dark scheme."""

from __future__ import annotations

from html import escape

# name: (in the light scheme, in the dark one)
COLOURS = {
    "card": ("#ffffff", "#1b1f27"),
    "ink": ("#1d2530", "#e9edf2"),
    "faint": ("#5a6472", "#a3adba"),
    "rule": ("#d5dae1", "#39424f"),
    "a": ("#7aa3dd", "#3c6cb4"),  # blocks of A
    "a2": ("#bcd2f0", "#294a7c"),
    "x": ("#f0ab66", "#a8641f"),  # rows of X
    "x2": ("#f8dcc0", "#66411b"),
    "y": ("#7dc497", "#357d4d"),  # sums and results
    "y2": ("#c6e6d1", "#24543a"),
    "none": ("#e9ecf0", "#2b323d"),  # what is not stored, or idle
}


class Picture:
    """Shapes one behind the other; coordinates are pixels of a card of the given size."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._title = title
        self._shapes: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{fill}"/>'
        )

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        self.rect(x, y, width, height, "frame")

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", style: str = "ink"
    ) -> None:
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{style}">'
            f"{escape(words)}</text>"
        )

    def line(
        self, points: list[tuple[float, float]], style: str = "line", arrow: bool = False
    ) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        marker = ' marker-end="url(#arrow)"' if arrow else ""
        self._shapes.append(f'<polyline points="{path}" class="{style}"{marker}/>')

    def render(self) -> str:
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(self._title)}">'
        )
        marker = (
            '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path d="M0,0.5 L7,4 L0,7.5" class="line"/></marker>'
        )
        card = f'<rect width="{width}" height="{height}" rx="8" class="card"/>'
        lines = [head, f"<title>{escape(self._title)}</title>", f"<style>{_style()}</style>"]
        lines += [f"<defs>{marker}</defs>", card, *self._shapes, "</svg>"]
        return "\n".join(lines) + "\n"


def _style() -> str:
    rules = [
        "text { font: 13px system-ui, sans-serif } text.small { font-size: 11px }",
        "text.head { font-weight: 600 } .frame { fill: none; stroke-width: 1.2 }",
        "polyline, path { fill: none; stroke-width: 1.5 }",
        "text.label { font-size: 11px }",
    ]
    for scheme in (0, 1):
        fills = " ".join(f".{name} {{ fill: {pair[scheme]} }}" for name, pair in COLOURS.items())
        ink, faint = COLOURS["ink"][scheme], COLOURS["faint"][scheme]
        strokes = " ".join(
            f"polyline.{name} {{ fill: none; stroke: {pair[scheme]} }}"
            for name, pair in COLOURS.items()
        )
        colours = (
            f"{fills} {strokes} text {{ fill: {ink} }} text.small {{ fill: {faint} }} "
            f".frame {{ fill: none; stroke: {ink} }} .line {{ fill: none; stroke: {faint} }}"
        )
        rules.append(colours if scheme == 0 else "@media (prefers-color-scheme: dark) {")
        if scheme == 1:
            rules += [colours, "}"]
    return "\n".join(rules)
