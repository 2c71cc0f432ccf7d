"""Matrices whose last block row or column is partial, for the suites of every device."""

from __future__ import annotations

from typing import NamedTuple

import cases
import numpy as np
from cases import Problem, problem


class Shape(NamedTuple):
    """``cut``: rows and columns of the last blocks that are beyond the matrix. ``density``: None
    where the last block row has all blocks and the others one, so that kernels begin with it."""

    density: float | None
    rows: int
    cols: int
    blocksize: tuple[int, int]
    cut: tuple[int, int]
    n: int


SHAPES = {
    "odd": Shape(0.5, 5, 7, (3, 5), (1, 3), 11),
    "rows": Shape(0.5, 4, 3, (16, 16), (15, 0), 33),
    "columns": Shape(0.5, 4, 5, (8, 24), (0, 7), 40),
    "one block": Shape(1.1, 1, 1, (64, 40), (63, 39), 9),
    "one column": Shape(0.6, 4, 6, (20, 12), (7, 5), 1),
    "tall": Shape(0.6, 3, 4, (150, 6), (140, 1), 6),
    "wide": Shape(0.6, 4, 3, (2, 150), (1, 141), 6),
    "long last row": Shape(None, 6, 9, (16, 24), (3, 10), 33),
}

# Of the kernels for Hopper. Those of 256 rows have strips, and tiles of several, beyond the matrix.
GPU_SHAPES = {
    "32": Shape(0.4, 5, 7, (32, 32), (31, 9), 72),
    "64": Shape(0.5, 5, 6, (64, 64), (23, 41), 264),
    "128": Shape(0.6, 3, 4, (128, 128), (65, 127), 200),
    "256": Shape(0.6, 2, 5, (256, 80), (255, 1), 256),
    "few columns": Shape(0.5, 5, 6, (40, 24), (13, 17), 16),
    "16, long last row": Shape(None, 40, 45, (16, 16), (5, 3), 264),
    "32, long last row": Shape(None, 17, 9, (32, 32), (31, 9), 72),
    "64, long last row": Shape(None, 6, 9, (64, 64), (23, 41), 264),
    "128, long last row": Shape(None, 5, 7, (128, 128), (65, 127), 200),
    "few columns, long last row": Shape(None, 8, 9, (40, 24), (13, 17), 16),
}


def make(shape: Shape, rng: np.random.Generator, dtype: str) -> Problem:
    pattern = cases.long_last_row if shape.density is None else cases.uniform(shape.density)
    mask = pattern(rng, shape.rows, shape.cols)
    mask[-1, -1] = True
    return problem(rng, mask, shape.blocksize, shape.n, dtype, cut=shape.cut)
