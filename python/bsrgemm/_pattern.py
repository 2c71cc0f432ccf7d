"""What a pattern says beside its number of blocks: row lengths, balance, and other block sizes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from . import _core
from ._convert import grid_of, pattern_of, whole_shape

# Of a CTA's tile in the Hopper kernels.
TILE_COLUMNS = 256


class Rows(NamedTuple):
    """Stored blocks a block row."""

    count: int
    shortest: int
    median: float
    mean: float
    longest: int
    empty: int

    @property
    def skew(self) -> float:
        """The longest row over the mean one; 1 where there are no blocks."""
        return self.longest / self.mean if self.mean else 1.0

    def __str__(self) -> str:
        return (
            f"{self.shortest} to {self.longest} blocks, mean {self.mean:.3g}, median "
            f"{self.median:.3g}, {self.empty} empty; the longest is {self.skew:.2g} times the mean"
        )


def rows_of(lengths: np.ndarray) -> Rows:
    if not len(lengths):
        return Rows(0, 0, 0.0, 0.0, 0, 0)
    return Rows(
        len(lengths),
        int(lengths.min()),
        float(np.median(lengths).item()),  # torch.compile takes no float of an array
        float(lengths.mean()),
        int(lengths.max()),
        int((lengths == 0).sum()),
    )


def busiest(lengths: np.ndarray, n: int, workers: int) -> float:
    """The work of the busiest of so many SMs over the mean one, where each block row and each tile
    of 256 columns is a piece that is not divided, and the longest ones are dealt out first."""
    total, tiles = float(lengths.sum()), -(-n // TILE_COLUMNS)
    if not total:
        return 1.0
    mean = total * tiles / workers
    most = 1 << 16  # pieces: a tenth of a second
    if len(lengths) * tiles > most:
        return max(1.0, float(lengths.max()) / mean)
    loads = [0.0] * workers
    for length in np.sort(lengths)[::-1]:
        for _ in range(tiles):
            heapq.heapreplace(loads, loads[0] + float(length))
    return max(loads) / mean


class Cells(NamedTuple):
    """The parts of a matrix that are not zero, as the small rectangles that it is seen in.

    The last of these may reach beyond the matrix.
    """

    rows: np.ndarray
    cols: np.ndarray
    size: tuple[int, int]  # of a cell, in elements
    shape: tuple[int, int]  # of the matrix

    @property
    def elements(self) -> int:
        """Those within the matrix."""
        (height, width), (rows, cols) = self.size, self.shape
        heights = np.minimum(rows - self.rows * height, height)
        return int((heights * np.minimum(cols - self.cols * width, width)).sum())

    def regrouped(self, block: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
        """indices, indptr and shape, rounded up, of the matrix in blocks that are multiples of the
        cells."""
        (height, width), (cell_height, cell_width) = block, self.size
        grid = grid_of(self.shape, block)
        keys = np.unique(
            self.rows // (height // cell_height) * grid[1] + self.cols // (width // cell_width)
        )
        indptr = np.searchsorted(keys // max(grid[1], 1), np.arange(grid[0] + 1))
        indices = keys % max(grid[1], 1)
        return indices.astype(np.int32), indptr, whole_shape(self.shape, block)

    def structure(self, block: tuple[int, int]) -> _core.Structure:
        return _core.Structure(*self.regrouped(block), block)


def cell_size(block: tuple[int, int], into: int = 16) -> tuple[int, int]:
    """The largest cells that make up blocks of that size and of all multiples of ``into``."""
    return math.gcd(block[0], into), math.gcd(block[1], into)


def cells_of_blocks(
    structure: _core.Structure, data: np.ndarray | None = None, into: int = 16
) -> Cells:
    """Those of the stored blocks that lie within the matrix, if in part; with their values, without
    the cells that hold zeros alone."""
    height, width = structure.blocksize
    cell = cell_size((height, width), into)
    down, across = height // cell[0], width // cell[1]
    block_cols, indptr = pattern_of(structure)
    block_rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    if data is None:
        kept = np.ones((structure.nnzb, down, across), bool)
    else:
        kept = (data.reshape(-1, down, cell[0], across, cell[1]) != 0).any(axis=(2, 4))
    block, row, col = np.nonzero(kept)
    rows, cols = block_rows[block] * down + row, block_cols[block] * across + col
    within = rows * cell[0] < structure.shape[0]
    within &= cols * cell[1] < structure.shape[1]
    return Cells(rows[within], cols[within], cell, structure.shape)


def fill_of(structure: _core.Structure, sides: Sequence[int]) -> dict[int, float]:
    """Stored elements over those of now, for square blocks of each side."""
    cells = cells_of_blocks(structure)
    stored = structure.nnzb * structure.blocksize[0] * structure.blocksize[1]
    return {side: len(cells.regrouped((side, side))[0]) * side * side / stored for side in sides}
