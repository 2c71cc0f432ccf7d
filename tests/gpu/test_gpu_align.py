"""Products on aligned copies: any number of columns, strides and addresses of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import (
    DeviceProblem,
    check,
    check_streams,
    combined,
    random_problem,
    reduced,
    relative_error,
    repeats,
    some,
)
from test_gpu_shapes import HALVES

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

COLUMNS = (65, 71, 73, 127, 129, 333, 1001, 4095)
BLOCKS = ((128, 128), (64, 64), (32, 32), (16, 16), (8, 8), (512, 112), (24, 40))
# Which go by the portable kernels, as do the latter blocks of 16 bits.
WIDE = [(blocksize, dtype) for blocksize in ((64, 64), (5, 3)) for dtype in ("float32", "float64")]
ODD = [((12, 20), "bfloat16"), ((5, 3), "float16")]
KINDS = [(blocksize, dtype) for blocksize in BLOCKS for dtype in HALVES] + WIDE + ODD


def some_blocks(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Half of the blocks, the last one among them: the family needs one."""
    mask = rng.random((rows, cols)) < 0.5
    mask[-1, -1] = True
    return mask


@pytest.mark.parametrize("family", ["align", "auto"])
@pytest.mark.parametrize(("blocksize", "dtype"), KINDS)
def test_columns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str, family: str
) -> None:
    for rows, cols in ((1, 1), (3, 5), (reduced(20), 17)):
        p = random_problem(torch, some_blocks(rng, rows, cols), blocksize, dtype)
        for (n,) in combined(rng, COLUMNS, drawn=2):
            check(torch, p, n, family=family)
        check(torch, p, 333, alpha=-0.5, beta=2.0, family=family)
        check(torch, p, 73, beta=1.0, family=family)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", [(64, 64), (128, 128), (32, 32)])
def test_few_columns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    """The kernels of few columns compute on the copies, too."""
    p = random_problem(torch, some_blocks(rng, 20, 16), blocksize, dtype)
    for n in some((65, 100, 127, 129, 250)):
        (found,) = [c for c in p.matrix.plan(n).candidates if c["family"] == "align"]
        assert found["reason"].startswith("as narrow "), found["reason"]
        check(torch, p, n, family="align")
        check(torch, p, n, alpha=1.5, beta=-0.5, family="align")


# ---- layouts -------------------------------------------------------------------------------------

# Each makes memory and a view of rows x cols of it.
Memory = tuple[Any, Any]


def by_rows(torch: Any, rows: int, cols: int, dtype: Any) -> Memory:
    memory = torch.randn(rows, cols, device="cuda").to(dtype)
    return memory, memory


def by_columns(torch: Any, rows: int, cols: int, dtype: Any) -> Memory:
    memory = torch.randn(cols, rows, device="cuda").to(dtype)
    return memory, memory.T


def odd_columns(torch: Any, rows: int, cols: int, dtype: Any) -> Memory:
    memory = torch.randn(cols + 2, rows + 5, device="cuda").to(dtype)
    return memory, memory[1:-1, 3:-2].T


def after_one(torch: Any, rows: int, cols: int, dtype: Any) -> Memory:
    memory = torch.randn(rows + 2, cols + 1, device="cuda").to(dtype)
    return memory, memory[1:-1, 1:]


def after_three(torch: Any, rows: int, cols: int, dtype: Any) -> Memory:
    memory = torch.randn(rows, cols + 3, device="cuda").to(dtype)
    return memory, memory[:, 3:]


def after_eight(torch: Any, rows: int, cols: int, dtype: Any) -> Memory:
    """Aligned where cols is a multiple of 8: needs no copy then."""
    memory = torch.randn(rows, cols + 16, device="cuda").to(dtype)
    return memory, memory[:, 8:-8]


def every_other(torch: Any, rows: int, cols: int, dtype: Any) -> Memory:
    memory = torch.randn(2 * rows, 3 * cols, device="cuda").to(dtype)
    return memory, memory[::2, ::3]


def every_other_column(torch: Any, rows: int, cols: int, dtype: Any) -> Memory:
    memory = torch.randn(3 * cols, 2 * rows, device="cuda").to(dtype)
    return memory, memory[::3, ::2].T


Layout = Callable[..., Memory]
LAYOUTS = (
    *(by_rows, by_columns, odd_columns, after_one, after_three, after_eight),
    *(every_other, every_other_column),
)


def multiply(
    torch: Any, p: DeviceProblem, n: int, layouts: tuple[Layout, Layout, Layout], beta: float
) -> None:
    """Into poisoned memory and into c itself; nothing beside the view may change."""
    (m, k), dtype = p.matrix.shape, p.matrix.dtype
    of_x, of_out, of_c = layouts
    x, c = of_x(torch, k, n, dtype)[1], of_c(torch, m, n, dtype)[1]
    expected = 1.5 * (p.dense @ x.double()) + beta * c.double()
    memory, out = of_out(torch, m, n, dtype)
    memory.fill_(float("nan"))
    product(p.matrix, x, c if beta else None, 1.5, beta, out, None, "align")
    what = f"{p.matrix!r} n={n} beta={beta} {[layout.__name__ for layout in layouts]}"
    allowed = 1.2 * cases.ROUNDOFF[str(dtype).removeprefix("torch.")]
    if dtype.itemsize > 2:  # sums are rounded, too, and of float64 the reference's as well
        same = 1.5 * (p.dense.to(dtype) @ x) + beta * c
        allowed = max(8 * allowed, 2.0 * relative_error(torch, same, expected))
    assert relative_error(torch, out, expected) <= allowed, what
    assert int(memory.isnan().sum()) == memory.numel() - m * n, what
    if beta:
        out.copy_(c)
        # Where c alone needed a copy nothing does now, which the family refuses.
        family = "auto" if n % 8 == 0 and {of_x, of_out} <= {by_rows, after_eight} else "align"
        product(p.matrix, x, out, 1.5, beta, out, None, family)
        assert relative_error(torch, out, expected) <= allowed, f"{what} out is c"
        assert int(memory.isnan().sum()) == memory.numel() - m * n, what


@pytest.mark.parametrize(
    ("blocksize", "dtype"),
    [(blocksize, dtype) for blocksize in ((64, 64), (16, 16), (8, 8)) for dtype in HALVES]
    + WIDE
    + ODD,
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(
    torch: Any, rng: np.random.Generator, layout: Layout, blocksize: tuple[int, int], dtype: str
) -> None:
    """Each operand in each layout, beside others by rows or by columns."""
    p = random_problem(torch, some_blocks(rng, 9, 7), blocksize, dtype)
    for n in some((73, 128, 136, 333)):
        for other in (by_rows, by_columns):
            for layouts in ((layout, other, other), (other, layout, other), (other, other, layout)):
                plain = n % 8 == 0 and {layout, other} <= {by_rows, after_eight}
                for beta in () if plain else (0.0, -0.5):
                    if beta == 0 and n % 8 == 0 and other is by_rows and layout is layouts[2]:
                        continue  # only c needs a copy, and it is not read
                    multiply(torch, p, n, layouts, beta)


def test_rows_that_are_all_one(torch: Any, rng: np.random.Generator) -> None:
    p = random_problem(torch, some_blocks(rng, 4, 5), (64, 64), "float16")
    m, k = p.matrix.shape
    x = torch.randn(1, 200, device="cuda").half().expand(k, 200)
    expected = p.dense @ x.double()
    for family in ("align", "auto"):
        out = product(p.matrix, x, None, 1.0, None, None, None, family)
        assert out.shape == (m, 200)
        assert relative_error(torch, out, expected) <= 1.2 * cases.ROUNDOFF["float16"]


def test_columns_do_not_mix(torch: Any, rng: np.random.Generator) -> None:
    """Neither NaN in a column of X nor what lies beside X reaches other columns."""
    p = random_problem(torch, some_blocks(rng, 5, 6), (64, 64), "float16")
    memory = torch.full((p.matrix.shape[1], 345), float("nan"), device="cuda").half()
    x = memory[:, 5:338]
    x.normal_()
    x[:, 100] = float("nan")
    out = product(p.matrix, x, None, 1.0, None, None, None, "align")
    assert out[:, :100].isfinite().all() and out[:, 101:].isfinite().all()


@pytest.mark.parametrize("n", [8191, 8192])
def test_large(torch: Any, rng: np.random.Generator, n: int) -> None:
    """Many tiles of the copies; a transposed X and out."""
    mask = cases.uniform(0.125)(rng, reduced(32), reduced(48))
    n = reduced(n)
    p = random_problem(torch, mask, (128, 128), "bfloat16")
    if n % 8:
        check(torch, p, n, family="align")
        check(torch, p, n, alpha=2.0, beta=-1.0, family="align")
    for layout in (by_columns, odd_columns, after_one):
        multiply(torch, p, n, (layout, layout, layout), 0.5)


# ---- streams and graphs --------------------------------------------------------------------------


@pytest.mark.parametrize("blocksize", [(128, 128), (16, 16), (8, 8)])
def test_same_bits_every_time(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    p = random_problem(torch, some_blocks(rng, 12, 10), blocksize, "float16")
    x = torch.randn(p.matrix.shape[1], 333, device="cuda").half()
    first = product(p.matrix, x, None, 1.0, None, None, None, "align")
    for _ in repeats(30):
        assert torch.equal(product(p.matrix, x, None, 1.0, None, None, None, "align"), first)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("blocksize", [(128, 128), (16, 16), (8, 8)])
def test_graph(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], warm: bool
) -> None:
    """Copies and the memory that they take are captured with the product."""
    a = random_problem(torch, some_blocks(rng, 12, 10), blocksize, "float16").matrix
    x = torch.randn(a.shape[1], 333, device="cuda").half()
    c = torch.randn(a.shape[0], 333, device="cuda").half()
    out = torch.empty_like(c)

    def multiply(out: Any = None) -> Any:
        return product(a, x, c, 1.0, 0.5, out, None, "align")

    if warm:
        multiply()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        multiply(out)
    for _ in range(3):
        x.normal_()
        c.normal_()
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, multiply())


def test_products_on_several_streams(torch: Any, rng: np.random.Generator) -> None:
    """Each product has copies of its own."""
    a = random_problem(torch, some_blocks(rng, 16, 16), (64, 64), "float16").matrix
    xs = [torch.randn(a.shape[1], 1001, device="cuda").half() for _ in range(4)]
    check_streams(torch, lambda x: product(a, x, None, 1.0, None, None, None, "align"), xs)


def test_says_what_it_needs(torch: Any, rng: np.random.Generator) -> None:
    def refuse(dtype: str, n: int, message: str) -> None:
        p = random_problem(torch, np.ones((2, 2), bool), (64, 64), dtype)
        x = torch.ones(128, n, device="cuda").to(p.matrix.dtype)
        with pytest.raises(ValueError, match=f"family 'align'.*{message}"):
            product(p.matrix, x, None, 1.0, None, None, None, "align")

    refuse("float16", 72, "cannot read by vectors")
    refuse("float32", 68, "cannot read by vectors")
    refuse("float16", 63, "more than 64 columns")
