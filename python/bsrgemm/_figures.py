"""Pictures of ``python -m bsrgemm bench --plot`` and of the documents, as data and by matplotlib.

Panels are data first, so that those of committed results can be shipped, compared and drawn
without measuring anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SHIPPED = Path(__file__).with_name("figures.json")
FORMATS = (".png", ".svg")
# Distinguishable for the colour-blind (Okabe and Ito, 2008); the last one is for peers and limits.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#555555"
MARKERS = "os^Dv<"


class Curve(NamedTuple):
    """``kind``: "line" through its points, "points" alone, "peer" (a dashed line), or "limit" (a
    line without points)."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: str = "line"


class Panel(NamedTuple):
    """One set of axes, both logarithmic. ``source`` says where its numbers are from."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    source: str


class Timed(NamedTuple):
    """A product: what it is called in a legend, and what it took."""

    label: str
    density: float
    seconds: float
    flops: float
    bytes: float


class Unit(NamedTuple):
    name: str
    scale: float


TERA, GIGA = Unit("TFLOP/s", 1e12), Unit("GFLOP/s", 1e9)


# ---- panels --------------------------------------------------------------------------------------


def crossover(
    products: Iterable[Timed], dense_seconds: float | None, dense: str, what: str, source: str
) -> Panel:
    """Time by density, beside the dense product."""
    curves = [
        Curve(
            label, tuple(p.density for p in found), tuple(_digits(p.seconds * 1e3) for p in found)
        )
        for label, found in _by_label(products)
    ]
    if dense_seconds is not None:
        ends = _ends([x for curve in curves for x in curve.x])
        curves.append(Curve(dense, ends, (_digits(dense_seconds * 1e3),) * 2, "peer"))
    title = f"Where block sparsity pays: {what}"
    return Panel("crossover", title, "density", "ms", tuple(curves), source)


def roofline(
    products: Iterable[Timed],
    peak: float | None,
    peak_name: str,
    bandwidth: float | None,
    unit: Unit,
    what: str,
    source: str,
) -> Panel:
    """Rate by arithmetic intensity. ``peak`` in FLOP/s, ``bandwidth`` in bytes/s."""
    curves = []
    for label, found in _by_label(products):
        points = sorted((p.flops / p.bytes, p.flops / p.seconds / unit.scale) for p in found)
        x, y = zip(*points, strict=True)
        curves.append(Curve(label, tuple(map(_digits, x)), tuple(map(_digits, y)), "points"))
    low, high = _ends([x for curve in curves for x in curve.x])
    if bandwidth is not None and peak is not None:
        # Where both limits meet is worth seeing, wherever the products lie.
        low, high = _ends([low, high, 0.3 * peak / bandwidth, 1.5 * peak / bandwidth])
    if bandwidth is not None:
        top = high if peak is None else peak / bandwidth
        line = tuple(_digits(x * bandwidth / unit.scale) for x in (low, top))
        name = f"memory, {bandwidth / 1e12:.3g} TB/s"
        if bandwidth < 1e12:
            name = f"memory, {bandwidth / 1e9:.3g} GB/s"
        curves.append(Curve(name, (low, _digits(top)), line, "limit"))
    if peak is not None:
        begin = low if bandwidth is None else peak / bandwidth
        level = _digits(peak / unit.scale)
        name = f"{peak_name}, {level:.3g} {unit.name}"
        curves.append(Curve(name, (_digits(begin), high), (level, level), "peer"))
    return Panel(
        "roofline",
        f"Rate of stored blocks: {what}",
        "FLOP per byte that must be moved",
        unit.name,
        tuple(curves),
        source,
    )


def attention(
    curves: Iterable[Curve], levels: Iterable[tuple[str, float]], what: str, source: str
) -> Panel:
    """Time by the density of the mask; ``levels``, in ms, are of dense attention."""
    curves = list(curves)
    ends = _ends([x for curve in curves for x in curve.x] + [1.0])
    curves += [Curve(name, ends, (_digits(ms),) * 2, "peer") for name, ms in levels]
    title = f"Attention over a block mask: {what}"
    return Panel("attention", title, "density of the mask", "ms", tuple(curves), source)


def _by_label(products: Iterable[Timed]) -> Iterable[tuple[str, list[Timed]]]:
    found: dict[str, list[Timed]] = {}
    for p in products:
        found.setdefault(p.label, []).append(p)
    return ((label, sorted(of, key=lambda p: p.density)) for label, of in found.items())


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return _digits(min(values)), _digits(max(values))


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


# ---- shipped data --------------------------------------------------------------------------------


def as_data(panel: Panel) -> dict[str, Any]:
    return panel._asdict() | {"curves": [curve._asdict() for curve in panel.curves]}


def from_data(data: dict[str, Any]) -> Panel:
    curves = tuple(
        Curve(c["label"], tuple(c["x"]), tuple(c["y"]), c["kind"]) for c in data["curves"]
    )
    return Panel(**data | {"curves": curves})


def shipped() -> dict[str, Panel]:
    """The panels of the committed results, by name."""
    return {data["name"]: from_data(data) for data in json.loads(SHIPPED.read_text())}


# ---- drawing -------------------------------------------------------------------------------------


def check_path(path: Path) -> None:
    """Raise ValueError or ImportError if a picture cannot be written there, before anything is
    measured for it."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} ends in {path.suffix!r}; accepted: {' and '.join(FORMATS)}")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"{path.resolve().parent} is no folder; accepted: one that exists")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError(
            "pictures are drawn by matplotlib, which is not installed: pip install matplotlib, or "
            "the package's extra, pip install '.[plot]'"
        ) from None


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Write a picture of all panels, two beside one another. An SVG holds their numbers, too."""
    check_path(path)
    import matplotlib
    from matplotlib.figure import Figure

    settings = {
        "font.size": 10,
        "svg.fonttype": "none",  # text stays text, and the file small
        "svg.hashsalt": "bsrgemm",  # the same bytes every time
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        across = min(2, len(panels))
        down = math.ceil(len(panels) / across)
        figure = Figure(figsize=(7.2 * across, 4.8 * down), layout="constrained", dpi=110)
        places = figure.subplots(down, across, squeeze=False).ravel()
        for place in places[len(panels) :]:
            place.set_axis_off()
        for place, panel in zip(places, panels, strict=False):
            _draw_panel(place, panel)
        metadata = {"Software": "bsrgemm"}
        if path.suffix == ".svg":
            metadata = {"Date": None, "Creator": "bsrgemm"}
            metadata["Description"] = json.dumps([as_data(panel) for panel in panels])
        figure.savefig(path, metadata=metadata)


def _draw_panel(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    styles = {"line": "-", "points": "", "peer": "--", "limit": "-"}
    own = other = 0
    for curve in panel.curves:
        is_own = curve.kind in ("line", "points")
        colour = COLOURS[own % len(COLOURS)] if is_own else GREY
        # Several peers differ by their dashes.
        style = styles[curve.kind] if is_own else ("-", "--", ":", "-.")[other % 4]
        axes.plot(
            curve.x,
            curve.y,
            linestyle=style,
            marker=MARKERS[own % len(MARKERS)] if is_own else "",
            markersize=5,
            color=colour,
            label=curve.label,
        )
        own, other = own + is_own, other + (not is_own)
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("log")
        axis.set_major_locator(LogLocator(10, (1.0, 2.0, 5.0) if _is_short(axis) else (1.0,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_title(panel.title, fontsize=11, loc="left")
    axes.set_xlabel(f"{panel.x_label}\n{panel.source}", fontsize=9)
    axes.set_ylabel(panel.y_label)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8.5, frameon=False)


def _is_short(axis: Any) -> bool:
    """Whether an axis spans no more than two and a half decades."""
    low, high = axis.get_data_interval()
    return high / low < 10**2.5
