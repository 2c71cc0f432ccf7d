"""Block patterns, random matrices, the float64 reference and the error that is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

DTYPES = ("float16", "bfloat16", "float32", "float64")

# Unit roundoff, and the relative error that is allowed where the dense product happens to be
# exact: one rounding of the result for 16-bit floats, which accumulate in float32, and a few for
# the others.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
FLOOR = {"float16": 1.1, "bfloat16": 1.1, "float32": 8.0, "float64": 8.0}


def least_error(dtype: str, terms: int, cancelled: float = 1.0) -> float:
    """The relative error that is allowed at least, of sums of so many terms. Rounding errors of a
    sum in the dtype itself grow like the root of that; the reference of float64 has as large ones.
    They are relative to the terms: ``cancelled`` is the factor by which results are smaller.
    """
    if dtype not in ("float32", "float64"):
        return FLOOR[dtype] * ROUNDOFF[dtype]
    return (FLOOR[dtype] + np.sqrt(terms) / 4) * cancelled * ROUNDOFF[dtype]


def cancellation(expected: Any, terms: Any, count: int) -> float:
    """How much smaller the results of a few sums of ``count`` random terms are than such sums
    usually are, at least 1, and more for few results, whose errors do not average out. ``terms``
    has the sums of the terms' absolute values."""
    size, usual = (float((x**2).sum() ** 0.5) for x in (expected, terms))
    smaller = max(1.0, usual / (size * np.sqrt(count))) if size > 0 else 1.0
    return smaller * (1.0 + 2.0 / max(1, math.prod(expected.shape)) ** 0.5)


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name; skips the test where NumPy needs ml_dtypes for it."""
    if name not in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return np.dtype(name)
    import pytest

    reason = f"NumPy has {name} only with ml_dtypes"
    return np.dtype(getattr(pytest.importorskip("ml_dtypes", reason=reason), name))


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


@dataclass(frozen=True)
class Problem:
    """A block-sparse matrix as arrays, and the number of columns to multiply it with."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple[int, int]
    n: int
    dtype: str

    @property
    def dense(self) -> np.ndarray:
        return densify(self.data, self.indices, self.indptr, self.shape)


def densify(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """Block by block in float64, with nothing of the package, cut off at ``shape``."""
    _, height, width = data.shape
    across = -(-shape[1] // width)
    dense = np.zeros(((len(indptr) - 1) * height, across * width))
    for i in range(len(indptr) - 1):
        for k in range(indptr[i], indptr[i + 1]):
            rows = slice(i * height, (i + 1) * height)
            cols = slice(indices[k] * width, (indices[k] + 1) * width)
            dense[rows, cols] = data[k].astype(np.float64)
    return np.ascontiguousarray(dense[: shape[0], : shape[1]])


def mask_of(p: Problem) -> np.ndarray:
    """Which blocks there are, by block rows and block columns."""
    rows, cols = len(p.indptr) - 1, -(-p.shape[1] // p.data.shape[2])
    mask = np.zeros((rows, cols), bool)
    mask[np.repeat(np.arange(rows), np.diff(p.indptr)), p.indices] = True
    return mask


def is_partial(p: Problem) -> bool:
    """Whether its last blocks reach beyond the matrix, which no pattern of a GPU's own has."""
    return any(size % block for size, block in zip(p.shape, p.data.shape[1:], strict=True))


def fill_beyond(p: Problem, value: float) -> None:
    """Puts a value into ``p.data``, also of a batch, where blocks reach beyond the matrix."""
    height, width = p.data.shape[-2:]
    rows, cols = (size % block for size, block in zip(p.shape, (height, width), strict=True))
    if rows:
        p.data[..., p.indptr[-2] :, rows:, :] = value
    if cols:
        p.data[..., p.indices == p.shape[1] // width, :, cols:] = value


def problem(
    rng: np.random.Generator,
    mask: np.ndarray,
    blocksize: tuple[int, int],
    n: int,
    dtype: str,
    index_type: type = np.int32,
    cut: tuple[int, int] = (0, 0),
) -> Problem:
    """Random values on the blocks that ``mask`` (block rows x block columns) selects. ``cut``: rows
    and columns that the last blocks have beyond the matrix, where they are 0."""
    indptr = np.concatenate([[0], mask.sum(axis=1).cumsum()]).astype(index_type)
    indices = np.nonzero(mask)[1].astype(index_type)
    rows, cols = (
        blocks * side - (less if blocks else 0)
        for blocks, side, less in zip(mask.shape, blocksize, cut, strict=True)
    )
    p = Problem(
        normal(rng, (len(indices), *blocksize), dtype), indices, indptr, (rows, cols), n, dtype
    )
    fill_beyond(p, 0)
    return p


def uniform(density: float) -> Callable[[np.random.Generator, int, int], np.ndarray]:
    return lambda rng, rows, cols: rng.random((rows, cols)) < density


def empty_rows(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Every other block row has none, the first and the last included."""
    mask = rng.random((rows, cols)) < 0.5
    mask[::2] = mask[-1] = False
    return mask


def one_block(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    mask = np.zeros((rows, cols), bool)
    mask[rng.integers(rows), rng.integers(cols)] = True
    return mask


def one_long_row(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    mask = rng.random((rows, cols)) < 0.05
    mask[rng.integers(rows)] = True
    return mask


def long_last_row(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """The last block row, which may be partial, is by far the longest: others have one block."""
    mask = np.zeros((rows, cols), bool)
    mask[np.arange(rows), rng.integers(cols, size=rows)] = True
    mask[-1] = True
    return mask


def skewed(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Row lengths that fall like 1 / rank."""
    lengths = rng.permutation(np.maximum(cols // np.arange(1, rows + 1), 0))
    return np.array([rng.permutation(cols) < length for length in lengths]).reshape(rows, cols)


def of_all_lengths(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Some block rows have nearly all blocks, most few, and one none."""
    share = rng.permutation(np.linspace(0, 1, rows)) ** 3
    mask = rng.random((rows, cols)) < share[:, None]
    mask[rng.integers(rows)] = False
    return mask


def banded(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    distance = np.arange(rows)[:, None] * cols - np.arange(cols)[None, :] * rows
    return np.abs(distance) <= max(rows, cols)


def kept(mask: np.ndarray, capacity: int) -> np.ndarray:
    """What is left of a mask in a pattern of that capacity, by definition."""
    flat = mask.ravel().copy()
    flat[flat.nonzero()[0][capacity:]] = False
    return flat.reshape(mask.shape)


# An element may be off by so many times what all are off in the mean.
WORST_ELEMENT = 20.0


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Of the whole array in the Frobenius norm, or a twentieth of the worst element's, whichever is
    more: no few wrong elements vanish among many. Infinite where anything is not finite."""
    found = found.astype(np.float64)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    norm = np.linalg.norm(expected)
    difference = np.abs(found - expected)
    error = np.linalg.norm(difference)
    if norm == 0.0:
        return 0.0 if error == 0.0 else float("inf")
    if not np.isfinite(error):
        return float("inf")
    usual = norm / expected.size**0.5
    return float(max(error / norm, (difference / (np.abs(expected) + usual)).max() / WORST_ELEMENT))


def allowed_error(
    dense: np.ndarray,
    x: np.ndarray,
    c: np.ndarray | None,
    alpha: float,
    beta: float,
    dtype: str,
) -> tuple[np.ndarray, float]:
    """The float64 reference, and twice what the dense product of the same precision loses."""
    reference = alpha * (dense @ x.astype(np.float64))
    work = np.float64 if dtype == "float64" else np.float32
    same = work(alpha) * (dense.astype(work) @ x.astype(work))
    if c is not None and beta != 0.0:
        reference = reference + beta * c.astype(np.float64)
        same = same + work(beta) * c.astype(work)
    lost = relative_error(same.astype(numpy_dtype(dtype)), reference)
    terms = abs(alpha) * (np.abs(dense) @ np.abs(x.astype(np.float64)))
    if c is not None and beta != 0.0:
        terms = terms + abs(beta) * np.abs(c.astype(np.float64))
    count = dense.shape[1] + 1
    cancelled = cancellation(reference, terms, count)
    return reference, max(2.0 * lost, least_error(dtype, count, cancelled))


def assert_close(found: np.ndarray, reference: np.ndarray, allowed: float) -> None:
    assert not np.isnan(found.astype(np.float64)).any(), "the result has NaN: not all was written"
    error = relative_error(found, reference)
    assert error <= allowed, f"relative error {error:.3e}, allowed {allowed:.3e}"
