"""Few columns whose rows follow one another without a gap, and single columns, between NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import (
    DeviceProblem,
    captured,
    check_same_bits,
    check_streams,
    random_problem,
    relative_error,
)
from test_gpu_shapes import HALVES

pytestmark = pytest.mark.gpu

COLUMNS = (1, 8, 16, 24, 32)
# Of 64 rows: fewer would take other kernels, since each of them would have to do too much.
STRIPS = 130
# Strips of 32 and 64 rows, whole ones and last ones; stages of 64, 32 and 16 k, and rests of them.
BLOCKS = (
    *((32, 32), (32, 128), (20, 48), (40, 16), (64, 64), (64, 112)),
    *((128, 128), (130, 80), (96, 320), (256, 32)),
)


def between_nan(torch: Any, rows: int, n: int, dtype: Any) -> Any:
    memory = torch.full((rows + 16, n), float("nan"), device="cuda").to(dtype)
    memory[8:-8] = torch.randn(rows, n, device="cuda")
    return memory[8:-8]


def check_columns(torch: Any, matrix: Any, dense: Any, dtype: str) -> None:
    m, k = matrix.shape
    for n in COLUMNS:
        x, memory = between_nan(torch, k, n, matrix.dtype), between_nan(torch, m, n, matrix.dtype)
        memory.fill_(float("nan"))
        product(matrix, x, None, 1.0, None, memory, None, "narrow")
        error = relative_error(torch, memory, dense @ x.double())
        assert error <= 1.2 * cases.ROUNDOFF[dtype], f"{matrix!r} n={n}: {error:.3e}"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", BLOCKS)
def test_columns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    for rows, cols in ((1, 1), (5, 9), (40, 30), (300, 12)):
        p = random_problem(torch, cases.uniform(0.5)(rng, rows, cols), blocksize, dtype)
        check_columns(torch, p.matrix, p.dense, dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", [(64, 64), (128, 48), (192, 16), (64, 160)])
def test_transposed_views(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    for rows, cols in ((1, 1), (30, 40), (12, 300)):
        p = random_problem(torch, cases.uniform(0.5)(rng, rows, cols), blocksize, dtype)
        check_columns(torch, p.matrix.T, p.dense.T, dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_long_rows(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """In pieces, and empty ones."""
    mask = np.zeros((STRIPS, 200), bool)
    mask[3], mask[7, ::5], mask[11:, :2] = True, True, True
    p = random_problem(torch, mask, (64, 64), dtype)
    check_columns(torch, p.matrix, p.dense, dtype)


def problem(torch: Any, rng: np.random.Generator) -> tuple[DeviceProblem, Callable[[Any], Any]]:
    p = random_problem(torch, cases.uniform(0.3)(rng, STRIPS, 50), (64, 64), "float16")
    return p, lambda x: product(p.matrix, x, None, 1.0, None, None, None, "narrow")


@pytest.mark.parametrize("n", COLUMNS)
def test_streams_and_graphs(torch: Any, rng: np.random.Generator, n: int) -> None:
    p, multiply = problem(torch, rng)
    xs = [torch.randn(p.matrix.shape[1], n, device="cuda").half() for _ in range(3)]
    check_streams(torch, multiply, xs)
    check_same_bits(torch, lambda: multiply(xs[0]), xs[0])
    graph, found = captured(torch, lambda: multiply(xs[1]))
    expected = multiply(xs[1]).clone()
    for _ in range(3):
        found.fill_(float("nan"))
        graph.replay()
        assert torch.equal(found, expected)


@pytest.mark.parametrize("n", [8, 16, 32])
def test_other_rows_have_the_same_bits(torch: Any, rng: np.random.Generator, n: int) -> None:
    """Sums are those of columns, whichever way they come."""
    p, multiply = problem(torch, rng)
    x = torch.randn(p.matrix.shape[1], n, device="cuda").half()
    assert torch.equal(multiply(x), multiply(x.T.contiguous().T))
