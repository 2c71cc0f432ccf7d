"""Softmax over stored elements against NumPy in float64, for any library and device."""

from __future__ import annotations

import bsrgemm
import cases
import numpy as np
from cases import ROUNDOFF, Problem, problem
from operations import matrix
from spaces import Space
from structure_cases import covered_by, stored

# name: (pattern, block rows, block columns, block shape)
SHAPES = {
    "odd": (cases.uniform(0.4), 5, 7, (3, 5)),
    "scalar blocks": (cases.uniform(0.3), 37, 23, (1, 1)),
    "16": (cases.uniform(0.4), 9, 11, (16, 16)),
    "64": (cases.uniform(0.4), 5, 6, (64, 64)),
    "tall blocks": (cases.uniform(0.5), 2, 5, (100, 6)),
    "wide blocks": (cases.uniform(0.5), 3, 2, (2, 1000)),
    "rows of two warps": (cases.uniform(0.5), 3, 48, (5, 64)),
    "rows of four warps": (cases.uniform(0.5), 3, 96, (3, 64)),
    "long rows": (cases.uniform(0.9), 2, 90, (33, 64)),
    "empty rows": (cases.empty_rows, 5, 6, (16, 32)),
    "one block": (cases.one_block, 6, 7, (5, 9)),
    "all blocks": (cases.uniform(1.1), 4, 5, (64, 16)),
    "no blocks": (cases.uniform(0.0), 3, 4, (64, 16)),
    "one long row": (cases.one_long_row, 12, 40, (4, 8)),
    "partial": (cases.uniform(0.6), 4, 5, (16, 24), 3, 10),
    "partial, tall": (cases.uniform(0.6), 3, 5, (100, 6), 93, 1),
    "partial, wide": (cases.uniform(0.6), 3, 2, (2, 1000), 1, 900),
    "partial, long rows": (cases.uniform(0.9), 2, 90, (33, 64), 0, 1),
    "partial, long last row": (cases.long_last_row, 6, 9, (16, 24), 3, 10),
    "no rows": (cases.uniform(1.0), 0, 3, (4, 4)),
    "no columns": (cases.uniform(1.0), 3, 0, (4, 4)),
}
LARGEST = {
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}
# Which GPU kernels share out in ways of their own.
GPU_SHAPES = {
    "longer rows": (cases.uniform(0.9), 2, 300, (3, 64)),
    "many short rows": (cases.one_long_row, 270, 40, (64, 16)),
    "many shorter rows": (cases.uniform(0.5), 1500, 2, (6, 16)),
    "partial, many short rows": (cases.one_long_row, 270, 40, (64, 16), 63, 5),
}


def expected(dense: np.ndarray, seen: np.ndarray, scale: float) -> np.ndarray:
    """Row by row; what is not seen is 0."""
    out = np.zeros(dense.shape)
    with np.errstate(invalid="ignore"):
        for i, row in enumerate(scale * dense):
            if seen[i].any():
                weights = np.exp(row[seen[i]] - row[seen[i]].max())
                out[i, seen[i]] = weights / weights.sum()
    return out


def check(space: Space, p: Problem, scale: float) -> None:
    """Of the matrix and of its transposed view, with the pattern and the library that they have."""
    a = matrix(space, p)
    before = space.host(a.data).copy()
    covered = covered_by(p)
    for of, dense, seen in ((a, p.dense, covered), (a.T, p.dense.T, covered.T)):
        result = bsrgemm.softmax(of, scale)
        assert result.is_transposed == of.is_transposed and result.shape == of.shape
        assert result.dtype == a.dtype and result._data is not a.data
        wanted = expected(dense, seen.astype(bool), scale)
        found = stored(space, result)
        assert np.array_equal(np.isnan(found), np.isnan(wanted))
        # Scores are products of scale with an error of their own, which the exponential multiplies.
        with np.errstate(invalid="ignore"):
            largest = 1 + np.nan_to_num(np.abs(scale * dense), posinf=0).max(initial=0)
        work = ROUNDOFF["float64" if p.dtype == "float64" else "float32"]
        allowed = (1.1 * ROUNDOFF[p.dtype] + 16 * largest * work) * np.nan_to_num(wanted)
        smallest = 2.0**-25 if p.dtype == "float16" else 1e-30
        assert (np.nan_to_num(np.abs(found - wanted)) <= allowed + smallest).all()
    assert np.array_equal(space.host(a.data).view(np.uint8), before.view(np.uint8))


def check_special(space: Space, dtype: str) -> None:
    """Rows with infinities and NaN."""
    rows = np.array(
        [
            [1, -np.inf, 2, 3, -np.inf, 0],
            [-np.inf] * 6,
            [-np.inf, -np.inf, -np.inf, -np.inf, 5, -np.inf],
            [np.nan, 1, 2, 3, 4, 5],
            [1, 2, 3, 4, 5, np.nan],
            [1, np.inf, 2, 3, 4, 5],
            [60000, 60000, -60000, 60000, 0, 1],
            [-60000, -59000, -60000, -60000, -60000, -60000],
        ]
    )
    for blocksize in ((8, 2), (8, 6), (2, 3), (1, 1)):
        height, width = blocksize
        mask = np.ones((8 // height, 6 // width), bool)
        p = problem(np.random.default_rng(0), mask, blocksize, 1, dtype)
        tiles = rows.reshape(8 // height, height, 6 // width, width).transpose(0, 2, 1, 3)
        data = tiles.reshape(p.data.shape).astype(p.data.dtype, order="C")
        check(space, _with(p, data), 1.0)
        check(space, _with(p, data), 2.0**-4)
    # With elements beyond the matrix, and of no scale, by which infinities are NaN.
    p = problem(np.random.default_rng(0), np.ones((1, 1), bool), (8, 8), 1, dtype, cut=(0, 2))
    data = p.data.copy()
    data[0, :, :6] = rows
    for scale in (1.0, 0.0):
        check(space, _with(p, data), scale)


def check_largest(space: Space, dtype: str) -> None:
    """Rows of a dtype's largest numbers, whose differences may be beyond it: weights are all equal,
    or all at its largest."""
    largest = LARGEST[dtype]
    rows = np.full((4, 6), -largest)
    rows[1] = largest
    rows[2, 1:5:3] = largest
    rows[3, 5] = 0
    wanted = np.array(
        [[6, 6, 6, 6, 6, 6], [6, 6, 6, 6, 6, 6], [0, 2, 0, 0, 2, 0], [0, 0, 0, 0, 0, 1]]
    )
    wanted = np.divide(1.0, wanted, out=np.zeros((4, 6)), where=wanted > 0)
    for blocksize in ((4, 6), (2, 3), (1, 1)):
        height, width = blocksize
        mask = np.ones((4 // height, 6 // width), bool)
        p = problem(np.random.default_rng(0), mask, blocksize, 1, dtype)
        tiles = rows.reshape(4 // height, height, 6 // width, width).transpose(0, 2, 1, 3)
        data = tiles.reshape(p.data.shape).astype(p.data.dtype, order="C")
        found = stored(space, bsrgemm.softmax(matrix(space, _with(p, data))))
        assert np.abs(found - wanted).max() <= ROUNDOFF[dtype]


def _with(p: Problem, data: np.ndarray) -> Problem:
    return Problem(data, p.indices, p.indptr, p.shape, p.n, p.dtype)
