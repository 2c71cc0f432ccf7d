"""``matmul``: products of a block-sparse matrix and a dense one, or of two block-sparse ones."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

from . import _core
from ._interop import BlockSparse, is_scipy_sparse, library_of, stream_handle

if TYPE_CHECKING:
    from ._array import bsr_array


def matmul(
    a: bsr_array | Any,
    b: bsr_array | Any,
    /,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """``alpha * a @ b + beta * c``, ``a``, ``b`` or both block-sparse and all else dense.

    All operands have one dtype and live on one device, which computes the product: nothing is cast
    or moved silently. 16-bit floats and float32 accumulate in float32, float64 in float64. The
    first product of a matrix on a GPU brings its pattern there; the others never wait for the GPU
    and allocate nothing but the result and, in stream order, scratch memory: for a copy of the
    blocks where the plan's choice is ``'stream'`` or, in other blocks, ``'regroup'``, for copies
    of dense operands, and perhaps of the blocks, where it is ``'align'``, and for partial sums of
    long rows where it is ``'narrow'``. All can be captured in CUDA graphs.

    Blocks that are not stored contribute nothing, whatever the dense operand holds there, with one
    exception: with the choice ``'regroup'``, also within ``'align'``, some of them are multiplied
    as zeros, so an infinity or NaN there may turn rows (of ``a @ b``; columns where ``b`` is the
    block-sparse one) whose blocks do not meet it into NaN, as it does in a dense product.

    Of two block-sparse operands only blocks that meet are multiplied: 2 * bh * bk * bw FLOP for
    each stored block of ``a`` in a block column and each of ``b`` in the block row of that number.
    The blocks of ``b`` must be as high as those of ``a`` are wide. No scratch memory is needed.

    Parameters
    ----------
    a, b : bsr_array and array, array and bsr_array, or two bsr_arrays
        Shapes (M, K) and (K, N). A bsr_array may be a transposed view, ``A.T``, which shares
        the values of ``A``. The array has any strides; it may have one dimension, (K,).
    c : array, optional
        Shape (M, N), without the dimension that the array lacks.
    alpha : float
        Factor of the product.
    beta : float, optional
        1 if ``c`` is given and 0 otherwise. With 0, as in BLAS, ``c`` is not read: NaN in it does
        not matter.
    out : array, optional
        Where the result goes: the shape of the result, writable. It may be ``c`` itself and may
        overlap nothing else. Without it the result is made new.
    stream : int, torch.cuda.Stream, cupy.cuda.Stream or object with ``__cuda_stream__``, optional
        The CUDA stream that the work is put on, behind what the operands' libraries have pending.
        Without it, torch's or CuPy's current stream if the dense operand (of two bsr_arrays, the
        data of ``a``) is theirs, else the stream that it names, else the legacy default stream.
        Another stream than the library's current one is unknown to its allocator: keep the
        operands until the work is done. Ignored on the CPU.

    Returns
    -------
    array
        ``out`` if given. Otherwise of the shape that ``c`` would have, in the library of the dense
        operand or, of two bsr_arrays, of the data of ``a``: NumPy, torch or CuPy; for other arrays
        NumPy on the host and :class:`DeviceArray` on a GPU.

    Raises
    ------
    ValueError
        If shapes or block sizes do not fit, ``out`` overlaps an operand or is read-only, or
        ``beta`` is not 0 without ``c``.
    TypeError
        If dtypes or devices differ or are not accepted, or a torch tensor requires grad.
    DeviceUnavailableError
        If the operands are on a GPU that this process cannot use.
    """
    return product(a, b, c, alpha, beta, out, stream)


def product(
    a: bsr_array | Any,
    b: bsr_array | Any,
    c: Any,
    alpha: float,
    beta: float | None,
    out: Any,
    stream: Any,
    family: str = "auto",
) -> Any:
    """``matmul`` with the kernel family of the caller's choice."""
    _check_kinds(a, b)
    beta = real_number(beta, "beta") if beta is not None else float(c is not None)
    if c is None and beta != 0.0:
        raise ValueError(f"beta is {beta} and c is not given; accepted: c, or beta = 0")
    if isinstance(a, BlockSparse) and isinstance(b, BlockSparse):
        return _sparse_product(a, b, c, alpha, beta, out, stream, family)
    right = isinstance(b, BlockSparse)
    sparse, dense, sparse_name, name = (b, a, "b", "a") if right else (a, b, "a", "b")
    library = library_of(dense)
    shape = library.shape(dense, name)
    if len(shape) not in (1, 2):
        accepted = "(N, K) or (K,)" if right else "(K, N) or (K,)"
        inner = sparse.shape[0] if right else sparse.shape[1]
        raise ValueError(f"{name} has shape {shape}; accepted: {accepted}, with K = {inner}")
    result_shape = (*shape[:-1], sparse.shape[1]) if right else (sparse.shape[0], *shape[1:])
    values = library_of(sparse._data).importable(sparse._data, f"{sparse_name}.data")
    x = library.importable(dense, name)
    added = None if c is None else _of_shape(c, "c", result_shape)
    handle = library.current_stream(dense) if stream is None else stream_handle(stream)
    alpha = real_number(alpha, "alpha")
    if out is None:
        result = y = library.empty(result_shape, dense, name)
    else:
        result, y = out, added if out is c else _of_shape(out, "out", result_shape)
    _core.matmul(sparse._structure, values, x, y, added, alpha, beta, handle, family, right)
    return result


def _sparse_product(
    a: bsr_array,
    b: bsr_array,
    c: Any,
    alpha: float,
    beta: float,
    out: Any,
    stream: Any,
    family: str,
) -> Any:
    """``product`` of two block-sparse matrices."""
    library = library_of(a._data)
    if a.shape[1] != b.shape[0]:
        raise ValueError(
            f"b has shape {b.shape}; accepted: (K, N) with K = {a.shape[1]}, the columns of a"
        )
    if a.blocksize[1] != b.blocksize[0]:
        raise ValueError(
            f"a has blocksize {a.blocksize} and b has blocksize {b.blocksize}; accepted: blocks of "
            f"b as high as those of a are wide, here {a.blocksize[1]}"
        )
    shape = (a.shape[0], b.shape[1])
    values = library.importable(a._data, "a.data")
    b_values = library_of(b._data).importable(b._data, "b.data")
    added = None if c is None else _of_shape(c, "c", shape)
    handle = library.current_stream(a._data) if stream is None else stream_handle(stream)
    alpha = real_number(alpha, "alpha")
    if out is None:
        result = y = library.empty(shape, a._data, "a.data")
    else:
        result, y = out, added if out is c else _of_shape(out, "out", shape)
    _core.matmul_sparse(
        a._structure, values, b._structure, b_values, y, added, alpha, beta, handle, family
    )
    return result


def _check_kinds(a: Any, b: Any) -> None:
    """At least one operand is block-sparse, and the other one is dense otherwise."""
    if isinstance(a, BlockSparse) and isinstance(b, BlockSparse):
        return
    if isinstance(a, BlockSparse) or isinstance(b, BlockSparse):
        other, name = (b, "b") if isinstance(a, BlockSparse) else (a, "a")
        if not is_scipy_sparse(other):
            return
        raise TypeError(
            f"{name} is a {type(other).__name__}; accepted: a dense array or a bsr_array, so use "
            f"bsrgemm.bsr_array({name}, blocksize=(height, width)) or {name}.todense()"
        )
    raise TypeError(
        f"a is a {type(a).__name__} and b is a {type(b).__name__}; accepted: a "
        "bsr_array and a dense array, in either order, or two bsr_arrays"
    )


def _of_shape(x: Any, name: str, shape: tuple[int, ...]) -> Any:
    """What the extension reads or writes for ``x``, which has to be of ``shape``."""
    library = library_of(x)
    found = library.shape(x, name)
    if found != shape:
        raise ValueError(f"{name} has shape {found}; accepted: {shape}")
    return library.importable(x, name)


def real_number(value: Any, name: str) -> float:
    """A scalar argument as a float."""
    if type(value) is float:
        return value
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a real number")
    return float(value)
