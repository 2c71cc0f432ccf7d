"""Products of PyTorch with gradients, of patterns that are fixed and of ones that change."""

from __future__ import annotations

import operator
from typing import Any

import torch

from . import _core, _torch_func, _torch_patterns
from ._array import bsr_array
from ._batch import check_single
from ._convert import pair_of
from ._kinds import a_kind_of
from ._library import BlockSparse
from ._torch_eager import RecordedProduct, RecordedSampled, is_plain
from ._torch_linear import cast_for, is_cast
from ._torch_operators import (
    check_layout,
    check_tensor,
    forward_ad,
    index_tensor,
    keep_structure,
    matmul_operator,
    precision_of,
    refuse_tangents,
    rows_of,
    sampled_operator,
)
from ._torch_patterns import choose, parts_of, pattern_in, spread


class BlockPattern:
    """The blocks that a matrix stores, chosen on the device without a word to the host.

    Where a :class:`bsrgemm.DynamicPattern` is memory that every update overwrites, this is a value:
    :meth:`from_mask` and :meth:`from_topk` make a new one, in a tensor that autograd keeps for the
    gradients. They, and :func:`matmul` and :func:`sampled_matmul` with it, are operators, so they
    compile as parts of one graph, and CUDA graphs can hold them, with gradients, too. On the CPU
    the same works without a GPU.

    Attributes
    ----------
    shape : (int, int)
        (M, K) of the matrix in elements.
    blocksize : (int, int)
        (bh, bw).
    capacity : int
        The most blocks that are stored: values have shape (capacity, bh, bw).
    state : torch.Tensor
        int64, opaque: in it lies what products read. Not to be written to.
    """

    def __init__(
        self, state: torch.Tensor, shape: tuple[int, int], blocksize: tuple[int, int], capacity: int
    ) -> None:
        # Parts of it are counted from where its storage begins; compilers know no offsets.
        if not torch.compiler.is_compiling() and state.storage_offset() != 0:
            state = state.clone()
        self.state, self.shape, self.blocksize = state, shape, blocksize
        self.capacity = capacity

    @classmethod
    def from_mask(
        cls, mask: torch.Tensor, blocksize: tuple[int, int], capacity: int | None = None
    ) -> BlockPattern:
        """Of the blocks that a mask selects.

        Parameters
        ----------
        mask : torch.Tensor
            bool or uint8 of shape (M / bh, K / bw), not 0 where a block is stored.
        blocksize : (int, int)
            (bh, bw).
        capacity : int, optional
            The most blocks that are stored, from 1 to all places, which is the default. If the mask
            has more, the last ones are dropped, by rows and then by columns.

        Raises
        ------
        TypeError, ValueError
            If a type, the dtype or a size is not accepted.
        """
        height, width = _check_places(mask, "mask", blocksize)
        rows, cols = mask.shape
        most = rows * cols if capacity is None else _integer(capacity, "capacity")
        state = choose(mask, [height, width], most, None)
        return cls(state, (rows * height, cols * width), (height, width), most)

    @classmethod
    def from_topk(cls, scores: torch.Tensor, k: int, blocksize: tuple[int, int]) -> BlockPattern:
        """Of the ``k`` blocks of each block row that have the highest scores.

        Parameters
        ----------
        scores : torch.Tensor
            float16, bfloat16 or float32 of shape (M / bh, K / bw). No gradients flow to them.
        k : int
            From 1 to the number of block columns. The capacity is ``k`` for each row.
        blocksize : (int, int)
            (bh, bw).

        Raises
        ------
        TypeError, ValueError
            If a type, the dtype or a size is not accepted.
        """
        height, width = _check_places(scores, "scores", blocksize)
        rows, cols = scores.shape
        k = _integer(k, "k")
        if not 1 <= k <= cols:
            raise ValueError(f"k is {k}; accepted: from 1 to the {cols} block columns of scores")
        state = choose(scores.detach(), [height, width], rows * k, k)
        return cls(state, (rows * height, cols * width), (height, width), rows * k)

    @property
    def counts(self) -> torch.Tensor:
        """How many blocks are stored and how many were dropped, int64 of shape (2,)."""
        return parts_of(self.state, self.shape, self.blocksize, self.capacity)[0]

    @property
    def indptr(self) -> torch.Tensor:
        """Where block rows begin, int64 of shape (M / bh + 1,)."""
        return parts_of(self.state, self.shape, self.blocksize, self.capacity)[1]

    @property
    def indices(self) -> torch.Tensor:
        """Block columns, int32 of shape (capacity,), undefined behind the last stored block."""
        return parts_of(self.state, self.shape, self.blocksize, self.capacity)[2]

    def gather(self, dense: torch.Tensor) -> torch.Tensor:
        """The values of the stored blocks out of a dense matrix, with gradients.

        Parameters
        ----------
        dense : torch.Tensor
            Shape (M, K).

        Returns
        -------
        torch.Tensor
            Shape (capacity, bh, bw): blocks by rows and then columns, zeros behind the last one.

        Raises
        ------
        TypeError, ValueError
            If it is no tensor, or its shape, dtype or device is not accepted.
        """
        check_tensor(dense, "dense")
        check_layout(dense, "dense")
        if tuple(dense.shape) != self.shape:
            raise ValueError(f"dense has shape {tuple(dense.shape)}; accepted: {self.shape}")
        if forward_ad._current_level >= 0:
            refuse_tangents({"dense": dense})
        return _torch_patterns.gathered(dense, self.state, list(self.blocksize), self.capacity)

    def array(self, values: torch.Tensor) -> BlockTensor:
        """The matrix of this pattern around values, which are not copied.

        Parameters
        ----------
        values : torch.Tensor
            Shape (capacity, bh, bw), C-contiguous in products. Those behind the last stored block
            are not read.

        Raises
        ------
        TypeError, ValueError
            If it is no tensor or of another shape.
        """
        return BlockTensor(values, self)

    def __repr__(self) -> str:
        (rows, cols), (height, width) = self.shape, self.blocksize
        return (
            f"<BlockPattern {rows}x{cols}, blocksize {height}x{width}, capacity {self.capacity}, "
            f"{self.state.device}>"
        )


class BlockTensor(BlockSparse):
    """A block-sparse matrix of a :class:`BlockPattern`, made by its method ``array``.

    ``@`` is :func:`matmul`, but ``torch.compile`` knows the function alone.
    """

    is_fixed = False
    ndim = 2
    # NumPy then leaves `x @ A` to __rmatmul__, which says what is accepted.
    __array_ufunc__ = None

    def __init__(
        self, values: torch.Tensor, pattern: BlockPattern, is_transposed: bool = False
    ) -> None:
        check_tensor(values, "values")
        check_layout(values, "values")
        expected = (pattern.capacity, *pattern.blocksize)
        if tuple(values.shape) != expected:
            raise ValueError(f"values have shape {tuple(values.shape)}; accepted: {expected}")
        self.data, self.pattern, self.is_transposed = values, pattern, is_transposed

    @property
    def shape(self) -> tuple[int, int]:
        """(M, K) in elements."""
        rows, cols = self.pattern.shape
        return (cols, rows) if self.is_transposed else (rows, cols)

    @property
    def blocksize(self) -> tuple[int, int]:
        """(bh, bw) in elements."""
        height, width = self.pattern.blocksize
        return (width, height) if self.is_transposed else (height, width)

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self.data.dtype

    @property
    def device(self) -> torch.device:
        """Of the values."""
        return self.data.device

    @property
    def T(self) -> BlockTensor:
        """The transposed view, which shares values and pattern."""
        return BlockTensor(self.data, self.pattern, not self.is_transposed)

    @property
    def _structure(self) -> Any:
        # What functions ask for that take a bsr_array or a DynamicArray.
        raise TypeError(
            "a BlockTensor is given; accepted: bsrgemm.torch.matmul of it, or its copy of a fixed "
            "pattern, to_bsr()"
        )

    def to_bsr(self) -> bsr_array:
        """A :class:`bsrgemm.bsr_array` of the stored blocks, with a copy of their values.

        They are detached: they require no grad. On a GPU the host waits for the pattern.
        """
        pattern = pattern_in(
            self.pattern.state, self.pattern.shape, self.pattern.blocksize, self.pattern.capacity
        )
        matrix = pattern.array(self.data.detach()).to_bsr()
        return matrix.T if self.is_transposed else matrix

    def todense(self) -> torch.Tensor:
        """A dense tensor of shape (M, K), with gradients."""
        dense = spread(self.data, self.pattern.state, self.pattern.shape)
        return dense.T if self.is_transposed else dense

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        """``matmul(self, other)``, the product with a dense tensor, with gradients; see
        :func:`matmul`. ``other @ A`` is the product from the left."""
        return matmul(self, other)

    def __rmatmul__(self, other: torch.Tensor) -> torch.Tensor:
        return matmul(other, self)

    def __repr__(self) -> str:
        (rows, cols), (height, width) = self.shape, self.blocksize
        kind = ", transposed" if self.is_transposed else ""
        return (
            f"<BlockTensor {rows}x{cols}, blocksize {height}x{width}, capacity "
            f"{self.pattern.capacity}, {self.dtype}, {self.device}{kind}>"
        )


_Matrix = bsr_array | BlockTensor


def matmul(a: torch.Tensor | _Matrix, b: torch.Tensor | _Matrix) -> torch.Tensor:
    """``a @ b`` of a block-sparse matrix and a dense tensor, with gradients for both.

    Gradients are products at the stored blocks, too: of the values a sampled one, of the dense
    tensor one with the transposed. Under autocast both are cast to its dtype. On a GPU float32 uses
    TensorFloat-32 where ``torch.backends.cuda.matmul`` permits it; gradients of blocks do not.

    Parameters
    ----------
    a, b : BlockTensor or bsr_array, and torch.Tensor
        Block-sparse of shape (M, K), its values torch tensors, no batch, and dense of shape (K, N)
        on its right, or (..., M) on its left.

    Returns
    -------
    torch.Tensor
        Shape (M, N) or (..., K), contiguous.

    Raises
    ------
    TypeError
        If not exactly one of them is block-sparse around torch tensors, dtypes or devices differ or
        are not accepted, or a tensor has a tangent of forward-mode differentiation.
    ValueError
        If shapes do not fit.
    """
    dense_left = isinstance(a, torch.Tensor)
    matrix, dense, name = (b, a, "a") if dense_left else (a, b, "b")
    if not isinstance(matrix, (bsr_array, BlockTensor)) or not isinstance(dense, torch.Tensor):
        raise TypeError(
            f"a is {a_kind_of(a)} and b {a_kind_of(b)}; accepted: a torch.Tensor and a "
            "BlockTensor or bsrgemm.bsr_array, in either order"
        )
    if isinstance(matrix, bsr_array):
        if dense_left or dense.ndim == 2:
            y = _try_product(matrix, dense, dense_left)
            if y is not NotImplemented:
                return y
        check_single(matrix, "b" if dense_left else "a")
    check_layout(dense, name)
    rows, cols = matrix.shape
    inner = rows if dense_left else cols
    fits = dense.ndim >= 1 if dense_left else dense.ndim == 2
    if not fits or dense.shape[-1 if dense_left else 0] != inner:
        wants = f"(..., {inner})" if dense_left else f"({inner}, N)"
        raise ValueError(
            f"{name} has shape {tuple(dense.shape)}; accepted: {wants}, for a matrix of shape "
            f"{(rows, cols)}"
        )
    values = _values_of(matrix, "a" if name == "b" else "b")
    if forward_ad._current_level >= 0:
        refuse_tangents({"values": values, name: dense})
    dense, values = cast_for(dense, dense, values)
    _check_alike(dense, values, name)
    x = rows_of(dense) if dense_left else dense
    if isinstance(matrix, BlockTensor):
        state, shape = matrix.pattern.state, list(matrix.pattern.shape)
        y = _torch_patterns.product(values, state, x, shape, matrix.is_transposed, dense_left)
    elif is_plain(dense, values):
        indices = index_tensor(matrix._indices), index_tensor(matrix._indptr)
        y = RecordedProduct.apply(values, x, matrix._structure, *indices, dense_left)
    else:
        indices, indptr = _indices_of(matrix)
        shape = [cols, rows] if matrix.is_transposed else [rows, cols]
        options = (shape, matrix.is_transposed, dense_left, None)
        product = _torch_func.matmul if _torch_func.is_transformed() else matmul_operator
        y = product(values, indices, indptr, x, None, *options)
    return y if x is dense else y.view(*dense.shape[:-1], cols)


def _try_product(matrix: bsr_array, dense: torch.Tensor, dense_left: bool) -> Any:
    """By the short way, where nothing looks at operators, or NotImplemented."""
    values = matrix._data
    if matrix._batch or forward_ad._current_level >= 0:
        return NotImplemented
    if not is_plain(dense, values) or is_cast(dense):
        return NotImplemented
    absent = (None, 1.0, None, None, None, None, None, None)
    return _core.try_matmul(
        matrix._structure, values, dense, dense_left, *absent, precision_of(dense)
    )


def sampled_matmul(
    a: torch.Tensor, b: torch.Tensor, /, pattern: BlockPattern | bsr_array
) -> torch.Tensor:
    """The blocks of ``a @ b`` that a pattern stores, with gradients for ``a`` and ``b``.

    Parameters
    ----------
    a, b : torch.Tensor
        Shapes (M, K) and (K, N).
    pattern : BlockPattern or bsr_array
        Of shape (M, N); values of a bsr_array are not read. No transposed view.

    Returns
    -------
    torch.Tensor
        Values of a matrix of the pattern: (capacity, bh, bw), zeros behind the last stored block,
        or (nnzb, bh, bw). ``pattern.array`` makes a matrix of the former.

    Raises
    ------
    TypeError
        If one is of another type, dtypes or devices differ or are not accepted, or a tensor has a
        tangent of forward-mode differentiation.
    ValueError
        If shapes do not fit.
    """
    check_tensor(a, "a")
    check_tensor(b, "b")
    if not isinstance(pattern, (BlockPattern, bsr_array)):
        raise TypeError(
            f"pattern is {a_kind_of(pattern)}; accepted: a BlockPattern or bsrgemm.bsr_array"
        )
    if isinstance(pattern, bsr_array):
        if pattern.is_transposed:
            raise TypeError("pattern is a transposed view; accepted: a bsr_array that is none")
        check_single(pattern, "pattern")
        values = _try_sampled(pattern, a, b)
        if values is not NotImplemented:
            return values
    check_layout(a, "a")
    check_layout(b, "b")
    rows, cols = pattern.shape
    fits = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0]
    if not fits or (a.shape[0], b.shape[1]) != (rows, cols):
        raise ValueError(
            f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; accepted: ({rows}, K) and "
            f"(K, {cols}), for a pattern of shape {(rows, cols)}"
        )
    if forward_ad._current_level >= 0:
        refuse_tangents({"a": a, "b": b})
    a, b = cast_for(a, a, b)
    _check_alike(a, b, "a", "b")
    height, width = pattern.blocksize
    if isinstance(pattern, BlockPattern):
        return _torch_patterns.sampled(a, b, pattern.state, [height, width], pattern.capacity)
    if is_plain(a, b):
        indices = index_tensor(pattern._indices), index_tensor(pattern._indptr)
        return RecordedSampled.apply(a, b, pattern._structure, *indices)
    indices, indptr = _indices_of(pattern)
    product = _torch_func.sampled if _torch_func.is_transformed() else sampled_operator
    return product(a, b, indices, indptr, [height, width])


def _try_sampled(pattern: bsr_array, a: torch.Tensor, b: torch.Tensor) -> Any:
    """As ``_try_product``."""
    if forward_ad._current_level >= 0 or not is_plain(a, b) or is_cast(a):
        return NotImplemented
    dtype = str(a.dtype).removeprefix("torch.")
    return _core.try_sampled(
        pattern._structure, a, b, pattern._data, 1.0, 0.0, dtype, pattern._device
    )


def _check_places(x: Any, name: str, blocksize: Any) -> tuple[int, int]:
    """The blocks' sides. Raises of what is no matrix with one element for each place of a block."""
    check_tensor(x, name)
    check_layout(x, name)
    if x.ndim != 2:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; accepted: (block rows, block columns)"
        )
    return pair_of(blocksize, "blocksize", 1)


def _integer(x: Any, name: str) -> int:
    if isinstance(x, int):  # which symbolic ones of compiled code are, too
        return x
    try:
        return operator.index(x)
    except TypeError:
        raise TypeError(f"{name} is {x!r}; accepted: an integer") from None


def _values_of(matrix: _Matrix, name: str) -> torch.Tensor:
    if isinstance(matrix, BlockTensor):
        return matrix.data
    values = matrix._data
    if not isinstance(values, torch.Tensor):
        raise TypeError(
            f"{name} is a bsr_array of {type(values).__name__}s; accepted: one around torch tensors"
        )
    return values


def _indices_of(matrix: bsr_array) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the matrix that is stored."""
    indices, indptr = index_tensor(matrix._indices), index_tensor(matrix._indptr)
    if torch.compiler.is_compiling() or _torch_func.is_transformed():
        return indices, indptr
    stored = matrix.T if matrix.is_transposed else matrix
    return keep_structure(indices, indptr, stored._structure)


def _check_alike(x: torch.Tensor, y: torch.Tensor, name: str, other: str = "values") -> None:
    if (x.dtype, x.device) != (y.dtype, y.device):
        has, wants = (f"{str(t.dtype).removeprefix('torch.')} on {t.device}" for t in (x, y))
        raise TypeError(f"{name} is {has}; accepted: that of {other}, {wants}")
