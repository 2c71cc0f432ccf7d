"""``sampled_matmul``: the product of two dense matrices at the blocks that a pattern stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core
from ._batch import broadcast
from ._convert import MOST_BEFORE_BLOCKS, same_pattern
from ._dtypes import ACCEPTED_DTYPES
from ._dynamic import DynamicPattern
from ._dynamic_array import DynamicArray
from ._forward_mode import in_dual_level
from ._interop import is_scipy_sparse, library_of
from ._kinds import a_kind_of, kind_of
from ._library import BlockSparse, Library
from ._matmul import real_number

if TYPE_CHECKING:
    from ._array import bsr_array


def sampled_matmul(
    a: Any,
    b: Any,
    /,
    pattern: Any,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """``alpha * (a @ b) + beta * pattern`` at the stored blocks of ``pattern``, all else left out.

    The gradient of ``A @ x`` with respect to the blocks of ``A`` is such a product:
    ``sampled_matmul(dy, x.T, A)``. Known as SDDMM and, for blocks, as SDD (T. Gale et al.,
    MegaBlocks, 2022).

    Operands have one dtype and live on one device, which computes the product: nothing is cast or
    moved silently. 16-bit floats and float32 accumulate in float32, float64 in float64. The first
    product of a pattern on a GPU brings the pattern there; the others never wait for the GPU and
    allocate nothing but the result and, in stream order, scratch memory: where blocks reach beyond
    the matrix, for copies of ``a`` and ``b``, and with the choice ``'cover'`` of the plan for
    larger blocks that cover those of the pattern. All can be captured in CUDA graphs.

    At the blocks of a :class:`DynamicPattern`, which the host does not know, the GPU makes the
    lists that the kernels read: as part of the pattern where both block sides are multiples of 64,
    elsewhere anew at each product, in scratch memory.

    Parameters
    ----------
    a, b : array
        Shapes (M, K) and (K, N), any strides. With dimensions before these they are batches that
        NumPy would broadcast. On a GPU as many entries as a power of two are one product where that
        is predicted to be faster, of copies where their matrices do not lie side by side.
    pattern : bsr_array, DynamicArray or DynamicPattern
        Of shape (M, N); it may be a transposed view. With ``beta`` 0 its values are not read, and
        may be of any dtype and on any device; otherwise its batch is broadcast with the others. A
        ``DynamicPattern``, which has none, goes with ``beta`` 0 alone. Patterns that change take no
        batches.
    alpha, beta : float
        Factors of the product and of the pattern's values.
    out : bsr_array or DynamicArray, optional
        Whose values are overwritten: of the pattern's structure, its values writable and no part
        of ``a`` or ``b``. It may be ``pattern`` itself. Without it the result is made new.
    stream : int, torch.cuda.Stream, cupy.cuda.Stream or object with ``__cuda_stream__``, optional
        The CUDA stream that the work is put on, as for :func:`matmul`, with ``a`` as the operand
        whose library decides. Ignored on the CPU.

    Returns
    -------
    bsr_array or DynamicArray
        ``out`` if given. Otherwise a matrix, or a batch, with the pattern's structure, which is
        shared and not copied, and new values of the dtype, device and library of ``a``: NumPy,
        torch, CuPy or JAX; for other arrays NumPy on the host and :class:`DeviceArray` on a GPU.
        Values of a ``DynamicArray`` behind the last stored block become zeros.

    Raises
    ------
    ValueError
        If shapes do not fit, ``out`` has another structure, or its values overlap an operand or
        are read-only.
    TypeError
        If ``pattern`` or ``out`` is of another type, dtypes or devices differ or are not accepted,
        or a torch tensor requires grad or has a tangent of forward mode.
    DeviceUnavailableError
        If the operands are on a GPU that this process cannot use.
    """
    usual = out is None and stream is None and isinstance(pattern, BlockSparse) and pattern.is_fixed
    if usual and not in_dual_level():
        data = _core.try_sampled(
            pattern._structure,
            a,
            b,
            pattern._data,
            alpha,
            beta,
            pattern._dtype,
            pattern._device,
        )
        if data is not NotImplemented:
            return pattern._around(data, pattern._dtype, ())
    return sampled(a, b, pattern, alpha, beta, out, stream)


def sampled(
    a: Any,
    b: Any,
    pattern: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    stream: Any = None,
    family: str = "auto",
) -> Any:
    """``sampled_matmul`` with kernels of the caller's choice: "sampled", "cover", "portable"."""
    if isinstance(pattern, (DynamicPattern, DynamicArray)):
        return _at_changing_blocks(a, b, pattern, alpha, beta, out, stream, family)
    if not isinstance(pattern, BlockSparse):
        raise TypeError(
            f"pattern is {a_kind_of(pattern)}; accepted: a bsr_array, a DynamicArray or a "
            "DynamicPattern"
        )
    if out is not None and not (isinstance(out, BlockSparse) and out.is_fixed):
        raise TypeError(f"out is {a_kind_of(out)}; accepted: a bsr_array, as pattern is")
    m, n = pattern._structure.shape
    batches, libraries = [], []
    for name, dense, accepted in (("a", a, f"(..., {m}, K)"), ("b", b, f"(..., K, {n})")):
        library, shape = _dense(dense, name)
        libraries.append(library)
        if not 2 <= len(shape) <= 2 + MOST_BEFORE_BLOCKS:
            raise ValueError(
                f"{name} has shape {shape}; accepted: {accepted}, of 2 to "
                f"{2 + MOST_BEFORE_BLOCKS} dimensions"
            )
        batches.append(shape[:-2])
    alpha, beta = real_number(alpha, "alpha"), real_number(beta, "beta")
    if beta != 0.0:
        pattern._look()
        batches.append(pattern._batch)
    batch = broadcast(*batches, names="a, b and, with beta, pattern") if any(batches) else ()
    library = libraries[0]
    left, right = library.importable(a, "a"), libraries[1].importable(b, "b")
    handle = library.stream_of_work(a, stream)
    added = _values(pattern, "pattern") if beta != 0.0 else None
    if out is None:
        info = _described(left)
        data = values = library.empty((*batch, *pattern._values_shape), a, "a")
    else:
        _check_structure(out, pattern)
        if out._batch != batch:
            raise ValueError(
                f"out has shape {out.shape}, but the operands have a batch of {batch}; accepted: "
                f"values of shape {(*batch, *pattern._values_shape)}"
            )
        values = library_of(out._data).writable(out._data, "out.data")
        added = values if out is pattern and added is not None else added
    structure = pattern._structure
    _core.sampled_matmul(structure, left, right, values, added, alpha, beta, handle, family)
    if out is not None:
        library_of(out._data).written(out._data)
        return out
    data = library.finished(data, a)
    if info.device != pattern._device:
        return pattern._sharing(data, info.device)
    return pattern._around(data, info.dtype, batch)


def _at_changing_blocks(
    a: Any,
    b: Any,
    matrix: DynamicArray | DynamicPattern,
    alpha: float,
    beta: float,
    out: Any,
    stream: Any,
    family: str,
) -> DynamicArray:
    """At those of a pattern whose values have room for as many blocks as its capacity."""
    alpha, beta = real_number(alpha, "alpha"), real_number(beta, "beta")
    turned = isinstance(matrix, DynamicArray) and matrix.is_transposed
    pattern = matrix.pattern if isinstance(matrix, DynamicArray) else matrix
    if out is not None:
        if not isinstance(out, DynamicArray):
            raise TypeError(
                f"out is {a_kind_of(out)}; accepted: a DynamicArray, since pattern is a "
                f"{kind_of(matrix)}"
            )
        if out.pattern is not pattern or out.is_transposed != turned:
            raise ValueError(
                f"out is {out!r} of another pattern; accepted: a DynamicArray of the same "
                "DynamicPattern, a transposed view if pattern is one"
            )
    rows, cols = pattern.shape[::-1] if turned else pattern.shape
    for name, dense, accepted in (("a", a, f"({rows}, K)"), ("b", b, f"(K, {cols})")):
        _, shape = _dense(dense, name)
        if len(shape) != 2:
            raise ValueError(
                f"{name} has shape {shape}; accepted: {accepted}, since a pattern that changes "
                "takes no batches"
            )
    library = library_of(a)
    left, right = library.importable(a, "a"), library_of(b).importable(b, "b")
    handle = library.stream_of_work(a, stream)
    info = _described(left)
    if info.device != pattern.device:
        raise TypeError(f"a is on {info.device}; accepted: the pattern's device, {pattern.device}")
    # On the CPU a structure has as many values as blocks.
    stored = pattern._structure.nnzb if pattern.device == "cpu" else pattern.capacity
    if beta != 0.0 and matrix is pattern:
        raise TypeError(
            "pattern is a DynamicPattern, which has no values; accepted with beta: a DynamicArray"
        )
    added = _values(matrix, "pattern") if beta != 0.0 else None
    if out is None:
        data = library.empty((pattern.capacity, *pattern.blocksize), a, "a")
    else:
        data = library_of(out.data).writable(out.data, "out.data")
    values = data if stored == pattern.capacity else data[:stored]
    added = values if out is matrix and added is not None else added
    structure = pattern._structure.transposed() if turned else pattern._structure
    _core.sampled_matmul(structure, left, right, values, added, alpha, beta, handle, family)
    if pattern.device == "cpu":
        library_of(data).to_host(data)[stored:] = 0
    if out is None:
        return DynamicArray(pattern, library.finished(data, a), turned)
    library_of(out.data).written(out.data)
    return out


def _dense(dense: Any, name: str) -> tuple[Library, tuple[int, ...]]:
    """The library and the shape of an operand."""
    if isinstance(dense, BlockSparse) or is_scipy_sparse(dense):
        raise TypeError(
            f"{name} is {a_kind_of(dense)}; accepted: a dense array, so use {name}.todense()"
        )
    library = library_of(dense)
    return library, library.shape(dense, name)


def _described(a: Any) -> _core.ArrayInfo:
    info = _core.describe(a, "a")
    if info.dtype not in ACCEPTED_DTYPES:
        names = f"{', '.join(ACCEPTED_DTYPES[:-1])} or {ACCEPTED_DTYPES[-1]}"
        raise TypeError(f"a has dtype {info.dtype}, but must have dtype {names}")
    return info


def _values(matrix: Any, name: str) -> Any:
    """What the extension reads or writes for the values of a matrix."""
    return library_of(matrix._data).importable(matrix._data, f"{name}.data")


def _check_structure(out: bsr_array, pattern: bsr_array) -> None:
    """Raise ValueError unless values of one matrix have the places of those of the other."""
    a, b = out._structure, pattern._structure
    if a is b:
        return
    for what in ("shape", "blocksize", "nnzb", "is_transposed"):
        found, accepted = getattr(out, what), getattr(pattern, what)
        if what == "shape":
            found, accepted = a.shape, b.shape
        if found != accepted:
            raise ValueError(
                f"out has {what} {found}, but pattern has {accepted}; accepted: a matrix of the "
                "pattern's structure, such as pattern itself or pattern.copy()"
            )
    if not same_pattern(a, b):
        raise ValueError(
            "out stores other blocks than pattern; accepted: a matrix of the pattern's structure, "
            "such as pattern itself or pattern.copy()"
        )
