"""What bsrgemm asks of an array library, and how a module like NumPy's answers; the base of
block-sparse matrices, by which modules under them know one."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import _core
from ._dtypes import numpy_dtype
from ._kinds import a_kind_of


def stream_handle(stream: Any) -> int:
    """The CUstream behind an int, a ``__cuda_stream__`` object, or a torch or CuPy stream."""
    handle: Any = stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        handle = (protocol() if callable(protocol) else protocol)[1]
    elif hasattr(stream, "cuda_stream"):
        handle = stream.cuda_stream
    elif hasattr(stream, "ptr"):
        handle = stream.ptr
    try:
        handle = operator.index(handle)
    except TypeError:
        raise TypeError(
            f"stream is {a_kind_of(stream)}; accepted: None, a CUstream handle as an int, a "
            "torch.cuda.Stream, a cupy.cuda.Stream or an object with __cuda_stream__"
        ) from None
    if handle < 0:
        raise ValueError(f"stream is {handle}; accepted: a CUstream handle, which is at least 0")
    return handle


def without_repeats(rows: np.ndarray, cols: np.ndarray) -> Iterator[slice | np.ndarray]:
    """Choices of blocks that make up all and have no position twice: everything, as a rule."""
    keys = rows * (cols.max(initial=0) + 1) + cols
    if (np.diff(keys) > 0).all():
        yield slice(None)
        return
    order = np.argsort(keys, kind="stable")
    begins = np.diff(keys[order], prepend=-1) != 0
    place = np.arange(len(keys))
    repeat = place - np.maximum.accumulate(np.where(begins, place, 0))
    for k in range(repeat.max() + 1):
        yield order[repeat == k]


class BlockSparse:
    """Base of ``bsr_array`` and ``DynamicArray``, by which the modules under them know one."""

    __slots__ = ()
    # Whether the host knows the pattern.
    is_fixed = True
    # Dimensions of the values before those of one matrix.
    _batch: tuple[int, ...] = ()

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # For `x @ A` PyTorch asks this at once; otherwise it would first write an error's text.
        torch = sys.modules["torch"]
        if function not in (torch.Tensor.matmul, torch.matmul) or len(args) != 2 or kwargs:
            return NotImplemented
        a, b = args
        return a.__matmul__(b) if isinstance(a, BlockSparse) else b.__rmatmul__(a)

    def _look(self) -> None:
        """At the values again, where their dtype and device can have changed."""


class Library:
    """What bsrgemm asks of an array library. The defaults go through host memory."""

    name = "array"

    def importable(self, x: Any, name: str, differentiated: bool = True) -> Any:
        """The object that the extension reads in place of ``x``: the same memory, no copy.

        Raises TypeError if ``x`` means something else than its memory says or, where the result
        would have to be ``differentiated``, if a gradient is wanted or it has a tangent.
        """
        return x

    def writable(self, x: Any, name: str) -> Any:
        """The same for memory that is written to.

        Raises TypeError if the library's arrays are immutable.
        """
        return self.importable(x, name)

    def written(self, x: Any) -> None:
        """Note that a call has written to memory that the caller gave."""

    def shape(self, x: Any, name: str) -> tuple[int, ...]:
        return tuple(x.shape)

    def empty(self, shape: tuple[int, ...], like: Any, name: str, dtype: str | None = None) -> Any:
        """An uninitialised result on the device of the operand ``like``, which is called ``name``.

        Of the operand's dtype unless another is asked for.
        """
        raise NotImplementedError

    def finished(self, result: Any, like: Any) -> Any:
        """What ``empty`` made for ``like``, as an array of this library, once work writes to it."""
        return result

    def current_stream(self, x: Any) -> int | None:
        """Handle of the library's current stream on the device of ``x``.

        None leaves the stream to the extension, which asks the array.
        """
        return None

    def stream_of_work(self, x: Any, stream: Any) -> int | None:
        """The handle for a call whose first operand is ``x``: of ``stream``, which may be None.

        None leaves it to the extension, as above.
        """
        return self.current_stream(x) if stream is None else stream_handle(stream)

    def to_host(self, x: Any) -> np.ndarray:
        raise NotImplementedError

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        """A host array in this library, on the device of ``like``."""
        raise NotImplementedError

    def to_device(self, x: Any, device: str) -> Any:
        raise NotImplementedError

    def copy(self, x: Any) -> Any:
        return self.from_host(self.to_host(x), x)

    def astype(self, x: Any, dtype: str) -> Any:
        return self.from_host(self.to_host(x).astype(numpy_dtype(dtype)), x)

    def transpose_blocks(self, blocks: Any, order: np.ndarray) -> Any:
        """``blocks[order]`` with every block transposed, contiguous."""
        return self.from_host(NUMPY.transpose_blocks(self.to_host(blocks), order), blocks)

    def scatter_blocks(
        self, blocks: Any, rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]
    ) -> Any:
        """A dense matrix of ``shape`` with ``blocks[i]`` at block position (rows[i], cols[i]).

        Blocks at one position are added.
        """
        return self.from_host(NUMPY.scatter_blocks(self.to_host(blocks), rows, cols, shape), blocks)

    def gather_blocks(self, dense: Any, blocksize: tuple[int, int]) -> tuple[Any, np.ndarray]:
        """The blocks of ``dense`` that have a non-zero, and the mask that says which these are.

        Blocks that reach beyond the matrix have zeros there.
        """
        blocks, mask = NUMPY.gather_blocks(self.to_host(dense), blocksize)
        return self.from_host(blocks, dense), mask

    def any_nonzero(self, data: Any, blocks: np.ndarray, rows: slice, cols: slice) -> bool:
        """Whether some blocks have a non-zero, or NaN, in these rows and columns."""
        return NUMPY.any_nonzero(self.to_host(data), blocks, rows, cols)


class ArrayModule(Library):
    """NumPy and CuPy: one interface, two modules."""

    @property
    def xp(self) -> Any:
        return sys.modules[self.name]

    def copy(self, x: Any) -> Any:
        return x.copy()

    def astype(self, x: Any, dtype: str) -> Any:
        return x.astype(numpy_dtype(dtype))

    def transpose_blocks(self, blocks: Any, order: np.ndarray) -> Any:
        return self.xp.ascontiguousarray(blocks[self.xp.asarray(order)].transpose(0, 2, 1))

    def scatter_blocks(
        self, blocks: Any, rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]
    ) -> Any:
        _, height, width = blocks.shape
        down, across = -(-shape[0] // height), -(-shape[1] // width)
        dense = self.xp.zeros((down * height, across * width), dtype=blocks.dtype)
        tiles = dense.reshape(down, height, across, width)
        for chosen in without_repeats(rows, cols):
            at_rows, at_cols = self.xp.asarray(rows[chosen]), self.xp.asarray(cols[chosen])
            if isinstance(chosen, slice):
                tiles[at_rows, :, at_cols, :] = blocks
            else:
                tiles[at_rows, :, at_cols, :] += blocks[self.xp.asarray(chosen)]
        return self.xp.ascontiguousarray(dense[: shape[0], : shape[1]])

    def gather_blocks(self, dense: Any, blocksize: tuple[int, int]) -> tuple[Any, np.ndarray]:
        height, width = blocksize
        rows, cols = (-(-size // block) for size, block in zip(dense.shape, blocksize, strict=True))
        if dense.shape != (rows * height, cols * width):
            whole = self.xp.zeros((rows * height, cols * width), dtype=dense.dtype)
            whole[: dense.shape[0], : dense.shape[1]] = dense
            dense = whole
        tiles = dense.reshape(rows, height, cols, width)
        mask = (tiles != 0).any(axis=(1, 3))
        blocks = self.xp.ascontiguousarray(tiles.transpose(0, 2, 1, 3)[mask])
        return blocks, self.to_host(mask)

    def any_nonzero(self, data: Any, blocks: np.ndarray, rows: slice, cols: slice) -> bool:
        return bool((data[..., self.xp.asarray(blocks), rows, cols] != 0).any())


class _NumPy(ArrayModule):
    name = "numpy"

    def importable(self, x: Any, name: str, differentiated: bool = True) -> Any:
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(
                f"{name} is a numpy.ma.MaskedArray, whose mask would be ignored; accepted: a plain "
                f"array, for example {name}.filled(0), or {name}.data for the memory itself"
            )
        return x

    def empty(self, shape: tuple[int, ...], like: Any, name: str, dtype: str | None = None) -> Any:
        return np.empty(shape, numpy_dtype(dtype) if dtype else like.dtype)

    def gather_blocks(self, dense: Any, blocksize: tuple[int, int]) -> tuple[Any, np.ndarray]:
        return super().gather_blocks(np.asarray(dense), blocksize)

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def from_host(self, x: np.ndarray, like: Any) -> Any:
        return x

    def to_device(self, x: Any, device: str) -> Any:
        return x if device == "cpu" else _core.DeviceArray.from_host(x, device)


NUMPY = _NumPy()
