"""Products of small blocks that the tall kernels put together as they load them, on the GPU."""

from __future__ import annotations

from typing import Any

import bsrgemm
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import DeviceProblem, check, random_problem, reduced, repeats, some
from test_gpu_shapes import HALVES, PATTERNS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

# Pieces 16 to 80 columns wide, two to sixteen of them a strip; blocks that strips cut in two.
SHAPES = (
    (32, 32),
    (96, 96),
    (160, 32),
    (64, 32),
    (128, 32),
    (192, 32),
    (16, 64),
    (48, 64),
    (16, 128),
    (80, 192),
    (32, 64),
    (32, 128),
    (32, 16),
    (64, 16),
    (96, 16),
    (128, 16),
    (16, 16),
    (48, 16),
    (16, 32),
    (48, 96),
    (8, 64),
    (24, 64),
    (8, 128),
    (48, 80),
    (16, 160),
    (24, 240),
    (64, 80),
    (128, 80),
    (192, 160),
)
# Single CTAs, pairs along columns, pairs along rows; X as one box, and panel by panel.
COLUMNS = (8, 256, 264, 512, 1032, 2304)


def reason_of(a: Any, n: int) -> str:
    (found,) = [c for c in a.plan(n).candidates if c["family"] == "regroup"]
    return str(found["reason"])


def multiply_in_place(torch: Any, p: DeviceProblem, n: int, **options: Any) -> None:
    assert " in place, " in reason_of(p.matrix, n), "this is another kernel's test"
    check(torch, p, n, family="regroup", **options)


def mask_of(
    rng: np.random.Generator, blocksize: tuple[int, int], rows: int, cols: int, density: float
) -> np.ndarray:
    """About so many rows and columns, of just that density, with a block in the last corner."""
    mask = np.zeros((rows // blocksize[0] + 1, cols // blocksize[1] + 1), bool)
    mask.flat[rng.permutation(mask.size)[: round(density * mask.size)]] = True
    mask[-1, -1] = True
    return mask


# The planner takes other blocks for high ones with many zeros, and for dense ones of 8 rows.
CASES = [
    (blocksize, density)
    for blocksize in SHAPES
    for density in (0.6, 0.85, 1.1)
    if not (density == 0.6 and blocksize[0] >= 64) and not (density == 1.1 and blocksize[0] == 8)
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("blocksize", "density"), CASES)
def test_shapes(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], density: float, dtype: str
) -> None:
    """Neither rows nor columns are multiples of 128 and 64. Long tiles of few columns are cut."""
    for rows, cols, columns in ((1280, 900, (1032, 2304)), (300, 130, COLUMNS)):
        p = random_problem(torch, mask_of(rng, blocksize, rows, cols, density), blocksize, dtype)
        for n in some(columns):
            multiply_in_place(torch, p, n)
        multiply_in_place(torch, p, columns[-1], alpha=1.5, beta=-1.0)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("blocksize", [(32, 32), (48, 64), (96, 96), (64, 16), (16, 16)])
def test_patterns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], pattern: str
) -> None:
    """Dense rows among others: whole blocks of zeros are not listed, but pieces of zeros."""
    make, rows, cols = PATTERNS[pattern]
    mask = np.kron(make(rng, rows, cols), np.ones((6, 5), bool))
    mask &= rng.random(mask.shape) < 0.9
    mask[-1, -1] = True
    p = random_problem(torch, mask, blocksize, "bfloat16")
    for n in some((256, 264, 1024)):
        check(torch, p, n, family="regroup")


@pytest.mark.parametrize("dtype", HALVES)
def test_large(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Rings go round many times, and tiles are drawn."""
    side = reduced(4096)
    for blocksize in ((32, 32), (16, 64), (32, 16), (16, 16)):
        for density in (0.6, 0.8, 1.1):
            mask = mask_of(rng, blocksize, side - 1, side - 1, density)
            p = random_problem(torch, mask, blocksize, dtype)
            multiply_in_place(torch, p, side)


@pytest.mark.parametrize("n", [1104, 2304])
@pytest.mark.parametrize("blocksize", [(16, 16), (16, 32), (32, 32), (32, 16)])
def test_sixteens_without_blocks(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], n: int
) -> None:
    """Strips of 64 rows pass over sixteens of k in which they have no block, in tiles of more
    blocks than two loads of a warp tell."""
    height, width = blocksize
    rows, cols = 2048, 70 * 64
    strips = np.repeat(rng.random((rows // 64, cols // width)) < 0.8, 64 // height, axis=0)
    strips[-64 // height :] = True
    mask = strips & (rng.random(strips.shape) < 0.9)
    mask[: 64 // height, 5 * 64 // width :] = False
    p = random_problem(torch, mask, blocksize, "bfloat16")
    multiply_in_place(torch, p, n)


@pytest.mark.parametrize("blocksize", [(32, 32), (64, 16)])
def test_infinity_stays_where_it_is(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    """Of a row of blocks that are all there: no piece, nor a row of one, is taken for another."""
    p = random_problem(torch, mask_of(rng, blocksize, 500, 400, 1.1), blocksize, "float16")
    m, k = p.matrix.shape
    x = torch.randn(k, 512, device="cuda").half()
    for row, column in ((0, 0), (33, 17), (42, 3), (m - 1, k - 1), (127, 64), (128, 63)):
        a = bsrgemm.bsr_array(
            (p.matrix.data.clone(), p.matrix.indices, p.matrix.indptr), p.matrix.shape
        )
        block = p.matrix.shape[1] // blocksize[1] * (row // blocksize[0]) + column // blocksize[1]
        a.data[block, row % blocksize[0], column % blocksize[1]] = float("inf")
        out = product(a, x, None, 1.0, 0.0, None, None, "regroup")
        assert torch.equal(
            (~out.isfinite()).any(dim=1).nonzero().flatten().cpu(), torch.tensor([row])
        )


@pytest.mark.parametrize("offset", [1, 4, 8])
def test_values_at_any_address(torch: Any, rng: np.random.Generator, offset: int) -> None:
    """TMA needs multiples of 16 bytes: others are copied, to the same bits."""
    p = random_problem(torch, mask_of(rng, (32, 32), 600, 500, 0.9), (32, 32), "float16")
    a = p.matrix
    memory = torch.full((a.data.numel() + offset,), float("nan"), device="cuda").half()
    data = memory[offset:].view(a.data.shape)
    data.copy_(a.data)
    moved = bsrgemm.bsr_array((data, a.indices, a.indptr), a.shape)
    x = torch.randn(a.shape[1], 520, device="cuda").half()
    found, expected = (product(of, x, None, 1.0, 0.0, None, None, "regroup") for of in (moved, a))
    assert torch.equal(found, expected)
    check(torch, DeviceProblem(moved, p.dense), 264, family="regroup")


@pytest.mark.parametrize("density", [0.85, 1.1])
def test_nothing_beyond_the_operands_is_used(
    torch: Any, rng: np.random.Generator, density: float
) -> None:
    """Blocks of 128 x 64 reach beyond the last row of X and of C, where NaN stands."""
    p = random_problem(torch, mask_of(rng, (96, 96), 700, 250, density), (96, 96), "float16")
    assert " in place, " in reason_of(p.matrix, 256)
    m, k = p.matrix.shape
    x = torch.full((k + 128, 256), float("nan"), device="cuda").half()
    c = torch.full((m + 128, 256), float("nan"), device="cuda").half()
    x[:k].normal_()
    c[:m].normal_()
    out = product(p.matrix, x[:k], c[:m], 1.0, 2.0, None, None, "regroup")
    again = product(p.matrix, x[:k].clone(), c[:m].clone(), 1.0, 2.0, None, None, "regroup")
    assert torch.equal(out, again)
    assert out.isfinite().all()


def test_same_bits_every_time(torch: Any, rng: np.random.Generator) -> None:
    p = random_problem(torch, mask_of(rng, (32, 32), 1500, 1000, 0.9), (32, 32), "bfloat16")
    x = torch.randn(p.matrix.shape[1], 1032, device="cuda").bfloat16()
    first = product(p.matrix, x, None, 1.0, None, None, None, "regroup")
    for _ in repeats(30):
        assert torch.equal(product(p.matrix, x, None, 1.0, None, None, None, "regroup"), first)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_fused_output(torch: Any, rng: np.random.Generator, activation: str | None) -> None:
    p = random_problem(torch, mask_of(rng, (32, 32), 900, 700, 0.9), (32, 32), "bfloat16")
    m, k = p.matrix.shape
    x = torch.randn(k, 520, device="cuda").bfloat16()
    bias = torch.randn(m, 1, device="cuda").bfloat16()
    assert p.matrix.plan(520).choice == "regroup"
    found = bsrgemm.matmul(p.matrix, x, bias=bias, activation=activation)
    expected = p.dense @ x.double() + bias.double()
    if activation:
        expected = torch.nn.functional.gelu(expected)
    error = (found.double() - expected).norm() / expected.norm()
    assert error <= 2 * (expected.bfloat16().double() - expected).norm() / expected.norm()
