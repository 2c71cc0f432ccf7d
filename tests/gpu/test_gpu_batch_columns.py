"""Batches of dense operands, all columns of which are multiplied side by side where that pays."""

from __future__ import annotations

from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm import matmul
from device_cases import check_streams, random_problem, reduced, relative_error, some

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16", "float32", "float64")
# How (batch, rows, columns) lies in memory: of the last ones all columns follow one another.
ORDERS = ((0, 1, 2), (0, 2, 1), (1, 2, 0), (2, 1, 0), (1, 0, 2))


def placed(torch: Any, shape: tuple[int, ...], order: tuple[int, ...], dtype: Any) -> Any:
    memory = torch.randn(*(shape[i] for i in order), device="cuda").to(dtype)
    return memory.permute(*np.argsort(order).tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocksize", [(64, 64), (16, 16), (12, 20)])
def test_orders(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    """Of each operand, into poisoned memory, with c and without, and in place."""
    mask = cases.uniform(0.4)(rng, 9, 11)
    p = random_problem(torch, mask, blocksize, dtype)
    (m, k), kind = p.matrix.shape, p.matrix.dtype
    for count, n in some(((reduced(300), 3), (40, 16), (5, 130), (2, 1))):
        for of_x in some(ORDERS):
            for of_y in some(ORDERS):
                x, c = (placed(torch, (count, r, n), of_x, kind) for r in (k, m))
                out = placed(torch, (count, m, n), of_y, kind).fill_(float("nan"))
                expected = p.dense @ x.double()
                same = p.dense.to(kind) @ x
                lost = relative_error(torch, same, expected)
                allowed = max(2 * lost, 8 * cases.ROUNDOFF[dtype])
                matmul(p.matrix, x, out=out)
                assert relative_error(torch, out, expected) <= allowed
                expected = 0.5 * expected - 2.0 * c.double()
                out.fill_(float("nan"))
                matmul(p.matrix, x, c, alpha=0.5, beta=-2.0, out=out)
                assert relative_error(torch, out, expected) <= allowed
                out.copy_(c)
                matmul(p.matrix, x, out, alpha=0.5, beta=-2.0, out=out)
                assert relative_error(torch, out, expected) <= allowed


def test_same_bits_as_columns_side_by_side(torch: Any, rng: np.random.Generator) -> None:
    p = random_problem(torch, cases.uniform(0.3)(rng, 30, 20), (64, 64), "float16")
    x = torch.randn(100, p.matrix.shape[1], 8, device="cuda").half()
    together = x.permute(1, 0, 2).reshape(-1, 800)
    expected = matmul(p.matrix, together).view(-1, 100, 8).permute(1, 0, 2)
    assert torch.equal(matmul(p.matrix, x), expected)
    two = x.view(10, 10, *x.shape[1:])
    assert torch.equal(matmul(p.matrix, two).view(expected.shape), expected)


def test_what_repeats(torch: Any, rng: np.random.Generator) -> None:
    """A dense operand or c for all matrices, scales and bias of rows and of columns."""
    p = random_problem(torch, cases.uniform(0.4)(rng, 8, 6), (64, 64), "float16")
    m, k = p.matrix.shape
    x, c = (torch.randn(50, rows, 24, device="cuda").half() for rows in (k, m))
    rows, columns = torch.randn(m, 1, device="cuda").half(), torch.randn(24, device="cuda").half()
    base = p.dense @ x.double()
    for options, expected in (
        ({"c": c[0], "beta": 1.0}, base + c[0].double()),
        ({"bias": rows, "activation": "relu"}, (base + rows.double()).relu()),
        ({"bias": columns}, base + columns.double()),
        ({"row_scale": rows[:, 0]}, base * rows.double()),
        ({"col_scale": columns}, base * columns.double()),
    ):
        found = matmul(p.matrix, x, **options)
        assert relative_error(torch, found, expected) <= 2 * cases.ROUNDOFF["float16"], options
    # Of rows that follow one another nothing but c is copied.
    z, c = torch.randn(50, 24, m, device="cuda").half(), torch.randn(24, k, device="cuda").half()
    found = matmul(z, p.matrix, c)
    expected = z.double() @ p.dense + c.double()
    assert relative_error(torch, found, expected) <= 2 * cases.ROUNDOFF["float16"]


def test_streams_and_graphs(torch: Any, rng: np.random.Generator) -> None:
    p = random_problem(torch, cases.uniform(0.3)(rng, 12, 10), (64, 64), "float16")
    xs = [torch.randn(60, p.matrix.shape[1], 8, device="cuda").half() for _ in range(4)]
    check_streams(torch, lambda x: matmul(p.matrix, x), xs)
    x = torch.empty_like(xs[0])
    out = matmul(p.matrix, xs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(p.matrix, x, out=out)
    for given in xs:
        x.copy_(given)
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, matmul(p.matrix, given))
