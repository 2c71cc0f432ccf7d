"""Which blocks a matrix stores: masks, parts of a matrix, other block sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._batch import check_single, entry_of
from ._convert import grid_of, pair_of, pattern_of
from ._elementwise import canonical, keys_of, of_keys
from ._library import BlockSparse
from ._values import Values, dense_values, masked_blocks


class Blocks(BlockSparse):
    """What ``bsr_array`` does with its blocks as wholes."""

    __slots__ = ()
    # A matrix with __getitem__ would be taken for a sequence.
    __iter__ = None

    @classmethod
    def from_block_mask(cls, dense: Any, mask: Any, blocksize: tuple[int, int]) -> Any:
        """The blocks of a dense matrix that a mask chooses, whether or not they are zeros.

        Parameters
        ----------
        dense : array
            (M, K), of NumPy, torch or CuPy.
        mask : array of bool
            (ceil(M / bh), ceil(K / bw)): the blocks to be stored. One on a GPU is brought to the
            host.
        blocksize : (int, int)
            (bh, bw). The last blocks may reach beyond the matrix.

        Returns
        -------
        bsr_array
            With values in the library and on the device of ``dense``.

        Raises
        ------
        ValueError
            If ``dense`` or ``mask`` has another shape.
        TypeError
            If ``dense`` is of another library or dtype, or ``mask`` not boolean.
        """
        blocksize = pair_of(blocksize, "blocksize", 1)
        values = dense_values(dense, "dense")
        data, chosen = masked_blocks(values, mask, blocksize)
        keys = np.flatnonzero(chosen)
        return of_keys(cls, data, keys, tuple(values.like.shape), blocksize)

    def block_mask(self) -> np.ndarray:
        """Which blocks are stored: of bool and shape (ceil(M / bh), ceil(K / bw)), of NumPy."""
        rows, cols = self._block_shape()
        mask = np.zeros((rows, cols), bool)
        indices, indptr = pattern_of(self._structure)  # type: ignore[attr-defined]
        mask[np.repeat(np.arange(rows), np.diff(indptr)), indices] = True
        return mask

    def __getitem__(self, key: Any) -> Any:
        """The part ``A[r0:r1, c0:c1]``, whose bounds are multiples of the block size or the end.

        Also ``A[r0:r1]``. Values are copied; the part of a transposed view is one of a copy. Of a
        batch ``A[i]`` is a matrix, or a smaller batch, that shares the values.

        Raises
        ------
        TypeError
            If the index is no slice or pair of slices or, of a batch, no integer or tuple of them;
            if the values are in no array of NumPy, torch or CuPy; if a part is taken of a torch
            tensor that requires grad or has a tangent of forward mode.
        ValueError
            If a bound is no multiple of the block size, or a step not 1.
        IndexError
            If an integer is none of the batch's.
        """
        self._look()
        if self._batch:
            return entry_of(self, key)
        return part_of(self, key)

    def reblock(self, blocksize: tuple[int, int], *, drop_zeros: bool = False) -> Any:
        """The same matrix in blocks of another size.

        A new block is stored where an old one that meets it was, filled up with zeros. So smaller
        blocks that are zeros stay, unless they are dropped.

        Parameters
        ----------
        blocksize : (int, int)
            (bh, bw). The last blocks may reach beyond the matrix.
        drop_zeros : bool
            Leave out blocks that have no non-zero; NaN counts as one. The host waits to see which.

        Raises
        ------
        TypeError
            If the values are in no array of NumPy, torch or CuPy.
        """
        self._look()
        check_single(self, "A")
        return reblocked(self, pair_of(blocksize, "blocksize", 1), drop_zeros)

    def _block_shape(self) -> tuple[int, int]:
        return grid_of(self.shape[-2:], self.blocksize)  # type: ignore[attr-defined]


def part_of(a: Any, key: Any) -> Any:
    keys = key if isinstance(key, tuple) else (key,)
    if not 1 <= len(keys) <= 2 or not all(isinstance(k, slice) for k in keys):
        raise TypeError(
            f"the index of a bsr_array is {key!r}; accepted: A[r0:r1, c0:c1] or A[r0:r1], with "
            f"multiples of the block size {a.blocksize} or the end"
        )
    rows, cols = (
        _block_range(k, size, block, axis)
        for k, size, block, axis in zip(
            (*keys, slice(None))[:2], a.shape, a.blocksize, ("row", "column"), strict=True
        )
    )
    return _cut(a.T, cols, rows).T if a.is_transposed else _cut(a, rows, cols)


def _block_range(key: slice, size: int, block: int, axis: str) -> range:
    try:
        begin, end, step = key.indices(size)
    except TypeError:
        raise TypeError(f"the {axis} range is {key!r}; accepted: a slice of integers") from None
    end_of_range = max(begin, end)
    if step != 1 or any(bound % block and bound != size for bound in (begin, end_of_range)):
        raise ValueError(
            f"the {axis} range is {begin}:{end} in steps of {step}, in a matrix of {size} {axis}s "
            f"in blocks of {block}; accepted: multiples of {block}, or the end, in steps of 1. "
            "A.reblock(blocksize) makes smaller blocks"
        )
    return range(begin, end_of_range)


def _cut(a: Any, rows: range, cols: range) -> Any:
    first_row, first_col = grid_of((rows.start, cols.start), a.blocksize)
    end_row, end_col = grid_of((rows.stop, cols.stop), a.blocksize)
    block_rows, block_cols = np.divmod(keys_of(a), max(grid_of(a.shape, a.blocksize)[1], 1))
    kept = (block_rows >= first_row) & (block_rows < end_row)
    kept &= (block_cols >= first_col) & (block_cols < end_col)
    keys = (block_rows[kept] - first_row) * (end_col - first_col) + block_cols[kept] - first_col
    data = Values(a._data, "a.data").take(np.flatnonzero(kept))
    return of_keys(a._plain, data, keys, (len(rows), len(cols)), a.blocksize)


def reblocked(a: Any, blocksize: tuple[int, int], drop_zeros: bool) -> Any:
    if a.is_transposed:
        return reblocked(a.T, blocksize[::-1], drop_zeros).T
    keys, data = canonical(a)
    if blocksize != a.blocksize:
        keys, data = _regrouped(keys, data, a, blocksize)
    elif data is a._data:
        data = Values(data, "a.data").take(np.arange(len(keys)))
    if drop_zeros:
        values = Values(data, "a.data")
        kept = values.nonzero()
        if not kept.all():
            keys, data = keys[kept], values.take(np.flatnonzero(kept))
    return of_keys(a._plain, data, keys, a.shape, blocksize)


def _regrouped(
    keys: np.ndarray, data: Any, a: Any, blocksize: tuple[int, int]
) -> tuple[np.ndarray, Any]:
    """Positions and blocks after each old block was cut into parts that belong to one new one."""
    (height, width), (new_height, new_width) = a.blocksize, blocksize
    part = math.gcd(height, new_height), math.gcd(width, new_width)
    rows, cols = np.divmod(keys, max(grid_of(a.shape, a.blocksize)[1], 1))
    # Of each part, in blocks and row by row within them, the first element.
    first_row = rows[:, None, None] * height + np.arange(0, height, part[0])[:, None]
    first_col = cols[:, None, None] * width + np.arange(0, width, part[1])
    first_row, first_col = (x.ravel() for x in np.broadcast_arrays(first_row, first_col))
    kept = (first_row < a.shape[0]) & (first_col < a.shape[1])
    new_row, row_in_block = np.divmod(first_row[kept], new_height)
    new_col, col_in_block = np.divmod(first_col[kept], new_width)
    across = grid_of(a.shape, blocksize)[1]
    new_keys, slots = np.unique(new_row * across + new_col, return_inverse=True)
    inner = np.array([row_in_block // part[0], col_in_block // part[1]])
    values = Values(data, "a.data")
    return new_keys, values.rearranged(part, kept, slots, inner, len(new_keys), blocksize)
