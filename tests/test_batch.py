"""Batches of dense operands: shapes, broadcasting, and which of them are one product."""

from __future__ import annotations

from typing import Any

import bsrgemm
import numpy as np
import pytest
from bsrgemm import bsr_array, matmul
from cases import numpy_dtype, problem
from operations import matrix
from spaces import CPU_SPACES, Space

LEADING = ((), (1,), (4,), (2, 3), (2, 1, 3), (0,), (2, 0), (1, 2, 1, 2, 1, 2))


def sample(rng: np.random.Generator, space: Space) -> tuple[bsr_array, np.ndarray]:
    p = problem(rng, rng.random((5, 4)) < 0.5, (3, 2), 1, "float64")
    return matrix(space, p), p.dense


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
@pytest.mark.parametrize("leading", LEADING, ids=str)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_shapes(space: Space, leading: tuple[int, ...], n: int, rng: np.random.Generator) -> None:
    space.check()
    a, dense = sample(rng, space)
    x, z = rng.standard_normal((*leading, 8, n)), rng.standard_normal((*leading, n, 15))
    for found, expected in (
        (a @ space.array(x), dense @ x),
        (space.array(z) @ a, z @ dense),
        (a.T @ space.array(z.swapaxes(-1, -2)), dense.T @ z.swapaxes(-1, -2)),
        (space.array(x.swapaxes(-1, -2)) @ a.T, x.swapaxes(-1, -2) @ dense.T),
    ):
        assert tuple(found.shape) == expected.shape and np.allclose(space.host(found), expected)


@pytest.mark.parametrize("leading", LEADING, ids=str)
def test_c_is_broadcast(leading: tuple[int, ...], rng: np.random.Generator) -> None:
    a, dense = sample(rng, CPU_SPACES[0])
    x, z = rng.standard_normal((*leading, 8, 4)), rng.standard_normal((*leading, 4, 15))
    for shape in ((), (4,), (15, 1), (15, 4), (1, 1), (*leading, 15, 4), (*leading, 1, 4)):
        c = rng.standard_normal(shape)
        out = np.full((*leading, 15, 4), np.nan)
        assert matmul(a, x, c, beta=-0.5, out=out) is out
        assert np.allclose(out, dense @ x - 0.5 * c)
    for shape in ((8,), (4, 1), (*leading, 4, 8), (*leading, 1, 8)):
        c = rng.standard_normal(shape)
        assert np.allclose(matmul(z, a, c, alpha=2), 2 * z @ dense + c)
    vector = rng.standard_normal(8)
    assert np.allclose(matmul(a, vector, np.ones(1)), dense @ vector + 1)


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (2, 0, 1, 3), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_any_memory_order(axes: tuple[int, ...], rng: np.random.Generator) -> None:
    """Whatever the strides, out and c included; nothing around out changes."""
    a, dense = sample(rng, CPU_SPACES[0])

    def ordered(shape: tuple[int, ...], fill: Any) -> tuple[np.ndarray, np.ndarray]:
        memory = np.full([shape[axis] + 2 for axis in axes], np.nan)
        view = memory[1:-1, 1:-1, 1:-1, 1:-1].transpose(np.argsort(axes))
        view[...] = fill
        return memory, view

    for n in (1, 6):
        x, c = rng.standard_normal((2, 3, 8, n)), rng.standard_normal((2, 3, 15, n))
        memory, out = ordered(c.shape, np.nan)
        matmul(a, ordered(x.shape, x)[1], ordered(c.shape, c)[1], beta=2, out=out)
        assert np.allclose(out, dense @ x + 2 * c)
        out[...] = np.nan
        assert np.isnan(memory).all()
        in_place = ordered(c.shape, c)[1]
        matmul(a, x, in_place, beta=2, out=in_place)
        assert np.allclose(in_place, dense @ x + 2 * c)


# Relative to the norm of the result.
ERRORS = {
    "float16": 1e-3,
    "bfloat16": 8e-3,
    "float8_e4m3fn": 8e-3,
    "float32": 1e-6,
    "float64": 1e-14,
}


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize(("count", "n"), [(70, 1), (9, 6), (2, 400)], ids=str)
def test_side_by_side_and_one_by_one(
    dtype: str, count: int, n: int, rng: np.random.Generator
) -> None:
    """Few columns of many matrices are copied beside one another, many of few are not."""
    pytest.importorskip("ml_dtypes", reason="NumPy has these dtypes only with ml_dtypes")
    p = problem(rng, rng.random((9, 12)) < 0.5, (16, 8), 1, dtype)
    a, out_dtype = matrix(CPU_SPACES[0], p), "bfloat16" if p.data.itemsize == 1 else dtype
    x = rng.standard_normal((count, 96, n)).astype(p.data.dtype)
    c = rng.standard_normal((count, 144, n)).astype(numpy_dtype(out_dtype))
    bias = rng.standard_normal((144, 1)).astype(np.float64 if dtype == "float64" else np.float32)
    expected = p.dense @ x.astype(np.float64) - 0.5 * c.astype(np.float64) + bias
    for axes in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        there = x.transpose(axes).copy().transpose(np.argsort(axes))
        in_place = c.transpose(axes).copy().transpose(np.argsort(axes))
        found = matmul(a, there, in_place, beta=-0.5, bias=bias, out=in_place)
        assert found is in_place
        error = np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected)
        assert error < ERRORS[dtype]


def test_repeated_operands(rng: np.random.Generator) -> None:
    """Strides of 0 in the dense operand and in c."""
    a, dense = sample(rng, CPU_SPACES[0])
    for n in (1, 3):
        x, c = rng.standard_normal((8, n)), rng.standard_normal((15, n))
        found = matmul(a, np.broadcast_to(x, (4, 8, n)), np.broadcast_to(c, (4, 15, n)))
        assert np.allclose(found, np.broadcast_to(dense @ x + c, (4, 15, n)))


def test_a_batch_on_the_left_is_one_product(rng: np.random.Generator) -> None:
    """The same bits as the product of all rows, and as each matrix by itself."""
    a, _ = sample(rng, CPU_SPACES[0])
    z = rng.standard_normal((7, 2, 40, 15))
    found = z @ a
    assert np.array_equal(found.reshape(-1, 8), z.reshape(-1, 15) @ a)


def test_overlaps_are_seen_across_a_batch(rng: np.random.Generator) -> None:
    a = bsr_array(np.ones((6, 6)), blocksize=(2, 2))
    memory = rng.standard_normal((4, 6, 6))
    with pytest.raises(ValueError, match="out overlaps b in memory"):
        bsrgemm.matmul(a, memory[:2], out=memory[1:3])
    bsrgemm.matmul(a, memory[:2], out=memory[2:])
    with pytest.raises(ValueError, match="out overlaps c in memory"):
        bsrgemm.matmul(a, memory[:2].copy(), memory[:2], out=memory[1:3])
