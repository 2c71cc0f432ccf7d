"""``DynamicArray``: values around a pattern that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from ._array import bsr_array
from ._convert import check_data
from ._interop import FOREIGN, OWN_DEVICE, library_of
from ._library import BlockSparse
from ._matmul import matmul

if TYPE_CHECKING:
    from ._dynamic import DynamicPattern


class DynamicArray(BlockSparse):
    """A block-sparse matrix of a :class:`DynamicPattern`, made by its method ``array``.

    :func:`bsrgemm.matmul` and ``@`` take it on either side, transposed or not, as they take a
    :class:`bsr_array`, and :func:`bsrgemm.sampled_matmul` makes it. It has the pattern of the last
    update that comes before on the stream.
    """

    __slots__ = ("_dtype", "_pattern", "_turned", "_values")
    is_fixed = False
    __array_ufunc__ = None
    __array_priority__ = 1000.0
    ndim = 2

    def __init__(self, pattern: DynamicPattern, values: Any, transposed: bool = False) -> None:
        info = _core.describe(library_of(values).importable(values, "values", False), "values")
        pattern._check_values(info, "values")
        check_data(info, "values")
        self._pattern, self._values, self._turned = pattern, values, transposed
        self._dtype = info.dtype

    @property
    def data(self) -> Any:
        """Values of shape (capacity, bh, bw), the array that was given."""
        return self._values

    @property
    def pattern(self) -> DynamicPattern:
        """Which blocks it stores, of the matrix that is not transposed."""
        return self._pattern

    @property
    def shape(self) -> tuple[int, int]:
        """(M, K) in elements."""
        return self._pattern.shape[::-1] if self._turned else self._pattern.shape

    @property
    def blocksize(self) -> tuple[int, int]:
        """(bh, bw) in elements."""
        return self._pattern.blocksize[::-1] if self._turned else self._pattern.blocksize

    @property
    def dtype(self) -> Any:
        """The dtype as the library of ``data`` writes it."""
        return getattr(self._values, "dtype", self._dtype)

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:<index>"``."""
        return self._pattern.device

    @property
    def is_transposed(self) -> bool:
        """Whether this is the transposed view of a matrix, as ``A.T`` is."""
        return self._turned

    @property
    def T(self) -> DynamicArray:
        """The transposed view, which shares values and pattern."""
        return DynamicArray(self._pattern, self._values, not self._turned)

    # What products read. On the CPU a structure has as many values as blocks.
    @property
    def _structure(self) -> Any:
        structure = self._pattern._structure
        return structure.transposed() if self._turned else structure

    @property
    def _data(self) -> Any:
        pattern, values = self._pattern, self._values
        if pattern.device != "cpu":
            return values
        if library_of(values) is FOREIGN:
            values = FOREIGN.to_host(values)
        return values[: pattern._structure.nnzb]

    def to_bsr(self) -> bsr_array:
        """A :class:`bsr_array` of the blocks that are stored now, with a copy of their values.

        Copies of torch tensors are detached: they require no grad. On a GPU the host waits for the
        last update.
        """
        pattern, values = self._pattern, self._values
        indices, indptr, _ = pattern._read()
        library = library_of(values)
        if library in (OWN_DEVICE, FOREIGN):
            host = library.to_host(values)[: len(indices)].copy()
            stored = library.from_host(host, values)
        else:
            stored = library.copy(values[: len(indices)])
        matrix = bsr_array((stored, indices.copy(), indptr.copy()), pattern.shape)
        return matrix.T if self._turned else matrix

    def todense(self) -> Any:
        """A dense array of shape (M, K), of the blocks that are stored now.

        In the library, dtype and device of ``data``. On a GPU the host waits for the last update.

        Raises
        ------
        TypeError
            If ``data`` is a torch tensor that requires grad or has a tangent of forward mode.
        """
        library_of(self._values).importable(self._values, "A.data")
        return self.to_bsr().todense()

    def __matmul__(self, other: Any) -> Any:
        """``matmul(self, other)``, the product with a dense array; see :func:`matmul`.
        ``other @ A`` is the product from the left."""
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return matmul(other, self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("a DynamicArray does not turn into a dense array silently; use A.todense()")

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DynamicArray's pattern is memory of this process and has no copies; accepted: "
            "A.to_bsr()"
        )

    def __repr__(self) -> str:
        (rows, cols), (height, width) = self.shape, self.blocksize
        kind = ", transposed" if self._turned else ""
        return (
            f"<DynamicArray {rows}x{cols}, blocksize {height}x{width}, capacity "
            f"{self._pattern.capacity}, {self.dtype}, {self.device}{kind}>"
        )
