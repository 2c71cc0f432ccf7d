"""Batches of matrices: values of more than three dimensions around one pattern."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ._convert import pattern_of
from ._interop import CUPY, TORCH, library_of
from ._kinds import a_kind_of
from ._library import NUMPY


def check_single(matrix: Any, name: str) -> None:
    """Raise ValueError unless it is one matrix, for what takes no batches of values."""
    if matrix._batch:
        entry = ", ".join("0" for _ in matrix._batch)
        raise ValueError(
            f"{name} has shape {matrix.shape}, a batch of matrices; accepted here: one, such as "
            f"{name}[{entry}]"
        )


def entry_of(a: Any, key: Any) -> Any:
    """``A[i, j]``: the matrix, or the smaller batch, around these values."""
    keys = key if isinstance(key, tuple) else (key,)
    if library_of(a._data) not in (NUMPY, TORCH, CUPY):
        raise TypeError(
            f"a.data is {a_kind_of(a._data)} and a part of it is wanted; accepted here: an "
            "array of NumPy, torch or CuPy"
        )
    try:
        numbers = tuple(operator.index(k) for k in keys)
    except TypeError:
        numbers = ()
    if not 1 <= len(numbers) <= len(a._batch):
        raise TypeError(
            f"the index of a batch of shape {a._batch} is {key!r}; accepted: up to {len(a._batch)} "
            "integers. A[i][r0:r1, c0:c1] is a part of one matrix"
        )
    for number, size in zip(numbers, a._batch, strict=False):
        if not -size <= number < size:
            raise IndexError(f"the index {number} is out of range of {size}, in {a._batch}")
    return a._with_values(a._data[numbers])


def broadcast(*batches: tuple[int, ...], names: str) -> tuple[int, ...]:
    """What batches broadcast to, by NumPy's rules; ``names`` says in messages whose they are."""
    try:
        return np.broadcast_shapes(*batches)
    except ValueError:
        raise ValueError(
            f"{names} have batches of {', '.join(map(str, batches))}; accepted: what NumPy "
            "broadcasts to one shape"
        ) from None


# ---- of all matrices at a time -------------------------------------------------------------------


def _stacked(a: Any) -> Any:
    """The values as those of one matrix; of a library that is not known, on the host."""
    data = a._data if hasattr(a._data, "reshape") else library_of(a._data).to_host(a._data)
    return data.reshape((math.prod(a._batch) * a.nnzb, *data.shape[-2:]))


def _repeated(positions: np.ndarray, step: int, count: int) -> np.ndarray:
    """Positions in the first matrix, then those in the others."""
    return (np.arange(count)[:, None] * step + positions).ravel()


def transposed_values(a: Any) -> Any:
    """Of a transposed view, values in its own order."""
    library, order = library_of(a._data), a._structure.order.copy()
    if not a._batch:
        return library.transpose_blocks(a._data, order)
    order = _repeated(order, a.nnzb, math.prod(a._batch))
    data = library.transpose_blocks(_stacked(a), order)
    return data.reshape((*a._batch, a.nnzb, *a.blocksize))


def dense(a: Any) -> Any:
    """The dense array of a matrix, or batch, that is no view."""
    (cols, indptr), (height, width) = pattern_of(a._structure), a._structure.shape
    whole = (len(indptr) - 1) * a.blocksize[0]
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    library = library_of(a._data)
    if not a._batch:
        return library.scatter_blocks(a._data, rows, cols, (height, width))
    # One below the other.
    count = math.prod(a._batch)
    rows = _repeated(rows, len(indptr) - 1, count)
    found = library.scatter_blocks(_stacked(a), rows, np.tile(cols, count), (count * whole, width))
    found = found.reshape((*a._batch, whole, width))
    if whole == height:
        return found
    if library in (NUMPY, TORCH, CUPY):
        return library.copy(found[..., :height, :])
    return library.from_host(library.to_host(found)[..., :height, :].copy(), found)
