"""Products of blocks that are copied into others with zeros, compared on the GPU.

Dense patterns run on the tall kernels, sparser ones on the stream kernels unless these take them
as they are.
"""

from __future__ import annotations

from typing import Any

import bsrgemm
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
from test_gpu_shapes import HALVES, PATTERNS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

SHAPES = (
    (16, 16),
    (32, 32),
    (24, 24),
    (48, 80),
    (96, 96),
    (8, 8),
    (4, 4),
    (12, 12),
    (20, 20),
    (16, 8),
    (32, 8),
    (48, 24),
    (5, 3),
    (1, 1),
    (40, 24),
    (32, 64),
    (64, 8),
    (130, 17),
)
COLUMNS = (8, 64, 264, 1024)


def make_mask(rng: np.random.Generator, pattern: str) -> np.ndarray:
    """The pattern with at least one block."""
    make, rows, cols = PATTERNS[pattern]
    mask = make(rng, rows, cols)
    mask[-1, -1] = True
    return mask


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("blocksize", SHAPES)
def test_patterns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], pattern: str, dtype: str
) -> None:
    p = random_problem(torch, make_mask(rng, pattern), blocksize, dtype)
    for n in some(COLUMNS):
        check(torch, p, n, family="regroup")
    check(torch, p, 264, alpha=1.5, beta=-1.0, family="regroup")
    check(torch, p, 72, beta=1.0, family="regroup")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("density", [0.02, 0.3, 1.1])
@pytest.mark.parametrize("blocksize", SHAPES)
def test_sizes_that_no_larger_block_divides(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], density: float, dtype: str
) -> None:
    """The last larger blocks reach beyond the matrix; several tiles of rows."""
    height, width = blocksize
    for rows, cols in ((1, 1), (63, 65), (129, 17), (700, 500)):
        mask = cases.uniform(density)(rng, rows // height + 1, cols // width + 1)
        mask[0, -1] = True
        p = random_problem(torch, mask, blocksize, dtype)
        check(torch, p, 520, family="regroup")
        check(torch, p, 40, alpha=-2.0, beta=0.5, family="regroup")


@pytest.mark.parametrize("block", [4, 8, 12, 16, 20, 24, 32, 48])
def test_large(torch: Any, rng: np.random.Generator, block: int) -> None:
    for density in (0.03, 0.125, 1.1):
        mask = cases.uniform(density)(rng, reduced(4096) // block, reduced(4096) // block)
        p = random_problem(torch, mask, (block, block), "bfloat16")
        check(torch, p, reduced(4096), family="regroup")


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
@pytest.mark.parametrize("blocksize", [(16, 16), (24, 24), (8, 8)])
def test_values_at_any_address(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], offset: int
) -> None:
    """Values that start in the middle of a vector are copied in smaller ones."""
    p = random_problem(torch, cases.uniform(0.2)(rng, 30, 31), blocksize, "float16")
    a = p.matrix
    memory = torch.full((a.data.numel() + offset,), float("nan"), device="cuda").half()
    data = memory[offset:].view(a.data.shape)
    data.copy_(a.data)
    moved = bsrgemm.bsr_array((data, a.indices, a.indptr), a.shape)
    check(torch, DeviceProblem(moved, p.dense), 264, family="regroup")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("blocksize", "density", "family"),
    [
        ((12, 24), 0.1, "stream"),
        ((40, 20), 0.1, "stream"),
        ((20, 20), 0.1, "stream"),
        ((28, 20), 0.1, "stream"),
        ((8, 8), 0.03, "stream"),
        ((5, 3), 0.005, "stream"),
        ((1, 1), 0.001, "stream"),
        ((24, 24), 1.1, "tall"),
        ((5, 3), 0.3, "tall"),
        ((1, 1), 0.3, "tall"),
    ],
)
def test_ragged_sums_scaled_and_added(
    torch: Any,
    rng: np.random.Generator,
    blocksize: tuple[int, int],
    density: float,
    family: str,
    dtype: str,
) -> None:
    """Many tiles, rows and columns that no larger block divides, NaN around out."""
    height, width = blocksize
    mask = cases.uniform(density)(rng, 1001 // height, 903 // width)
    mask[-1, -1] = mask[0, 0] = True
    p = random_problem(torch, mask, blocksize, dtype)
    assert_planned_for(p, 1032, family)
    for n, alpha, beta in ((1032, 1.0, 0.0), (264, -0.5, 0.0), (136, 1.0, 1.0), (1032, 2.0, -1.5)):
        check(torch, p, n, alpha=alpha, beta=beta, family="regroup")


def assert_planned_for(p: DeviceProblem, n: int, family: str) -> None:
    (found,) = [c for c in p.matrix.plan(n).candidates if c["family"] == "regroup"]
    assert f" blocks for {family}, " in found["reason"]


@pytest.mark.parametrize("density", [0.1, 1.1])
def test_nothing_beyond_the_operands_is_used(
    torch: Any, rng: np.random.Generator, density: float
) -> None:
    """The larger blocks reach beyond the last row of X and of C, where NaN stands."""
    mask = cases.uniform(density)(rng, 41, 43)
    mask[-1, -1] = True
    p = random_problem(torch, mask, (20, 20), "float16")
    assert_planned_for(p, 256, "tall" if density > 1 else "stream")
    m, k = p.matrix.shape
    n = 256
    x = torch.full((k + 128, n), float("nan"), device="cuda").half()
    c = torch.full((m + 128, n), float("nan"), device="cuda").half()
    x[:k].normal_()
    c[:m].normal_()
    out = product(p.matrix, x[:k], c[:m], 1.0, 2.0, None, None, "regroup")
    assert torch.equal(
        out, product(p.matrix, x[:k].clone(), c[:m].clone(), 1.0, 2.0, None, None, "regroup")
    )
    assert out.isfinite().all()


@pytest.mark.parametrize("density", [0.1, 1.1])
@pytest.mark.parametrize("blocksize", [(40, 24), (8, 8), (5, 3)])
def test_out_is_c(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], density: float
) -> None:
    mask = cases.uniform(density)(rng, 500 // blocksize[0] + 1, 400 // blocksize[1] + 1)
    p = random_problem(torch, mask, blocksize, "bfloat16")
    x = torch.randn(p.matrix.shape[1], 136, device="cuda").bfloat16()
    c = torch.randn(p.matrix.shape[0], 136, device="cuda").bfloat16()
    expected = product(p.matrix, x, c, 1.0, 0.5, None, None, "regroup")
    assert torch.equal(product(p.matrix, x, c, 1.0, 0.5, c, None, "regroup"), expected)


@pytest.mark.parametrize("blocksize", [(16, 16), (24, 24), (8, 8)])
def test_same_bits_every_time(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    p = random_problem(torch, cases.skewed(rng, 48, 40), blocksize, "float16")
    x = torch.randn(p.matrix.shape[1], 520, device="cuda").half()
    first = product(p.matrix, x, None, 1.0, None, None, None, "regroup")
    for _ in repeats(30):
        assert torch.equal(product(p.matrix, x, None, 1.0, None, None, None, "regroup"), first)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("blocksize", [(16, 16), (24, 24), (5, 3)])
def test_graph(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], warm: bool
) -> None:
    """A captured product packs the values that it finds at each replay."""
    a = random_problem(torch, cases.uniform(0.4)(rng, 30, 40), blocksize, "float16").matrix
    x = torch.randn(a.shape[1], 256, device="cuda").half()
    c = torch.randn(a.shape[0], 256, device="cuda").half()
    out = torch.empty_like(c)

    def multiply(out: Any = None) -> Any:
        return product(a, x, c, 1.0, 0.5, out, None, "regroup")

    if warm:
        multiply()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        multiply(out)
        made = multiply()
    for _ in range(3):
        x.normal_()
        a.data.normal_()
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, multiply())
        assert torch.equal(made, out)


@pytest.mark.parametrize(("blocksize", "density"), [((16, 16), 0.4), ((24, 24), 0.1)])
def test_products_on_several_streams(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], density: float
) -> None:
    """Each product has packed values of its own."""
    a = random_problem(torch, cases.uniform(density)(rng, 60, 60), blocksize, "float16").matrix
    xs = [torch.randn(a.shape[1], 512, device="cuda").half() for _ in range(4)]
    check_streams(torch, lambda x: product(a, x, None, 1.0, None, None, None, "regroup"), xs)


def test_says_what_it_needs(torch: Any, rng: np.random.Generator) -> None:
    p = random_problem(torch, np.ones((2, 2), bool), (16, 16), "float16")
    x = torch.ones(32, 64, device="cuda", dtype=torch.float16)
    with pytest.raises(ValueError, match="family 'regroup'.*multiple of 8"):
        product(p.matrix, x[:, :7], None, 1.0, None, None, None, "regroup")
    with pytest.raises(ValueError, match="family 'regroup'.*row-major"):
        product(p.matrix, x.T.contiguous().T, None, 1.0, None, None, None, "regroup")
    tall = random_problem(torch, np.ones((2, 2), bool), (64, 48), "float16")
    x = torch.ones(96, 64, device="cuda", dtype=torch.float16)
    with pytest.raises(ValueError, match="family 'regroup'.*gain from being larger"):
        product(tall.matrix, x, None, 1.0, None, None, None, "regroup")
