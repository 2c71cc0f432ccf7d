"""Attention as numbered cases: operands, the float64 reference, and the error that is allowed."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import bsrgemm
import numpy as np
from cases import FLOOR, ROUNDOFF, normal, numpy_dtype
from spaces import Space, Torch


class Case(NamedTuple):
    """A call of attention. ``blocks`` are truth values (batch or 1; 1, ``kv_heads`` or
    ``heads``; rows, columns)."""

    queries: int
    keys: int
    size: int = 64
    value_size: int | None = None  # that of keys
    batch: int = 1
    heads: int = 2
    kv_heads: int | None = None  # heads
    causal: bool = False
    alignment: str = "bottom_right"
    window: tuple[int, int] | None = None
    softcap: float | None = None
    scale: float | None = None
    block_shape: tuple[int, int] | None = None
    blocks: np.ndarray | None = None
    placed: str = "plain"
    spread: float = 1.0  # factor of q and k

    @property
    def q_shape(self) -> tuple[int, ...]:
        return self.batch, self.heads, self.queries, self.size

    @property
    def k_shape(self) -> tuple[int, ...]:
        return self.batch, self.kv_heads or self.heads, self.keys, self.size

    @property
    def v_shape(self) -> tuple[int, ...]:
        return (*self.k_shape[:3], self.value_size or self.size)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (*self.q_shape[:3], self.v_shape[3])


def masked(
    rng: np.random.Generator,
    case: Case,
    block_shape: tuple[int, int],
    density: float = 0.4,
    lead: tuple[int, int] = (1, 1),
    empty: bool = True,
) -> Case:
    """``case`` with random blocks; where ``empty``, every third block row has none."""
    rows, cols = -(-case.queries // block_shape[0]), -(-case.keys // block_shape[1])
    blocks = rng.random((*lead, rows, cols)) < density
    if empty:
        blocks[:, :, 1::3] = False
    return case._replace(block_shape=block_shape, blocks=blocks)


# ---- reference ----------------------------------------------------------------------------------


def allowed(case: Case) -> np.ndarray:
    """Which query sees which key: (batch, heads, queries, keys)."""
    i = np.arange(case.queries)[:, None]
    j = np.arange(case.keys)[None, :]
    own = i + (case.keys - case.queries if case.alignment == "bottom_right" else 0)
    seen = np.ones((case.queries, case.keys), bool)
    left, right = case.window or (-1, -1)
    if left >= 0:
        seen &= j >= own - left
    if right >= 0 and not case.causal:
        seen &= j <= own + right
    if case.causal:
        seen &= j <= own
    seen = np.broadcast_to(seen, (case.batch, case.heads, case.queries, case.keys))
    if case.blocks is None:
        return seen
    height, width = case.block_shape
    blocks = case.blocks.repeat(case.heads // case.blocks.shape[1], axis=1)
    elements = blocks.repeat(height, axis=2).repeat(width, axis=3)
    return seen & elements[:, :, : case.queries, : case.keys]


class Reference(NamedTuple):
    out: np.ndarray
    lse: np.ndarray
    largest: float  # of all scores before the cap, and the cap
    size: float  # what errors are relative to: the norm of out if nothing in v cancelled
    terms: float  # the largest score if nothing in q and k cancelled


def reference(case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Reference:
    group = case.heads // (case.kv_heads or case.heads)
    k, v = (x.astype(np.float64).repeat(group, axis=1) for x in (k, v))
    scale = 1 / math.sqrt(case.size) if case.scale is None else case.scale
    scores = scale * (q.astype(np.float64) @ k.swapaxes(2, 3))
    largest = max(float(np.abs(scores).max(initial=0)), case.softcap or 0.0)
    magnitudes = np.abs(scale * q.astype(np.float64)) @ np.abs(k).swapaxes(2, 3)
    terms = float(magnitudes.max(initial=0))
    if case.softcap is not None:
        scores = case.softcap * np.tanh(scores / case.softcap)
    scores = np.where(allowed(case), scores, -np.inf)
    top = scores.max(axis=3, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(scores - top)
    total = weights.sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    weights /= np.where(total == 0, 1, total)
    size = float(np.linalg.norm(weights @ np.abs(v)))
    return Reference(weights @ v, lse, largest, size, terms)


def torch_result(case: Case, space: Space, arrays: list[Any]) -> np.ndarray | None:
    """What torch computes of the same operands in the same precision, where it can.

    On the CPU: its kernels for GPUs give NaN for scales up to zero, and break under racecheck.
    """
    work = case.batch * case.heads * case.queries * case.keys * case.size
    if not isinstance(space, Torch) or case.softcap is not None or not 0 < work < 2**28:
        return None
    import torch

    group = case.heads // (case.kv_heads or case.heads)
    q, k, v = (x.cpu() for x in arrays)
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    seen = allowed(case)
    mask = None if seen.all() else torch.from_numpy(seen.copy())
    function = torch.nn.functional.scaled_dot_product_attention
    found = function(q, k, v, attn_mask=mask, scale=case.scale).double().numpy()
    return np.where(seen.any(axis=3)[..., None], found, 0)


def relative_error(found: np.ndarray, expected: Reference) -> float:
    error = float(np.linalg.norm(found.astype(np.float64) - expected.out))
    return error / expected.size if expected.size else (0.0 if error == 0 else math.inf)


# ---- where operands lie -------------------------------------------------------------------------


class Placed(NamedTuple):
    memory: Any  # to see writes outside the view
    view: Any


def place(space: Space, x: np.ndarray, how: str) -> Placed:
    """``x`` (batch, heads, rows, size) as an array of the library, surrounded by NaN."""
    if how == "bshd":
        memory = space.array(np.ascontiguousarray(x.transpose(0, 2, 1, 3)))
        return Placed(memory, memory)
    if how == "plain":
        memory = space.array(x)
        return Placed(memory, memory)
    batch, heads, rows, size = x.shape
    if how == "packed":  # as the middle of three in (batch, rows, 3, heads, size)
        memory = np.full((batch, rows, 3, heads, size), np.nan, x.dtype)
        memory[:, :, 1] = x.transpose(0, 2, 1, 3)
        memory = space.array(memory)
        view = memory[:, :, 1]
        return Placed(memory, view.swapaxes(1, 2))
    if how == "transposed":  # rows are the contiguous dimension
        memory = np.full((batch, heads, size + 1, rows + 3), np.nan, x.dtype)
        memory[:, :, :size, 2 : rows + 2] = x.swapaxes(2, 3)
        memory = space.array(memory)
        return Placed(memory, memory[:, :, :size, 2 : rows + 2].swapaxes(2, 3))
    assert how == "odd"  # no row is aligned, and elements are two apart
    memory = np.full((batch, heads, rows + 1, 2 * size + 3), np.nan, x.dtype)
    memory[:, :, 1:, 1 : 2 * size + 1 : 2] = x
    memory = space.array(memory)
    return Placed(memory, memory[:, :, 1:, 1 : 2 * size + 1 : 2])


# ---- check --------------------------------------------------------------------------------------


def operands(rng: np.random.Generator, case: Case, dtype: str) -> list[np.ndarray]:
    q, k, v = (normal(rng, shape, dtype) for shape in (case.q_shape, case.k_shape, case.v_shape))
    factor = np.array(case.spread, q.dtype)
    return [q * factor, k * factor, v]


def call(case: Case, arrays: list[Any], *, mask: Any = None, **options: Any) -> Any:
    """``mask``: another object for the case's blocks."""
    if case.blocks is not None and mask is None:
        mask = bsrgemm.BlockMask.from_dense(case.blocks, case.block_shape)
    return bsrgemm.attention(
        *arrays,
        block_mask=mask,
        is_causal=case.causal,
        scale=case.scale,
        enable_gqa=case.kv_heads is not None,
        layout="bshd" if case.placed == "bshd" else "bhsd",
        window=case.window,
        softcap=case.softcap,
        causal_alignment=case.alignment,
        **options,
    )


def torch_error(
    case: Case, space: Space, arrays: list[np.ndarray], expected: Reference
) -> float | None:
    """What torch loses, where it can compute it. Of few queries, or of large scores, where few rows
    have more than one weight, that is a matter of luck: the most that it loses with the elements
    of heads in several orders, which score the same."""
    q, k, v = arrays
    rows = case.batch * case.heads * case.queries
    errors = []
    for seed in range(1 if rows >= 64 and case.spread < 16 else 16):
        order = np.random.default_rng(seed).permutation(case.size) if seed else slice(None)
        plain = [space.array(x) for x in (q[..., order], k[..., order], v)]
        same = torch_result(case, space, plain)
        if same is None:
            return None
        errors.append(relative_error(same, expected))
    return max(errors)


def tolerance(dtype: str, expected: Reference, lost: float | None) -> float:
    """Of the whole result: twice what torch loses, or what the largest score's rounding costs."""
    least = FLOOR[dtype] * ROUNDOFF[dtype]
    if lost is not None and dtype != "float64":  # to which the reference itself is no exact result
        return max(2 * lost, least)
    accumulated = ROUNDOFF["float64" if dtype == "float64" else "float32"]
    return 2 * least + 4 * accumulated * expected.largest


def lse_error(
    found: np.ndarray, sums: np.ndarray, expected: Reference, what: str
) -> tuple[float, float]:
    """How far the sums are off, and the size of what was rounded for them: a score is rounded as
    often as it has terms, however small it is in the end. Queries that see nothing are checked."""
    seen = np.isfinite(expected.lse)
    assert not found[~seen].any(), f"{what}: queries that see nothing are not zero"
    assert np.array_equal(sums == -np.inf, ~seen), f"{what}: lse of queries that see nothing"
    size = max(expected.largest, expected.terms, np.abs(expected.lse[seen]).max(initial=1.0))
    return float(np.abs(sums[seen] - expected.lse[seen]).max(initial=0.0)), float(size)


def check(
    space: Space,
    case: Case,
    dtype: str,
    rng: np.random.Generator,
    arrays: list[np.ndarray] | None = None,
    **options: Any,
) -> None:
    """Into poisoned memory: the result, its lse, and that nothing around was written."""
    q, k, v = operands(rng, case, dtype) if arrays is None else arrays
    expected = reference(case, q, k, v)
    placed = [place(space, x, case.placed) for x in (q, k, v)]
    poison = np.full(case.out_shape, np.nan, q.dtype)
    out = place(space, poison, case.placed)
    given = [p.view for p in placed]
    result, lse = call(case, given, out=out.view, return_lse=True, **options)
    assert result is out.view
    found = space.host(out.view)
    if case.placed == "bshd":
        found = found.transpose(0, 2, 1, 3)
    found = found.astype(np.float64)
    what = f"{case._replace(blocks=None)} {dtype} {space!r} {options}"
    assert not np.isnan(found).any(), f"{what}: not all of out was written, or NaN"
    around = np.isnan(space.host(out.memory).astype(np.float64)).sum()
    size = int(np.prod(space.host(out.memory).shape))
    assert around == size - found.size, f"{what}: something outside out was written to"

    limit = tolerance(dtype, expected, torch_error(case, space, [q, k, v], expected))
    error = relative_error(found, expected)
    assert error <= limit, f"{what}: relative error {error:.3e}, allowed {limit:.3e}"

    sums = space.host(lse).astype(np.float64)
    assert sums.shape == case.q_shape[:3]
    far, scores = lse_error(found, sums, expected, what)
    assert far <= 16 * ROUNDOFF["float32"] * scores, f"{what}: lse is off by {far:.3e}"


# ---- the table ----------------------------------------------------------------------------------

SIZES = (1, 2, 7, 8, 16, 31, 32, 33, 40, 64, 72, 80, 96, 100, 128, 160, 192, 250, 256)

PLAIN = {
    "square": Case(130, 130, batch=2, heads=3),
    "one query": Case(1, 300, batch=2),
    "one key": Case(70, 1),
    "one of each": Case(1, 1, size=1, heads=1),
    "long": Case(65, 1000, size=128),
    "value size below": Case(100, 90, size=128, value_size=40),
    "value size above": Case(100, 90, size=24, value_size=100),
    "causal": Case(200, 200, causal=True),
    "causal, more keys": Case(70, 200, causal=True),
    "causal, more queries": Case(200, 70, causal=True),
    "top left": Case(200, 200, causal=True, alignment="top_left"),
    "top left, more keys": Case(70, 200, causal=True, alignment="top_left"),
    "top left, more queries": Case(200, 70, causal=True, alignment="top_left"),
    "window": Case(150, 170, window=(20, 10)),
    "window, top left": Case(150, 170, window=(20, 10), alignment="top_left"),
    "window of one": Case(150, 150, window=(0, 0)),
    "window to the left": Case(150, 130, window=(33, -1)),
    "window to the right": Case(150, 130, window=(-1, 33)),
    "causal window": Case(300, 300, window=(70, 5), causal=True),
    "window of nothing": Case(100, 20, window=(3, 3)),
    "softcap": Case(120, 130, softcap=2.0, spread=2.0),
    "causal softcap": Case(120, 130, softcap=30.0, causal=True, spread=4.0),
    "scale": Case(90, 100, scale=0.01),
    "negative scale": Case(90, 100, scale=-0.3),
    "zero scale": Case(90, 100, scale=0.0),
    "two heads a head": Case(90, 100, heads=8, kv_heads=4),
    "one head for all": Case(90, 100, batch=2, heads=6, kv_heads=1, causal=True),
    "bshd": Case(130, 140, batch=2, heads=3, placed="bshd", causal=True),
    "packed": Case(130, 130, batch=2, heads=3, placed="packed"),
    "packed, odd size": Case(70, 75, size=33, placed="packed"),
    "transposed": Case(100, 110, batch=2, placed="transposed"),
    "odd": Case(100, 110, size=48, batch=2, heads=4, kv_heads=2, placed="odd", causal=True),
    "no keys": Case(50, 0),
}

# Windows that end at, just before and just after the edges of the tiles of any kernel.
EDGES = tuple(
    Case(200, 200, size=size, window=window)
    for size in (16, 128)
    for bound in (*range(61, 67), *range(125, 131))
    for window in ((bound, -1), (-1, bound))
)


def check_queries_without_keys(space: Space, dtype: str, backend: str | None = None) -> None:
    """Their rows are zeros, whatever lies in those of v that they do not see."""
    rng = np.random.default_rng(0)
    for case in (Case(3, 2, size=64, causal=True), Case(20, 15, size=64, causal=True)):
        arrays = operands(rng, case, dtype)
        arrays[2][:] = np.nan
        given = [space.array(x) for x in arrays]
        out, lse = call(case, given, return_lse=True, backend=backend)
        out, lse = (space.host(x).astype(np.float64) for x in (out, lse))
        hidden = case.queries - case.keys
        assert (out[..., :hidden, :] == 0).all() and np.isneginf(lse[..., :hidden]).all()
        assert np.isnan(out[..., hidden:, :]).all() and np.isfinite(lse[..., hidden:]).all()


def check_no_keys(space: Space, dtype: str, rng: np.random.Generator) -> None:
    """Zeros and -inf, whatever lies in ``q`` and in the memory of the result."""
    for queries, size, value_size in ((3, 64, 64), (150, 64, 24), (20, 20, 33)):
        shapes = (2, 4, queries, size), (2, 2, 0, size), (2, 2, 0, value_size)
        q, k, v = (space.array(normal(rng, shape, dtype)) for shape in shapes)
        mask = bsrgemm.BlockMask.from_dense(np.zeros((-(-queries // 5), 0), bool), (5, 7))
        for options in (
            {},
            {"is_causal": True, "softcap": 3.0},
            {"scale": 0},
            {"block_mask": mask},
        ):
            out, lse = bsrgemm.attention(q, k, v, enable_gqa=True, return_lse=True, **options)
            out, lse = (space.host(x).astype(np.float64) for x in (out, lse))
            assert out.shape == (2, 4, queries, value_size) and (out == 0).all(), options
            assert np.isneginf(lse).all(), options
    q, k = (space.array(normal(rng, (n, 2, 64), dtype)) for n in (150, 0))
    ends, no_ends = (space.array(np.int32([0, n, n])) for n in (150, 0))
    out, lse = bsrgemm.attention(q, k, k, cu_seqlens_q=ends, cu_seqlens_k=no_ends, return_lse=True)
    assert (space.host(out).astype(np.float64) == 0).all() and np.isneginf(space.host(lse)).all()


def check_largest_scales(space: Space, dtype: str, backend: str | None = None) -> None:
    """A score of 0 stays 0, so that all keys weigh the same."""
    rng = np.random.default_rng(0)
    largest = float(np.finfo(np.float32).max)
    for queries in (2, 70):
        q, k = (np.zeros((1, 2, n, 64), numpy_dtype(dtype)) for n in (queries, 40))
        v = normal(rng, (1, 2, 40, 64), dtype)
        expected = v.astype(np.float64).mean(axis=2, keepdims=True).repeat(queries, axis=2)
        for scale in (largest, -largest):
            given = (space.array(x) for x in (q, k, v))
            found = space.host(bsrgemm.attention(*given, scale=scale, backend=backend))
            assert np.abs(found.astype(np.float64) - expected).max() <= 0.01, scale


def check_far_scores(
    space: Space, case: Case, dtype: str, rng: np.random.Generator, **options: Any
) -> None:
    """Scores of up to 768 times the scale that every type has, of which every query sees the
    largest a few times, and those that are less weigh nothing: results are means of values."""
    q, k, v = operands(rng, case, dtype)
    q[:], k[:] = 0, 0
    q[..., 0] = rng.choice([-16, -8, 0.125, 8, 16], q.shape[:3]).astype(q.dtype)
    k[..., 0] = rng.choice([-48, -44, -3, 3, 44, 48], k.shape[:3]).astype(k.dtype)
    _check_exact_scores(space, case, dtype, [q, k, v], **options)


def check_far_and_close_scores(
    space: Space, case: Case, dtype: str, rng: np.random.Generator, **options: Any
) -> None:
    """Scores of 2^19 times 24, and 0 to 3 more by quarters of the keys, so that parts of them count
    by what float32 hardly has."""
    q, k, v = operands(rng, case, dtype)
    quarter = np.arange(case.keys) * 4 // max(case.keys, 1)
    q[:], k[:] = 0, 0
    q[..., 0], k[..., 0], q[..., 1] = 16, 1.5, 1
    k[..., 1] = (quarter * 2.0**-19).astype(k.dtype)
    v = (v.astype(np.float32) + quarter[:, None]).astype(v.dtype)
    _check_exact_scores(space, case._replace(scale=2.0**19), dtype, [q, k, v], **options)


def _check_exact_scores(
    space: Space, case: Case, dtype: str, arrays: list[np.ndarray], **options: Any
) -> None:
    q, k, v = arrays
    expected = reference(case, q, k, v.astype(np.float64))
    given = [space.array(x) for x in arrays]
    out, lse = (space.host(x) for x in call(case, given, return_lse=True, **options))
    what = f"{case._replace(blocks=None)} {dtype} {space!r} {options}"
    of_result = "bfloat16" if dtype.startswith("float8") else dtype
    error, limit = relative_error(out, expected), 2 * FLOOR[of_result] * ROUNDOFF[of_result]
    assert error <= limit, f"{what}: relative error {error:.3e}, allowed {limit:.3e}"
    far, scores = lse_error(out, lse.astype(np.float64), expected, what)
    assert far <= 4 * ROUNDOFF["float32"] * scores, f"{what}: lse is off by {far:.3e}"


def masks(rng: np.random.Generator) -> dict[str, Case]:
    return {
        "16": masked(rng, Case(200, 230), (16, 16)),
        "32": masked(rng, Case(200, 230, batch=2), (32, 32), lead=(2, 2)),
        "64": masked(rng, Case(400, 450), (64, 64), lead=(1, 2)),
        "128": masked(rng, Case(700, 650, batch=2, heads=1), (128, 128), lead=(2, 1)),
        "256": masked(rng, Case(800, 900), (256, 256)),
        "16 x 64": masked(rng, Case(150, 300), (16, 64)),
        "128 x 32": masked(rng, Case(400, 310), (128, 32)),
        "48 x 24": masked(rng, Case(300, 250, size=40), (48, 24)),
        "odd": masked(rng, Case(100, 90), (7, 5)),
        "single": masked(rng, Case(40, 50), (1, 1), density=0.2),
        "larger than all": masked(rng, Case(40, 50), (512, 512), density=1.1),
        "sparse": masked(rng, Case(1000, 1100), (32, 32), density=0.03),
        "full": masked(rng, Case(300, 320), (64, 64), density=1.1, empty=False),
        "none": masked(rng, Case(300, 320), (64, 64), density=0.0),
        "causal": masked(rng, Case(300, 320, causal=True), (64, 64), lead=(1, 2)),
        "causal 128": masked(rng, Case(512, 512, causal=True, size=128), (128, 128)),
        "window": masked(rng, Case(300, 280, window=(50, 30)), (32, 64)),
        "shared heads": masked(
            rng, Case(260, 260, batch=2, heads=4, kv_heads=2), (64, 64), lead=(2, 4)
        ),
        "for each head of k": masked(
            rng, Case(260, 260, batch=2, heads=6, kv_heads=3, causal=True), (64, 64), lead=(2, 3)
        ),
        "for each head of k, shared": masked(
            rng, Case(260, 300, batch=2, heads=8, kv_heads=2), (128, 128), lead=(1, 2)
        ),
        "bshd": masked(rng, Case(260, 200, placed="bshd"), (64, 64)),
        "softcap": masked(rng, Case(200, 200, softcap=3.0, spread=2.0), (64, 16)),
    }


def few(rng: np.random.Generator) -> list[Case]:
    """So few queries, or so few in the last panel, that the CPU has another way for them."""
    found = []
    for queries in (1, 2, 3, 4, 5):
        for i, size in enumerate(SIZES):
            found.append(Case(queries, 61 + 7 * i, size=size, value_size=SIZES[-1 - i]))
        case = Case(queries, 211, size=40, heads=3, batch=2)
        for window in (None, (30, 0), (3, 200), (0, 0)):
            for alignment in ("top_left", "bottom_right"):
                found.append(case._replace(window=window, alignment=alignment))
        found += [case._replace(causal=True, placed=how) for how in ("bshd", "packed", "odd")]
        found += [case._replace(softcap=1.5), case._replace(spread=30.0)]
        for shape in ((1, 16), (2, 7), (3, 64), (16, 1)):
            found.append(masked(rng, case, shape, lead=(2, 3)))
            found.append(found[-1]._replace(window=(150, 1), softcap=2.0))
    last = Case(50, 211, size=72, causal=True)  # two more than panels of 48, or three times 16
    return [*found, last, masked(rng, last, (16, 16)), Case(49, 300, size=130, heads=1)]
