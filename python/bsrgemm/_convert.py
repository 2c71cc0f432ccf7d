"""From what callers have (SciPy, torch, dense, three arrays) to data, indices, indptr and shape."""

from __future__ import annotations

import math
import operator
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._dtypes import EIGHT_BIT_DTYPES, check_dtype, dtype_size
from ._interop import TORCH, is_scipy_sparse, library_of
from ._kinds import a_kind_of
from ._library import Library

MOST_ROWS = 2**63 - 1
INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)


class Parts(NamedTuple):
    """A BSR matrix as its arrays; ``structure`` where it has been made already."""

    data: Any
    indices: Any
    indptr: Any
    shape: tuple[int, int]
    structure: _core.Structure | None = None


def parts_of(arg: Any, shape: Any, blocksize: Any) -> Parts:
    """Read any accepted source; see :class:`bsrgemm.bsr_array` for what these are."""
    if shape is not None:
        shape = pair_of(_of_one_matrix(arg, shape), "shape", 0, MOST_ROWS)
    if blocksize is not None:
        blocksize = pair_of(blocksize, "blocksize", 1)
    if isinstance(arg, tuple):
        parts = _from_arrays(arg, shape)
    elif is_scipy_sparse(arg):
        parts = _from_scipy(arg, blocksize)
    elif library_of(arg) is TORCH and arg.layout is not TORCH.torch.strided:
        parts = _from_torch(arg, blocksize)
    else:
        parts = _from_dense(arg, blocksize)
    if shape is not None and shape != parts.shape:
        raise ValueError(f"shape is {shape}, but the matrix given has shape {parts.shape}")
    if blocksize is not None and len(parts.data.shape) >= 3:
        found = tuple(parts.data.shape[-2:])
        if found != blocksize:
            raise ValueError(
                f"blocksize is {blocksize}, but the blocks in data have shape {found}; accepted: "
                f"that, or none and then A.reblock({blocksize})"
            )
    return parts


def _of_one_matrix(arg: Any, shape: Any) -> Any:
    """``shape`` without the batch that it may name where ``data`` has one."""
    if not isinstance(arg, tuple) or len(arg) != 3 or not isinstance(shape, (tuple, list)):
        return shape
    data = as_array(arg[0], "data")
    return _without_batch(shape, library_of(data).shape(data, "data")[:-3])


def _without_batch(shape: Any, batch: tuple[int, ...]) -> Any:
    """(M, K) of a shape that may name the batch before them."""
    if not batch or not isinstance(shape, (tuple, list)) or len(shape) != len(batch) + 2:
        return shape
    if tuple(shape[:-2]) != batch:
        raise ValueError(
            f"shape is {tuple(shape)}, but data has a batch of {batch}; accepted: (M, K), or "
            f"(*{batch}, M, K)"
        )
    return shape[-2:]


def check_given(a: Any, shape: Any, blocksize: Any) -> None:
    """That what is said beside a ``bsr_array`` is what it has."""
    if shape is not None:
        given = pair_of(_without_batch(shape, a._batch), "shape", 0, MOST_ROWS)
        if given != a._structure.shape:
            raise ValueError(f"shape is {given}, but the bsr_array given has {a._structure.shape}")
    if blocksize is not None:
        given = pair_of(blocksize, "blocksize", 1)
        if given != a.blocksize:
            raise ValueError(
                f"blocksize is {given}, but the bsr_array given has {a.blocksize}; use "
                f"A.reblock({given})"
            )


def pair_of(value: Any, name: str, least: int, most: int = 2**31 - 1) -> tuple[int, int]:
    try:
        pair = tuple(operator.index(x) for x in value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; accepted: a pair of integers") from None
    if len(pair) != 2:
        raise ValueError(f"{name} has {len(pair)} entries: {pair}; accepted: 2")
    if min(pair) < least:
        raise ValueError(f"{name} is {pair}; accepted: integers that are at least {least}")
    if max(pair) > most:
        raise ValueError(f"{name} is {pair}; accepted: integers that are at most {most}")
    return pair


def as_array(x: Any, name: str) -> Any:
    """``x`` itself if it is an array, a NumPy view of other host memory or of a list."""
    if library_of(x).name != "foreign" or hasattr(x, "__cuda_array_interface__"):
        return x
    if isinstance(x, (list, tuple)) and len(x) == 0:
        return np.empty(0, np.int64)
    if isinstance(x, (list, tuple)) or hasattr(x, "__array_interface__"):
        return np.asarray(x)
    if hasattr(x, "__dlpack__"):
        return x
    try:
        return np.asarray(memoryview(x))
    except TypeError:  # of memoryview, as before Python 3.12 no attribute says what has a buffer
        raise TypeError(
            f"{name} is {a_kind_of(x)}; accepted: an array of NumPy, torch or CuPy, a "
            "bsrgemm.DeviceArray, or an object with __dlpack__, __cuda_array_interface__ or the "
            "buffer protocol"
        ) from None


def _from_arrays(arg: tuple, shape: tuple[int, int] | None) -> Parts:
    if len(arg) != 3:
        raise ValueError(
            f"the tuple given has {len(arg)} entries; accepted: (data, indices, indptr)"
        )
    data, indices, indptr = (
        as_array(x, name) for x, name in zip(arg, ("data", "indices", "indptr"), strict=True)
    )
    if shape is None:
        shape = _inferred_shape(data, indices, indptr)
    return Parts(data, indices, indptr, shape)


def _inferred_shape(data: Any, indices: Any, indptr: Any) -> tuple[int, int]:
    """The smallest matrix that holds every block, as SciPy infers it."""
    blocks, columns, rows = (
        library_of(x).shape(x, name)
        for x, name in ((data, "data"), (indices, "indices"), (indptr, "indptr"))
    )
    regular = len(columns) == 1 and len(rows) == 1 and len(blocks) >= 3
    if not regular or columns[0] == 0 or rows[0] == 0:
        raise ValueError(
            "shape is not given and cannot be inferred: that takes at least one block, data of "
            f"three dimensions or more (it has shape {blocks}) and indices and indptr of one (they "
            f"have shapes {columns} and {rows})"
        )
    last = int(library_of(indices).to_host(indices).max())
    return (rows[0] - 1) * blocks[-2], max(last + 1, 0) * blocks[-1]


def _from_scipy(matrix: Any, blocksize: tuple[int, int] | None) -> Parts:
    if len(matrix.shape) != 2:
        raise ValueError(f"the SciPy array given has shape {matrix.shape}; accepted: 2 dimensions")
    shape = int(matrix.shape[0]), int(matrix.shape[1])
    if matrix.format != "bsr" or (blocksize or matrix.blocksize) != matrix.blocksize:
        if blocksize is None:
            raise ValueError(
                f"blocksize is needed for a SciPy matrix of format {matrix.format!r}; accepted: a "
                "pair (block height, block width)"
            )
        whole = whole_shape(shape, blocksize)
        if whole != shape:
            matrix = matrix.tocsr(copy=True)
            matrix.resize(whole)
        matrix = matrix.tobsr(blocksize=blocksize)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    data = np.ascontiguousarray(matrix.data)
    return Parts(data, matrix.indices, matrix.indptr, shape)


def _from_torch(tensor: Any, blocksize: tuple[int, int] | None) -> Parts:
    torch = TORCH.torch
    if tensor.ndim != 2:
        raise ValueError(
            f"the torch tensor given has {tensor.ndim} dimensions; accepted: 2, so index a batch "
            "first"
        )
    shape = tuple(tensor.shape)
    if tensor.layout is not torch.sparse_bsr:
        if blocksize is None:
            raise ValueError(
                f"blocksize is needed for a torch tensor of layout {tensor.layout}; accepted: a "
                "pair (block height, block width)"
            )
        if tensor.layout is torch.sparse_coo and tensor.sparse_dim() != 2:
            raise ValueError(
                f"the torch tensor given has {tensor.sparse_dim()} sparse dimensions; accepted: 2"
            )
        # Torch makes no blocks of blocks with other sides.
        of_blocks = tensor.layout is torch.sparse_bsc
        is_alike = of_blocks and tuple(tensor.values().shape[-2:]) == blocksize
        is_eight = str(tensor.dtype).removeprefix("torch.") in EIGHT_BIT_DTYPES
        if is_eight and not is_alike:
            raise TypeError(
                f"the torch tensor given has layout {tensor.layout} and dtype {tensor.dtype}; "
                "accepted of 8 bits: torch.sparse_bsr, or a dense one"
            )
        whole = whole_shape(shape, blocksize)
        if whole != shape or (of_blocks and not is_alike):
            tensor = tensor.to_sparse_coo().coalesce()
            with warnings.catch_warnings():
                # As in bsr_array.to_torch.
                warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
                tensor = torch.sparse_coo_tensor(
                    tensor.indices(),
                    tensor.values(),
                    whole,
                    device=tensor.device,
                    check_invariants=True,
                )
        tensor = tensor.to_sparse_bsr(blocksize)
    values = tensor.values()
    values = values if values.is_contiguous() else values.contiguous()
    if not values.requires_grad:  # no view: torch.compile fails at those of sparse tensors
        values = values.detach()
    return Parts(values, tensor.col_indices().detach(), tensor.crow_indices().detach(), shape)


def _from_dense(dense: Any, blocksize: tuple[int, int] | None) -> Parts:
    if isinstance(dense, (list, str, int, float)) or dense is None:
        raise TypeError(
            f"the matrix given is {a_kind_of(dense)}; accepted: (data, indices, indptr), a "
            "SciPy sparse matrix, a torch tensor or a dense array"
        )
    library: Library = library_of(dense)
    dense = library.importable(dense, "arg")
    info = _core.describe(dense, "the dense matrix")
    check_dtype(info.dtype, "the dense matrix")
    if len(info.shape) != 2:
        raise ValueError(f"the dense matrix has shape {info.shape}; accepted: 2 dimensions")
    if blocksize is None:
        raise ValueError(
            "blocksize is needed for a dense matrix; accepted: a pair (block height, block width)"
        )
    blocks, mask = library.gather_blocks(dense, blocksize)
    counts = mask.sum(axis=1)
    index_type = np.int32 if counts.sum() <= np.iinfo(np.int32).max else np.int64
    indptr = np.zeros(len(counts) + 1, index_type)
    np.cumsum(counts, out=indptr[1:])
    indices = np.nonzero(mask)[1].astype(index_type)
    return Parts(blocks, indices, indptr, (info.shape[0], info.shape[1]))


def is_traced() -> bool:
    """Whether torch.compile traces the call."""
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and compiler.is_compiling()


def same_pattern(first: _core.Structure, second: _core.Structure) -> bool:
    """Whether both have the same blocks; of structures of one shape."""
    if first is second:
        return True
    if not is_traced():  # here, as torch.compile does not trace what a helper returns arrays from
        return np.array_equal(first.indptr, second.indptr) and np.array_equal(
            first.indices, second.indices
        )
    (a, a_begins), (b, b_begins) = pattern_of(first), pattern_of(second)
    return np.array_equal(a_begins, b_begins) and np.array_equal(a, b)


def pattern_of(
    structure: _core.Structure,
    indices_type: np.dtype[Any] = INT64,
    indptr_type: np.dtype[Any] = INT64,
) -> tuple[np.ndarray, np.ndarray]:
    """Copies of a structure's indices and indptr.

    Where torch.compile traces what reads them, by bytes and not by its arrays: it fails at these,
    which are read-only.
    """
    if not is_traced():
        return structure.indices.astype(indices_type), structure.indptr.astype(indptr_type)
    indices, indptr = structure.contents(indices_type.itemsize, indptr_type.itemsize)
    return (
        np.frombuffer(bytearray(indices), indices_type),
        np.frombuffer(bytearray(indptr), indptr_type),
    )


def host_indices(a: Any) -> tuple[np.ndarray, np.ndarray]:
    """Copies of a matrix's indices and indptr on the host, of the dtypes of the arrays given.

    They are the pattern's own: the arrays that were given may hold something else by now.
    """
    types = [np.dtype(_core.describe(given).dtype) for given in (a._indices, a._indptr)]
    return pattern_of(a._structure, *types)


def own_indices(a: Any) -> list[Any]:
    """The same in the libraries of the arrays given, and where these are."""
    pairs = zip((a._indices, a._indptr), host_indices(a), strict=True)
    return [library_of(given).from_host(own, given) for given, own in pairs]


def grid_of(shape: Any, blocksize: Any) -> tuple[int, int]:
    """Block rows and block columns, the last of which may reach beyond the matrix."""
    return -(-shape[0] // blocksize[0]), -(-shape[1] // blocksize[1])


def whole_shape(shape: Any, blocksize: Any) -> tuple[int, int]:
    """The shape of all blocks together."""
    rows, cols = grid_of(shape, blocksize)
    return rows * blocksize[0], cols * blocksize[1]


def edges_of(structure: _core.Structure) -> list[tuple[np.ndarray, slice, slice]]:
    """Where stored blocks reach beyond the matrix: positions, and the rows and columns of each.

    Blocks are those of the values; the structure is of no transposed view.
    """
    (rows, cols), (height, width) = structure.shape, structure.blocksize
    edges: list[Any] = []
    if not (rows % height or cols % width):
        return edges
    # Copies only where compilers need them: of many small blocks they take long.
    arrays = structure.indices, structure.indptr
    indices, indptr = pattern_of(structure) if is_traced() else arrays
    if rows % height:
        below = np.arange(indptr[-2], structure.nnzb)
        edges.append((below, slice(rows % height, None), slice(None)))
    if cols % width:
        beside = np.flatnonzero(indices == cols // width)
        edges.append((beside, slice(None), slice(cols % width, None)))
    return [edge for edge in edges if len(edge[0])]


def check_edges(data: Any, structure: _core.Structure) -> None:
    """That values have zeros where blocks reach beyond the matrix."""
    for blocks, rows, cols in edges_of(structure):
        if library_of(data).any_nonzero(data, blocks, rows, cols):
            axis, size, block = ("row", structure.shape[0], structure.blocksize[0])
            if rows == slice(None):
                axis, size, block = ("column", structure.shape[1], structure.blocksize[1])
            raise ValueError(
                f"data has elements that are not 0 in block {axis} {size // block} beyond {axis} "
                f"{size - 1}, the last one of a matrix of shape {structure.shape} in blocks of "
                f"{structure.blocksize}; accepted: zeros there"
            )


# Dimensions of a batch of products; arrays have up to eight, those of values three more.
MOST_BATCH_DIMENSIONS = 6
MOST_BEFORE_BLOCKS = 5


def check_data(info: _core.ArrayInfo, name: str = "data") -> None:
    """That an array can be the values of a matrix, or of a batch of them."""
    check_dtype(info.dtype, name)
    if not 3 <= len(info.shape) <= 3 + MOST_BEFORE_BLOCKS:
        raise ValueError(
            f"{name} has shape {info.shape}; accepted: (nnzb, block height, block width), behind "
            f"up to {MOST_BEFORE_BLOCKS} dimensions of a batch"
        )
    if min(info.shape[-2:]) < 1:
        raise ValueError(
            f"{name} has shape {info.shape}; accepted: blocks of at least one row and one column"
        )
    if not _is_contiguous(info):
        expected = tuple(math.prod(info.shape[i + 1 :]) for i in range(len(info.shape)))
        raise ValueError(
            f"{name} is not C-contiguous: it has shape {info.shape} and strides {info.strides} in "
            f"elements, accepted: {expected}. Make it so with numpy.ascontiguousarray({name}) or "
            f"{name}.contiguous()"
        )
    size = dtype_size(info.dtype)
    if info.pointer % size:
        raise ValueError(
            f"{name} is misaligned: its address {info.pointer:#x} is no multiple of the {size} "
            f"bytes of {info.dtype}. Make an aligned copy with {name}.copy()"
        )


def _is_contiguous(info: _core.ArrayInfo) -> bool:
    """In C's order. A plain loop: operators of torch pay for it at each call."""
    if 0 in info.shape:
        return True
    expected = 1
    for size, stride in zip(reversed(info.shape), reversed(info.strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def check_index(info: _core.ArrayInfo, name: str, data_device: str) -> None:
    """That an array can be the indices or indptr of a matrix."""
    if info.dtype not in ("int32", "int64"):
        raise TypeError(f"{name} has dtype {info.dtype}; accepted: int32, int64")
    if info.device not in ("cpu", data_device):
        raise TypeError(
            f"{name} is on {info.device} and data is on {data_device}; accepted: the host or the "
            "device of data"
        )
