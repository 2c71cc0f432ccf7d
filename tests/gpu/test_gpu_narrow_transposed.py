"""The narrow family with transposed views: ``A.T @ X`` of few columns, ``X @ A`` of few rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import (
    DeviceProblem,
    check,
    combined,
    random_problem,
    relative_error,
    repeats,
    some,
)
from test_gpu_narrow import (
    LAYOUTS,
    MANY_COLUMNS,
    aligned_rows,
    check_layouts,
    check_unused_rows,
    check_x,
    columns_of,
    in_pieces,
    long_rows,
    one_an_sm,
    three_an_sm,
    two_an_sm,
    uncut,
)
from test_gpu_shapes import HALVES, PATTERNS

pytestmark = pytest.mark.gpu

# As the transposed view has them: a strip of its rows is neighbours in memory.
BLOCKS = (
    *((16, 16), (32, 32), (64, 64), (128, 128), (16, 64), (64, 16), (48, 80)),
    *((24, 16), (40, 48), (112, 256), (8, 8), (8, 24), (72, 8)),
)


def view(torch: Any, mask: np.ndarray, blocksize: tuple[int, int], dtype: str) -> DeviceProblem:
    """A transposed one, with blocks of ``mask``."""
    p = random_problem(torch, mask.T, blocksize[::-1], dtype)
    return DeviceProblem(p.matrix.T, p.dense.T)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", BLOCKS)
def test_columns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    for rows, cols in ((1, 1), (3, 5), (7, 30)):
        p = view(torch, cases.uniform(0.5)(rng, rows, cols), blocksize, dtype)
        for n in some((1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 63, 64)):
            check(torch, p, n, family="narrow")
            check(torch, p, n, alpha=-0.5, beta=2.0, family="narrow")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("blocksize", [(16, 16), (64, 64), (128, 128), (40, 48)])
def test_patterns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], pattern: str, dtype: str
) -> None:
    make, rows, cols = PATTERNS[pattern]
    p = view(torch, make(rng, rows, cols), blocksize, dtype)
    for n in (1, 5, 16, 32, 50, 64, 72, 128, 200, 256, 320):
        check(torch, p, n, family="narrow")
    check(torch, p, 48, alpha=1.5, beta=-1.0, family="narrow")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", [(16, 16), (32, 32), (16, 64), (40, 24), (24, 96)])
def test_long_columns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    """In pieces, which takes both passes."""
    mask = np.zeros((40, 512), bool)
    mask[:, ::102] = True
    mask[[3, 39]] = True
    p = view(torch, mask, blocksize, dtype)
    for n in (1, 7, 16, 24, 33, 64, 104, 128, 184, 256):
        check(torch, p, n, family="narrow")
    check(torch, p, 40, alpha=2.0, beta=0.5, family="narrow")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("blocksize", [(16, 16), (32, 16), (64, 64)])
def test_layouts(
    torch: Any,
    rng: np.random.Generator,
    blocksize: tuple[int, int],
    layout: Callable[..., Any],
    dtype: str,
) -> None:
    p = view(torch, cases.uniform(0.5)(rng, 5, 9), blocksize, dtype)
    check_layouts(torch, p, layout, (1, 4, 8, 12, 16, 17, 25, 32, 33, 41, 64), "narrow")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("height", [8, 16, 24, 32, 48, 64, 96, 128])
def test_every_form(torch: Any, rng: np.random.Generator, height: int, dtype: str) -> None:
    """As many CTAs as each form of the kernels is for, with rows so long that every ring is used
    again, and bits that repeat."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    masks = (uncut, in_pieces, one_an_sm, two_an_sm, three_an_sm)
    for width, mask in combined(rng, (8, 16, 24, 48, 64, 112), masks, drawn=3):
        p = view(torch, mask(rng, (height, width), sms), (height, width), dtype)
        for n, layout in combined(
            rng, (1, 5, 8, 13, 16, 20, 32, 33, 48, 64), (aligned_rows, columns_of), drawn=3
        ):
            check_x(torch, rng, p, layout(torch, p.matrix.shape[1], n, p.matrix.dtype))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("height", [32, 48, 64, 128, 192])
def test_many_columns(torch: Any, rng: np.random.Generator, height: int, dtype: str) -> None:
    """More than 64 columns, at once where strips have 64 rows."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    masks = (uncut, in_pieces, one_an_sm, two_an_sm, three_an_sm)
    for width, mask in combined(rng, (16, 32, 64, 112, 128), masks, drawn=3):
        p = view(torch, mask(rng, (height, width), sms), (height, width), dtype)
        for n, layout in combined(rng, MANY_COLUMNS, (aligned_rows, columns_of), drawn=2):
            check_x(torch, rng, p, layout(torch, p.matrix.shape[1], n, p.matrix.dtype))


def test_nan_of_unused_rows_stays_out(torch: Any) -> None:
    """Nor is what lies behind a block multiplied."""
    check_unused_rows(torch, view)


def test_values_of_a_batch_and_other_values(torch: Any, rng: np.random.Generator) -> None:
    """One plan serves matrices of one pattern, whose values lie elsewhere."""
    p = random_problem(torch, cases.uniform(0.5)(rng, 9, 12), (64, 32), "float16")
    values = torch.stack([p.matrix.data, -p.matrix.data, 2 * p.matrix.data])
    x = torch.randn(5, p.matrix.shape[0], device="cuda").half()
    expected = x @ p.matrix
    structure = p.matrix.indices, p.matrix.indptr
    batch = bsrgemm.bsr_array((values, *structure), p.matrix.shape)
    for found, factor in zip(x @ batch, (1, -1, 2), strict=True):
        assert torch.equal(found, factor * expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_same_bits_every_time(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    for blocksize in ((64, 64), (16, 16)):
        p = long_rows(torch, blocksize, dtype)
        x = torch.randn(16, p.matrix.shape[0], device="cuda").to(p.matrix.dtype)
        for n in (1, 16):
            first = x[:n] @ p.matrix
            for _ in repeats(30):
                assert torch.equal(x[:n] @ p.matrix, first)


def test_says_what_it_needs(torch: Any, rng: np.random.Generator) -> None:
    p = view(torch, np.ones((2, 2), bool), (12, 16), "float16")
    with pytest.raises(
        ValueError, match="family 'narrow'.*transposed view that are multiples of 8"
    ):
        product(
            p.matrix, torch.ones(32, 4, device="cuda").half(), None, 1.0, None, None, None, "narrow"
        )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_dense_on_the_left(torch: Any, rng: np.random.Generator, block: int, dtype: str) -> None:
    """What a layer with its weight as [in, out] does, as the planner chooses."""
    mask = cases.uniform(0.125)(rng, 8192 // block, 4096 // block)
    p = random_problem(torch, mask, (block, block), dtype)
    for n in (1, 4, 16, 64, 128, 256):
        x = torch.randn(n, p.matrix.shape[0], device="cuda").to(p.matrix.dtype)
        error = relative_error(torch, x @ p.matrix, x.double() @ p.dense)
        assert error <= 1.2 * cases.ROUNDOFF[dtype]
