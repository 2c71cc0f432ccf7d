"""Draw the pictures of the documents from the committed results, and write their numbers into the
package, which ``python -m bsrgemm bench --plot`` draws where nothing was measured.

``docs/pictures/*.svg`` hold the numbers that they show, and are checked against the results without
matplotlib.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from bsrgemm import _figures
from bsrgemm._figures import Curve, Panel, Timed

from .records import ROOT, Row
from .report import GPU_SLUG, MEMORY_BYTES_PER_S, RESULTS, load
from .report_cells import Run, obstacle, ours

PICTURES = Path("docs", "pictures")
NUMBERS = Path("python", "bsrgemm", _figures.SHIPPED.name)
ORDER, LENGTH = 8192, 16384
BLOCKS = (16, 32, 64, 128)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a picture is out of date"
    )


def run(args: argparse.Namespace) -> int:
    panels = panels_of(load(ROOT / RESULTS / GPU_SLUG))
    stale = stale_files(ROOT, panels)
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'out of date' if args.check else 'written'}")
    if args.check:
        if stale:
            print("run: python -m benchmarks figures", file=sys.stderr)
        return 1 if stale else 0
    try:
        write(ROOT, panels, stale)
    except ImportError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def panels_of(runs: list[Run]) -> list[Panel]:
    return [_crossover(runs), _roofline(runs), _attention(runs)]


def numbers(panels: list[Panel]) -> str:
    """A line a curve, so that differences can be read."""
    text = json.dumps([_figures.as_data(panel) for panel in panels])
    return re.sub(r'(\{"(?:name|label)")', r"\n\1", text) + "\n"


def shown_by(path: Path) -> Any:
    """The numbers that an SVG says it shows."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(), re.DOTALL)
    return json.loads(html.unescape(found[1])) if found else None


def stale_files(root: Path, panels: list[Panel]) -> list[Path]:
    stale = [root / PICTURES / f"{panel.name}.svg" for panel in panels if not _fits(root, panel)]
    path = root / NUMBERS
    if not path.exists() or path.read_text() != numbers(panels):
        stale.append(path)
    return stale


def _fits(root: Path, panel: Panel) -> bool:
    path = root / PICTURES / f"{panel.name}.svg"
    data = json.loads(json.dumps([_figures.as_data(panel)]))
    return path.exists() and shown_by(path) == data


def write(root: Path, panels: list[Panel], stale: list[Path]) -> None:
    (root / PICTURES).mkdir(parents=True, exist_ok=True)
    by_path = {root / PICTURES / f"{panel.name}.svg": panel for panel in panels}
    for path in stale:
        if path in by_path:
            _figures.draw([by_path[path]], path)
        else:
            path.write_text(numbers(panels))


# ---- panels --------------------------------------------------------------------------------------


def _source(found: list[tuple[Run, Row]]) -> str:
    """The GPU, and the days of all runs that are shown."""
    days = sorted({run.facts["date"][:10] for run, _ in found})
    return f"measured on an {found[0][0].facts['gpu']}, {', '.join(days)}"


def _timed(row: Row) -> Timed:
    height, width = row["block"]
    stored, size = row["nnzb"] * height * width, 2
    return Timed(
        f"{height}×{width}",
        row["density"],
        row["us"] * 1e-6,
        2.0 * stored * row["N"],
        size * (stored + (row["M"] + row["K"]) * float(row["N"])),
    )


def _square(row: Row) -> bool:
    height, width = row["block"]
    return height == width and height in BLOCKS


def _found(runs: list[Run], timing: str, group: str) -> list[tuple[Run, Row]]:
    return [
        (run, row)
        for run, row in ours(runs, timing, dtype="float16", pattern="uniform")
        if row["case"].startswith(group) and not obstacle(row) and _square(row)
    ]


def _dense(found: list[tuple[Run, Row]]) -> list[tuple[float, float]]:
    """The whole dense product in µs by density, each time from the run of ours beside it: it takes
    longer the fewer zeros there are."""
    times: dict[float, list[float]] = {}
    for run, row in found:
        dense = run.rival(row, "cublas_dense")
        if dense is not None and not obstacle(dense):
            times.setdefault(float(f"{row['density']:.4g}"), []).append(dense["us"])
    return sorted((density, statistics.median(us)) for density, us in times.items())


def _crossover(runs: list[Run]) -> Panel:
    found = _found(runs, "sustained", "crossover/")
    found.sort(key=lambda pair: pair[1]["block"])
    panel = _figures.crossover(
        [_timed(row) for _, row in found],
        None,
        "",
        f"float16, {ORDER}×{ORDER}×{ORDER}",
        _source(found),
    )
    x, y = zip(*_dense(found), strict=True)
    dense = Curve("cuBLAS, dense", x, tuple(round(us / 1e3, 5) for us in y), "peer")
    return panel._replace(curves=(*panel.curves, dense))


def _roofline(runs: list[Run]) -> Panel:
    """Many columns, and few, where the matrix has to be read from memory."""
    found = _found(runs, "sustained", "blocks/")
    dense = statistics.median(us for _, us in _dense(found)) * 1e-6
    found += [pair for pair in _found(runs, "cold", "columns/") if pair[1]["K"] == ORDER]
    found.sort(key=lambda pair: pair[1]["block"])
    return _figures.roofline(
        [_timed(row) for _, row in found],
        2.0 * ORDER**3 / dense,
        "cuBLAS, dense",
        MEMORY_BYTES_PER_S,
        _figures.TERA,
        f"float16, {ORDER}×{ORDER}, 1 to {ORDER} columns",
        _source(found),
    )


def _attention(runs: list[Run]) -> Panel:
    run = next(r for r in runs if any(row["case"].startswith("masks/") for row in r.rows))
    curves = []
    for who, name in (("bsrgemm", "bsrgemm"), ("flex", "FlexAttention")):
        rows = run.find_all(who, "sustained", seen="uniform", keys=LENGTH, block=[128, 128])
        measured = (row for row in rows if row["case"].startswith("masks/") and not obstacle(row))
        points = sorted((row["density"], round(row["us"] / 1e3, 5)) for row in measured)
        x, y = zip(*points, strict=True)
        curves.append(Curve(name, x, y))
    dense = {
        "bsrgemm": "bsrgemm, dense",
        "flash3": "FlashAttention-3, dense",
        "cudnn": "cuDNN, dense",
    }
    levels = []
    for who, name in dense.items():
        row = run.find(
            who, "sustained", seen="full", keys=LENGTH, size=128, heads=16, dtype="bfloat16"
        )
        if not obstacle(row):
            levels.append((name, row["us"] / 1e3))
    what = f"bfloat16, 16 heads of {LENGTH}×128, blocks of 128×128"
    return _figures.attention(curves, levels, what, _source([(run, run.rows[0])]))
