"""The portable family's kernels for few columns: any dtype, block shape and strides."""

from __future__ import annotations

from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import DeviceProblem, check, combined, random_problem, relative_error, repeats
from test_gpu_narrow import LAYOUTS, check_layouts
from test_gpu_shapes import PATTERNS

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16", "float32", "float64")
BLOCKS = (
    *((1, 1), (2, 2), (3, 3), (4, 4), (5, 7), (8, 8), (12, 20), (16, 16), (24, 16), (32, 32)),
    *((64, 64), (128, 128), (1, 300), (300, 1), (130, 6), (6, 2000), (2000, 6), (4, 64), (64, 4)),
)
COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 64)


def problem(
    torch: Any, mask: np.ndarray, blocksize: tuple[int, int], dtype: str, transposed: bool
) -> DeviceProblem:
    """With blocks of ``mask`` either way, as the product has them."""
    if not transposed:
        return random_problem(torch, mask, blocksize, dtype)
    p = random_problem(torch, mask.T, blocksize[::-1], dtype)
    return DeviceProblem(p.matrix.T, p.dense.T)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocksize", BLOCKS)
def test_columns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str, transposed: bool
) -> None:
    for rows, cols, density in ((1, 1, 1.1), (3, 5, 0.5), (9, 70, 0.5)):
        p = problem(torch, cases.uniform(density)(rng, rows, cols), blocksize, dtype, transposed)
        for n in rng.permutation(COLUMNS)[:6]:
            check(torch, p, int(n), family="portable")
        check(torch, p, int(rng.choice(COLUMNS)), alpha=-0.5, beta=2.0, family="portable")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("blocksize", [(3, 3), (4, 4), (16, 16), (64, 32)])
def test_patterns(
    torch: Any,
    rng: np.random.Generator,
    blocksize: tuple[int, int],
    pattern: str,
    dtype: str,
    transposed: bool,
) -> None:
    """Rows in warps and in whole CTAs, empty ones and long ones."""
    make, rows, cols = PATTERNS[pattern]
    p = problem(torch, make(rng, rows, cols), blocksize, dtype, transposed)
    for n in (1, 3, 8, 20):
        check(torch, p, n, family="portable")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("blocksize", [(4, 4), (3, 5), (16, 16)])
def test_layouts(
    torch: Any,
    rng: np.random.Generator,
    blocksize: tuple[int, int],
    layout: Any,
    dtype: str,
    transposed: bool,
) -> None:
    p = problem(torch, cases.uniform(0.5)(rng, 15, 19), blocksize, dtype, transposed)
    check_layouts(torch, p, layout, (1, 4, 8, 12), "portable")


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_begin_anywhere(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Loads of A are only as wide as its address allows."""
    p = random_problem(torch, cases.uniform(0.5)(rng, 9, 12), (4, 8), dtype)
    x = torch.randn(p.matrix.shape[1], 5, device="cuda").to(p.matrix.dtype)
    for offset in (1, 2, 3):
        memory = torch.empty(p.matrix.data.numel() + offset, device="cuda", dtype=p.matrix.dtype)
        values = memory[offset:].view(p.matrix.data.shape).copy_(p.matrix.data)
        moved = bsrgemm.bsr_array((values, p.matrix.indices, p.matrix.indptr), p.matrix.shape)
        for a, operand in ((moved, x), (moved.T, x[: p.matrix.shape[0]])):
            if a.shape[1] != operand.shape[0]:
                operand = torch.randn(a.shape[1], 5, device="cuda").to(x.dtype)
            dense = p.dense if a.shape == p.matrix.shape else p.dense.T
            found = product(a, operand, None, 1.0, None, None, None, "portable")
            error = relative_error(torch, found, dense @ operand.double())
            assert error <= 2 * cases.least_error(dtype, a.shape[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_output(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Scales, biases and activations of rows and columns."""
    for blocksize, activation in combined(
        rng, [(3, 3), (4, 4), (20, 12)], ["relu", "gelu", "gelu_tanh", "silu", None], drawn=4
    ):
        p = problem(torch, cases.uniform(0.4)(rng, 13, 17), blocksize, dtype, bool(rng.integers(2)))
        (m, k), kind, n = p.matrix.shape, p.matrix.dtype, int(rng.integers(1, 9))
        x, bias = (torch.randn(*s, device="cuda").to(kind) for s in ((k, n), (n,)))
        scale = torch.randn(m, device="cuda").to(kind)
        found = product(
            p.matrix, x, None, 0.5, None, None, None, "portable",
            bias=bias, row_scale=scale, activation=activation,
        )  # fmt: skip
        expected = 0.5 * scale.double()[:, None] * (p.dense @ x.double()) + bias.double()
        functions = {
            "relu": torch.relu,
            "gelu": torch.nn.functional.gelu,
            "gelu_tanh": lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
            "silu": torch.nn.functional.silu,
            None: lambda y: y,
        }
        error = relative_error(torch, found, functions[activation](expected))
        allowed = 4 * cases.least_error(dtype, k)
        assert error <= allowed, f"{blocksize} {activation}: {error:.3e}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_same_bits_every_time(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    for blocksize in ((4, 4), (64, 64)):
        p = random_problem(torch, cases.skewed(rng, 60, 200), blocksize, dtype)
        x = torch.randn(p.matrix.shape[1], 3, device="cuda").to(p.matrix.dtype)
        first = p.matrix @ x
        for _ in repeats(20):
            assert torch.equal(p.matrix @ x, first)


def test_rows_that_no_block_selects_are_not_read(torch: Any, rng: np.random.Generator) -> None:
    mask = np.zeros((30, 6), bool)
    mask[:, [1, 4]] = True
    for blocksize in ((3, 3), (4, 4), (16, 8)):
        p = random_problem(torch, mask, blocksize, "float32")
        x = torch.full((p.matrix.shape[1], 8), float("nan"), device="cuda")
        for column in (1, 4):
            x[column * blocksize[1] : (column + 1) * blocksize[1]] = 1
        for n in (1, 3, 8):
            found = product(p.matrix, x[:, :n], None, 1.0, None, None, None, "portable")
            assert not found.isnan().any()
