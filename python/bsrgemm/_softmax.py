"""``softmax`` over the stored elements of a block-sparse matrix."""

from __future__ import annotations

from typing import Any

from . import _core
from ._array import bsr_array
from ._interop import library_of
from ._kinds import a_kind_of
from ._library import BlockSparse
from ._matmul import real_number


def softmax(a: bsr_array, scale: float = 1.0, *, stream: Any = None) -> bsr_array:
    """``softmax(scale * a)`` row by row, over the elements that each row stores.

    Blocks that are not stored count as -infinity, so the result has the pattern of ``a``, and rows
    without blocks have no result. It is what attention needs between its products where its
    pattern is that of a matrix: ``softmax(scores, size ** -0.5) @ values``.

    Parameters
    ----------
    a : bsr_array
        In any library and on any device; of dtype float16, bfloat16, float32 or float64. The rows
        of a transposed view, ``A.T``, are the columns of ``A``. Block columns that are stored twice
        (``check=False``) are elements of their own. On a GPU a batch of whole blocks takes a launch
        for each power of two of its matrices.
    scale : float
        Factor of all elements.
    stream : int, torch.cuda.Stream, cupy.cuda.Stream or object with ``__cuda_stream__``, optional
        As for :func:`bsrgemm.matmul`, of the library of the values.

    Returns
    -------
    bsr_array
        With the pattern of ``a``, which it shares, and values of its dtype, library and device. A
        transposed view's is one. 16-bit floats are summed in float32. A row that holds NaN or
        +infinity, or nothing but -infinity, becomes NaN. The result has the same bits every time.
        On a GPU the call does not wait, allocates nothing but the result and, after the first one
        of a matrix, can be captured in CUDA graphs.

    Raises
    ------
    ValueError
        If the last block column reaches beyond the matrix and block columns do not ascend within
        each row (``check=False``), or if ``scale`` is finite and beyond float32, where values
        are not of float64.
    TypeError
        If ``a`` is no bsr_array, ``scale`` no number, or a torch tensor requires grad or has a
        tangent of forward mode.
    DeviceUnavailableError
        If the matrix is on a GPU that this process cannot use.
    """
    if not isinstance(a, bsr_array):
        hint = ", so use a.to_bsr()" if isinstance(a, BlockSparse) else ""
        raise TypeError(f"a is {a_kind_of(a)}; accepted: a bsr_array{hint}")
    a._look()
    library = library_of(a._data)
    values = library.importable(a._data, "a.data")
    handle = library.stream_of_work(a._data, stream)
    # Of a transposed view, the values as they are stored.
    shape = library.shape(a._data, "a.data")
    data = library.empty(shape, a._data, "a.data")
    scale = real_number(scale, "scale")
    _core.softmax(a._structure, values, data, scale, handle)
    data = library.finished(data, a._data)
    return a._around(data, a._dtype, a._batch)
