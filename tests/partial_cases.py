"""Matrices whose last block row or column is partial, for the suites of every device."""

from __future__ import annotations

from typing import NamedTuple

import cases
import numpy as np
from cases import Problem, problem


class Shape(NamedTuple):
    """``cut``: rows and columns of the last blocks that are beyond the matrix."""

    density: float
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
}

# Of the kernels for Hopper. Those of 256 rows have strips, and tiles of several, beyond the matrix.
GPU_SHAPES = {
    "32": Shape(0.4, 5, 7, (32, 32), (31, 9), 72),
    "64": Shape(0.5, 5, 6, (64, 64), (23, 41), 264),
    "128": Shape(0.6, 3, 4, (128, 128), (65, 127), 200),
    "256": Shape(0.6, 2, 5, (256, 80), (255, 1), 256),
    "few columns": Shape(0.5, 5, 6, (40, 24), (13, 17), 16),
}


def make(shape: Shape, rng: np.random.Generator, dtype: str) -> Problem:
    mask = cases.uniform(shape.density)(rng, shape.rows, shape.cols)
    mask[-1, -1] = True
    return problem(rng, mask, shape.blocksize, shape.n, dtype, cut=shape.cut)
