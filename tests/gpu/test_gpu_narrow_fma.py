"""The narrow family with float32 and float64: few columns, on Hopper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import check_same_bits, combined, random_problem, relative_error
from test_gpu_few import problem
from test_gpu_narrow import (
    aligned_rows,
    check_layouts,
    columns_of,
    in_pieces,
    one_an_sm,
    padded_columns,
    three_an_sm,
    two_an_sm,
    uncut,
)
from test_gpu_shapes import PATTERNS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

COLUMNS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64)
MANY_COLUMNS = (65, 100, 128, 130, 256, 500)
LAYOUTS = (columns_of, padded_columns, aligned_rows)
DTYPES = ("float32", "float64")


def some_columns(rng: np.random.Generator) -> tuple[int, ...]:
    drawn = (*rng.permutation(COLUMNS)[:5], rng.choice(MANY_COLUMNS))
    return tuple(int(n) for n in drawn)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [4, 8, 12, 16, 20, 32, 48, 64, 100, 128])
@pytest.mark.parametrize("height", [1, 4, 8, 16, 24, 32, 40, 64, 128])
def test_shapes(
    torch: Any,
    rng: np.random.Generator,
    height: int,
    width: int,
    layout: Callable[..., Any],
    transposed: bool,
    dtype: str,
) -> None:
    if transposed and height % 4:
        height += 4 - height % 4
    for rows, cols in ((1, 1), (3, 5), (6, 13)):
        mask = cases.uniform(0.5)(rng, rows, cols)
        p = problem(torch, mask, (height, width), dtype, transposed)
        check_layouts(torch, p, layout, some_columns(rng), "narrow")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("blocksize", [(8, 8), (16, 16), (32, 32), (64, 64), (128, 64), (40, 48)])
def test_patterns(
    torch: Any,
    rng: np.random.Generator,
    blocksize: tuple[int, int],
    pattern: str,
    transposed: bool,
    dtype: str,
) -> None:
    make, rows, cols = PATTERNS[pattern]
    p = problem(torch, make(rng, rows, cols), blocksize, dtype, transposed)
    for layout in LAYOUTS:
        check_layouts(torch, p, layout, some_columns(rng), "narrow")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("height", [8, 16, 32, 64])
def test_crowds(
    torch: Any, rng: np.random.Generator, height: int, transposed: bool, dtype: str
) -> None:
    """Every number of warps of a CTA, strips in pieces, and every ring again."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for mask in (uncut, in_pieces, one_an_sm, two_an_sm, three_an_sm):
        width = int(rng.choice((8, 16, 32)))
        made = mask(rng, (height, width), sms)
        p = problem(torch, made, (height, width), dtype, transposed)
        layout = LAYOUTS[rng.integers(len(LAYOUTS))]
        check_layouts(torch, p, layout, some_columns(rng), "narrow")


@pytest.mark.parametrize("dtype", DTYPES)
def test_edges(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Matrices that end within a block, and memory around Y."""
    for shape, block in (((300, 500), (128, 128)), ((95, 132), (32, 64)), ((3, 36), (16, 16))):
        dense = torch.randn(*shape, device="cuda", dtype=getattr(torch, dtype))
        a = bsrgemm.bsr_array(dense, blocksize=block)
        for n in (1, 5, 64, 100):
            for x in (
                columns_of(torch, shape[1], n, dense.dtype),
                torch.randn(n, shape[1]).to(dense).T,
            ):
                out = torch.full((shape[0] + 2, n + 3), torch.nan, device="cuda", dtype=dense.dtype)
                product(a, x, None, 1.0, None, out[1:-1, 1 : n + 1], None, "narrow")
                error = relative_error(torch, out[1:-1, 1 : n + 1], dense.double() @ x.double())
                assert error <= 2 * cases.least_error(dtype, shape[1])
                out[1:-1, 1 : n + 1] = torch.nan
                assert out.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_output(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Scales, biases and activations of rows and columns."""
    functions = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, None: lambda y: y}
    for blocksize, activation in combined(rng, [(8, 8), (16, 16), (64, 32)], list(functions)):
        mask = cases.uniform(0.4)(rng, 13, 17)
        p = problem(torch, mask, blocksize, dtype, bool(rng.integers(2)))
        (m, k), n = p.matrix.shape, 4 * int(rng.integers(1, 17))
        x, bias, scale = (
            torch.randn(*s, device="cuda", dtype=getattr(torch, dtype))
            for s in ((k, n), (n,), (m,))
        )
        found = product(
            p.matrix, x, None, 0.1, None, None, None, "narrow",
            bias=bias, row_scale=scale, activation=activation,
        )  # fmt: skip
        # A factor that float32 does not have.
        expected = 0.1 * scale.double()[:, None] * (p.dense @ x.double()) + bias.double()
        error = relative_error(torch, found, functions[activation](expected))
        assert error <= 4 * cases.least_error(dtype, k), f"{blocksize} {activation}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_in_its_row(
    torch: Any, rng: np.random.Generator, dtype: str
) -> None:
    """Rows of X that no block meets, and rows that share a strip with an infinity."""
    mask = np.zeros((4, 8), bool)
    mask[0, 1] = mask[1, 2] = mask[2, 1] = True
    p = random_problem(torch, mask, (16, 16), dtype)
    x = torch.randn(128, 16, device="cuda", dtype=getattr(torch, dtype))
    expected = p.dense @ x.double()
    for row in (0, 15, 48, 127):
        x[row] = torch.nan
    found = product(p.matrix, x, None, 1.0, None, None, None, "narrow")
    assert relative_error(torch, found, expected) <= 2 * cases.least_error(dtype, 128)
    p.matrix.data[0, 3, 4] = torch.inf
    found = product(p.matrix, x, None, 1.0, None, None, None, "narrow")
    assert not found[3].isfinite().any()
    found[3], expected[3] = 0, 0
    assert relative_error(torch, found, expected) <= 2 * cases.least_error(dtype, 128)


@pytest.mark.parametrize("dtype", DTYPES)
def test_is_chosen(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    p = random_problem(torch, cases.uniform(0.25)(rng, 256, 256), (16, 16), dtype)
    for n in (8, 16, 32, 64):
        assert p.matrix.plan(n).choice == p.matrix.T.plan(n).choice == "narrow"


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Again and again, and in a graph, where strips are in pieces."""
    p = random_problem(torch, in_pieces(rng, (32, 32), 132), (32, 32), dtype)
    x = torch.randn(p.matrix.shape[1], 24, device="cuda", dtype=getattr(torch, dtype))

    def multiply() -> Any:
        return product(p.matrix, x, None, 1.0, None, None, None, "narrow")

    check_same_bits(torch, multiply, x)


def test_says_what_it_needs(torch: Any, rng: np.random.Generator) -> None:
    def refuse(a: Any, x: Any, message: str) -> None:
        with pytest.raises(ValueError, match=f"family 'narrow'.*{message}"):
            product(a, x, None, 1.0, None, None, None, "narrow")

    a, odd, low = (
        random_problem(torch, cases.uniform(0.5)(rng, 4, 6), blocksize, "float32").matrix
        for blocksize in ((16, 16), (16, 6), (4, 6))
    )
    x = torch.randn(96, 513, device="cuda")
    refuse(odd, x[:36, :4], "multiple of 4")
    refuse(low.T, x[:16, :4], "a transposed view that are multiples of 4")
    refuse(a, x[:, :7].contiguous(), "multiples of 16 bytes")
    refuse(a, x[:, 1:5], "multiples of 16 bytes")
    refuse(a, x, "at most 512 columns")
