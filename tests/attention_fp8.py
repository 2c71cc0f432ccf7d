"""Attention of float8_e4m3fn: its factors, the error that is allowed, and the check of a case.

What is meant is what is stored times the factors, so the float64 reference of the dequantised
operands is the one of attention_cases.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attention_cases as table
import numpy as np
from attention_cases import Case, Reference, lse_error, place, reference, relative_error
from cases import FLOOR, ROUNDOFF, numpy_dtype
from spaces import Space

DTYPE = "float8_e4m3fn"

# Rounded weights are at most 448; 256 leaves the largest exact.
WEIGHT_UNIT = 256.0


class Factors(NamedTuple):
    """As (batch, key heads) each, and as they are given to the call."""

    values: tuple[np.ndarray, np.ndarray, np.ndarray]
    given: dict[str, Any]


def make_factors(space: Space, case: Case, rng: np.random.Generator, how: str) -> Factors:
    """``how``: "none", "numbers", "shared" (arrays of shape ()), "each", or "strided"."""
    shape = case.k_shape[:2]
    names = ("q_descale", "k_descale", "v_descale")
    if how == "none":
        return Factors((np.ones(shape, np.float32),) * 3, {})
    if how in ("numbers", "shared"):
        numbers = (0.5, 1.75, 3.0)
        given = [x if how == "numbers" else space.array(np.array(x, np.float32)) for x in numbers]
        values = tuple(np.full(shape, x, np.float32) for x in numbers)
        return Factors(values, dict(zip(names, given, strict=True)))
    values = tuple(rng.uniform(0.3, 2.0, shape).astype(np.float32) for _ in names)
    if how == "each":
        given = [space.array(x) for x in values]
    else:
        assert how == "strided"
        given = [space.array(np.repeat(x.T, 3, axis=1).copy()).T[::3] for x in values]
    return Factors(values, dict(zip(names, given, strict=True)))


def dequantise(case: Case, arrays: list[np.ndarray], factors: Factors) -> list[np.ndarray]:
    group = case.heads // (case.kv_heads or case.heads)
    wide = [x.astype(np.float64)[..., None, None] for x in factors.values]
    wide[0] = wide[0].repeat(group, axis=1)
    return [x.astype(np.float64) * factor for x, factor in zip(arrays, wide, strict=True)]


# The root mean square of relative rounding errors to four bits.
USUAL_ROUNDING = 0.026


def lost_by_rounding(
    case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray, expected: Reference
) -> float:
    """The relative error of straightforward 8-bit attention of dequantised operands: weights
    relative to the maximum are rounded before they meet ``v``, everything else is exact but for the
    rounding of the result. All values of a query share the roundings of its weights, so that few
    queries may be lucky: then it is the error that such roundings have on average."""
    group = case.heads // (case.kv_heads or case.heads)
    k, v = (x.repeat(group, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * (case.size**-0.5 if case.scale is None else case.scale)
    if case.softcap is not None:
        scores = case.softcap * np.tanh(scores / case.softcap)
    scores = np.where(table.allowed(case), scores, -np.inf)
    top = scores.max(axis=3, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=3, keepdims=True)
    rounded = (weights * WEIGHT_UNIT).astype(numpy_dtype(DTYPE)).astype(np.float64)
    total = np.where(total == 0, 1, total)
    out = rounded @ v / WEIGHT_UNIT / total
    lost = relative_error(out.astype(numpy_dtype("bfloat16")), expected)
    size = float(np.linalg.norm(weights @ v / total))
    usual = USUAL_ROUNDING * float(np.sqrt((((weights / total) ** 2) @ (v**2)).sum()))
    return max(lost, usual / size) if size > 0 else lost


def allowed_error(case: Case, arrays: list[np.ndarray], expected: Reference) -> float:
    """Twice what rounding the weights costs."""
    lost = lost_by_rounding(case, *arrays, expected)
    return max(2 * lost, FLOOR["bfloat16"] * ROUNDOFF["bfloat16"])


def check(
    space: Space,
    case: Case,
    rng: np.random.Generator,
    how: str = "each",
    arrays: list[np.ndarray] | None = None,
    sum_error: float = ROUNDOFF["float32"],
    **options: Any,
) -> None:
    """Into poisoned memory: the result, its lse, and that nothing around was written.

    ``sum_error`` is the unit roundoff of the sums that are scores.
    """
    stored = table.operands(rng, case, DTYPE) if arrays is None else arrays
    factors = make_factors(space, case, rng, how)
    meant = dequantise(case, stored, factors)
    expected = reference(case, *meant)
    given = [place(space, x, case.placed).view for x in stored]
    poison = np.full(case.out_shape, np.nan, numpy_dtype("bfloat16"))
    out = place(space, poison, case.placed)
    result, lse = table.call(case, given, out=out.view, return_lse=True, **factors.given, **options)
    assert result is out.view
    found = space.host(out.view)
    if case.placed == "bshd":
        found = found.transpose(0, 2, 1, 3)
    found = found.astype(np.float64)
    what = f"{case._replace(blocks=None)} {how} {space!r} {options}"
    assert not np.isnan(found).any(), f"{what}: not all of out was written, or NaN"
    memory = space.host(out.memory).astype(np.float64)
    around = np.isnan(memory).sum()
    assert around == memory.size - found.size, f"{what}: something outside out was written to"
    error = relative_error(found, expected)
    limit = allowed_error(case, meant, expected) + 4 * sum_error * expected.largest
    assert error <= limit, f"{what}: relative error {error:.3e}, allowed {limit:.3e}"

    sums = space.host(lse).astype(np.float64)
    far, scores = lse_error(found, sums, expected, what)
    most = 16 * sum_error * scores
    print(f"{what}: error {error:.2e} of {limit:.2e}, lse {far:.2e} of {most:.2e}")
    assert far <= most, f"{what}: lse is off by {far:.3e}, allowed {most:.3e}"
