"""Arithmetic and sums of block-sparse matrices, in the library that holds their values."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._batch import check_single
from ._convert import grid_of, pattern_of, same_pattern
from ._interop import library_of
from ._kinds import a_kind_of
from ._library import BlockSparse
from ._matmul import is_real_number, matmul, number_hint, real_number
from ._values import Values, ones_like


class Arithmetic(BlockSparse):
    """The arithmetic of ``bsr_array``.

    Blocks that are not stored are zeros. Scalar operations and those of two matrices of one pattern
    share the pattern; other patterns are joined on the host. Nothing is cast: both matrices have
    one dtype, device and library, which is NumPy, torch or CuPy.
    """

    __slots__ = ()

    def __neg__(self) -> Any:
        """The negative, of the same pattern."""
        return scale(self, -1.0, False)

    def __mul__(self, other: Any) -> Any:
        """Times a number, or elementwise times a matrix: blocks that both store."""
        if is_real_number(other):
            return scale(self, other, False)
        return multiply(self, _matrix(other, "*", "a real number or a bsr_array of its shape"))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        """Over a number."""
        if is_real_number(other):
            return scale(self, other, True)
        raise TypeError(
            f"the divisor of a bsr_array is {a_kind_of(other)}; accepted: a real number"
            f"{number_hint(other)}"
        )

    def __add__(self, other: Any) -> Any:
        """The sum, of the blocks that either matrix stores."""
        if is_real_number(other) and other == 0:  # the start of Python's sum()
            return self.copy()  # type: ignore[attr-defined]
        return add(self, _matrix(other, "+", "a bsr_array of its shape"), False)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        """The difference, of the blocks that either matrix stores."""
        return add(self, _matrix(other, "-", "a bsr_array of its shape"), True)

    def __rsub__(self, other: Any) -> Any:
        return add(_matrix(other, "-", "a bsr_array of its shape"), self, True)

    def sum(self, axis: int | None = None, dtype: None = None, out: None = None) -> Any:
        """The sum of all elements, or those of columns (``axis=0``) or rows (``axis=1``).

        As SciPy's. 16-bit floats are summed in float32 and rounded once. The sums of columns and
        rows are products with ones, of any library, as :func:`bsrgemm.matmul` computes them.

        Parameters
        ----------
        axis : {None, 0, 1, -1, -2}
            Which sums: None one of all, 0 or -2 one a column, 1 or -1 one a row.
        dtype, out : None
            There so that ``numpy.sum(A)`` works.

        Returns
        -------
        scalar or array
            Of the dtype of the matrix: of shape (K,) with ``axis=0`` and (M,) with ``axis=1``;
            without ``axis`` a NumPy scalar, or an array of no dimensions of torch or CuPy. Of 8
            bits the sums of columns and rows are bfloat16, and there are no others.

        Raises
        ------
        ValueError
            If ``axis`` is none of None, 0, 1, -1 and -2, or of a batch.
        TypeError
            If ``axis`` is None and the values have 8 bits or are in no array of NumPy, torch or
            CuPy, or if ``dtype`` or ``out`` is given.
        """
        for name, given in (("dtype", dtype), ("out", out)):
            if given is not None:
                raise TypeError(
                    f"{name} is {a_kind_of(given)}; accepted: None, as sums have the dtype of the "
                    "matrix and are new"
                )
        self._look()
        return total(self, axis)


def _matrix(other: Any, sign: str, accepted: str) -> Any:
    if isinstance(other, BlockSparse) and other.is_fixed:
        return other
    hint = "A.todense() makes it dense, and @ is the matrix product"
    if isinstance(other, BlockSparse):
        hint = "Its method to_bsr() makes one of the blocks that it stores now"
    elif sign == "*" and number_hint(other):
        hint = "Its method item() gives a real number"
    raise TypeError(
        f"the other operand of {sign} with a bsr_array is {a_kind_of(other)}; accepted: "
        f"{accepted}. {hint}"
    )


def check_alike(matrices: Sequence[Any], names: Sequence[str], blocksize: bool = True) -> None:
    """That matrices can be parts of one: of one library, dtype and device, and block size."""
    for matrix in matrices:
        matrix._look()
    first = matrices[0]
    for matrix, name in zip(matrices[1:], names[1:], strict=True):
        for what, found, wanted in (
            ("dtype", matrix._dtype, first._dtype),
            ("device", matrix._device, first._device),
            ("library", library_of(matrix._data).name, library_of(first._data).name),
        ):
            if found != wanted:
                raise TypeError(
                    f"{name} has {what} {found} and {names[0]} has {wanted}; accepted: matrices of "
                    f"one {what}, as nothing is cast or moved silently"
                )
        if blocksize and matrix.blocksize != first.blocksize:
            raise ValueError(
                f"{name} has blocksize {matrix.blocksize} and {names[0]} has {first.blocksize}; "
                f"accepted: one block size, so use {name}.reblock({first.blocksize})"
            )


def own(a: Any) -> Any:
    """The matrix, or of a transposed view one with arrays of its own."""
    return a.copy() if a.is_transposed else a


def keys_of(a: Any) -> np.ndarray:
    """Positions of the stored blocks, counted row by row; of a matrix or batch that is no view."""
    indices, indptr = pattern_of(a._structure)
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return rows * grid_of(a._structure.shape, a.blocksize)[1] + indices


def canonical(a: Any) -> tuple[np.ndarray, Any]:
    """Ascending positions and the blocks there; those of one position are added."""
    keys = keys_of(a)
    if (np.diff(keys) > 0).all():
        return keys, a._data
    keys, slots = np.unique(keys, return_inverse=True)
    return keys, Values(a._data, "a.data").add_up(slots, len(keys))


def index_arrays(
    keys: np.ndarray, shape: tuple[int, int], blocksize: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """indices and indptr of ascending positions."""
    rows, cols = grid_of(shape, blocksize)
    dtype = np.int32 if len(keys) <= np.iinfo(np.int32).max else np.int64
    indptr = np.searchsorted(keys, np.arange(rows + 1) * cols)
    return (keys % max(cols, 1)).astype(dtype), indptr.astype(dtype)


def of_keys(
    kind: Any, data: Any, keys: np.ndarray, shape: tuple[int, int], blocksize: tuple[int, int]
) -> Any:
    """The matrix that ``kind``, a class or :meth:`bsr_array._plain`, makes of ``data`` at ascending
    positions."""
    return kind((data, *index_arrays(keys, shape, blocksize)), shape, check=False)


def scale(a: Any, factor: Any, divide: bool) -> Any:
    if a.is_transposed:
        return scale(a.T, factor, divide).T
    factor = real_number(factor, "the divisor" if divide else "the factor")
    data = Values(a._data, "a.data").scaled(factor, divide)
    # A factor that is infinite in the dtype of the products makes NaN of zeros, and so does a
    # divisor whose reciprocal is: some libraries multiply with that.
    limits = np.finfo(np.float64 if a._dtype == "float64" else np.float32)
    size = abs(factor)
    if not (size >= float(limits.tiny) if divide else size <= float(limits.max)):
        data = Values(data, "a.data").clear_edges(a._structure)
    return a._with_values(data)


def _check_pair(a: Any, b: Any) -> None:
    if a.shape != b.shape:
        raise ValueError(f"b has shape {b.shape} and a has {a.shape}; accepted: one shape")
    check_alike((a, b), ("a", "b"))
    if a._batch and not same_pattern(a._structure, b._structure):
        raise ValueError(
            f"a and b have shape {a.shape}, batches of matrices, and different patterns; accepted: "
            "batches of one pattern, or single matrices"
        )


def add(a: Any, b: Any, subtract: bool) -> Any:
    _check_pair(a, b)
    if a.is_transposed and b.is_transposed:
        return add(a.T, b.T, subtract).T
    a, b = own(a), own(b)
    first, second = Values(a._data, "a.data"), Values(b._data, "b.data")
    first.check_arithmetic()
    if same_pattern(a._structure, b._structure):
        with first.here():
            return a._with_values(
                first.like - second.like if subtract else first.like + second.like
            )
    (a_keys, a_blocks), (b_keys, b_blocks) = canonical(a), canonical(b)
    keys = np.union1d(a_keys, b_keys)
    parts = ((x, np.searchsorted(keys, at)) for x, at in ((a_blocks, a_keys), (b_blocks, b_keys)))
    return of_keys(a._plain, first.place(parts, len(keys), subtract), keys, a.shape, a.blocksize)


def multiply(a: Any, b: Any) -> Any:
    _check_pair(a, b)
    if a.is_transposed and b.is_transposed:
        return multiply(a.T, b.T).T
    a, b = own(a), own(b)
    if a._batch:
        if len(np.unique(keys_of(a))) < a.nnzb:
            raise ValueError(
                "a and b are batches of a pattern with several blocks at one place; accepted: at "
                "most one, or single matrices"
            )
        first, second = Values(a._data, "a.data"), Values(b._data, "b.data")
        first.check_arithmetic()
        with first.here():
            return a._with_values(first.like * second.like)
    (a_keys, a_blocks), (b_keys, b_blocks) = canonical(a), canonical(b)
    keys, in_a, in_b = np.intersect1d(a_keys, b_keys, assume_unique=True, return_indices=True)
    first, second = Values(a_blocks, "a.data"), Values(b_blocks, "b.data")
    first.check_arithmetic()
    if len(keys) == len(a_keys) == len(b_keys) and a_blocks is a._data:
        with first.here():
            return a._with_values(first.like * second.like)
    with first.here():
        blocks = first.take(in_a) * second.take(in_b)
    return of_keys(a._plain, blocks, keys, a.shape, a.blocksize)


def total(a: Any, axis: int | None) -> Any:
    check_single(a, "A")
    if axis is None:
        return Values(a._data, "a.data").total()
    if not isinstance(axis, numbers.Integral) or axis not in (0, 1, -1, -2):
        raise ValueError(f"axis is {axis!r}; accepted: None, 0, 1, -1 or -2")
    columns = axis in (0, -2)
    ones = ones_like(a._data, a._dtype, a.shape[0 if columns else 1], "a.data")
    return matmul(ones, a) if columns else matmul(a, ones)
