"""Block patterns, each from a random generator and the number of blocks that it has to have.

All but ``two_full_rows`` store ``rows * count`` blocks, so that they do the same useful work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from bsrgemm._bench import uniform as uniform_arrays


class Pattern(NamedTuple):
    indices: np.ndarray  # int32, block columns that ascend within a row
    indptr: np.ndarray  # int32

    @property
    def rows(self) -> np.ndarray:
        """The block row of every block."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))


def uniform(rng: np.random.Generator, rows: int, cols: int, count: int) -> Pattern:
    """The same number of blocks in every row, at random columns."""
    return Pattern(*uniform_arrays(rng, rows, cols, count))


def scattered(rng: np.random.Generator, rows: int, cols: int, count: int) -> Pattern:
    """All positions alike, so that rows differ in length by chance."""
    mask = np.zeros(rows * cols, bool)
    mask[rng.choice(mask.size, rows * count, replace=False)] = True
    return _from_mask(mask.reshape(rows, cols))


def banded(rng: np.random.Generator, rows: int, cols: int, count: int) -> Pattern:
    """``count`` neighbouring columns around the diagonal, shifted inwards at the ends."""
    centre = np.arange(rows) * cols // rows
    return _runs(np.clip(centre - count // 2, 0, cols - count), count)


def block_diagonal(rng: np.random.Generator, rows: int, cols: int, count: int) -> Pattern:
    """Dense squares along the diagonal, ``count`` columns wide."""
    squares = -(-cols // count)
    square = np.arange(rows) * squares // rows
    return _runs(np.minimum(square * count, cols - count), count)


def zipf_rows(rng: np.random.Generator, rows: int, cols: int, count: int) -> Pattern:
    """Row lengths that fall like 1 / rank, in random order, at random columns."""
    lengths = rng.permutation(_zipf_lengths(rows, cols, rows * count))
    order = np.argsort(rng.random((rows, cols)), axis=1)
    mask = np.zeros((rows, cols), bool)
    np.put_along_axis(mask, order, np.arange(cols) < lengths[:, None], axis=1)
    return _from_mask(mask)


def zipf_columns(rng: np.random.Generator, rows: int, cols: int, count: int) -> Pattern:
    """Rows of equal length that draw columns without repetition, with weights 1 / rank."""
    weights = rng.permutation(1.0 / np.arange(1, cols + 1))
    # The largest of log weight + Gumbel noise are a weighted draw without repetition.
    keys = np.log(weights) + rng.gumbel(size=(rows, cols))
    chosen = np.argpartition(-keys, count - 1, axis=1)[:, :count]
    mask = np.zeros((rows, cols), bool)
    np.put_along_axis(mask, chosen, True, axis=1)
    return _from_mask(mask)


def two_full_rows(rng: np.random.Generator, rows: int, cols: int, count: int) -> Pattern:
    """Two rows store every block, the others none, whatever ``count``."""
    mask = np.zeros((rows, cols), bool)
    mask[rng.choice(rows, 2, replace=False)] = True
    return _from_mask(mask)


PATTERNS: dict[str, Callable[[np.random.Generator, int, int, int], Pattern]] = {
    f.__name__: f
    for f in (
        *(uniform, scattered, banded, block_diagonal),
        *(zipf_rows, zipf_columns, two_full_rows),
    )
}


def _runs(start: np.ndarray, count: int) -> Pattern:
    """``count`` columns from ``start[i]`` on in row i."""
    indices = (start[:, None] + np.arange(count)).astype(np.int32).ravel()
    return Pattern(indices, np.arange(len(start) + 1, dtype=np.int32) * np.int32(count))


def _from_mask(mask: np.ndarray) -> Pattern:
    indptr = np.concatenate([[0], mask.sum(axis=1).cumsum()]).astype(np.int32)
    return Pattern(np.nonzero(mask)[1].astype(np.int32), indptr)


def _zipf_lengths(rows: int, cols: int, total: int) -> np.ndarray:
    """Longest first: proportional to 1 / rank, but at most ``cols``, and of sum ``total``."""
    weights = 1.0 / np.arange(1, rows + 1)
    low, high = 0.0, float(rows * cols)
    for _ in range(200):
        scale = (low + high) / 2
        low, high = (
            (scale, high) if np.minimum(cols, scale * weights).sum() < total else (low, scale)
        )
    exact = np.minimum(cols, high * weights)
    lengths = np.floor(exact).astype(np.int64)
    largest_remainders = np.argsort(lengths - exact, kind="stable")
    lengths[largest_remainders[: total - lengths.sum()]] += 1
    return lengths
