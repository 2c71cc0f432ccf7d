"""Operands that are views of larger ones, with NaN around them: what is around the result stays,
and what is around others is not seen. Of rows that end at no multiple of 16 bytes, too, of which
TMA writes whole ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from bsrgemm._matmul import product
from cases import ROUNDOFF, Problem, normal, numpy_dtype, problem
from operations import matrix
from spaces import Space

FAMILIES = (
    *("auto", "tall", "stream", "kmajor", "kstream", "narrow", "regroup", "align"),
    *("widen", "portable"),
)
FORMS = ("A @ X", "A.T @ X", "X @ A", "X @ A.T")
SHAPES = tuple(
    (blocksize, cut)
    for blocksize in ((64, 64), (128, 128), (32, 32), (16, 16), (64, 16), (3, 5))
    for cut in ((0, 0), (1, 1), (2, 3))
    if max(cut) < min(blocksize)
)
COLUMNS = (8, 11, 64, 75, 300)


def view(space: Space, inside: np.ndarray) -> tuple[Any, Any]:
    """An array full of NaN, and a view of some of it, which becomes ``inside``.

    Its rows begin at multiples of 16 bytes.
    """
    rows, cols = inside.shape
    whole = np.full((rows + 2, -(-cols // 16) * 16 + 16), np.nan).astype(inside.dtype)
    whole[1:-1, :cols] = inside
    given = space.array(whole)
    return given, given[1 : rows + 1, :cols]


def check_out(space: Space, whole: Any, expected: np.ndarray, allowed: float, what: str) -> None:
    found = space.host(whole).astype(np.float64)
    rows, cols = expected.shape
    inside = found[1 : rows + 1, :cols].copy()
    found[1 : rows + 1, :cols] = np.nan
    assert np.isnan(found).all(), f"{what}: something outside out was written to"
    error = np.linalg.norm(inside - expected) / max(np.linalg.norm(expected), 1e-30)
    assert error <= allowed, f"{what}: relative error {error:.3e}, allowed {allowed:.3e}"


def _allowed(dtype: str) -> float:
    """Of sums of some hundred terms, rounded, too, where the dtype is that of the sums."""
    return ROUNDOFF[dtype] * (64 if dtype in ("float32", "float64") else 2)


def _computed(call: Any) -> bool:
    """Whether the family that was asked for takes these operands."""
    try:
        call()
    except ValueError as error:
        assert "cannot compute this product" in str(error)
        return False
    return True


def product_cases(rng: np.random.Generator, dtype: str, most: int) -> Iterator[tuple[Any, ...]]:
    """Some of all: (problem, columns, form)."""
    every = [(s, n, form) for s in SHAPES for n in COLUMNS for form in FORMS]
    for i in rng.permutation(len(every))[:most]:
        (blocksize, cut), n, form = every[i]
        mask = rng.random((4, 5)) < 0.6
        mask[-1, -1] = True
        yield problem(rng, mask, blocksize, 1, dtype, cut=cut), n, form


def check_product(
    space: Space, rng: np.random.Generator, p: Problem, n: int, form: str, tf32: bool = False
) -> int:
    """By every family that can; how many could."""
    a, dense = matrix(space, p), p.dense
    if ".T" in form:
        a, dense = a.T, dense.T
    right, done = form.startswith("X"), 0
    x = normal(rng, (n, dense.shape[0]) if right else (dense.shape[1], n), p.dtype)
    wide = x.astype(np.float64)
    expected = wide @ dense if right else dense @ wide
    given = view(space, x)[1]
    out_dtype = "bfloat16" if "float8" in p.dtype else p.dtype
    poison = np.full(expected.shape, np.nan).astype(numpy_dtype(out_dtype))
    allowed = 2e-3 if tf32 else _allowed(out_dtype)
    for family in FAMILIES:
        whole, out = view(space, poison)
        operands = (given, a) if right else (a, given)
        options = {"precision": "tf32"} if tf32 else {}
        if not _computed(
            lambda: product(*operands, None, 1.0, 0.0, out, None, family, **options)  # noqa: B023
        ):
            continue
        what = f"{p.dtype} {p.shape} {a.blocksize} n={n} {form} {family} {tf32=}"
        check_out(space, whole, expected, allowed, what)
        done += 1
    return done


def check_pairs(space: Space, rng: np.random.Generator, dtype: str, side: int, cut: int) -> int:
    """Two block-sparse matrices."""
    p, q = (
        problem(rng, rng.random((4, 4)) < 0.6, (side, side), 1, dtype, cut=(cut, cut))
        for _ in range(2)
    )
    a, b, done = matrix(space, p), matrix(space, q), 0
    expected = p.dense @ q.dense
    poison = np.full(expected.shape, np.nan).astype(numpy_dtype(dtype))
    for family in ("auto", "pairs", "spread", "portable"):
        whole, out = view(space, poison)
        if not _computed(lambda: product(a, b, None, 1.0, 0.0, out, None, family)):  # noqa: B023
            continue
        check_out(space, whole, expected, _allowed(dtype), f"{dtype} {side} {cut} {family}")
        done += 1
    return done
