"""``matmul``: products of a block-sparse matrix and a dense one, or of two block-sparse ones."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from . import _core
from ._batch import broadcast, check_single
from ._convert import MOST_BATCH_DIMENSIONS
from ._dtypes import ACCEPTED_DTYPES, EIGHT_BIT_DTYPES, dtype_name
from ._forward_mode import in_dual_level
from ._interop import handed_back, importable, is_scipy_sparse, library_of
from ._kinds import a_kind_of
from ._library import BlockSparse

if TYPE_CHECKING:
    from ._array import bsr_array

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


# The largest number of float32.
MOST_FACTOR = (2 - 2.0**-23) * 2.0**127
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
    bias: Any = None,
    activation: Activation | None = None,
    row_scale: Any = None,
    col_scale: Any = None,
    out: Any = None,
    stream: Any = None,
    precision: str = "ieee",
    out_dtype: Any = None,
    a_scale: Any = None,
    b_scale: Any = None,
) -> Any:
    """``alpha * a @ b + beta * c``; ``a``, ``b`` or both are block-sparse and all else is dense.

    With all that can be asked for, element (i, j) of the result is ``activation(row_scale[i] *
    col_scale[j] * alpha * (a @ b)[i, j] + bias + beta * c[i, j])``, computed from the sum in the
    type in which it was accumulated and rounded once. On a GPU that costs no pass over the result
    of its own.

    All operands have one dtype and live on one device, which computes the product: nothing is cast
    or moved silently. 16-bit floats and float32 accumulate in float32, float64 in float64. Operands
    of 8 bits have a result of more, ``out_dtype``, and may have scales; on a GPU they are fastest
    on Hopper, in blocks whose height is a multiple of 64 and whose width is one of 32. The
    first product of a matrix on a GPU brings its pattern there, of small blocks also the first one
    of few columns; the others never wait for the GPU and allocate nothing but the result and, in
    stream order, scratch memory: mostly for a copy of the blocks where the plan's choice is
    ``'stream'`` or, in other blocks, ``'regroup'``, for copies of dense operands, and perhaps of
    the blocks, where it is ``'align'`` or operands have 8 bits or tf32, and for partial sums of
    long rows where it is ``'narrow'``; where blocks reach beyond the matrix, all choices but
    ``'tall'``, ``'stream'`` and ``'regroup'`` may copy the dense operands. All can be captured in
    CUDA graphs, where scratch memory, and a counter from which tiles of unequal lengths are drawn,
    are memory nodes: CUDA lets such a graph have one executable graph at a time.

    Blocks that are not stored contribute nothing, whatever the dense operand holds there, with one
    exception: with the choice ``'regroup'``, also within others, some of them are multiplied
    as zeros, so an infinity or NaN there may turn rows (of ``a @ b``; columns where ``b`` is the
    block-sparse one) whose blocks do not meet it into NaN, as it does in a dense product.

    Of two block-sparse operands blocks that meet are multiplied: 2 * bh * bk * bw FLOP for each
    stored block of ``a`` in block column k and each of ``b`` in block row k. The blocks of ``b``
    must be as high as those of ``a`` are wide. With the choice ``'spread'``, for low blocks of
    which many meet on a GPU, ``b`` is written out as a dense matrix first, up to four times the
    memory of operands and result, and all of ``a`` is multiplied: then an infinity or NaN in ``a``
    reaches its row (of ``A.T @ B.T`` the left one is written out, and one in the other reaches its
    column). Others need no scratch memory, unless blocks reach beyond the matrices or, with the
    choice ``'pairs'``, rows of ``out`` do not begin and end at multiples of 16 bytes.

    Parameters
    ----------
    a, b : bsr_array and array, array and bsr_array, or two bsr_arrays
        Shapes (M, K) and (K, N). A bsr_array may be a transposed view, ``A.T``, which shares
        the values of ``A``. The array has any strides; it may have one dimension, (K,), or up to
        six before the last two: a batch of matrices, each of which is multiplied. A batch on the
        left whose rows follow one another in memory, as those of contiguous arrays do, is one
        product, as is one on the right that continues along its columns. Of others a GPU copies
        the matrices side by side where that is faster than one product after the other.
        A bsr_array may have a batch, too, if the other operand is an array: their batches are
        broadcast as NumPy does. On a GPU as many entries as a power of two are one product where
        that is predicted to be faster, else each is one.
    c : array, optional
        Of the shape of the result, (..., M, N) without the dimension that the array lacks, or one
        that NumPy broadcasts to it; of two bsr_arrays, of the shape of the result.
    alpha : float
        Factor of the product.
    beta : float, optional
        1 if ``c`` is given and 0 otherwise. With 0, as in BLAS, ``c`` is not read: NaN in it does
        not matter.
    bias : array, optional
        Added to the result: shape (N,) or (1, N) with an element for each column, (M, 1) with one
        for each row. For a result of one dimension, of its shape.
    activation : {"relu", "gelu", "gelu_tanh", "silu"}, optional
        Applied last: ``max(x, 0)``, ``x Phi(x)`` with the normal distribution Phi, its
        approximation by tanh, and ``x / (1 + exp(-x))``, as torch's ``relu``, ``gelu``,
        ``gelu(approximate="tanh")`` and ``silu``. NaN stays NaN; of negative infinity all but
        ``relu`` make NaN, as in torch. On a GPU, float32 results with ``precision="tf32"`` or of
        8-bit operands may have the last three with an error of 4e-4 of their difference from
        ``relu``.
    row_scale, col_scale : array, optional
        Factors of the product's rows and columns, for example what quantized operands were divided
        by: shape (M,) or (M, 1), and (N,) or (1, N). A result of one dimension has rows where
        ``a`` is the block-sparse operand, else columns. Like ``bias``, of the dtype of the
        result or, where that has 16 bits, float32; on the device of the operands.
    out : array, optional
        Where the result goes: the shape of the result, writable. It may be ``c`` itself and may
        overlap nothing else. Without it the result is made new.
    stream : int, torch.cuda.Stream, cupy.cuda.Stream or object with ``__cuda_stream__``, optional
        The CUDA stream that the work is put on, behind what the operands' libraries have pending.
        Without it, torch's or CuPy's current stream if the dense operand (of two bsr_arrays, the
        data of ``a``) is theirs, else the stream that it names, else the legacy default stream.
        Another stream than the library's current one is unknown to its allocator: keep the operands
        until the work is done. The per-thread default stream, 2, is one for each thread: a
        ``DeviceArray`` that one thread's has made is not waited for on another's. Ignored on the
        CPU.
    precision : str
        Of float32 operands. ``"tf32"`` permits to round them to the 10 bits of TensorFloat-32
        before they are multiplied, for tensor cores; sums remain float32. It is used on a GPU where
        it gains time, which it does most on Hopper in blocks whose sides are multiples of 8;
        products of two bsr_arrays and the CPU compute as ``"ieee"`` does.
    out_dtype : dtype, optional
        Of the result and of ``c``, where the operands are float8_e4m3fn or float8_e5m2: float16,
        bfloat16 (the default without ``out``, which has its own) or float32, by name or as NumPy or
        torch writes it.
    a_scale, b_scale : float or array, optional
        What elements of 8-bit operands are multiplied by: a number, or float32 on the device of
        the operands, one element or, for the bsr_array, of shape (nnzb,) one for each block of
        its ``data`` (of a transposed view too, ``A.T`` has those of ``A``).

    Returns
    -------
    array
        ``out`` if given. Otherwise of shape (..., M, N), without the dimension that the array
        lacks, in the library of the dense operand or, of two bsr_arrays, of the data of ``a``:
        NumPy, torch, CuPy or JAX; for other arrays NumPy on the host and :class:`DeviceArray` on a
        GPU. On a GPU a result for JAX is waited for and copied.

    Raises
    ------
    ValueError
        If shapes or block sizes do not fit, ``out`` overlaps an operand or is read-only, ``beta``
        is not 0 without ``c``, ``activation`` is none of those, or something is asked for that
        products of 8-bit operands or of two bsr_arrays do not have.
    TypeError
        If dtypes or devices differ or are not accepted, a torch tensor requires grad or has a
        tangent of forward mode, JAX traces an operand, or ``out`` is an array of JAX, which is
        immutable; if ``precision``, ``out_dtype`` or a scale is given for operands that do not
        have it.
    DeviceUnavailableError
        If the operands are on a GPU that this process cannot use.
    """
    if stream is None and out_dtype is None and a_scale is None and b_scale is None:
        right = isinstance(b, BlockSparse)
        sparse, dense = (b, a) if right else (a, b)
        if isinstance(sparse, BlockSparse) and not in_dual_level():
            result = _core.try_matmul(
                sparse._structure,
                sparse._data,
                dense,
                right,
                c,
                alpha,
                beta,
                bias,
                activation,
                row_scale,
                col_scale,
                out,
                precision,
            )
            if result is not NotImplemented:
                if out is not None:
                    library_of(out).written(out)
                return result
    return product(
        a,
        b,
        c,
        alpha,
        beta,
        out,
        stream,
        bias=bias,
        activation=activation,
        row_scale=row_scale,
        col_scale=col_scale,
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
    bias: Any = None,
    activation: Activation | None = None,
    row_scale: Any = None,
    col_scale: Any = None,
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
    if isinstance(a, BlockSparse) and isinstance(b, BlockSparse):
        _check_absent(
            bias=bias,
            activation=activation,
            row_scale=row_scale,
            col_scale=col_scale,
            out_dtype=out_dtype,
            a_scale=a_scale,
            b_scale=b_scale,
        )
        check_precision(precision)
        if precision == "tf32" and a._dtype != "float32":
            raise TypeError(
                f"precision is 'tf32', but a.data has dtype {a._dtype}: only float32 has it"
            )
        return _sparse_product(a, b, c, alpha, beta, out, stream, family)
    right = isinstance(b, BlockSparse)
    sparse, dense, sparse_name, name = (b, a, "b", "a") if right else (a, b, "a", "b")
    library = library_of(dense)
    shape = library.shape(dense, name)
    if not 1 <= len(shape) <= 8:
        accepted = "(..., N, K) or (K,)" if right else "(..., K, N) or (K,)"
        inner = sparse.shape[-2 if right else -1]
        raise ValueError(
            f"{name} has shape {shape}; accepted: {accepted}, with K = {inner}, of 1 to 8 "
            "dimensions"
        )
    sparse._look()
    outer = sparse.shape[-1 if right else -2]
    lead = shape[:-2]
    if sparse._batch:
        lead = broadcast(sparse._batch, lead, names="a and b")
        if len(lead) > MOST_BATCH_DIMENSIONS:
            raise ValueError(
                f"a and b have batches of {sparse._batch} and {shape[:-2]}; accepted: up to "
                f"{MOST_BATCH_DIMENSIONS} dimensions of both"
            )
    if len(shape) == 1:
        result_shape, matrix_shape = (*lead, outer), (outer,)
    else:
        matrix_shape = (shape[-2], outer) if right else (outer, shape[-1])
        result_shape = (*lead, *matrix_shape)
    values = library_of(sparse._data).importable(sparse._data, f"{sparse_name}.data")
    x = library.importable(dense, name)
    added = None if c is None else _broadcastable(c, "c", result_shape)
    vectors = _Vectors(None, None, None, None)
    if bias is not None or row_scale is not None or col_scale is not None:
        vectors = _vectors(bias, row_scale, col_scale, matrix_shape, right)
    handle = library.stream_of_work(dense, stream)
    alpha = real_number(alpha, "alpha")
    result_dtype = _result_dtype(sparse._dtype, out_dtype, out)
    scales, factors = [], []
    for scale, its_name in ((a_scale, "a_scale"), (b_scale, "b_scale")):
        factor, array = _scale(scale, its_name, sparse)
        factors.append(factor)
        scales.append(array)
    alpha = _times(alpha, *factors)
    if right:
        scales.reverse()
    if out is None:
        result = y = library.empty(result_shape, dense, name, result_dtype)
    else:
        result, y = out, _of_shape(out, "out", result_shape, written=True)
        added = y if out is c else added
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
        *vectors,
        activation,
        precision,
        *scales,
    )
    return handed_back(result, dense, out)


def check_precision(precision: Any) -> None:
    """As the extension does where it has a choice: not of two block-sparse operands."""
    if not isinstance(precision, str) or precision not in ("ieee", "tf32"):
        kind = ValueError if isinstance(precision, str) else TypeError
        raise kind(f"precision is {precision!r}, but must be 'ieee' or 'tf32'")


def _check_absent(**arguments: Any) -> None:
    """What products of two block-sparse matrices do not have."""
    for name, x in arguments.items():
        if x is not None:
            raise ValueError(
                f"{name} is given and a and b are both block-sparse; accepted: None there, and "
                "c, alpha and beta"
            )


class _Vectors(NamedTuple):
    """What the extension adds to and multiplies rows and columns of the result by."""

    row_scale: Any
    col_scale: Any
    row_bias: Any
    col_bias: Any


def _vectors(
    bias: Any, row_scale: Any, col_scale: Any, shape: tuple[int, ...], right: bool
) -> _Vectors:
    """The vectors of a result of ``shape``; one of one dimension is a row where ``right``."""
    rows = columns = (shape,)
    if len(shape) == 2:
        m, n = shape
        rows, columns = ((m,), (m, 1)), ((n,), (1, n))
    elif right:
        rows = ()
    else:
        columns = ()
    row_bias = col_bias = None
    if bias is not None:
        library = library_of(bias)
        found = library.shape(bias, "bias")
        if found in columns:
            col_bias = library.importable(bias, "bias")
        elif found in (rows[-1:] if len(shape) == 2 else rows):
            row_bias = library.importable(bias, "bias")
        elif len(shape) == 2:
            raise ValueError(
                f"bias has shape {found}; accepted: {columns[0]} or {columns[1]}, added to every "
                f"row of the result, and {rows[1]}, added to every column"
            )
        else:
            raise ValueError(f"bias has shape {found}; accepted: {shape}")
    return _Vectors(
        _factors(row_scale, "row_scale", rows, "row"),
        _factors(col_scale, "col_scale", columns, "column"),
        row_bias,
        col_bias,
    )


def _factors(x: Any, name: str, shapes: tuple[tuple[int, ...], ...], of: str) -> Any:
    if x is None:
        return None
    if not shapes:
        other = "row_scale" if of == "column" else "col_scale"
        raise ValueError(
            f"{name} is given, but a result of one dimension has a single {of}; accepted: {other} "
            "or alpha"
        )
    library = library_of(x)
    found = library.shape(x, name)
    if found not in shapes:
        accepted = " or ".join(map(str, shapes))
        raise ValueError(f"{name} has shape {found}; accepted: {accepted}, one for each {of}")
    return library.importable(x, name)


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
    for name, x in (("a", a), ("b", b)):
        if not x.is_fixed:
            raise TypeError(
                f"{name} is {a_kind_of(x)}; accepted: two bsr_arrays, so use {name}.to_bsr()"
            )
        check_single(x, name)
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
    values, b_values = importable(("a.data", "b.data"), a._data, b._data)
    added = None if c is None else _of_shape(c, "c", shape)
    handle = library.stream_of_work(a._data, stream)
    alpha = real_number(alpha, "alpha")
    if out is None:
        result = y = library.empty(shape, a._data, "a.data")
    else:
        result, y = out, _of_shape(out, "out", shape, written=True)
        added = y if out is c else added
    _core.matmul_sparse(
        a._structure, values, b._structure, b_values, y, added, alpha, beta, handle, family
    )
    return handed_back(result, a._data, out)


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
        factor = real_number(scale, name)
        _check_factor(factor, name)
        return factor, None
    return 1.0, library_of(scale).importable(scale, name)


def _times(alpha: float, a_scale: float, b_scale: float) -> float:
    """What the extension takes for alpha; numbers are given where a scale is other than 1."""
    if a_scale == b_scale == 1.0:
        return alpha
    product = alpha * a_scale * b_scale
    _check_factor(product, f"alpha * a_scale * b_scale = {alpha} * {a_scale} * {b_scale}")
    return product


def _check_factor(factor: float, name: str) -> None:
    """As the extension checks alpha, with the names of what was given."""
    if MOST_FACTOR < abs(factor) < math.inf:
        raise ValueError(
            f"{name} is {factor:g}; accepted: numbers from {-MOST_FACTOR:g} to {MOST_FACTOR:g}, as "
            "8-bit operands are multiplied in float32"
        )


def _check_kinds(a: Any, b: Any) -> None:
    """At least one operand is block-sparse, and the other one is dense otherwise."""
    if isinstance(a, BlockSparse) and isinstance(b, BlockSparse):
        return
    if isinstance(a, BlockSparse) or isinstance(b, BlockSparse):
        other, name = (b, "b") if isinstance(a, BlockSparse) else (a, "a")
        if not is_scipy_sparse(other):
            return
        raise TypeError(
            f"{name} is {a_kind_of(other)}; accepted: a dense array or a bsr_array, so use "
            f"bsrgemm.bsr_array({name}, blocksize=(height, width)) or {name}.todense()"
        )
    raise TypeError(
        f"a is {a_kind_of(a)} and b is {a_kind_of(b)}; accepted: a "
        "bsr_array and a dense array, in either order, or two bsr_arrays"
    )


def _broadcastable(x: Any, name: str, shape: tuple[int, ...]) -> Any:
    """What the extension reads for ``x``, which it repeats so that it becomes of ``shape``."""
    library = library_of(x)
    found = library.shape(x, name)
    if found != shape:
        sizes = zip(reversed(found), reversed(shape), strict=False)
        if len(found) > len(shape) or any(size not in (1, wanted) for size, wanted in sizes):
            raise ValueError(
                f"{name} has shape {found}; accepted: {shape}, or what NumPy broadcasts to it"
            )
    return library.importable(x, name)


def _of_shape(x: Any, name: str, shape: tuple[int, ...], written: bool = False) -> Any:
    """What the extension reads or writes for ``x``, which has to be of ``shape``."""
    library = library_of(x)
    found = library.shape(x, name)
    if found != shape:
        raise ValueError(f"{name} has shape {found}; accepted: {shape}")
    return library.writable(x, name) if written else library.importable(x, name)


def is_real_number(x: Any) -> bool:
    """Whether a scalar argument is one: a number of Python, or NumPy's, or an array of one."""
    if isinstance(x, (np.timedelta64, np.ma.MaskedArray)):  # for NumPy an integer, and a number
        return False
    if isinstance(x, numbers.Real):
        return True
    # Of those of no dimensions, since others may be operands; ml_dtypes' kind is that of bytes.
    return (
        isinstance(x, (np.generic, np.ndarray))
        and x.ndim == 0
        and (x.dtype.kind in "biuf" or x.dtype.name in ACCEPTED_DTYPES)
    )


def number_hint(x: Any) -> str:
    """What a refusal of ``x`` as a number adds: other libraries' wait for a device, so that none is
    read unless the caller says so."""
    is_numpy = isinstance(x, (np.generic, np.ndarray))
    has_number = getattr(x, "shape", None) == () and hasattr(x, "item") and not is_numpy
    return ". Its method item() gives one" if has_number else ""


def real_number(value: Any, name: str) -> float:
    """A scalar argument as a float."""
    if type(value) is float:
        return value
    if not is_real_number(value):
        hint = number_hint(value)
        raise TypeError(f"{name} is {a_kind_of(value)}; accepted: a real number{hint}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{name} is {a_kind_of(value)} beyond what float64 holds; accepted: a real "
            "number up to 1.8e308"
        ) from None
