"""Batches of matrices with one pattern, on any library and device, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import bsrgemm
import numpy as np
from cases import Problem, fill_beyond, least_error, normal, problem
from sampled_cases import blocks_of
from softmax_cases import expected as softmax_expected
from spaces import Space
from structure_cases import covered_by

BATCHES = ((1,), (3,), (2, 3), (0,), (2, 1, 2))


def stack(p: Problem, values: np.ndarray) -> np.ndarray:
    """The dense matrices, in float64."""
    each = values.reshape(-1, *p.data.shape) if values.size else np.zeros((0, *p.data.shape))
    dense = [Problem(x, p.indices, p.indptr, p.shape, p.n, p.dtype).dense for x in each]
    return np.array(dense).reshape(*values.shape[:-3], *p.shape)


def close(found: np.ndarray, expected: np.ndarray, magnitude: np.ndarray, dtype: str) -> None:
    """Within what rounding the result loses, and sums in float32 or float64 of summands of that
    magnitude."""
    assert found.shape == expected.shape
    error = np.abs(found.astype(np.float64) - expected)
    sums = least_error("float64" if dtype == "float64" else "float32", 1000)
    allowed = 2 * least_error(dtype, 1000) * np.abs(expected) + 2 * sums * magnitude
    assert (error <= allowed + 1e-6).all()


def make(
    space: Space, rng: np.random.Generator, dtype: str, batch: tuple[int, ...]
) -> tuple[Problem, bsrgemm.bsr_array, np.ndarray]:
    cut = (5, 7) if len(batch) == 2 else (0, 0)  # some have partial last blocks
    p = problem(rng, rng.random((5, 4)) < 0.5, (16, 24), 9, dtype, cut=cut)
    values = normal(rng, (*batch, *p.data.shape), dtype)
    fill_beyond(replace(p, data=values), 0)
    a = bsrgemm.bsr_array((space.array(values), p.indices, p.indptr), p.shape)
    return p, a, stack(p, values)


def products(space: Space, rng: np.random.Generator, dtype: str, batch: tuple[int, ...]) -> None:
    """Every form, with operands that are shared, batched, broadcast, or vectors."""
    p, a, dense = make(space, rng, dtype, batch)
    (m, k), n = p.shape, p.n
    ones = tuple(1 for _ in batch)
    for lead in ((), batch, ones, (2, *ones)):
        x = normal(rng, (*lead, k, n), dtype)
        z = normal(rng, (*lead, n, m), dtype)
        wide, other = x.astype(np.float64), z.astype(np.float64)
        for found, left, right in (
            (a @ space.array(x), dense, wide),
            (space.array(z) @ a, other, dense),
            (a.T @ space.array(z.swapaxes(-1, -2).copy()), dense.swapaxes(-1, -2),
             other.swapaxes(-1, -2)),
            (space.array(x.swapaxes(-1, -2).copy()) @ a.mT, wide.swapaxes(-1, -2),
             dense.swapaxes(-1, -2)),
        ):  # fmt: skip
            close(space.host(found), left @ right, np.abs(left) @ np.abs(right), dtype)
        for c in (normal(rng, (n,), dtype), normal(rng, (m, n), dtype)):
            out = space.poisoned((*np.broadcast_shapes(batch, lead), m, n), dtype)
            given = bsrgemm.matmul(a, space.array(x), space.array(c), alpha=0.5, beta=2.0, out=out)
            assert given is out
            expected = 0.5 * (dense @ wide) + 2 * c.astype(np.float64)
            close(space.host(out), expected, np.abs(dense) @ np.abs(wide) + 8, dtype)
    x, z = normal(rng, (k,), dtype), normal(rng, (m,), dtype)
    for found, left, right in (
        (a @ space.array(x), dense, x.astype(np.float64)),
        (space.array(z) @ a, z.astype(np.float64), dense),
    ):
        close(space.host(found), left @ right, np.abs(left) @ np.abs(right), dtype)


def by_turns(space: Space, rng: np.random.Generator, dtype: str, batch: tuple[int, ...]) -> None:
    """Dense matrices whose rows follow one another by turns, as those of attention's heads do."""
    if not space.strided:
        return
    p, a, dense = make(space, rng, dtype, batch)
    (m, k), n = p.shape, 16

    def placed(x: np.ndarray) -> Any:
        found = space.array(np.moveaxis(x, -2, 0).copy())
        for axis in range(x.ndim - 2):
            found = found.swapaxes(axis, axis + 1)
        return found

    x, z = normal(rng, (*batch, k, n), dtype), normal(rng, (*batch, n, m), dtype)
    c = normal(rng, (*batch, m, n), dtype)
    wide, other = x.astype(np.float64), z.astype(np.float64)
    close(space.host(a @ placed(x)), dense @ wide, np.abs(dense) @ np.abs(wide), dtype)
    close(space.host(placed(z) @ a), other @ dense, np.abs(other) @ np.abs(dense), dtype)
    out = placed(np.full(c.shape, np.nan, c.dtype))
    bsrgemm.matmul(a, placed(x), placed(c), beta=0.5, out=out)
    expected = dense @ wide + 0.5 * c.astype(np.float64)
    close(space.host(out), expected, np.abs(dense) @ np.abs(wide) + 8, dtype)
    shared = bsrgemm.bsr_array((space.array(p.data), p.indices, p.indptr), p.shape)
    right = normal(rng, (*batch, k, n), dtype)
    found = bsrgemm.sampled_matmul(placed(c), placed(right).swapaxes(-1, -2), shared)
    other = right.astype(np.float64).swapaxes(-1, -2)
    full, size = c.astype(np.float64) @ other, np.abs(c.astype(np.float64)) @ np.abs(other)
    seen = space.host(found.data)
    for at in np.ndindex(batch):
        close(seen[at], blocks_of(p, full[at]), blocks_of(p, size[at]), dtype)


def in_place(space: Space, rng: np.random.Generator, dtype: str, batch: tuple[int, ...]) -> None:
    """c is out, with a bias and an activation."""
    p, a, dense = make(space, rng, dtype, batch)
    x, c = normal(rng, (p.shape[1], p.n), dtype), normal(rng, (*batch, p.shape[0], p.n), dtype)
    bias = normal(rng, (p.n,), dtype)
    out = space.array(c.copy())
    bsrgemm.matmul(
        a, space.array(x), out, beta=0.5, bias=space.array(bias), activation="relu", out=out
    )
    wide = x.astype(np.float64)
    expected = dense @ wide + 0.5 * c.astype(np.float64) + bias.astype(np.float64)
    close(space.host(out), np.maximum(expected, 0), np.abs(dense) @ np.abs(wide) + 8, dtype)


def sampled(space: Space, rng: np.random.Generator, dtype: str, batch: tuple[int, ...]) -> None:
    """Batches of a, of b, of both, and of the pattern's values."""
    p, a, dense = make(space, rng, dtype, batch)
    (m, n), k = p.shape, 20
    shared = bsrgemm.bsr_array((space.array(p.data), p.indices, p.indptr), p.shape)
    for left_lead, right_lead in (
        (batch, ()),
        ((), batch),
        (batch, tuple(1 for _ in batch)),
        (batch, batch),
    ):
        left = normal(rng, (*left_lead, m, k), dtype)
        right = normal(rng, (*right_lead, k, n), dtype)
        full = left.astype(np.float64) @ right.astype(np.float64)
        size = np.abs(left.astype(np.float64)) @ np.abs(right.astype(np.float64))
        for pattern, values, beta in (
            (shared, p.dense, 0.0),
            (shared, p.dense, 2.0),
            (a, dense, 2.0),
        ):
            for turned in (False, True):
                operands = left, right
                if turned:
                    operands = right.swapaxes(-1, -2).copy(), left.swapaxes(-1, -2).copy()
                found = bsrgemm.sampled_matmul(
                    *map(space.array, operands), pattern.T if turned else pattern, beta=beta
                )
                assert found.is_transposed == turned and found._structure.nnzb == a.nnzb
                seen = space.host((found.T if turned else found).data)
                expected = full + beta * values
                for position in np.ndindex(batch):
                    close(
                        seen[position],
                        blocks_of(p, expected[position]),
                        blocks_of(p, size[position]) + 8,
                        dtype,
                    )
    left, right = normal(rng, (m, k), dtype), normal(rng, (k, n), dtype)
    given = space.array(left), space.array(right)
    assert bsrgemm.sampled_matmul(*given, a, beta=1.0, out=a) is a
    expected = dense + left.astype(np.float64) @ right.astype(np.float64)
    for position in np.ndindex(batch):
        found = space.host(a.data)[position]
        close(found, blocks_of(p, expected[position]), np.full(found.shape, 40.0), dtype)


def others(space: Space, rng: np.random.Generator, dtype: str, batch: tuple[int, ...]) -> None:
    """What else takes batches: dense forms, copies, entries, softmax, arithmetic."""
    p, a, dense = make(space, rng, dtype, batch)
    turned = dense.swapaxes(-1, -2)
    assert (a.shape, a.ndim, a.nnzb) == ((*batch, *p.shape), len(batch) + 2, len(p.indices))
    assert (a.T.shape, a.mT.blocksize) == ((*batch, *p.shape[::-1]), (24, 16))
    for found, expected in (
        (a.todense(), dense),
        (a.T.todense(), turned),
        (a.T.copy().todense(), turned),
        (a.copy().todense(), dense),
        (a.astype("float64").todense(), dense),
        ((-a).todense(), -dense),
        ((2 * a.T).todense(), 2 * turned),
        ((a + a).todense(), 2 * dense),
        ((a - a).todense(), 0 * dense),
    ):
        assert np.array_equal(space.host(found).astype(np.float64), expected)
    squares = space.host((a * a).todense()).astype(np.float64)
    close(squares, dense**2, dense**2, dtype)
    for position in np.ndindex(batch):
        for one, expected in ((a[position], dense[position]), (a.T[position], turned[position])):
            assert one.shape == expected.shape and one._structure.nnzb == a.nnzb
            assert np.array_equal(space.host(one.todense()).astype(np.float64), expected)
    weights = bsrgemm.softmax(a, 0.5)
    covered = covered_by(p)
    found = space.host(weights.todense())
    for position in np.ndindex(batch):
        expected = softmax_expected(dense[position], covered, 0.5)
        close(found[position], expected, expected, dtype)


CHECKS = (products, by_turns, in_place, sampled, others)
