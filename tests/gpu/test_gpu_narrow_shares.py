"""Products of up to 128 columns whose rows of blocks differ in length, which clusters of CTAs share
evenly."""

from __future__ import annotations

from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import DeviceProblem, combined, random_problem, repeats
from test_gpu_narrow import aligned_rows, check_layouts, check_x, columns_of, padded_columns
from test_gpu_shapes import HALVES

pytestmark = pytest.mark.gpu

# Strips in up to four parts, and whole ones.
SHAPES = (
    *(((64, 64), 128), ((128, 128), 40), ((128, 128), 64)),
    *(((96, 48), 40), ((40, 112), 128), ((256, 80), 20), ((130, 192), 40)),
)
COLUMNS = (65, 71, 72, 96, 100, 120, 127, 128)
FEW = (1, 7, 8, 13, 16, 24, 31, 32, 40, 50, 63, 64)


def unequal(
    torch: Any, rng: np.random.Generator, rows: int, blocksize: tuple[int, int], dtype: str
) -> DeviceProblem:
    """Of lengths for which shares are chosen, as they are of all but one in a hundred."""
    for _ in range(5):
        p = random_problem(torch, cases.of_all_lengths(rng, rows, 48), blocksize, dtype)
        plans = [p.matrix.plan(n).explain() for n in (16, 64, 128)]
        if all("rows shared out evenly" in said for said in plans):
            return p
    raise AssertionError(plans)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("blocksize", "rows"), SHAPES)
def test_rows(
    torch: Any, rng: np.random.Generator, rows: int, blocksize: tuple[int, int], dtype: str
) -> None:
    p = unequal(torch, rng, rows, blocksize, dtype)
    for columns in (COLUMNS, FEW):
        for n, layout in combined(rng, columns, (aligned_rows, columns_of), drawn=3):
            check_x(torch, rng, p, layout(torch, p.matrix.shape[1], n, p.matrix.dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_any_layout(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    p = unequal(torch, rng, 128, (64, 64), dtype)
    for layout in (columns_of, padded_columns, aligned_rows):
        check_layouts(torch, p, layout, (8, 33, 64, 65, 100, 128), "narrow")


@pytest.mark.parametrize("columns", [16, 64, 128])
def test_same_bits_every_time(torch: Any, rng: np.random.Generator, columns: int) -> None:
    """Also of a graph, and with other work on the GPU."""
    p = unequal(torch, rng, 64, (128, 128), "bfloat16")
    x = torch.randn(p.matrix.shape[1], columns, device="cuda").bfloat16()
    first = product(p.matrix, x, None, 1.0, None, None, None, "narrow")
    out = torch.empty_like(first)
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        product(p.matrix, x, None, 1.0, None, out, None, "narrow")
    busy = torch.randn(2048, 2048, device="cuda")
    for _ in repeats(200):
        with torch.cuda.stream(other):
            busy @ busy
        out.fill_(float("nan"))
        graph.replay()
        again = product(p.matrix, x, None, 1.0, None, None, None, "narrow")
        assert torch.equal(out, first) and torch.equal(again, first)
