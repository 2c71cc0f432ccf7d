"""Sampled products on any library and device, compared as a whole with float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import bsrgemm
import numpy as np
from bsrgemm._sampled import sampled
from cases import (
    Problem,
    assert_close,
    cancellation,
    is_partial,
    least_error,
    normal,
    numpy_dtype,
    relative_error,
)
from operations import changing_pattern, with_room
from spaces import Space

ORDERS = ("rows", "columns", "strided")


class Call(NamedTuple):
    """``out``: "new", "given" (a matrix of equal structure) or "pattern". ``changing``: the pattern
    is a ``DynamicPattern``'s, with room for two blocks more."""

    alpha: float = 1.0
    beta: float = 0.0
    a: str = "rows"
    b: str = "rows"
    transposed: bool = False
    out: str = "new"
    changing: bool = False


def may_change(p: Problem) -> bool:
    """Whether a ``DynamicPattern`` takes the shape."""
    return 0 not in p.shape and not is_partial(p)


PLAIN = Call()


def placed(space: Space, x: np.ndarray, order: str) -> Any:
    """``x`` in memory of the order: every third column of every second row of more, if strided."""
    if order == "rows":
        return space.array(x)
    if order == "columns":
        return space.column_major(x)
    wide = np.full((2 * x.shape[0] + 1, 3 * x.shape[1] + 2), np.nan, x.dtype)
    wide[: 2 * x.shape[0] : 2, 1 : 3 * x.shape[1] + 1 : 3] = x
    return space.array(wide)[: 2 * x.shape[0] : 2, 1 : 3 * x.shape[1] + 1 : 3]


def blocks_of(p: Problem, dense: np.ndarray) -> np.ndarray:
    """The blocks that ``p`` stores, of a matrix of its shape, with zeros beyond it."""
    height, width = p.data.shape[1:]
    rows = np.repeat(np.arange(len(p.indptr) - 1), np.diff(p.indptr))
    down, across = len(p.indptr) - 1, -(-p.shape[1] // width)
    whole = np.zeros((down * height, across * width), dense.dtype)
    whole[: p.shape[0], : p.shape[1]] = dense
    tiles = whole.reshape(down, height, across, width)
    return tiles[rows, :, p.indices.astype(int), :]


def _matrices(space: Space, p: Problem, old: np.ndarray, changing: bool) -> tuple[Any, Any]:
    """One with values ``old``, and one that is poison."""
    if not changing:
        # Of partial blocks NaN would not be taken.
        values, poison = space.array(old.copy()), space.poisoned(p.data.shape, p.dtype)
        return (
            bsrgemm.bsr_array((values, p.indices, p.indptr), p.shape, check=False),
            bsrgemm.bsr_array((poison, p.indices.copy(), p.indptr.copy()), p.shape, check=False),
        )
    pattern, values = changing_pattern(space, p), with_room(p, old)
    poison = space.poisoned(values.shape, p.dtype)
    return pattern.array(space.array(values)), pattern.array(poison)


def check(
    space: Space,
    p: Problem,
    k: int,
    rng: np.random.Generator,
    call: Call = PLAIN,
    family: str = "auto",
) -> Any:
    """The values found, on the host. Without beta, those of the pattern are NaN."""
    m, n = p.shape[::-1] if call.transposed else p.shape
    a, b = normal(rng, (m, k), p.dtype), normal(rng, (k, n), p.dtype)
    old = p.data if call.beta else np.full_like(p.data, np.nan)
    pattern, given = _matrices(space, p, old, call.changing)
    seen, other = (pattern.T, given.T) if call.transposed else (pattern, given)
    out = {"new": None, "given": other, "pattern": seen}[call.out]
    operands = placed(space, a, call.a), placed(space, b, call.b)
    result = sampled(*operands, seen, call.alpha, call.beta, out, None, family)
    assert out is None or result is out
    assert (result.shape, result.blocksize) == (seen.shape, seen.blocksize)
    found = space.host((result.T if call.transposed else result).data)
    assert (found[len(old) :] == 0).all(), "not all behind the last block is zero"
    found = found[: len(old)]
    if call.out != "pattern":
        left = space.host(pattern.data)[: len(old)]
        assert np.array_equal(left.view(np.uint8), old.view(np.uint8)), "pattern was written to"

    def exact(work: Any) -> np.ndarray:
        full = a.astype(work) @ b.astype(work)
        values = work(call.alpha) * blocks_of(p, full.T if call.transposed else full)
        return values + work(call.beta) * old.astype(work) if call.beta else values

    expected = exact(np.float64)
    same = exact(np.float64 if p.dtype == "float64" else np.float32)
    lost = relative_error(same.astype(numpy_dtype(p.dtype)), expected)
    terms = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    terms = abs(call.alpha) * blocks_of(p, terms.T if call.transposed else terms)
    terms = terms + abs(call.beta) * np.abs(old.astype(np.float64)) if call.beta else terms
    cancelled = cancellation(expected, terms, k + 1)
    assert_close(found, expected, max(2.0 * lost, least_error(p.dtype, k + 1, cancelled)))
    return found
