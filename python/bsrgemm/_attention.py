"""``attention``: softmax(q @ k^T) @ v, dense or over the blocks of a mask."""

from __future__ import annotations

import math
from typing import Any

from . import _core
from ._interop import handed_back, importable, library_of
from ._kinds import a_kind_of
from ._library import BlockSparse, Library
from ._mask import BlockMask
from ._mask_arguments import diagonal_of, window_of
from ._matmul import is_real_number, real_number

_HEADS = {"bhsd": 1, "bshd": 2}  # which dimension


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    block_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    layout: str = "bhsd",
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    causal_alignment: str = "bottom_right",
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    out: Any = None,
    stream: Any = None,
    backend: str | None = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
) -> Any:
    """Scaled dot-product attention, ``softmax(scale * q @ k^T) @ v``, dense or block-sparse.

    All operands have one dtype and live on one device, which computes the result: nothing is cast
    or moved silently. Scores, weights and sums are float32 for 8-bit and 16-bit floats and float32,
    and float64 for float64; the GPU kernels round the weights to the dtype before they meet ``v``.
    The result of float8_e4m3fn is bfloat16. No scores are kept in memory. Beside the result, a GPU
    allocates in stream order what the parts of split keys leave, with the backend ``'decode'``
    alone, for float8_e4m3fn a copy of ``v``, and the lists of a mask from :meth:`BlockMask.topk`;
    the CPU some 100 KiB a thread. The first call with another mask on a GPU, or with the same and
    other lengths, batch, window, causality or kernel, brings its lists of blocks there; the others
    never wait for the GPU, and all can be captured in CUDA graphs, where
    scratch memory, and a counter from which tiles of unequal lengths are drawn, are memory nodes:
    CUDA lets such a graph have one executable graph at a time. The bits of a result do not depend
    on when, or by how many threads, it is computed.

    Keys that no query of a tile may see cost nothing, whether a mask, a window or causality
    excludes them: tiles have 64 to 192 queries on a GPU, up to 48 on the CPU, and with
    ``'decode'``, for few queries, all of them. A query that may see no key at all gets zeros.

    Parameters
    ----------
    q : array
        Shape (batch, heads, queries, size), any strides.
    k : array
        Shape (batch, heads, keys, size).
    v : array
        Shape (batch, heads, keys, value size).
    block_mask : BlockMask or bsr_array, optional
        The blocks of queries and keys that are computed. Its numbers of block rows and columns are
        the queries and keys rounded up to whole blocks. It has 1 batch or that of ``q``, and 1
        head, or with ``enable_gqa`` those of ``k``, each for all heads of ``q`` that share it, or
        those of ``q``. The pattern of a ``bsr_array`` counts for
        all batches and heads, its values do not count.
    is_causal : bool
        Whether queries see no keys after their own.
    scale : float, optional
        Factor of the scores, 1 / sqrt(size) by default. Unless ``q`` is float64, within the range
        of float32.
    enable_gqa : bool
        Whether ``q`` may have a multiple of the heads of ``k`` and ``v``: as many neighbouring
        heads of ``q`` then share one of theirs.
    layout : str
        ``"bhsd"`` as above, or ``"bshd"``: q, k, v and the result have shape (batch, queries or
        keys, heads, size).
    window : (int, int), optional
        How many keys before and after their own queries see; -1: all.
    softcap : float, optional
        Scores become ``softcap * tanh(score / softcap)``. Positive and, unless ``q`` is float64,
        a number that float32 has.
    causal_alignment : str
        Which key is a query's own where there are more of one than of the other, for ``is_causal``
        and ``window``: ``"bottom_right"`` aligns the last query with the last key, as a KV cache
        needs it, ``"top_left"`` the first ones, as torch does. Of each sequence, where there are
        several.
    cu_seqlens_q, cu_seqlens_k : array of int32 or int64, optional
        Shape (sequences + 1,), contiguous, on the device of ``q``: sequence ``i``, which sees
        itself only, has the queries ``cu_seqlens_q[i]`` to ``cu_seqlens_q[i + 1] - 1``, and its
        keys likewise. ``q`` and the result then have shape (queries of all, heads, size), ``k`` and
        ``v`` (keys of all, heads, size). Sequences may be empty. Rows of the result that belong to
        no sequence are not written. There is no ``block_mask`` then. The host does not read arrays
        on a GPU: what is not ascending there, or reaches beyond the rows, gives other results than
        it should. float8_e4m3fn is computed on the CPU alone then.
    max_seqlen_q, max_seqlen_k : int, optional
        Bounds of the lengths, for callers of ``flash_attn_varlen_func``. No backend needs them: the
        CPU checks them, GPUs do not look.
    return_lse : bool
        Whether to return the logarithms of the sums of exponentials of the scores, too.
    out : array, optional
        Where the result goes: its shape, writable, sharing memory with no operand. Without it the
        result is made new.
    stream : int, torch.cuda.Stream, cupy.cuda.Stream or object with ``__cuda_stream__``, optional
        The CUDA stream that the work is put on, behind what the operands' libraries have pending.
        Without it, torch's or CuPy's current stream if ``q`` is theirs, else the stream that ``q``
        names, else the legacy default stream. Ignored on the CPU.
    backend : str, optional
        ``"hopper"`` (sm_90), ``"decode"`` (sm_80 and up, few queries) or ``"portable"`` (sm_80 and
        up), all for float16 and bfloat16 and sizes up to 256, the first for float8_e4m3fn too, or
        ``"cpu"``. Without it the fastest that can compute the call.
    q_descale, k_descale, v_descale : float or array of float32, optional
        For float8_e4m3fn alone: what is stored in ``q``, ``k`` and ``v`` times these is what is
        meant. Not negative. An array has shape () or (batch, heads of ``k``), with
        ``cu_seqlens_q`` (1, heads of ``k``), any strides, and is on the device of ``q``; a GPU
        reads it when it computes, so it may change between replays of a CUDA graph.

    Returns
    -------
    array, or a pair of arrays
        ``out`` if given; otherwise of shape (batch, heads, queries, value size), or in the layout
        asked for, in the library of ``q``: NumPy, torch, CuPy or JAX; for others NumPy on the host
        and :class:`DeviceArray` on a GPU. With ``return_lse`` a pair of it and of an array of
        float32 of shape (batch, heads, queries), or (heads, queries of all sequences), -inf where
        a query sees no key.

    Raises
    ------
    MemoryError
        If there is no room for the parts of split keys, the copy of ``v`` or the lists of a mask.
    ValueError
        If shapes do not fit, a number is out of range, ``out`` overlaps an operand, or the backend
        cannot compute the call.
    TypeError
        If dtypes or devices differ or are not accepted, or a torch tensor requires grad or has a
        tangent of forward mode.
    DeviceUnavailableError
        If the operands are on a GPU that this process cannot use.
    """
    heads_at = _HEADS.get(layout) if isinstance(layout, str) else None
    if heads_at is None:
        raise ValueError(f"layout is {layout!r}; accepted: 'bhsd', 'bshd'")
    library = library_of(q)
    sequences = _sequences(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, layout)
    rows_at = 3 - heads_at
    if sequences:
        heads_at, rows_at, layout = 1, 0, "packed"
    q_shape, k_shape, v_shape = (
        _shape(x, name, layout) for x, name in ((q, "q"), (k, "k"), (v, "v"))
    )
    _check_heads(q_shape[heads_at], k_shape[heads_at], enable_gqa)
    queries, keys = q_shape[rows_at], k_shape[rows_at]
    diagonal = diagonal_of(queries, keys, causal_alignment, "causal_alignment")
    if sequences:
        sequences["align_last"] = causal_alignment == "bottom_right"
        diagonal = 0
    left, right = (-1, -1) if window is None else window_of(window)
    if is_causal:
        right = 0
    if scale is None:
        scale = 1.0 / math.sqrt(q_shape[-1]) if q_shape[-1] else 1.0
    masks = _masks(block_mask)

    arrays = importable(("q", "k", "v"), q, k, v)
    result_shape = (*q_shape[:-1], v_shape[-1])
    if out is None:
        dtype = "bfloat16" if _has_eight_bits(q) else None
        target = library.empty(result_shape, q, "q", dtype)
    else:
        target = _of_shape(out, result_shape)
    lse = None
    if return_lse:
        lse_shape = (*q_shape[: 0 if sequences else 1], q_shape[heads_at], queries)
        lse = library.empty(lse_shape, q, "q", "float32")
    handle = library.stream_of_work(q, stream)
    _core.attention(
        *arrays,
        target,
        lse,
        scale=real_number(scale, "scale"),
        softcap=_softcap(softcap),
        diagonal=diagonal,
        left=left,
        right=right,
        layout=layout,
        stream=handle,
        family=_family(backend, arrays[0]),
        q_descale=_descale(q_descale, "q_descale"),
        k_descale=_descale(k_descale, "k_descale"),
        v_descale=_descale(v_descale, "v_descale"),
        **masks,
        **sequences,
    )
    out = handed_back(target, q, out)
    return (out, library.finished(lse, q)) if return_lse else out


_DIMENSIONS = {
    "bhsd": "four dimensions, (batch, heads, rows, size)",
    "bshd": "four dimensions, (batch, rows, heads, size)",
    "packed": "with cu_seqlens_q three dimensions, (rows, heads, size)",
}


def _shape(x: Any, name: str, layout: str) -> tuple[int, ...]:
    if isinstance(x, BlockSparse):
        raise TypeError(f"{name} is a bsr_array; accepted: a dense array, so use {name}.todense()")
    library: Library = library_of(x)
    shape = library.shape(x, name)
    if len(shape) != (3 if layout == "packed" else 4):
        raise ValueError(f"{name} has shape {shape}; accepted: {_DIMENSIONS[layout]}")
    return shape


def _has_eight_bits(q: Any) -> bool:
    dtype = getattr(q, "dtype", None)
    return str(_core.describe(q, "q").dtype if dtype is None else dtype).endswith("float8_e4m3fn")


def _descale(descale: Any, name: str) -> Any:
    if descale is None:
        return None
    if is_real_number(descale):
        return real_number(descale, name)
    return library_of(descale).importable(descale, name)


def _sequences(cu_q: Any, cu_k: Any, max_q: Any, max_k: Any, layout: str) -> dict[str, Any]:
    """What the core is told of sequences; empty where there are none."""
    if cu_q is None and cu_k is None and max_q is None and max_k is None:
        return {}
    if cu_q is None or cu_k is None:
        missing = "cu_seqlens_q" if cu_q is None else "cu_seqlens_k"
        raise TypeError(
            f"{missing} is None; accepted: an array of int32 or int64, where "
            "any of cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k is given"
        )
    if layout != "bhsd":
        raise ValueError(
            f"layout is {layout!r} and cu_seqlens_q is given; accepted: one of them, since q, k "
            "and v are then (rows, heads, size)"
        )
    arrays = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    bounds = {"max_seqlen_q": max_q, "max_seqlen_k": max_k}
    return {name: library_of(x).importable(x, name) for name, x in arrays.items()} | {
        name: n for name, n in bounds.items() if n is not None
    }


def _check_heads(q_heads: int, k_heads: int, enable_gqa: bool) -> None:
    if q_heads == k_heads:
        return
    multiple = k_heads > 0 and q_heads % k_heads == 0
    if enable_gqa and multiple:
        return
    hint = "; with enable_gqa=True k may have fewer" if multiple else ""
    wanted = "a multiple of the heads of k" if enable_gqa else "as many heads as k"
    raise ValueError(f"q has {q_heads} heads and k has {k_heads}; accepted: {wanted}{hint}")


def _masks(block_mask: Any) -> dict[str, Any]:
    """Arguments of the extension."""
    if block_mask is None:
        return {}
    if isinstance(block_mask, BlockSparse) and block_mask.is_fixed:
        block_mask = BlockMask.from_bsr(block_mask)
    if not isinstance(block_mask, BlockMask):
        raise TypeError(
            f"block_mask is {a_kind_of(block_mask)}; accepted: a BlockMask, a bsr_array or "
            "None. BlockMask.from_dense makes one of an array of bool"
        )
    return block_mask.core_arguments()


def _of_shape(out: Any, shape: tuple[int, ...]) -> Any:
    library = library_of(out)
    found = library.shape(out, "out")
    if found != shape:
        raise ValueError(f"out has shape {found}; accepted: {shape}")
    return library.writable(out, "out")


def _softcap(softcap: Any) -> float:
    if softcap is None:
        return 0.0
    value = real_number(softcap, "softcap")
    if not 0.0 < value < math.inf:
        raise ValueError(f"softcap is {value}; accepted: a positive number, or None")
    return value


def _family(backend: Any, q: Any) -> str:
    if backend is None:
        return "auto"
    if backend not in ("auto", "hopper", "decode", "portable", "cpu"):
        raise ValueError(
            f"backend is {backend!r}; accepted: 'hopper', 'decode', 'portable', 'cpu' or None"
        )
    device = _core.describe(q, "q").device
    if backend != "auto" and (backend == "cpu") != (device == "cpu"):
        names = "'cpu'" if device == "cpu" else "'hopper', 'decode', 'portable'"
        raise ValueError(
            f"backend is {backend!r}, but the operands are on {device}; accepted there: {names} or "
            "None"
        )
    return backend
