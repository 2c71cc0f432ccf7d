"""Products of tf32 and of 8-bit floats: operands, references and the error that is allowed."""

from __future__ import annotations

from typing import Any, NamedTuple

import bsrgemm
import numpy as np
from bsrgemm._matmul import product
from cases import FLOOR, ROUNDOFF, Problem, normal, numpy_dtype, problem, relative_error
from spaces import Space

EIGHT = ("float8_e4m3fn", "float8_e5m2")
RESULTS = ("float16", "bfloat16", "float32")

# An instruction adds 32 products of 8 bits, and the sum so far, each cut to 14 bits of the largest,
# which is about as large as the sum: a number loses up to 2**-13 of that. The first 768 products of
# a sum may take 24 instructions before they are added in float32, which cut 792 numbers of random
# signs. As sums grow with the root of their length, that is at most sqrt(792 / 6) = 11.5 times as
# much in the root of the mean square. Of 1,024 products 3.2 times are found, of 128 1.1.
SUM_ERROR = 6 * 2.0**-13

# Float32 rounded to 11 significant bits, both operands of a product: 2 * 2**-11.
TF32_ERROR = 2.0**-10

# Of activations, which are then computed for results of 16 bits: so much of their difference from
# ReLU.
CURVE_ERROR = 4e-4


class Scales(NamedTuple):
    """``values`` is one factor for each block, ``x`` one for all; ``given`` is what a call gets,
    for the bsr_array and for the dense operand."""

    values: np.ndarray
    x: float
    given: tuple[Any, Any]


def make_scales(space: Space, p: Problem, rng: np.random.Generator, how: str) -> Scales:
    """``how``: "none", "numbers", "one" (an element each) or "blocks"."""
    count = len(p.indices)
    if how == "none":
        return Scales(np.ones(count, np.float32), 1.0, (None, None))
    x = np.float32(rng.uniform(0.3, 2.0))
    if how == "numbers":
        return Scales(np.full(count, 0.75, np.float32), float(x), (0.75, float(x)))
    values = rng.uniform(0.3, 2.0, count if how == "blocks" else 1).astype(np.float32)
    given = (space.array(values), space.array(np.array(x)))
    return Scales(np.broadcast_to(values, (count,)), float(x), given)


def dense_of(p: Problem, values: np.ndarray) -> np.ndarray:
    """What is meant, in float64: stored values times the scales of their blocks."""
    scaled = p.data.astype(np.float64) * values.astype(np.float64)[:, None, None]
    return Problem(scaled, p.indices, p.indptr, p.shape, p.n, p.dtype).dense


def check(
    space: Space,
    rng: np.random.Generator,
    mask: np.ndarray,
    blocksize: tuple[int, int],
    n: int,
    dtype: str,
    *,
    out_dtype: str = "bfloat16",
    how: str = "none",
    right: bool = False,
    transposed: bool = False,
    columns: bool = False,
    out_columns: bool = False,
    beta: float = 0.0,
    sum_error: float = 0.0,
    family: str = "auto",
) -> None:
    """Multiplies 8-bit operands into poisoned memory and compares all of it with float64.

    ``columns`` and ``out_columns``: the dense operand and the result are column-major."""
    p = problem(rng, mask, blocksize, n, dtype)
    scales = make_scales(space, p, rng, how)
    dense = dense_of(p, scales.values)
    a = bsrgemm.bsr_array((space.array(p.data), p.indices, p.indptr), p.shape)
    if transposed:
        a, dense = a.T, dense.T
    inner, outer = dense.shape if right else dense.shape[::-1]
    x = normal(rng, (n, inner) if right else (inner, n), dtype)
    shape = (n, outer) if right else (outer, n)
    c = normal(rng, shape, out_dtype) if beta else None
    out = (
        space.poisoned(shape[::-1], out_dtype).T
        if out_columns
        else space.poisoned(shape, out_dtype)
    )
    given_x = space.column_major(x) if columns else space.array(x)
    options = {"a_scale": scales.given[right], "b_scale": scales.given[not right]}
    given_c, given_beta = (None, None) if c is None else (space.array(c), beta)
    operands = (given_x, a) if right else (a, given_x)
    found = product(*operands, given_c, -0.5, given_beta, out, None, family, **options)
    assert found is out
    wide = x.astype(np.float64) * scales.x
    expected = -0.5 * (wide @ dense if right else dense @ wide)
    product_norm = np.linalg.norm(expected)
    if c is not None:
        expected = expected + beta * c.astype(np.float64)
    result = space.host(out)
    assert not np.isnan(result.astype(np.float64)).any(), "not all of out was written"
    norm = np.linalg.norm(expected)
    allowed = FLOOR[out_dtype] * ROUNDOFF[out_dtype]
    if norm > 0:
        allowed += sum_error * float(product_norm / norm)
    error = relative_error(result, expected)
    assert error <= allowed, (
        f"{a!r} n={n} out={out_dtype} scales={how} right={right} columns={columns, out_columns}: "
        f"relative error {error:.3e}, allowed {allowed:.3e}"
    )


def forms(
    rng: np.random.Generator,
    results: tuple[str, ...] = RESULTS,
    scales: tuple[str, ...] = ("none", "numbers", "one", "blocks"),
) -> dict[str, Any]:
    """Some layout of X and Y, dtype of Y, scales, and C or not: options of ``check``."""
    return {
        "columns": bool(rng.integers(2)),
        "out_columns": bool(rng.integers(2)),
        "out_dtype": str(rng.choice(results)),
        "how": str(rng.choice(scales)),
        "beta": float(rng.integers(2)),
    }


def widened(dtype: str) -> np.ndarray:
    """All 256 values of an 8-bit dtype."""
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype))
