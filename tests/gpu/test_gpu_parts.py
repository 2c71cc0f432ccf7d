"""Products in which the tall kernels cut long tiles along K and add the parts."""

from __future__ import annotations

from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import (
    DeviceProblem,
    check,
    check_streams,
    random_problem,
    reduced,
    repeats,
    some,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

HALVES = ("float16", "bfloat16")
K = 8192
# Below, at and above a column tile and a cluster's two, with and without a ragged panel of 64.
COLUMNS = (8, 72, 256, 264, 520, 1032)


def full_rows(rows: int, *full: int) -> Any:
    """Some rows that store every block, the others with none."""

    def make(rng: np.random.Generator, cols: int) -> np.ndarray:
        mask = np.zeros((rows, cols), bool)
        mask[list(full)] = True
        return mask

    return make


def few_rows(rng: np.random.Generator, cols: int) -> np.ndarray:
    """Fewer tiles than SMs, all of about one length."""
    return rng.random((3, cols)) < 0.6


def long_and_short(rng: np.random.Generator, cols: int) -> np.ndarray:
    """Three long rows, then shorter and shorter ones down to empty."""
    chance = np.concatenate([[1.0, 0.9, 0.8], 0.1 / np.arange(1, 19), np.zeros(2)])
    return rng.permutation(rng.random((len(chance), cols)) < chance[:, None])


PATTERNS = {
    "one row": full_rows(1, 0),
    "two full rows": full_rows(24, 3, 17),
    "three full rows": full_rows(11, 0, 1, 10),
    "few rows": few_rows,
    "long and short": long_and_short,
}
BLOCKS = [(64, 64), (64, 16), (64, 112), (128, 128), (128, 32), (192, 48), (256, 64), (320, 128)]


def make(
    torch: Any, rng: np.random.Generator, pattern: str, block: tuple[int, int], dtype: str
) -> DeviceProblem:
    return random_problem(torch, PATTERNS[pattern](rng, K // block[1]), block, dtype)


def is_cut(p: DeviceProblem, n: int) -> bool:
    tall = next(c for c in p.matrix.plan(n).candidates if c["family"] == "tall")
    return " row tiles in " in tall["reason"]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block[0]}x{block[1]}")
def test_parts(
    torch: Any, rng: np.random.Generator, block: tuple[int, int], pattern: str, dtype: str
) -> None:
    p = make(torch, rng, pattern, block, dtype)
    assert is_cut(p, 256)
    for n in some(COLUMNS):
        check(torch, p, n, family="tall")
    check(torch, p, 264, alpha=-0.5, beta=2.0, family="tall")
    check(torch, p, 520, alpha=1.5, beta=-1.0, family="tall")


@pytest.mark.parametrize("dtype", HALVES)
def test_many_columns(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """More parts than SMs, and empty tiles between them."""
    for block in ((128, 128), (64, 64)):
        p = make(torch, rng, "two full rows", block, dtype)
        assert is_cut(p, 4608)
        for n in some((4104, 4608)):
            check(torch, p, n, family="tall")


def test_result_over_c(torch: Any, rng: np.random.Generator) -> None:
    """C may be the memory of the result."""
    p = make(torch, rng, "two full rows", (128, 128), "float16")
    x = torch.randn(K, 520, device="cuda").half()
    c = torch.randn(p.matrix.shape[0], 520, device="cuda").half()
    expected = product(p.matrix, x, c, 0.5, 2.0, None, None, "tall")
    product(p.matrix, x, c, 0.5, 2.0, c, None, "tall")
    assert torch.equal(c, expected)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_same_bits_every_time(torch: Any, rng: np.random.Generator, pattern: str) -> None:
    for block in ((64, 64), (128, 128)):
        p = make(torch, rng, pattern, block, "float16")
        x = torch.randn(K, 520, device="cuda").half()
        first = product(p.matrix, x, None, 1.0, None, None, None, "tall")
        for _ in repeats(30):
            assert torch.equal(product(p.matrix, x, None, 1.0, None, None, None, "tall"), first)


def test_streams(torch: Any, rng: np.random.Generator) -> None:
    """Each launch has sums of its own."""
    p = make(torch, rng, "three full rows", (128, 64), "float16")
    xs = [torch.randn(K, 264, device="cuda").half() for _ in range(3)]
    assert is_cut(p, 264)
    check_streams(torch, lambda x: product(p.matrix, x, None, 1.0, None, None, None, "tall"), xs)


def test_graph(torch: Any, rng: np.random.Generator) -> None:
    """A captured product replays with the values that its inputs have then."""
    p = make(torch, rng, "two full rows", (128, 128), "float16")
    a, x = p.matrix, torch.randn(K, 512, device="cuda").half()
    assert is_cut(p, 512)
    out = torch.empty(a.shape[0], 512, device="cuda").half()

    def multiply(target: Any) -> Any:
        return product(a, x, None, 1.0, None, target, None, "tall")

    multiply(out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        multiply(out)
    for _ in range(3):
        x.normal_()
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, multiply(None))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", [(128, 128), (64, 64), (256, 64), (32, 32), (16, 16)])
def test_order_of_skewed_rows(
    torch: Any, rng: np.random.Generator, block: tuple[int, int], dtype: str
) -> None:
    """Long row tiles first over all columns, the others by panels of columns."""
    family = "tall" if block[0] >= 64 else "stream"
    side = reduced(4096)
    mask = cases.skewed(rng, side // block[0], side // block[1])
    p = random_problem(torch, mask, block, dtype)
    for n in some((256, 2048, 4096, 5000, 8192)):
        check(torch, p, n, family=family)
