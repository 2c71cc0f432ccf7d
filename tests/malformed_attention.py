"""Malformed calls of attention."""

from __future__ import annotations

from typing import Any

import bsrgemm
import numpy as np
from bsrgemm import BlockMask, _core, attention
from malformed_inputs import Bad, x


def call(q: Any = None, k: Any = None, v: Any = None, **options: Any) -> Any:
    """A call that is right but for what is replaced: 2 batches, 4 heads, 6 queries, 8 keys."""
    q = x(2, 4, 6, 16) if q is None else q
    k = x(2, 4, 8, 16) if k is None else k
    return attention(q, k, x(2, 4, 8, 5) if v is None else v, **options)


def read_only() -> np.ndarray:
    out = x(2, 4, 6, 5)
    out.flags.writeable = False
    return out


def inside_q() -> Any:
    q = x(2, 4, 6, 16)
    return call(q, out=q[..., :5])


def core(**changes: Any) -> Any:
    arguments = {"q": x(1, 2, 3, 4), "k": x(1, 2, 5, 4), "v": x(1, 2, 5, 4), "out": x(1, 2, 3, 4)}
    return _core.attention(**(arguments | changes))


def packed(**changes: Any) -> Any:
    """Two sequences of 4 and 6 queries and as many keys, but for what is replaced."""
    rows, offsets = x(10, 4, 8), np.array([0, 4, 10], np.int32)
    given = {"q": rows, "k": rows, "v": rows, "cu_seqlens_q": offsets, "cu_seqlens_k": offsets}
    return attention(**(given | changes))


BSR = bsrgemm.bsr_array(np.ones((8, 8), np.float32), blocksize=(4, 4))
STRUCTURE = BSR._structure

CALLS = (
    Bad(
        "q is a list",
        lambda: call([[1.0]]),
        TypeError,
        ("q is of type list, but must be an array",),
    ),
    Bad("q is a bsr_array", lambda: call(BSR), TypeError, ("q is a bsr_array; accepted: a dense",)),
    Bad(
        "q of three dimensions", lambda: call(x(4, 6, 16)), ValueError, ("q has shape (4, 6, 16)",)
    ),
    Bad("k of two", lambda: call(k=x(8, 16)), ValueError, ("k has shape (8, 16); accepted: four",)),
    Bad(
        "integers", lambda: call(x(2, 4, 6, 16, dtype=int)), TypeError, ("q has dtype int64, but",)
    ),
    Bad(
        "k of another dtype",
        lambda: call(k=x(2, 4, 8, 16, dtype=np.float64)),
        TypeError,
        ("k has dtype float64, but q has dtype float32",),
    ),
    Bad(
        "k of another size", lambda: call(k=x(2, 4, 8, 15)), ValueError, ("one batch and one size",)
    ),
    Bad(
        "k of another batch",
        lambda: call(k=x(1, 4, 8, 16)),
        ValueError,
        ("one batch and one size",),
    ),
    Bad("v of other keys", lambda: call(v=x(2, 4, 7, 5)), ValueError, ("one of keys",)),
    Bad(
        "size zero",
        lambda: call(x(2, 4, 6, 0), x(2, 4, 8, 0)),
        ValueError,
        ("the size must be at least 1",),
    ),
    Bad(
        "fewer heads",
        lambda: call(k=x(2, 2, 8, 16), v=x(2, 2, 8, 5)),
        ValueError,
        ("q has 4 heads and k has 2; accepted: as many heads as k; with enable_gqa=True",),
    ),
    Bad(
        "heads that do not divide",
        lambda: call(k=x(2, 3, 8, 16), v=x(2, 3, 8, 5), enable_gqa=True),
        ValueError,
        ("q has 4 heads and k has 3; accepted: a multiple of the heads of k",),
    ),
    Bad("layout", lambda: call(layout="bdsh"), ValueError, ("layout is 'bdsh'; accepted: 'bhsd'",)),
    Bad("layout no string", lambda: call(layout=3), ValueError, ("layout is 3",)),
    Bad("scale", lambda: call(scale="1"), TypeError, ("scale is a str; accepted: a real number",)),
    Bad("infinite scale", lambda: call(scale=float("inf")), ValueError, ("scale is inf",)),
    Bad(
        "scale beyond float32",
        lambda: call(scale=-1e39),
        ValueError,
        ("scale is -1e+39, but must be from -3.40282e+38 to 3.40282e+38 where q has dtype float",),
    ),
    Bad(
        "softcap of zero",
        lambda: call(softcap=0),
        ValueError,
        ("softcap is 0.0; accepted: a positive",),
    ),
    Bad("negative softcap", lambda: call(softcap=-2), ValueError, ("softcap is -2.0",)),
    Bad("softcap nan", lambda: call(softcap=float("nan")), ValueError, ("softcap is nan",)),
    Bad(
        "softcap beyond float32",
        lambda: call(softcap=1e39),
        ValueError,
        ("softcap is 1e+39, but must be from 1.4013e-45 to 3.40282e+38 where q has dtype float",),
    ),
    Bad("window", lambda: call(window=5), TypeError, ("window is 5; accepted: a pair",)),
    Bad("window below -1", lambda: call(window=(-2, 0)), ValueError, ("window is (-2, 0)",)),
    Bad("alignment", lambda: call(causal_alignment="x"), ValueError, ("causal_alignment is 'x'",)),
    Bad(
        "backend",
        lambda: call(backend="cuda"),
        ValueError,
        ("backend is 'cuda'; accepted: 'hopper'",),
    ),
    Bad("backend of a GPU", lambda: call(backend="portable"), ValueError, ("operands are on cpu",)),
    Bad("stream", lambda: call(stream="s"), TypeError, ("stream is a str; accepted",)),
    Bad(
        "mask of a wrong kind",
        lambda: call(block_mask=np.ones((2, 2), bool)),
        TypeError,
        ("block_mask is an ndarray; accepted: a BlockMask, a bsr_array or None",),
    ),
    Bad(
        "mask of a pattern that changes",
        lambda: call(block_mask=bsrgemm.DynamicPattern((6, 8), (2, 2), 1, "cpu").array(x(1, 2, 2))),
        TypeError,
        ("block_mask is a DynamicArray; accepted: a BlockMask, a bsr_array or None",),
    ),
    Bad(
        "mask of other lengths",
        lambda: call(block_mask=BlockMask.from_dense([[True]], (4, 4))),
        ValueError,
        (
            "block_mask has (1, 1) blocks of (4, 4), but 6 queries and 8 keys",
            " (2, 2)",
        ),
    ),
    Bad(
        "mask of other heads",
        lambda: call(block_mask=BlockMask.from_dense(np.ones((1, 3, 2, 2), bool), (4, 4))),
        ValueError,
        ("leading dimensions (1, 3), but must have (1 or 2, 1 or 4)",),
    ),
    Bad(
        "mask of other heads than k and q",
        lambda: call(
            k=x(2, 2, 8, 16),
            v=x(2, 2, 8, 5),
            enable_gqa=True,
            block_mask=BlockMask.from_dense(np.ones((1, 3, 2, 2), bool), (4, 4)),
        ),
        ValueError,
        ("leading dimensions (1, 3), but must have (1 or 2, 1 or 2 or 4), the batch of q and the",),
    ),
    Bad("out of another shape", lambda: call(out=x(2, 4, 6, 6)), ValueError, ("out has shape",)),
    Bad(
        "out of another dtype",
        lambda: call(out=x(2, 4, 6, 5, dtype=np.float16)),
        TypeError,
        ("out has dtype float16",),
    ),
    Bad("out is read-only", lambda: call(out=read_only()), ValueError, ("out is read-only",)),
    Bad("out in q", inside_q, ValueError, ("out overlaps q in memory",)),
    Bad(
        "out repeats itself",
        lambda: call(out=np.lib.stride_tricks.as_strided(x(5), (2, 4, 6, 5), (0, 0, 0, 4))),
        ValueError,
        ("which may put several elements at one address",),
    ),
    Bad(
        "one of two offsets",
        lambda: packed(cu_seqlens_k=None),
        TypeError,
        ("cu_seqlens_k is None", "accepted: an array"),
    ),
    Bad(
        "offsets of floats",
        lambda: packed(cu_seqlens_q=np.array([0.0, 6.0, 10.0])),
        TypeError,
        ("cu_seqlens_q has dtype float64", "int32 or int64"),
    ),
    Bad(
        "offsets with strides",
        lambda: packed(cu_seqlens_k=np.array([0, 0, 6, 0, 10])[::2]),
        ValueError,
        ("cu_seqlens_k has strides of 2 elements", "C-contiguous"),
    ),
    Bad(
        "offsets of another number",
        lambda: packed(cu_seqlens_k=np.array([0, 10])),
        ValueError,
        ("cu_seqlens_k has shape (2,)", "(3,)"),
    ),
    Bad(
        "descending offsets",
        lambda: packed(cu_seqlens_q=np.array([0, 6, 4])),
        ValueError,
        ("cu_seqlens_q[2] is 4", "from 6"),
    ),
    Bad(
        "offsets beyond the rows",
        lambda: packed(cu_seqlens_k=np.array([0, 6, 11])),
        ValueError,
        ("cu_seqlens_k[2] is 11", "to 10"),
    ),
    Bad(
        "longer than the bound",
        lambda: packed(max_seqlen_q=5),
        ValueError,
        ("max_seqlen_q is 5", "sequence 1 has 6 rows"),
    ),
    Bad(
        "sequences and a mask",
        lambda: packed(block_mask=BlockMask.from_dense([[True]], (16, 16))),
        ValueError,
        ("block_mask and cu_seqlens_q are both given",),
    ),
    Bad(
        "factor without 8 bits",
        lambda: call(q_descale=2.0),
        TypeError,
        ("q_descale is given", "q has dtype float32"),
    ),
)

CORE = (
    Bad("lse shape", lambda: core(lse=x(1, 2, 4)), ValueError, ("must have dtype float32 and",)),
    Bad(
        "lse dtype",
        lambda: core(lse=x(1, 2, 3, dtype=np.float64)),
        ValueError,
        ("lse has dtype float64",),
    ),
    Bad("masks no tuple", lambda: core(masks=[STRUCTURE]), TypeError, ("masks is",)),
    Bad("masks without shape", lambda: core(masks=(STRUCTURE,)), TypeError, ("beside mask_shape",)),
    Bad(
        "mask count",
        lambda: core(masks=(STRUCTURE,), mask_shape=(1, 2)),
        ValueError,
        ("mask_shape is (1, 2), but masks has 1 entries",),
    ),
    Bad(
        "mask type",
        lambda: core(masks=(3,), mask_shape=(1, 1)),
        TypeError,
        ("masks[0] is 3, but must be a Structure",),
    ),
    Bad("layout", lambda: core(layout=b"bhsd"), TypeError, ("layout is b'bhsd'",)),
    Bad("left", lambda: core(left=1.5), TypeError, ("left is 1.5, but must be an integer",)),
    Bad("diagonal", lambda: core(diagonal=2**70), ValueError, ("fits in 64 bits",)),
    Bad("family", lambda: core(family="tall"), ValueError, ("attention has 'auto', 'hopper'",)),
    Bad("missing", lambda: _core.attention(x(1)), TypeError, ("missing the argument 'k'",)),
)

TABLES = {"attention": CALLS, "_core.attention": CORE}
