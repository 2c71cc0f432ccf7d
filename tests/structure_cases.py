"""Checks of arithmetic and of structure operations against NumPy in float64, for any library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bsrgemm
import numpy as np
import pytest
from bsrgemm import bsr_array
from cases import ROUNDOFF, Problem, densify, mask_of, numpy_dtype, problem
from operations import matrix
from spaces import Space


def stored(space: Space, a: bsr_array) -> np.ndarray:
    """The matrix in float64, from its arrays alone, which have to be those of a valid matrix, with
    zeros beyond it."""
    if a.is_transposed:
        return stored(space, a.T).T
    try:
        bsr_array((a.data, a.indices, a.indptr), a.shape)
    except ValueError as error:
        raise AssertionError(f"the result is no matrix: {error}") from error
    indptr = a._structure.indptr
    return densify(space.host(a.data), a._structure.indices, indptr, a.shape)


def check(space: Space, found: bsr_array, expected: np.ndarray, mask: Any = None) -> None:
    """All values, rounded once, and which blocks are stored."""
    dtype = str(found.dtype).removeprefix("torch.")
    dense = stored(space, found)
    assert dense.shape == expected.shape
    with np.errstate(over="ignore"):
        rounded = expected.astype(numpy_dtype(dtype)).astype(np.float64)
    assert np.allclose(dense, rounded, rtol=2 * ROUNDOFF.get(dtype, 0), atol=0, equal_nan=True)
    if mask is not None:
        assert np.array_equal(found.block_mask(), mask)


def other_pattern(p: Problem, rng: np.random.Generator) -> Problem:
    mask = mask_of(p) ^ (rng.random(mask_of(p).shape) < 0.4)
    cut = tuple(np.array(mask.shape) * p.data.shape[1:] - p.shape)
    return problem(rng, mask, p.data.shape[1:], p.n, p.dtype, cut=cut)


def covered_by(p: Problem) -> np.ndarray:
    """Elements of stored blocks."""
    rows, cols = p.shape
    return np.kron(mask_of(p), np.ones(p.data.shape[1:], bool))[:rows, :cols].astype(bool)


def orders(space: Space, p: Problem) -> tuple[tuple[bsr_array, np.ndarray, np.ndarray], ...]:
    """The matrix, and the transpose of its transpose's copy as a view: matrix, values, mask."""
    a = matrix(space, p)
    return (a, p.dense, mask_of(p)), (a.T, p.dense.T, mask_of(p).T)


def arithmetic(space: Space, p: Problem, rng: np.random.Generator) -> None:
    q = other_pattern(p, rng)
    pairs = list(zip(orders(space, p), orders(space, q), strict=True))
    for (a, dense, mask), (b, other, other_mask) in pairs:
        union = mask | other_mask
        check(space, a + b, dense + other, union)
        check(space, a - b, dense - other, union)
        check(space, a * b, dense * other, mask & other_mask)
        check(space, a + a, 2 * dense, mask)
        check(space, a - a, 0 * dense, mask)
        check(space, -a, -dense, mask)
        check(space, 3 * a, 3 * dense, mask)
        check(space, a / 4, dense / 4, mask)
    # One of both is a view.
    a, b = matrix(space, p), matrix(space, q)
    assert (a + a)._structure is a._structure and (-a)._structure is a._structure
    check(space, a + b.T.copy().T, p.dense + q.dense, mask_of(p) | mask_of(q))
    check(space, a.T.copy().T * b, p.dense * q.dense, mask_of(p) & mask_of(q))


def sums(space: Space, p: Problem, rng: np.random.Generator) -> None:
    del rng
    for a, dense, _ in orders(space, p):
        magnitude = np.abs(dense)
        for axis in (0, 1, -1, -2):
            found = space.host(a.sum(axis)).astype(np.float64)
            assert found.shape == (dense.shape[1 if axis in (0, -2) else 0],)
            allowed = 8 * ROUNDOFF[p.dtype] * magnitude.sum(axis)
            assert (np.abs(found - dense.sum(axis)) <= allowed).all()
        found = float(a.sum())
        assert abs(found - dense.sum()) <= 8 * ROUNDOFF[p.dtype] * magnitude.sum()


def parts(space: Space, p: Problem, rng: np.random.Generator) -> None:
    for a, dense, mask in orders(space, p):
        height, width = a.blocksize
        rows = sorted(rng.integers(0, mask.shape[0] + 1, 2))
        cols = sorted(rng.integers(0, mask.shape[1] + 1, 2))
        r, c = (slice(*x) for x in (rows, cols))
        m, n = a.shape
        elements = (
            slice(min(height * rows[0], m), min(height * rows[1], m)),
            slice(min(width * cols[0], n), min(width * cols[1], n)),
        )
        check(space, a[elements], dense[elements], mask[r, c])
        check(space, a[elements[0]], dense[elements[0]], mask[r])
        check(space, a[:, elements[1]], dense[:, elements[1]], mask[:, c])
        whole = a[:]
        check(space, whole, dense, mask)
        assert whole._data is not a._data


def stacks(space: Space, p: Problem, rng: np.random.Generator) -> None:
    q = other_pattern(p, rng)
    (a, dense, mask), (_, turned, turned_mask) = orders(space, p)
    b, view = matrix(space, q), matrix(space, p).T.copy().T
    for pieces, values, masks in (
        ([a], [dense], [mask]),
        ([a, b], [dense, q.dense], [mask, mask_of(q)]),
        ([a, view, b], [dense, dense, q.dense], [mask, mask, mask_of(q)]),
        ([a.T, b.T], [turned, q.dense.T], [turned_mask, mask_of(q).T]),
    ):
        whole = [all(m.shape[i] % m.blocksize[i] == 0 for m in pieces[:-1]) for i in range(2)]
        for stack, dense_stack, fits in (
            (bsrgemm.vstack, np.vstack, whole[0]),
            (bsrgemm.hstack, np.hstack, whole[1]),
            (bsrgemm.block_diag, _diagonal, all(whole)),
        ):
            if fits:
                found = stack(pieces)
                check(space, found, dense_stack(values), dense_stack(masks).astype(bool))
                continue
            with pytest.raises(ValueError, match=r"(blocks|mats)\[0\] has .* and others follow; a"):
                stack(pieces)
    narrow = problem(rng, rng.random((2, 3)) < 0.5, p.data.shape[1:], 1, p.dtype)
    found = bsrgemm.block_diag([matrix(space, narrow), a])
    both, masks = [narrow.dense, dense], [mask_of(narrow), mask]
    check(space, found, _diagonal(both), _diagonal(masks).astype(bool))


def _diagonal(matrices: list[np.ndarray]) -> np.ndarray:
    shapes = np.array([m.shape for m in matrices])
    out = np.zeros(shapes.sum(0))
    row = col = 0
    for m in matrices:
        out[row : row + m.shape[0], col : col + m.shape[1]] = m
        row, col = row + m.shape[0], col + m.shape[1]
    return out


def reblocks(space: Space, p: Problem, rng: np.random.Generator) -> None:
    for a, dense, mask in orders(space, p):
        for _ in range(3):
            size = tuple(int(rng.integers(1, max(s, 1) + 3)) for s in dense.shape)
            covered = np.kron(mask, np.ones(a.blocksize, bool))[: a.shape[0], : a.shape[1]]
            wanted = _any_of_blocks(covered, size)
            check(space, a.reblock(size), dense, wanted)
            dropped = a.reblock(size, drop_zeros=True)
            check(space, dropped, dense, _any_of_blocks(dense != 0, size))
            assert dropped.blocksize == size


def _any_of_blocks(elements: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    rows, cols = (-(-side // block) for side, block in zip(elements.shape, size, strict=True))
    whole = np.zeros((rows * size[0], cols * size[1]), bool)
    whole[: elements.shape[0], : elements.shape[1]] = elements
    return whole.reshape(rows, size[0], cols, size[1]).any(axis=(1, 3))


def masks(space: Space, p: Problem, rng: np.random.Generator) -> None:
    values = rng.standard_normal(p.shape).astype(numpy_dtype(p.dtype))
    mask = mask_of(p)
    expected = np.where(covered_by(p), values.astype(np.float64), 0)
    for dense in [space.array(values), space.column_major(values)]:
        found = bsr_array.from_block_mask(dense, mask, p.data.shape[1:])
        check(space, found, expected, mask)
    check(space, bsr_array.from_block_mask(dense, space.array(mask), p.data.shape[1:]), expected)


def prunes(space: Space, p: Problem, rng: np.random.Generator) -> None:
    shape = rng.integers(1, 40, 2)
    values = rng.standard_normal(shape).astype(numpy_dtype(p.dtype))
    height, width = p.data.shape[1:]
    whole = -(-shape // (height, width)) * (height, width)
    filled = np.zeros(whole)
    filled[: shape[0], : shape[1]] = values.astype(np.float64)
    tiles = filled.reshape(whole[0] // height, height, whole[1] // width, width)
    norms = np.sqrt((tiles**2).sum((1, 3)))
    for density in (0, 0.3, 0.5, 1):
        count = int(density * norms.size + 0.5)
        found = bsrgemm.prune(space.array(values), (height, width), density)
        mask = found.block_mask()
        assert mask.sum() == count
        if 0 < count < norms.size:
            assert norms[mask].min() >= norms[~mask].max() * (1 - 1e-12)
        kept = np.where(np.kron(mask, np.ones((height, width), bool)), filled, 0)
        check(space, found, kept[: shape[0], : shape[1]])


Check = Callable[[Space, Problem, np.random.Generator], None]
# Those of values of any dtype, and all.
MOVES: tuple[Check, ...] = (parts, stacks, reblocks, masks, prunes)
CHECKS: tuple[Check, ...] = (arithmetic, sums, *MOVES)
