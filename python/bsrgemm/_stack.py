"""Matrices made of others: one above or beside the other, along the diagonal; pruned dense ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._array import bsr_array
from ._batch import check_single
from ._convert import grid_of, pair_of
from ._elementwise import check_alike, keys_of, of_keys, own
from ._kinds import a_kind_of
from ._matmul import real_number
from ._values import Values, dense_values


def vstack(blocks: Sequence[bsr_array]) -> bsr_array:
    """Matrices one above the other, as ``scipy.sparse.vstack``.

    Parameters
    ----------
    blocks : sequence of bsr_array
        At least one; of one width, block size, dtype, device and library, which is NumPy, torch or
        CuPy; all but the last of a whole number of block rows. Values are copied.

    Returns
    -------
    bsr_array
        Of their dtype, device and library.

    Raises
    ------
    ValueError
        If there is none, widths or block sizes differ, one that others follow ends within a
        block, or one is a batch.
    TypeError
        If one is no bsr_array, or dtypes, devices or libraries differ.
    """
    matrices = _checked(blocks, 1)
    _check_whole(matrices, (0,))
    rows, _ = _grids(matrices)
    return _assembled(matrices, np.cumsum([0, *rows[:-1]]), np.zeros(len(rows), np.int64))


def hstack(blocks: Sequence[bsr_array]) -> bsr_array:
    """Matrices side by side, as ``scipy.sparse.hstack``.

    Parameters
    ----------
    blocks : sequence of bsr_array
        At least one; of one height, block size, dtype, device and library, which is NumPy, torch or
        CuPy; all but the last of a whole number of block columns. Values are copied.

    Returns
    -------
    bsr_array
        Of their dtype, device and library.

    Raises
    ------
    ValueError
        If there is none, heights or block sizes differ, one that others follow ends within a
        block, or one is a batch.
    TypeError
        If one is no bsr_array, or dtypes, devices or libraries differ.
    """
    matrices = _checked(blocks, 0)
    _check_whole(matrices, (1,))
    _, cols = _grids(matrices)
    return _assembled(matrices, np.zeros(len(cols), np.int64), np.cumsum([0, *cols[:-1]]))


def block_diag(mats: Sequence[bsr_array]) -> bsr_array:
    """Matrices along the diagonal, as ``scipy.sparse.block_diag``.

    Parameters
    ----------
    mats : sequence of bsr_array
        At least one, of any shapes, all but the last of whole numbers of block rows and columns; of
        one block size, dtype, device and library, which is NumPy, torch or CuPy. Values are
        copied.

    Returns
    -------
    bsr_array
        Of their dtype, device and library.

    Raises
    ------
    ValueError
        If there is none, block sizes differ, one that others follow ends within a block, or one
        is a batch.
    TypeError
        If one is no bsr_array, or dtypes, devices or libraries differ.
    """
    matrices = _checked(mats, None, "mats")
    _check_whole(matrices, (0, 1), "mats")
    rows, cols = _grids(matrices)
    return _assembled(matrices, np.cumsum([0, *rows[:-1]]), np.cumsum([0, *cols[:-1]]))


def _checked(given: Any, axis: int | None, argument: str = "blocks") -> list[bsr_array]:
    """The matrices, none a view, which agree along ``axis``."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TypeError(f"{argument} is {a_kind_of(given)}; accepted: a sequence of bsr_arrays")
    blocks = list(given)
    if not blocks:
        raise ValueError(f"{argument} is empty; accepted: at least one bsr_array")
    names = [f"{argument}[{i}]" for i in range(len(blocks))]
    for matrix, name in zip(blocks, names, strict=True):
        if not isinstance(matrix, bsr_array):
            raise TypeError(f"{name} is {a_kind_of(matrix)}; accepted: a bsr_array")
        check_single(matrix, name)
    check_alike(blocks, names)
    for matrix, name in zip(blocks, names, strict=True):
        if axis is not None and matrix.shape[axis] != blocks[0].shape[axis]:
            what = ("rows", "columns")[axis]
            raise ValueError(
                f"{name} has {matrix.shape[axis]} {what} and {names[0]} has "
                f"{blocks[0].shape[axis]}; accepted: one number of {what}"
            )
    return [own(matrix) for matrix in blocks]


def _grids(matrices: list[bsr_array]) -> tuple[list[int], list[int]]:
    rows, cols = zip(*(grid_of(a.shape, a.blocksize) for a in matrices), strict=True)
    return list(rows), list(cols)


def _check_whole(
    matrices: list[bsr_array], axes: tuple[int, ...], argument: str = "blocks"
) -> None:
    """That matrices which others follow along these axes end with a block."""
    for i, a in enumerate(matrices[:-1]):
        for axis in axes:
            size, block = a.shape[axis], a.blocksize[axis]
            if size % block:
                what = ("rows", "columns")[axis]
                raise ValueError(
                    f"{argument}[{i}] has {size} {what} in blocks of {block} and others follow; "
                    f"accepted there: a multiple of {block}, so use smaller blocks, "
                    f"{argument}[{i}].reblock(blocksize)"
                )


def _assembled(matrices: list[bsr_array], rows: np.ndarray, cols: np.ndarray) -> bsr_array:
    """The smallest matrix with each of these at its block row and block column."""
    first = matrices[0]
    height, width = first.blocksize
    ends = [
        (row * height + a.shape[0], col * width + a.shape[1])
        for a, row, col in zip(matrices, rows, cols, strict=True)
    ]
    shape = tuple(int(max(end)) for end in zip(*ends, strict=True))
    block_cols = grid_of(shape, first.blocksize)[1]
    positions = []
    for a, row, col in zip(matrices, rows, cols, strict=True):
        at_row, at_col = np.divmod(keys_of(a), max(grid_of(a.shape, a.blocksize)[1], 1))
        positions.append((at_row + row) * block_cols + at_col + col)
    keys = np.concatenate(positions)
    order = np.argsort(keys, kind="stable")
    slots = np.empty_like(order)
    slots[order] = np.arange(len(order))
    bounds = np.cumsum([0, *(a.nnzb for a in matrices)])
    parts = (
        (Values(a._data, "data").like, slots[begin:end])
        for a, begin, end in zip(matrices, bounds[:-1], bounds[1:], strict=True)
    )
    data = Values(first._data, "blocks[0].data").join(parts, len(keys))
    return of_keys(bsr_array, data, keys[order], shape, first.blocksize)


def prune(dense: Any, blocksize: tuple[int, int], density: float) -> bsr_array:
    """A dense matrix's blocks of largest Frobenius norm.

    Parameters
    ----------
    dense : array
        (M, K), of NumPy, torch or CuPy. If ``blocksize`` does not divide its shape, the last blocks
        reach beyond it.
    blocksize : (int, int)
        (bh, bw), each at least 1.
    density : float
        From 0 to 1: the share of blocks that are kept. Their number is rounded to the nearest, and
        half up.

    Returns
    -------
    bsr_array
        With values in the library and on the device of ``dense``. Of blocks of one norm, computed
        in float64, those that come first row by row are kept; a block with NaN counts as infinite.
        The host chooses, and waits for the norms.

    Raises
    ------
    ValueError
        If ``dense`` does not have two dimensions, or ``density`` is not from 0 to 1.
    TypeError
        If ``dense`` is of another library or dtype.
    """
    blocksize = pair_of(blocksize, "blocksize", 1)
    density = real_number(density, "density")
    if not 0 <= density <= 1:
        raise ValueError(f"density is {density}; accepted: from 0 to 1")
    values = dense_values(dense, "dense")
    norms = Values(values.padded(blocksize), "dense").norms(blocksize)
    order = np.argsort(-norms.ravel(), kind="stable")
    mask = np.zeros(norms.size, bool)
    mask[order[: count_of(density, norms.size)]] = True
    return bsr_array.from_block_mask(values.array(), mask.reshape(norms.shape), blocksize)


def count_of(density: float, places: int) -> int:
    """Of so many blocks the share ``density``, rounded to the nearest number and half up."""
    return int(density * places + 0.5)
