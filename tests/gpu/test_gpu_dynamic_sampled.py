"""Sampled products at the blocks of patterns that a GPU makes: whole values against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bsrgemm import DynamicPattern, sampled_matmul
from bsrgemm._sampled import sampled
from cases import cancellation, kept, least_error
from device_cases import GUARD, combined, reduced, relative_error
from test_gpu_dynamic import OTHERS, TALL, all_masks

pytestmark = pytest.mark.gpu

# Sides that are multiples of 64 both ways, then of 32.
SQUARE = [(64, 64), (128, 64), (192, 64), (256, 128), (64, 128), (64, 192), (128, 256)]
UNIONS = [(32, 32), (32, 64), (64, 32), (96, 32), (32, 96), (160, 96), (128, 32)]


def blocks_of(torch: Any, dense: Any, mask: np.ndarray) -> Any:
    """Those that the mask selects, in the order of values."""
    rows, cols = (torch.as_tensor(i, device="cuda") for i in mask.nonzero())
    grid = dense.reshape(mask.shape[0], dense.shape[0] // mask.shape[0], mask.shape[1], -1)
    return grid.transpose(1, 2)[rows, cols]


def placed(x: Any, order: str) -> Any:
    """The same in memory by rows, by columns or with gaps."""
    if order == "rows":
        return x.contiguous()
    if order == "columns":
        return x.T.contiguous().T
    return x.repeat_interleave(2, 1)[:, ::2]


def check(
    torch: Any,
    pattern: DynamicPattern,
    mask: np.ndarray,
    k: int,
    dtype: Any,
    family: str,
    orders: tuple[str, str] = ("rows", "rows"),
    turned: bool = False,
    beta: float = 0.0,
    in_place: bool = False,
) -> None:
    """All values, those behind the last block too, into poisoned memory with guards around it."""
    left = kept(mask, pattern.capacity)
    stored, (rows, cols) = int(left.sum()), pattern.shape
    a, b = (torch.randn(*s, device="cuda").to(dtype) for s in ((rows, k), (k, cols)))
    size = pattern.capacity * pattern.blocksize[0] * pattern.blocksize[1]
    guard = GUARD if family == "portable" else 8  # 16 bytes, which Hopper's kernels want
    memory = torch.full((size + 2 * guard,), float("nan"), device="cuda", dtype=dtype)
    values = memory[guard : size + guard].view(pattern.capacity, *pattern.blocksize)
    old = torch.full_like(values, float("nan"))
    if beta:
        old[:stored] = torch.randn_like(old[:stored])
    if in_place:
        values.copy_(old)
    out = pattern.array(values)
    matrix = out if in_place else pattern.array(old)
    left_operand, right_operand = (b.T, a.T) if turned else (a, b)
    operands = placed(left_operand, orders[0]), placed(right_operand, orders[1])
    if turned:
        matrix, out = matrix.T, matrix.T if in_place else out.T
    before = old[:stored].double() if beta else 0.0
    result = sampled(*operands, matrix, 1.5, beta, out, None, family)
    assert result is out
    assert memory[:guard].isnan().all() and memory[size + guard :].isnan().all()
    assert (values[stored:] == 0).all(), "not all behind the last block is zero"
    if stored == 0:
        return
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    expected = 1.5 * blocks_of(torch, a.double() @ b.double(), left) + beta * before
    same = 1.5 * blocks_of(torch, a.to(wide) @ b.to(wide), left)
    same = (same.double() + beta * before).to(dtype)
    terms = 1.5 * blocks_of(torch, a.double().abs() @ b.double().abs(), left)
    terms = terms + abs(beta) * (before.abs() if beta else 0.0)
    lost = relative_error(torch, same, expected)
    name = str(dtype).removeprefix("torch.")
    allowed = max(2.0 * lost, least_error(name, k + 1, cancellation(expected, terms, k + 1)))
    error = relative_error(torch, values[:stored], expected)
    assert error <= allowed, f"{pattern!r}, k={k}, {family}: {error}, allowed {allowed}"


def check_drawn(
    torch: Any,
    rng: np.random.Generator,
    blocksize: tuple[int, int],
    dtype: str,
    family: str,
    grids: list[tuple[int, int]],
    orders: list[str],
    ks: list[int],
) -> None:
    """Masks of all kinds, with room for all blocks or for fewer, operands in any of the orders."""
    height, width = blocksize
    for (rows, cols), part in combined(rng, grids, (1, 3), drawn=3):
        capacity = max(1, rows * cols // part)
        pattern = DynamicPattern((rows * height, cols * width), blocksize, capacity)
        for (mask,) in combined(rng, all_masks(rng, rows, cols)):
            pattern.update(torch.as_tensor(np.ascontiguousarray(mask), device="cuda"))
            placing, k = tuple(rng.choice(orders, 2)), int(rng.choice(ks))
            turned, adds, in_place = (bool(x) for x in rng.integers(0, 2, 3))
            options = (placing, turned, 0.5 * adds, in_place)
            check(torch, pattern, mask, k, getattr(torch, dtype), family, *options)


@pytest.mark.parametrize("blocksize", [*SQUARE, *UNIONS])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.usefixtures("hopper")
def test_hopper(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    grids = [(5, 7), (8, 6), (1, 9), (7, 70), (37, 3)]
    orders, ks = ["rows", "columns"], [8, 64, 120, 200]
    check_drawn(torch, rng, blocksize, dtype, "sampled", grids, orders, ks)


@pytest.mark.parametrize("blocksize", [*OTHERS, *TALL[:2]])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_portable(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    grids = [(6, 9), (1, 1), (reduced(33), 65), (3, 100)]
    orders, ks = ["rows", "columns", "gaps"], [1, 7, 40, 128]
    check_drawn(torch, rng, blocksize, dtype, "portable", grids, orders, ks)


def test_without_k(torch: Any, rng: np.random.Generator) -> None:
    pattern = DynamicPattern((256, 512), (64, 64), 20)
    mask = rng.random((4, 8)) < 0.4
    pattern.update(torch.as_tensor(mask, device="cuda"))
    empty = torch.zeros(256, 0, device="cuda").half(), torch.zeros(0, 512, device="cuda").half()
    found = sampled_matmul(*empty, pattern)
    assert found.data.shape == (20, 64, 64) and (found.data == 0).all()


def test_large_capacity(torch: Any, rng: np.random.Generator) -> None:
    """Most of the slots for tiles are empty, or there are more than a CTA's share of them."""
    for blocksize, rows, cols in (
        ((64, 64), 128, 256),
        ((128, 128), 64, 64),
        ((16, 16), 70, 90),
        ((64, 64), 1100, 40),
        ((32, 32), 128, 130),
        ((32, 32), 2100, 33),
        ((32, 64), 8300, 3),
        ((64, 64), 4100, 5),
        ((8, 8), 5000, 9),
    ):
        height, width = blocksize
        pattern = DynamicPattern((rows * height, cols * width), blocksize, rows * cols)
        masks = [rng.random((rows, cols)) < density for density in (0.0, 0.002, 0.03, 0.9)]
        # Seven rows in a row have the same four columns, and the last ones none.
        masks.append(np.arange(rows)[:, None] // 7 == np.arange(cols) // 4)
        for mask in masks:
            pattern.update(torch.as_tensor(mask, device="cuda"))
            check(torch, pattern, mask, 64, torch.bfloat16, "auto")


@pytest.mark.parametrize("blocksize", [(128, 128), (64, 64), (32, 32), (96, 64), (16, 16)])
def test_same_bits_as_a_fixed_pattern(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    rows, cols = 20, 24
    pattern = DynamicPattern((rows * blocksize[0], cols * blocksize[1]), blocksize, rows * cols)
    mask = rng.random((rows, cols)) < 0.3
    pattern.update(torch.as_tensor(mask, device="cuda"))
    a, b = (
        torch.randn(*s, device="cuda").half()
        for s in ((pattern.shape[0], 192), (192, pattern.shape[1]))
    )
    family = "portable" if blocksize == (16, 16) else "auto"
    found = [sampled(a, b, pattern, family=family).data for _ in range(3)]
    fixed = pattern.array(found[0]).to_bsr()
    same = sampled(a, b, fixed, family=family).data
    for values in found:
        assert torch.equal(values[: len(same)], same) and not values[len(same) :].any()


def test_graph(torch: Any, rng: np.random.Generator) -> None:
    """A pattern, what is sampled there, and a product with that, replayed for other patterns."""
    for blocksize in ((128, 128), (32, 32)):
        side = 16 * blocksize[0]
        pattern = DynamicPattern((side, side), blocksize, 100)
        mask = torch.zeros(16, 16, dtype=torch.bool, device="cuda")
        a, b, x = (torch.randn(side, side, device="cuda").half() for _ in range(3))

        def step() -> Any:
            pattern.update(mask)  # noqa: B023
            return sampled_matmul(a, b, pattern, alpha=1 / 64) @ x  # noqa: B023

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = step()
        for density in (0.1, 0.0, 0.3, 1.0):
            given = rng.random((16, 16)) < density
            mask.copy_(torch.as_tensor(given))
            y.fill_(float("nan"))
            graph.replay()
            on = torch.as_tensor(kept(given, 100), device="cuda").double()
            on = torch.kron(on, torch.ones(blocksize, device="cuda").double())
            expected = (a.double() @ b.double() / 64 * on).half().double() @ x.double()
            if density == 0.0:
                assert (y == 0).all()
            else:
                assert relative_error(torch, y, expected) < 2e-3
