"""``matmul``: a block-sparse matrix times a dense one."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

from . import _core
from ._interop import BlockSparse, is_scipy_sparse, library_of, stream_handle

if TYPE_CHECKING:
    from ._array import bsr_array


def matmul(
    a: bsr_array,
    b: Any,
    /,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """``alpha * a @ b + beta * c`` for a block-sparse ``a`` and dense ``b`` and ``c``.

    All operands have one dtype and live on one device, which computes the product: nothing is cast
    or moved silently. 16-bit floats and float32 accumulate in float32, float64 in float64. The
    first product of a matrix on a GPU brings its pattern there; the others never wait for the GPU
    and allocate nothing but the result and, in stream order, scratch memory: for a copy of the
    blocks where the plan's choice is ``'stream'`` or, in other blocks, ``'regroup'``, for copies
    of dense operands, and perhaps of the blocks, where it is ``'align'``, and for partial sums of
    long rows where it is ``'narrow'``. All can be captured in CUDA graphs.

    Blocks that are not stored contribute nothing, whatever ``b`` holds there, with one exception:
    with the choice ``'regroup'``, also within ``'align'``, some of them are multiplied as zeros,
    so an infinity or NaN in ``b`` may turn rows whose blocks do not meet it into NaN, as it does in
    a dense product.

    Parameters
    ----------
    a : bsr_array
        Shape (M, K).
    b : array
        Shape (K, N) or (K,), any strides.
    c : array, optional
        Shape (M, N), or (M,) where ``b`` has one dimension.
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
        Without it, torch's or CuPy's current stream if ``b`` is theirs, else the stream that ``b``
        names, else the legacy default stream. Another stream than the library's current one is
        unknown to its allocator: keep the operands until the work is done. Ignored on the CPU.

    Returns
    -------
    array
        ``out`` if given. Otherwise of shape (M, N) or (M,), in the library of ``b``: NumPy, torch
        or CuPy; for other arrays NumPy on the host and :class:`DeviceArray` on a GPU.

    Raises
    ------
    ValueError
        If shapes do not fit, ``out`` overlaps an operand or is read-only, or ``beta`` is not 0
        without ``c``.
    TypeError
        If dtypes or devices differ or are not accepted, or a torch tensor requires grad.
    DeviceUnavailableError
        If the operands are on a GPU that this process cannot use.
    """
    return product(a, b, c, alpha, beta, out, stream)


def product(
    a: bsr_array,
    b: Any,
    c: Any,
    alpha: float,
    beta: float | None,
    out: Any,
    stream: Any,
    family: str = "auto",
) -> Any:
    """``matmul`` with the kernel family of the caller's choice."""
    if not isinstance(a, BlockSparse) or isinstance(b, BlockSparse) or is_scipy_sparse(b):
        raise _wrong_kinds(a, b)
    beta = real_number(beta, "beta") if beta is not None else float(c is not None)
    if c is None and beta != 0.0:
        raise ValueError(f"beta is {beta} and c is not given; accepted: c, or beta = 0")
    library = library_of(b)
    shape = library.shape(b, "b")
    if len(shape) not in (1, 2):
        raise ValueError(f"b has shape {shape}; accepted: (K, N) or (K,), with K = {a.shape[1]}")
    result_shape = (a.shape[0], *shape[1:])
    values = library_of(a.data).importable(a.data, "a.data")
    x = library.importable(b, "b")
    added = None if c is None else _of_shape(c, "c", result_shape)
    handle = library.current_stream(b) if stream is None else stream_handle(stream)
    alpha = real_number(alpha, "alpha")
    if out is None:
        result = y = library.empty(result_shape, b, "b")
    else:
        result, y = out, added if out is c else _of_shape(out, "out", result_shape)
    _core.matmul(a._structure, values, x, y, added, alpha, beta, handle, family)
    return result


def _wrong_kinds(a: Any, b: Any) -> TypeError:
    if not isinstance(a, BlockSparse):
        hint = "; dense @ bsr_array is not supported yet" if isinstance(b, BlockSparse) else ""
        return TypeError(f"a is a {type(a).__name__}; accepted: a bsr_array{hint}")
    return TypeError(
        f"b is a {type(b).__name__}; accepted: a dense array, so use b.todense(); products of two "
        "sparse matrices are not supported yet"
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
