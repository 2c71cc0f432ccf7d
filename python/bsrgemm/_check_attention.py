"""Attention in ``python -m bsrgemm check``: calls and backends beside float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ._attention import attention
from ._check_cases import HALF, ROUNDOFF, Case, Outcome, Place, _missing, normal
from ._dtypes import ACCEPTED_DTYPES
from ._mask import BlockMask

# What rounding the weights to 4 significant bits costs.
WEIGHTS_ERROR = 2.0**-4

# Row of the table, shape of q (batch, heads, queries, size), heads and length of k, options.
Call = tuple[str, tuple[int, int, int, int], int, int, dict[str, Any]]
CALLS: tuple[Call, ...] = (
    ("attention", (1, 2, 200, 64), 2, 333, {}),
    ("causal, grouped queries", (2, 4, 150, 64), 2, 150, {"is_causal": True}),
    ("window and softcap", (1, 2, 260, 128), 2, 260, {"window": (70, 40), "softcap": 5.0}),
    ("few queries", (2, 8, 1, 128), 2, 700, {}),
)
MASKED: Call = ("block mask", (1, 2, 256, 64), 2, 384, {})
TOP: Call = ("top-k mask", (1, 2, 256, 64), 2, 384, {})
FEW_MASKED: Call = ("few queries, block mask", (2, 8, 1, 128), 2, 1280, {})
FEW_TOP: Call = ("few queries, top-k mask", (2, 8, 1, 128), 2, 1280, {})
PACKED = "packed sequences"
LENGTHS = (70, 1, 130)
BLOCK = (64, 64)


def attention_cases(place: Place) -> Iterator[Case]:
    group = "attention"
    dtypes = ACCEPTED_DTYPES if place.gpu is None else HALF
    for call in (*CALLS, MASKED, TOP, FEW_MASKED, FEW_TOP):
        for dtype in (*dtypes, "float8_e4m3fn"):
            # The GPU's top-k mask and its other masks meet the same 8-bit kernels.
            missing = _missing(place, dtype, hopper=dtype == "float8_e4m3fn")
            run = None if missing else partial(_attend, place, call, dtype)
            yield Case(group, call[0], dtype, run, missing)
    for dtype in dtypes:
        missing = _missing(place, dtype)
        yield Case(
            group, PACKED, dtype, None if missing else partial(_packed, place, dtype), missing
        )
    if place.gpu is None:
        return
    for backend, call in (("hopper", CALLS[0]), ("portable", CALLS[0]), ("decode", CALLS[3])):
        for dtype in (*HALF, *(("float8_e4m3fn",) if backend == "hopper" else ())):
            missing = _missing(place, dtype, hopper=backend == "hopper")
            run = None if missing else partial(_attend, place, call, dtype, backend=backend)
            yield Case("kernel families", f"attention, {backend}", dtype, run, missing)


def _attend(
    place: Place, call: Call, dtype: str, rng: np.random.Generator, backend: str | None = None
) -> Outcome:
    name, q_shape, kv_heads, keys, options = call
    batch, heads, queries, size = q_shape
    q = normal(rng, q_shape, dtype)
    k, v = (normal(rng, (batch, kv_heads, keys, size), dtype) for _ in range(2))
    own = np.arange(queries)[:, None] + keys - queries
    at = np.arange(keys)[None, :]
    seen = np.ones((queries, keys), bool)
    if options.get("is_causal"):
        seen &= at <= own
    if "window" in options:
        before, after = options["window"]
        seen &= (at >= own - before) & (at <= own + after)
    mask = None
    grid = -(-queries // BLOCK[0]), keys // BLOCK[1]
    if call in (MASKED, FEW_MASKED):
        blocks = rng.random(grid) < 0.5
        mask = BlockMask.from_dense(blocks, BLOCK)
    if call in (TOP, FEW_TOP):
        # No two scores are equal, so that there is one answer.
        scores = rng.permutation(grid[0] * grid[1]).reshape(grid).astype(np.float32)
        mask = BlockMask.topk(place.array(scores), 3, BLOCK, queries=queries)
        blocks = scores >= np.sort(scores, axis=1)[:, -3:-2]
    if mask is not None:
        seen &= blocks.repeat(BLOCK[0], axis=0).repeat(BLOCK[1], axis=1)[:queries]
    out = place.poison(q_shape, "bfloat16" if dtype == "float8_e4m3fn" else dtype)
    attention(
        *map(place.array, (q, k, v)), block_mask=mask, enable_gqa=True, out=out, backend=backend,
        **options,
    )  # fmt: skip
    group = heads // kv_heads
    expected = _reference(q, k.repeat(group, 1), v.repeat(group, 1), seen, options.get("softcap"))
    return Outcome(place.host(out), expected, _allowed(dtype))


def _packed(place: Place, dtype: str, rng: np.random.Generator) -> Outcome:
    total, heads, size = sum(LENGTHS), 2, 64
    q, k, v = (normal(rng, (total, heads, size), dtype) for _ in range(3))
    begins = np.cumsum([0, *LENGTHS]).astype(np.int32)
    sequence = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    seen = (sequence[:, None] == sequence[None, :]) & np.tri(total, dtype=bool)
    out = place.poison(q.shape, dtype)
    offsets = place.array(begins)
    attention(
        *map(place.array, (q, k, v)),
        cu_seqlens_q=offsets, cu_seqlens_k=offsets, is_causal=True, out=out,
    )  # fmt: skip
    by_heads = (x.swapaxes(0, 1)[None] for x in (q, k, v))
    expected = _reference(*by_heads, seen, None)[0].swapaxes(0, 1)
    return Outcome(place.host(out), expected, _allowed(dtype))


def _reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, softcap: float | None
) -> np.ndarray:
    """In float64; zeros where a query sees no key."""
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) / math.sqrt(q.shape[3])
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    weights = np.where(seen, np.exp(scores - scores.max(axis=3, keepdims=True)), 0)
    total = weights.sum(axis=3, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v.astype(np.float64)


def _allowed(dtype: str) -> float:
    """Weights and results are rounded to the dtype; scores, below 16, are sums of float32, and the
    error of an exponential is that of its argument."""
    if dtype == "float8_e4m3fn":
        return WEIGHTS_ERROR
    sums = ROUNDOFF["float64" if dtype == "float64" else "float32"]
    return 2.2 * ROUNDOFF[dtype] + 16 * 4 * sums
