"""The narrow family: up to 512 columns, any layout of the dense operands, rows of any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import (
    GUARD,
    DeviceProblem,
    check,
    check_same_bits,
    check_streams,
    combined,
    random_problem,
    relative_error,
    repeats,
    some,
)
from test_gpu_shapes import HALVES, PATTERNS

pytestmark = pytest.mark.gpu

COLUMNS = (1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 63, 64)
BLOCKS = (
    *((16, 16), (32, 32), (64, 64), (128, 128), (16, 64), (64, 16), (48, 80)),
    *((24, 16), (40, 48), (512, 112), (8, 8), (1, 8), (5, 24)),
)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", BLOCKS)
def test_columns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    for rows, cols in ((1, 1), (3, 5), (7, 30)):
        p = random_problem(torch, cases.uniform(0.5)(rng, rows, cols), blocksize, dtype)
        for n in some(COLUMNS):
            check(torch, p, n, family="narrow")
            check(torch, p, n, alpha=-0.5, beta=2.0, family="narrow")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("blocksize", [(16, 16), (64, 64), (128, 128), (40, 48)])
def test_patterns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], pattern: str, dtype: str
) -> None:
    make, rows, cols = PATTERNS[pattern]
    p = random_problem(torch, make(rng, rows, cols), blocksize, dtype)
    for n in (1, 5, 16, 32, 50, 64, 72, 104, 128, 136, 192, 256, 264, 384):
        check(torch, p, n, family="narrow")
    for n in (48, 120, 200):
        check(torch, p, n, alpha=1.5, beta=-1.0, family="narrow")


def long_rows(torch: Any, blocksize: tuple[int, int], dtype: str) -> DeviceProblem:
    """Two rows a hundred times as long as the others, which takes both passes."""
    mask = np.zeros((40, 512), bool)
    mask[:, ::102] = True
    mask[[3, 39]] = True
    return random_problem(torch, mask, blocksize, dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", [(16, 16), (32, 32), (64, 16), (24, 40), (96, 24)])
def test_long_rows(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    p = long_rows(torch, blocksize, dtype)
    for n in (1, 7, 16, 24, 33, 64, 80, 128, 184, 256, 320, 512):
        check(torch, p, n, family="narrow")
    for n in (20, 40, 112, 240):
        check(torch, p, n, alpha=2.0, beta=0.5, family="narrow")


def columns_of(torch: Any, rows: int, cols: int, dtype: Any) -> Any:
    return torch.randn(cols, rows, device="cuda").to(dtype).T


def padded_columns(torch: Any, rows: int, cols: int, dtype: Any) -> Any:
    return torch.randn(cols, rows + 8, device="cuda").to(dtype)[:, :rows].T


def odd_columns(torch: Any, rows: int, cols: int, dtype: Any) -> Any:
    return torch.randn(cols, rows + 1, device="cuda").to(dtype)[:, 1:].T


def padded_rows(torch: Any, rows: int, cols: int, dtype: Any) -> Any:
    return torch.randn(rows, cols + 8, device="cuda").to(dtype)[:, :cols]


def aligned_rows(torch: Any, rows: int, cols: int, dtype: Any) -> Any:
    """At multiples of 16 bytes, whatever the number of columns, with NaN behind them."""
    memory = torch.full((rows, -(-cols // 8) * 8 + 8), float("nan"), device="cuda").to(dtype)
    memory[:, :cols] = torch.randn(rows, cols, device="cuda")
    return memory[:, :cols]


def odd_rows(torch: Any, rows: int, cols: int, dtype: Any) -> Any:
    return torch.randn(rows, cols + 1, device="cuda").to(dtype)[:, 1:]


def every_other(torch: Any, rows: int, cols: int, dtype: Any) -> Any:
    return torch.randn(2 * rows, 3 * cols, device="cuda").to(dtype)[::2, ::3]


LAYOUTS = (
    *(columns_of, padded_columns, odd_columns),
    *(padded_rows, aligned_rows, odd_rows, every_other),
)


def check_layouts(
    torch: Any, p: DeviceProblem, layout: Callable[..., Any], columns: tuple[int, ...], family: str
) -> None:
    """Operands of any strides; out may be c."""
    (m, k), kind = p.matrix.shape, p.matrix.dtype
    dtype = str(kind).removeprefix("torch.")
    rounded = kind.itemsize == 2  # once, from float32
    for n in columns:
        x, c = layout(torch, k, n, kind), layout(torch, m, n, kind)
        expected = 1.5 * (p.dense @ x.double()) + 0.5 * c.double()
        summands = 1.5 * (p.dense.abs() @ x.double().abs()) + 0.5 * c.double().abs()
        cancelled = cases.cancellation(expected, summands, k + 2)
        least = cases.least_error(dtype, k + 2, cancelled)
        allowed = 1.2 * cases.ROUNDOFF[dtype] if rounded else 2 * least
        out = layout(torch, m, n, kind)
        for target in (out, c):
            product(p.matrix, x, c, 1.5, 0.5, target, None, family)
            error = relative_error(torch, target, expected)
            assert error <= allowed, f"n={n}: {error:.3e}"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("blocksize", [(16, 16), (64, 64)])
def test_layouts(
    torch: Any,
    rng: np.random.Generator,
    blocksize: tuple[int, int],
    layout: Callable[..., Any],
    dtype: str,
) -> None:
    p = random_problem(torch, cases.uniform(0.5)(rng, 5, 9), blocksize, dtype)
    columns = (1, 4, 8, 12, 16, 17, 25, 30, 32, 33, 41, 63, 64)
    check_layouts(torch, p, layout, columns, "narrow")


# Of tiles of 32 and of 64 columns; whole chunks of 16 bytes in a row of X, and parts.
MORE_COLUMNS = (17, 20, 24, 31, 32, 33, 39, 40, 48, 50, 63, 64)
WIDTHS = (8, 16, 24, 40, 48, 64, 112)


def strip_of(height: int) -> int:
    """The rows of an item of these products on Hopper."""
    return 16 if height <= 16 else 32 if height <= 32 else 64


def _three_rows(blocks: int) -> np.ndarray:
    """A long row, one block, none."""
    mask = np.zeros((3, blocks), bool)
    mask[0] = True
    mask[1, blocks // 2] = True
    return mask


def uncut(rng: np.random.Generator, blocksize: tuple[int, int], sms: int) -> np.ndarray:
    """A row as long as one item can be. Few items, so CTAs have all their warps."""
    height, width = blocksize
    return _three_rows(65536 // (min(height, strip_of(height)) * width))


def in_pieces(rng: np.random.Generator, blocksize: tuple[int, int], sms: int) -> np.ndarray:
    height, width = blocksize
    return _three_rows(3 * 65536 // (min(height, strip_of(height)) * width))


def _many(rng: np.random.Generator, rows: int, blocks: int) -> np.ndarray:
    mask = cases.uniform(0.7)(rng, rows, blocks)
    mask[0] = np.arange(blocks) == 1
    mask[-1] = False
    return mask


def one_an_sm(rng: np.random.Generator, blocksize: tuple[int, int], sms: int) -> np.ndarray:
    """So much in all that strips of 64 rows stay whole, too, where their rows are longer."""
    height, width = blocksize
    return _many(rng, sms // -(-height // strip_of(height)), 2000 // width)


def two_an_sm(rng: np.random.Generator, blocksize: tuple[int, int], sms: int) -> np.ndarray:
    """CTAs have fewer warps."""
    height, width = blocksize
    return _many(rng, sms // -(-height // strip_of(height)) + 1, 2000 // width)


def three_an_sm(rng: np.random.Generator, blocksize: tuple[int, int], sms: int) -> np.ndarray:
    """CTAs have the fewest warps."""
    height, width = blocksize
    return _many(rng, 2 * sms // -(-height // strip_of(height)) + 1, 1040 // width)


def check_x(torch: Any, rng: np.random.Generator, p: DeviceProblem, x: Any) -> None:
    """The product, and perhaps C, or C, a bias and an activation, into poisoned memory: nothing
    around it changes, and it has the same bits again."""
    m, n, kind = p.matrix.shape[0], x.shape[1], p.matrix.dtype
    dtype = str(kind).removeprefix("torch.")
    beta = (0.0, -0.5, 0.5)[rng.integers(3)]
    c = torch.randn(m, n, device="cuda").to(kind) if beta else None
    bias = torch.randn(n, device="cuda").to(kind) if beta > 0 else None
    memory = torch.full((m + 2 * GUARD, -(-n // 8) * 8 + 8), float("nan"), device="cuda").to(kind)
    out = memory[GUARD : m + GUARD, :n]

    def multiply() -> Any:
        out.fill_(float("nan"))
        output = {} if bias is None else {"bias": bias, "activation": "relu"}
        product(p.matrix, x, c, 1.5, beta, out, None, "narrow", **output)
        found = out.clone()
        out.fill_(float("nan"))
        assert memory.isnan().all(), f"{what}: something outside out was written to"
        return found

    what = f"{p.matrix!r} n={n} strides={x.stride()} beta={beta} bias={bias is not None}"
    expected = 1.5 * (p.dense @ x.double())
    if c is not None:
        expected += beta * c.double()
    if bias is not None:
        expected = (expected + bias.double()).clamp(min=0)
    found = multiply()
    error = relative_error(torch, found, expected)
    assert error <= 1.2 * cases.ROUNDOFF[dtype], f"{what}: relative error {error:.3e}"
    assert torch.equal(multiply(), found), f"{what}: other bits"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("height", [16, 24, 32, 40, 48, 64, 96, 128])
def test_more_columns(torch: Any, rng: np.random.Generator, height: int, dtype: str) -> None:
    """More than 16 columns whose rows or columns begin at multiples of 16 bytes: Hopper's kernels
    copy these, or describe them by maps. As many CTAs as each form of them is for, with rows so
    long that every ring is used again."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    masks = (uncut, in_pieces, one_an_sm, two_an_sm, three_an_sm)
    for width, mask in combined(rng, WIDTHS, masks, drawn=3):
        p = random_problem(torch, mask(rng, (height, width), sms), (height, width), dtype)
        for n, layout in combined(rng, MORE_COLUMNS, (aligned_rows, columns_of), drawn=2):
            check_x(torch, rng, p, layout(torch, p.matrix.shape[1], n, p.matrix.dtype))


# Of a tile of 128 columns and one or two of 256, whole panels of 64 and parts.
MANY_COLUMNS = (65, 71, 100, 127, 128, 129, 136, 191, 192, 200, 255, 256, 257, 320, 333, 448, 512)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("height", [16, 24, 32, 40, 64, 96, 128, 144, 256])
def test_many_columns(torch: Any, rng: np.random.Generator, height: int, dtype: str) -> None:
    """More than 64 columns at once, in boxes of X that share a stage, for strips above 16 rows; an
    even number of these in a block row go in pairs, which share X."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    masks = (uncut, in_pieces, one_an_sm, two_an_sm, three_an_sm)
    for width, mask in combined(rng, (8, 16, 32, 48, 64, 112, 128, 256), masks, drawn=4):
        p = random_problem(torch, mask(rng, (height, width), sms), (height, width), dtype)
        for n, layout in combined(rng, MANY_COLUMNS, (aligned_rows, columns_of), drawn=3):
            check_x(torch, rng, p, layout(torch, p.matrix.shape[1], n, p.matrix.dtype))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", [(16, 16), (64, 64), (128, 128)])
def test_many_columns_of_any_layout(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    p = random_problem(torch, cases.uniform(0.5)(rng, 5, 9), blocksize, dtype)
    columns = (65, 100, 128, 136, 200, 250, 256, 300, 320, 512)
    for layout in (columns_of, padded_columns, aligned_rows):
        check_layouts(torch, p, layout, columns, "narrow")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", [(16, 16), (3, 16), (13, 32), (16, 32)])
def test_shared_x(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    """More than 32 columns of low blocks, or 16 of a column-major X: block rows share X over
    clusters of two or four, in one round or two, with parts of k from less than a stage to 25 of
    them. X that TMA cannot load is copied first."""
    width = blocksize[1]
    for rows, k in ((1, 16), (40, 800), (256, 11008), (500, 3000), (530, 25600), (1250, 2080)):
        mask = cases.uniform(0.15)(rng, rows, -(-k // width))
        if rows > 1:
            mask[rows // 2] = False
        p = random_problem(torch, mask, blocksize, dtype)
        layouts = (aligned_rows, odd_rows, columns_of)
        for n, layout in combined(rng, (17, 24, 33, 40, 52, 63, 64), layouts, drawn=4):
            check_x(torch, rng, p, layout(torch, p.matrix.shape[1], n, p.matrix.dtype))


@pytest.mark.parametrize("blocksize", [(16, 16), (32, 32), (64, 64)])
def test_copied_x_again(torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]) -> None:
    """The copy of an X that TMA cannot load, and its memory: on streams, and in a graph."""
    p = random_problem(torch, cases.uniform(0.3)(rng, 40, 50), blocksize, "float16")

    def multiply(x: Any) -> Any:
        return product(p.matrix, x, None, 1.0, None, None, None, "narrow")

    for n in (19, 33, 63):
        xs = [torch.randn(p.matrix.shape[1], n, device="cuda").half() for _ in range(3)]
        check_streams(torch, multiply, xs)
        check_same_bits(torch, lambda x=xs[0]: multiply(x), xs[0])


@pytest.mark.parametrize("n", [18, 24, 33, 64, 100, 264])
def test_x_without_rows(torch: Any, n: int) -> None:
    """What would be copied first is empty: the product is zeros, or C alone."""
    values, x = (torch.empty(0, *shape, device="cuda").half() for shape in ((16, 32), (n,)))
    indices = torch.empty(0, dtype=torch.int32, device="cuda")
    for shape in ((64, 0), (0, 96)):
        indptr = torch.zeros(shape[0] // 16 + 1, dtype=torch.int32, device="cuda")
        a = bsrgemm.bsr_array((values, indices, indptr), shape)
        c = torch.randn(max(shape), n, device="cuda").half()
        operand = a if shape[0] else a.T
        assert torch.equal(bsrgemm.matmul(operand, x), torch.zeros_like(c))
        assert torch.equal(bsrgemm.matmul(operand, x, beta=1.0, c=c), c)


def test_matrices_of_a_batch_begin_anywhere(torch: Any, rng: np.random.Generator) -> None:
    """The first at a multiple of 16 bytes, the second not."""
    for blocksize in ((16, 16), (64, 24)):
        p = random_problem(torch, cases.uniform(0.5)(rng, 5, 9), blocksize, "float16")
        k, n = p.matrix.shape[1], 40
        x = torch.randn(2 * k * n + 1, device="cuda").half()
        x = x.as_strided((2, k, n), (k * n + 1, n, 1))
        found = product(p.matrix, x, None, 1.0, None, None, None, "narrow")
        error = relative_error(torch, found, p.dense @ x.double())
        assert error <= 1.2 * cases.ROUNDOFF["float16"]


Maker = Callable[[Any, np.ndarray, tuple[int, int], str], DeviceProblem]


def check_unused_rows(torch: Any, make: Maker) -> None:
    """A row of X that no block selects is not read, whatever it holds."""
    for rows, blocksize in ((3, (16, 16)), (3, (32, 8)), (3, (48, 80)), (300, (128, 24))):
        mask = np.zeros((rows, 6), bool)
        mask[:, [1, 4]] = True
        p = make(torch, mask, blocksize, "float16")
        x = torch.full((p.matrix.shape[1], 256), float("nan"), device="cuda").half()
        for column in (1, 4):
            x[column * blocksize[1] : (column + 1) * blocksize[1]] = 1
        for laid in (x, x.T.contiguous().T):
            for n in (1, 6, 24, 39, 64, 100, 128, 200, 256):
                found = product(p.matrix, laid[:, :n], None, 1.0, None, None, None, "narrow")
                assert not found.isnan().any()


def test_nan_of_unused_rows_stays_out(torch: Any) -> None:
    check_unused_rows(torch, random_problem)


@pytest.mark.parametrize("dtype", HALVES)
def test_same_bits_every_time(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    for blocksize in ((64, 64), (16, 16), (128, 32)):
        p = long_rows(torch, blocksize, dtype)
        k, kind = p.matrix.shape[1], p.matrix.dtype
        xs = [torch.randn(k, n, device="cuda").to(kind) for n in (1, 16, 64, 128, 256, 384)]
        for x in (*xs, aligned_rows(torch, k, 30, kind), columns_of(torch, k, 41, kind)):
            first = product(p.matrix, x, None, 1.0, None, None, None, "narrow")
            for _ in repeats(30):
                again = product(p.matrix, x, None, 1.0, None, None, None, "narrow")
                assert torch.equal(again, first)


def test_two_passes_in_a_graph(torch: Any, rng: np.random.Generator) -> None:
    """The second pass and the memory between the two are captured with the first."""
    p = long_rows(torch, (16, 16), "float16")
    x = torch.randn(p.matrix.shape[1], 9, device="cuda").half()
    out = product(p.matrix, x, None, 1.0, None, None, None, "narrow")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product(p.matrix, x, None, 1.0, None, out, None, "narrow")
    for _ in range(3):
        x.normal_()
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, product(p.matrix, x, None, 1.0, None, None, None, "narrow"))


def test_says_what_it_needs(torch: Any, rng: np.random.Generator) -> None:
    def refuse(blocksize: tuple[int, int], n: int, dtype: str, message: str) -> None:
        p = random_problem(torch, np.ones((2, 2), bool), blocksize, dtype)
        x = torch.ones(2 * blocksize[1], n, device="cuda").to(p.matrix.dtype)
        with pytest.raises(ValueError, match=f"family 'narrow'.*{message}"):
            product(p.matrix, x, None, 1.0, None, None, None, "narrow")

    refuse((16, 16), 520, "float16", "at most 512 columns")
    refuse((16, 16), 65, "float16", "begin at multiples of 16 bytes, for more than 64 columns")
    refuse((16, 12), 8, "float16", "width that is a multiple of 8")
    refuse((16, 6), 8, "float32", "width that is a multiple of 4")
    refuse((16, 5), 8, "float64", "width that is a multiple of 2")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_large(torch: Any, rng: np.random.Generator, block: int, dtype: str) -> None:
    mask = cases.uniform(0.125)(rng, 4096 // block, 8192 // block)
    p = random_problem(torch, mask, (block, block), dtype)
    for n in (1, 4, 16, 64, 128, 256, 512):
        check(torch, p, n, family="narrow")
