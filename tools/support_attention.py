"""Of docs/support.md the calls of attention."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import bsrgemm
import numpy as np
from support_rows import LAYOUTS, Operands, Row


def _attention(
    o: Operands,
    length: int | None = None,
    queries: int | None = None,
    size: int = 64,
    value_size: int | None = None,
    heads: tuple[int, int] = (4, 4),
    placed: str = "row-major",
    mask: str | None = None,
    block: int = 64,
    descale: str | None = None,
    **options: Any,
) -> None:
    """``length``: of the keys, and of the queries unless these are others."""
    keys = length or (2 * block if o.device == "cpu" else 1024)
    queries = queries or keys
    q = o.dense((1, heads[0], queries, size), placed)
    k = o.dense((1, heads[1], keys, size), placed)
    v = o.dense((1, heads[1], keys, value_size or size), placed)
    if options.get("layout") == "bshd":
        q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    if mask is not None:
        options["block_mask"] = _mask(mask, queries, keys, heads, block)
    if descale == "numbers":
        options |= dict.fromkeys(("q_descale", "k_descale", "v_descale"), 0.5)
    elif descale == "arrays":
        factors = o.dense((1, heads[1]), dtype="float32")
        options |= dict.fromkeys(("q_descale", "k_descale", "v_descale"), factors)
    bsrgemm.attention(q, k, v, **options)


def _mask(kind: str, queries: int, keys: int, heads: tuple[int, int], block: int) -> Any:
    """``heads``: of q and k."""
    shape = (-(-queries // block), -(-keys // block))
    if kind in ("heads", "key heads"):
        count = heads[kind == "key heads"]
        return bsrgemm.BlockMask.from_dense(np.ones((1, count, *shape), bool), (block, block))
    if kind in ("topk", "topk of key heads"):
        lead = () if kind == "topk" else (1, heads[1])
        scores = np.zeros((*lead, *shape), np.float32)
        return bsrgemm.BlockMask.topk(scores, 2, (block, block))
    if kind == "bsr":
        data = np.zeros((shape[0] * shape[1], block, block), np.float32)
        indices = np.tile(np.arange(shape[1]), shape[0])
        indptr = np.arange(shape[0] + 1) * shape[1]
        return bsrgemm.bsr_array((data, indices, indptr), (queries, keys))
    return bsrgemm.BlockMask.from_dense(np.ones(shape, bool), (block, block))


def _packed(o: Operands, **options: Any) -> None:
    rows = 64 if o.device == "cpu" else 1024
    q, k, v = (o.dense((rows, 4, 64)) for _ in range(3))
    offsets = np.array([0, rows // 4, rows], np.int32)
    bsrgemm.attention(q, k, v, cu_seqlens_q=offsets, cu_seqlens_k=offsets, **options)


def _packed_masked(o: Operands) -> None:
    rows = 128 if o.device == "cpu" else 1024
    _packed(o, block_mask=_mask("shared", rows, rows, (4, 4), 64))


def attentions() -> Iterator[Row]:
    for layout in LAYOUTS:
        yield Row(f"rows of q, k and v {layout}", partial(_attention, placed=layout))
    grouped: dict[str, Any] = {"enable_gqa": True, "heads": (8, 4)}
    calls: dict[str, dict[str, Any]] = {
        '`layout="bshd"`': {"layout": "bshd"},
        "`is_causal`": {"is_causal": True},
        "`window`": {"window": (30, 20)},
        "`softcap`": {"softcap": 20.0},
        "`softcap` of 10⁵": {"softcap": 1e5},
        "`scale`": {"scale": 0.5},
        "`enable_gqa`, 8 heads of q": grouped,
        "`return_lse`": {"return_lse": True},
        "`block_mask` of 64 × 64": {"mask": "shared"},
        "`block_mask` of 16 × 16": {"mask": "shared", "block": 16},
        "`block_mask` of 20 × 20": {"mask": "shared", "block": 20, "length": 100},
        "`block_mask` for each head": {"mask": "heads"},
        "`block_mask` for each head of k": {"mask": "key heads", **grouped},
        "`block_mask`, a bsr_array": {"mask": "bsr"},
        "`BlockMask.topk`": {"mask": "topk"},
        "`BlockMask.topk` for each head of k": {"mask": "topk of key heads", **grouped},
        "1 query, 4096 keys": {"queries": 1, "length": 4096},
        "1 query, 4096 keys, `block_mask`": {"queries": 1, "length": 4096, "mask": "shared"},
        "1 query, 4096 keys, `BlockMask.topk`": {"queries": 1, "length": 4096, "mask": "topk"},
        "16 queries, `block_mask` for each head": {"queries": 16, "length": 4096, "mask": "heads"},
        "size 128, of values 64": {"size": 128, "value_size": 64},
        "size 80": {"size": 80},
        "size 72": {"size": 72},
        "size 33": {"size": 33},
        "size 256": {"size": 256},
        "size 320": {"size": 320},
        "`q_descale`, ..., numbers": {"descale": "numbers"},
        "`q_descale`, ..., arrays": {"descale": "arrays"},
        '`backend="hopper"`': {"backend": "hopper"},
        '`backend="decode"`': {"backend": "decode"},
        '`backend="portable"`': {"backend": "portable"},
        '`backend="cpu"`': {"backend": "cpu"},
    }
    for label, options in calls.items():
        yield Row(label, partial(_attention, **options))
    yield Row("`cu_seqlens_q`, `cu_seqlens_k`", _packed)
    yield Row("`cu_seqlens_q`, `is_causal`", partial(_packed, is_causal=True))
    yield Row("`cu_seqlens_q`, `block_mask`", _packed_masked)
