"""``matmul``: a block-sparse matrix times a dense one, or a dense one times a block-sparse one."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

from . import _core
from ._interop import (
    EIGHT_BIT_DTYPES,
    BlockSparse,
    dtype_name,
    is_scipy_sparse,
    library_of,
    stream_handle,
)

if TYPE_CHECKING:
    from ._array import bsr_array


# Of products of 8-bit floats.
_RESULTS = ("float16", "bfloat16", "float32")


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
    precision: str = "ieee",
    out_dtype: Any = None,
    a_scale: Any = None,
    b_scale: Any = None,
) -> Any:
    """``alpha * a @ b + beta * c``, one of ``a`` and ``b`` block-sparse and all else dense.

    All operands have one dtype and live on one device, which computes the product: nothing is cast
    or moved silently. 16-bit floats and float32 accumulate in float32, float64 in float64. Operands
    of 8 bits have a result of more, ``out_dtype``, and may have scales; on a GPU they need Hopper
    and blocks whose height is a multiple of 64 and whose width is one of 32. The
    first product of a matrix on a GPU brings its pattern there; the others never wait for the GPU
    and allocate nothing but the result and, in stream order, scratch memory: for a copy of the
    blocks where the plan's choice is ``'stream'`` or, in other blocks, ``'regroup'``, for copies
    of dense operands, and perhaps of the blocks, where it is ``'align'``, and for partial sums of
    long rows where it is ``'narrow'``. All can be captured in CUDA graphs.

    Blocks that are not stored contribute nothing, whatever the dense operand holds there, with one
    exception: with the choice ``'regroup'``, also within ``'align'``, some of them are multiplied
    as zeros, so an infinity or NaN there may turn rows (of ``a @ b``; columns where ``b`` is the
    block-sparse one) whose blocks do not meet it into NaN, as it does in a dense product.

    Parameters
    ----------
    a, b : bsr_array and array, or array and bsr_array
        Shapes (M, K) and (K, N). The bsr_array may be a transposed view, ``A.T``, which shares
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
        Without it, torch's or CuPy's current stream if the dense operand is theirs, else the
        stream that it names, else the legacy default stream. Another stream than the library's
        current one is unknown to its allocator: keep the operands until the work is done. Ignored
        on the CPU.
    precision : str
        Of float32 operands. ``"tf32"`` permits to round them to the 10 bits of TensorFloat-32
        before they are multiplied, for tensor cores; sums remain float32. It is used on Hopper, in
        blocks whose height is a multiple of 64 and whose width is one of 8; everything else
        computes as ``"ieee"`` does.
    out_dtype : dtype, optional
        Of the result and of ``c``, where the operands are float8_e4m3fn or float8_e5m2: float16,
        bfloat16 (the default) or float32, by name or as NumPy or torch writes it.
    a_scale, b_scale : float or array, optional
        What elements of 8-bit operands are multiplied by: a number, or float32 on the device of
        the operands, one element or, for the bsr_array, of shape (nnzb,) one for each block of
        its ``data`` (of a transposed view too, ``A.T`` has those of ``A``).

    Returns
    -------
    array
        ``out`` if given. Otherwise of the shape that ``c`` would have, in the library of the dense
        operand: NumPy, torch or CuPy; for other arrays NumPy on the host and
        :class:`DeviceArray` on a GPU.

    Raises
    ------
    ValueError
        If shapes do not fit, ``out`` overlaps an operand or is read-only, ``beta`` is not 0
        without ``c``, or no kernel of the GPU takes 8-bit operands in blocks of this shape.
    TypeError
        If dtypes or devices differ or are not accepted, or a torch tensor requires grad; if
        ``precision``, ``out_dtype`` or a scale is given for operands that do not have it.
    DeviceUnavailableError
        If the operands are on a GPU that this process cannot use.
    """
    return product(
        a,
        b,
        c,
        alpha,
        beta,
        out,
        stream,
        precision=precision,
        out_dtype=out_dtype,
        a_scale=a_scale,
        b_scale=b_scale,
    )


def product(
    a: bsr_array | Any,
    b: bsr_array | Any,
    c: Any,
    alpha: float,
    beta: float | None,
    out: Any,
    stream: Any,
    family: str = "auto",
    *,
    precision: str = "ieee",
    out_dtype: Any = None,
    a_scale: Any = None,
    b_scale: Any = None,
) -> Any:
    """``matmul`` with the kernel family of the caller's choice."""
    _check_kinds(a, b)
    beta = real_number(beta, "beta") if beta is not None else float(c is not None)
    if c is None and beta != 0.0:
        raise ValueError(f"beta is {beta} and c is not given; accepted: c, or beta = 0")
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
    result_dtype = _result_dtype(sparse._dtype, out_dtype, out)
    scales = []
    for scale, its_name in ((a_scale, "a_scale"), (b_scale, "b_scale")):
        factor, array = _scale(scale, its_name, sparse)
        alpha *= factor
        scales.append(array)
    if right:
        scales.reverse()
    if out is None:
        result = y = library.empty(result_shape, dense, name, result_dtype)
    else:
        result, y = out, added if out is c else _of_shape(out, "out", result_shape)
    _core.matmul(
        sparse._structure,
        values,
        x,
        y,
        added,
        alpha,
        beta,
        handle,
        family,
        right,
        precision,
        *scales,
    )
    return result


def _result_dtype(dtype: str, out_dtype: Any, out: Any) -> str | None:
    """What a new result is made of: None is the dtype of the operands, which is ``dtype``."""
    eight = dtype in EIGHT_BIT_DTYPES
    if out_dtype is None:
        return "bfloat16" if eight else None
    name = dtype_name(out_dtype, "out_dtype")
    if not eight:
        raise TypeError(
            f"out_dtype is {name}, but the operands have dtype {dtype}; accepted: none, since only "
            f"8-bit operands ({', '.join(EIGHT_BIT_DTYPES)}) have results of another dtype"
        )
    if name not in _RESULTS:
        raise TypeError(f"out_dtype is {name}; accepted: {', '.join(_RESULTS)}")
    if out is not None and (found := _core.describe(out, "out").dtype) != name:
        raise TypeError(f"out has dtype {found}, but out_dtype is {name}; accepted: one dtype")
    return name


def _scale(scale: Any, name: str, sparse: Any) -> tuple[float, Any]:
    """A factor for the whole product, and what the extension reads on the device."""
    if scale is None:
        return 1.0, None
    if sparse._dtype not in EIGHT_BIT_DTYPES:
        raise TypeError(
            f"{name} is given, but the operands have dtype {sparse._dtype}; accepted: none, since "
            f"only 8-bit operands ({', '.join(EIGHT_BIT_DTYPES)}) have scales"
        )
    if isinstance(scale, numbers.Real):
        return float(scale), None
    return 1.0, library_of(scale).importable(scale, name)


def _check_kinds(a: Any, b: Any) -> None:
    """One operand is block-sparse and the other dense."""
    if isinstance(a, BlockSparse) != isinstance(b, BlockSparse):
        other, name = (b, "b") if isinstance(a, BlockSparse) else (a, "a")
        if not is_scipy_sparse(other):
            return
        raise TypeError(
            f"{name} is a {type(other).__name__}; accepted: a dense array, so use "
            f"{name}.todense(); products of two sparse matrices are not supported yet"
        )
    if isinstance(a, BlockSparse):
        raise TypeError(
            "a and b are bsr_arrays; accepted: one bsr_array and a dense array, so use "
            "b.todense(); products of two sparse matrices are not supported yet"
        )
    raise TypeError(
        f"a is a {type(a).__name__} and b is a {type(b).__name__}; accepted: a "
        "bsr_array and a dense array, in either order"
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
