"""``bsr_array.spy``: the pattern as text, or as a picture by matplotlib."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _core
from ._convert import grid_of, pattern_of, whole_shape
from ._kinds import a_kind_of
from ._mask_arguments import count_of

# From nothing to all blocks of a cell; anything that is stored shows.
SHADES = " .:-=+*#%@"
# A character is about twice as high as it is wide.
ASPECT = 0.5
MOST_LINES, MOST_PIXELS = 40, 1024


def draw(structure: _core.Structure, name: str, ax: Any, text: bool | None, width: int) -> Any:
    if ax is not None and text:
        raise ValueError("text is True and ax is given; accepted: one of both")
    width = count_of(width, "width", 8)
    if ax is not None and not hasattr(ax, "imshow"):
        raise TypeError(f"ax is {a_kind_of(ax)}; accepted: axes of matplotlib")
    if text is None:
        text = ax is None and "matplotlib.pyplot" not in sys.modules
    if text:
        print(name)
        print("\n".join(lines_of(structure, width)))
        return None
    return _picture(structure, name, ax)


def shares(structure: _core.Structure, rows: int, cols: int) -> np.ndarray:
    """The part of the blocks that is stored, of each of rows x cols cells."""
    grid = grid_of(structure.shape, structure.blocksize)
    indices, indptr = pattern_of(structure)
    block_rows = np.repeat(np.arange(grid[0]), np.diff(indptr))
    counts = np.zeros((rows, cols))
    at = (
        block_rows * rows // max(grid[0], 1),
        indices * cols // max(grid[1], 1),
    )
    np.add.at(counts, at, 1.0)
    down, across = (
        np.bincount(np.arange(n) * m // n, minlength=m)
        for n, m in zip(grid, counts.shape, strict=True)
    )
    places = np.multiply.outer(down, across)
    return counts / np.maximum(places, 1)


def lines_of(structure: _core.Structure, width: int) -> list[str]:
    rows, cols = grid_of(structure.shape, structure.blocksize)
    across = max(1, min(cols, width))
    (m, k) = structure.shape
    down = max(1, min(rows, MOST_LINES, round(across * ASPECT * m / max(k, 1))))
    cells = np.ceil(shares(structure, down, across) * (len(SHADES) - 1)).astype(int)
    edge = "+" + "-" * across + "+"
    inner = ["|" + "".join(SHADES[cell] for cell in row) + "|" for row in cells]
    return [edge, *inner, edge]


def _picture(structure: _core.Structure, name: str, ax: Any) -> Any:
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise ImportError(
                "spy draws with matplotlib, which is not installed: pip install matplotlib, "
                "or use spy(text=True)"
            ) from None
        _, ax = plt.subplots()
    grid = grid_of(structure.shape, structure.blocksize)
    rows, cols = (max(1, min(n, MOST_PIXELS)) for n in grid)
    (m, k), whole = structure.shape, whole_shape(structure.shape, structure.blocksize)
    ax.imshow(
        shares(structure, rows, cols),
        cmap="Greys",
        vmin=0,
        vmax=1,
        extent=(0, max(whole[1], 1), max(whole[0], 1), 0),
        interpolation="nearest",
    )
    ax.set_xlim(0, max(k, 1))
    ax.set_ylim(max(m, 1), 0)
    ax.set_title(name, fontsize="small")
    ax.set_xlabel("column")
    ax.set_ylabel("row")
    return ax
