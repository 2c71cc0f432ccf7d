"""Products of two block-sparse matrices on the GPU."""

from __future__ import annotations

from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from cases import DTYPES, cancellation, least_error
from device_cases import (
    DeviceProblem,
    check_streams,
    combined,
    random_problem,
    reduced,
    relative_error,
    repeats,
    some,
)
from spaces import GPU_SPACES
from test_gpu_shapes import HALVES

pytestmark = pytest.mark.gpu

FORMS = ((False, False), (True, False), (False, True), (True, True))
HOPPER_BLOCKS = (
    (64, 64, 64),
    (128, 128, 128),
    (64, 128, 192),
    (192, 64, 64),
    (128, 64, 256),
    (256, 192, 128),
    (320, 64, 384),
)
PORTABLE_BLOCKS = (
    (16, 16, 16),
    (32, 32, 32),
    (128, 128, 128),
    (64, 24, 40),
    (17, 9, 33),
    (1, 1, 1),
    (130, 70, 136),
    (48, 8, 264),
)


def pair(
    torch: Any,
    masks: tuple[np.ndarray, np.ndarray],
    blocks: tuple[int, int, int],
    dtype: str,
    form: tuple[bool, bool] = (False, False),
) -> tuple[DeviceProblem, DeviceProblem]:
    """Two matrices of these patterns, of which a transposed one is the view of what is stored."""
    operands = []
    for mask, block, transposed in zip(masks, (blocks[:2], blocks[1:]), form, strict=True):
        p = random_problem(
            torch, mask.T if transposed else mask, block[::-1] if transposed else block, dtype
        )
        operands.append(DeviceProblem(p.matrix.T, p.dense.T) if transposed else p)
    return operands[0], operands[1]


def memory(torch: Any, rows: int, cols: int, layout: str, dtype: Any) -> tuple[Any, Any]:
    """Memory full of NaN, and a matrix in it: by rows, columns or neither."""
    if layout == "columns":
        whole, matrix = memory(torch, cols, rows, "rows", dtype)
        return whole, matrix.T
    step = 2 if layout == "elements" else 1
    whole = torch.full((rows + 2, step * cols + 8), float("nan"), device="cuda", dtype=dtype)
    return whole, whole[1 : rows + 1, : step * cols : step]


def check_pair(
    torch: Any,
    operands: tuple[DeviceProblem, DeviceProblem],
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    layout: str = "rows",
    c_layout: str | None = None,
    in_place: bool = False,
    family: str = "auto",
) -> None:
    """Compare the whole result with float64; nothing around it may be written to."""
    a, b = operands
    dtype = a.matrix.dtype
    name = str(dtype).removeprefix("torch.")
    shape = a.matrix.shape[0], b.matrix.shape[1]
    whole, out = memory(torch, *shape, layout, dtype)
    c = None
    if beta:
        c = out if in_place else memory(torch, *shape, c_layout or layout, dtype)[1]
        c.copy_(torch.randn(shape, device="cuda"))
    old = None if c is None else c.clone()
    product(a.matrix, b.matrix, c, alpha, beta, out, None, family)

    expected = alpha * (a.dense @ b.dense)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    same = alpha * torch.mm(a.dense.to(wide), b.dense.to(wide))
    if old is not None:
        expected += beta * old.double()
        same += beta * old.to(wide)
    lost = relative_error(torch, same.to(dtype), expected)
    count = a.matrix.shape[1]
    terms = abs(alpha) * (a.dense.abs() @ b.dense.abs())
    terms += 0.0 if old is None else abs(beta) * old.double().abs()
    allowed = max(2.0 * lost, least_error(name, count, cancellation(expected, terms, count)))
    what = f"{a.matrix!r} {b.matrix!r} {alpha=} {beta=} {layout=} {c_layout=} {family=}"
    assert not out.isnan().any(), f"{what}: not all of out was written"
    error = relative_error(torch, out, expected)
    assert error <= allowed, f"{what}: relative error {error:.3e}, allowed {allowed:.3e}"
    out.fill_(float("nan"))
    assert whole.isnan().all(), f"{what}: something outside out was written to"


def masks(rng: np.random.Generator, grid: tuple[int, int, int], density: float) -> Any:
    rows, inner, cols = grid
    return rng.random((rows, inner)) < density, rng.random((inner, cols)) < density


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blocks", HOPPER_BLOCKS)
def test_hopper(
    torch: Any, blocks: tuple[int, int, int], form: tuple[bool, bool], dtype: str, rng: Any
) -> None:
    for grid in some(((5, 7, 6), (1, 1, 1), (9, 4, 11), (2, 40, 3))):
        for density in (0.0, 0.1, 0.5, 1.1):
            operands = pair(torch, masks(rng, grid, density), blocks, dtype, form)
            check_pair(torch, operands, family="pairs")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("layout", ["rows", "columns", "elements"])
@pytest.mark.parametrize("c_layout", ["rows", "columns", "elements"])
def test_hopper_layouts(torch: Any, layout: str, c_layout: str, dtype: str, rng: Any) -> None:
    for blocks in HOPPER_BLOCKS[:4]:
        operands = pair(torch, masks(rng, (5, 6, 7), 0.4), blocks, dtype)
        scalars = {"alpha": 1.5, "beta": -0.5, "layout": layout, "family": "pairs"}
        check_pair(torch, operands, c_layout=c_layout, **scalars)
        check_pair(torch, operands, in_place=True, **scalars)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", HALVES)
def test_hopper_patterns(torch: Any, dtype: str, rng: Any) -> None:
    """Rows and columns of different lengths, and more block columns than a mask's 32 words."""
    for make in (cases.skewed, cases.empty_rows, cases.one_long_row, cases.one_block, cases.banded):
        for blocks in ((64, 64, 64), (128, 128, 128)):
            both = make(rng, 21, 34), make(rng, 34, 19)
            check_pair(torch, pair(torch, both, blocks, dtype), family="pairs")
            turned = both[0], make(rng, 19, 34).T
            check_pair(torch, pair(torch, turned, blocks, dtype, (True, True)), family="pairs")
    wide = rng.random((4, 1100)) < 0.02, rng.random((1100, 5)) < 0.1
    wide[0][1], wide[0][2, 1099], wide[1][1099] = False, True, True
    check_pair(torch, pair(torch, wide, (64, 64, 64), dtype), family="pairs")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", [64, 128])
def test_hopper_large(torch: Any, block: int, dtype: str, rng: Any) -> None:
    """Many tiles for each CTA; the same bits every time, with and without a counter."""
    count = reduced(4096) // block
    for density in (0.1, 0.5):
        operands = pair(torch, masks(rng, (count, count, count), density), (block,) * 3, dtype)
        check_pair(torch, operands, family="pairs")
        a, b = (p.matrix for p in operands)
        expected = a @ b
        for _ in repeats(10):
            assert torch.equal(a @ b, expected)
        graph, out = torch.cuda.CUDAGraph(), torch.empty_like(expected)
        with torch.cuda.graph(graph):
            bsrgemm.matmul(a, b, out=out)
        for _ in repeats(3):
            out.fill_(float("nan"))
            graph.replay()
            assert torch.equal(out, expected)


# "spread": with b written out as a dense matrix.
ANY_BLOCKS = ("portable", "spread")


@pytest.mark.parametrize("family", ANY_BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blocks", PORTABLE_BLOCKS)
def test_any_blocks(
    torch: Any,
    blocks: tuple[int, int, int],
    form: tuple[bool, bool],
    dtype: str,
    family: str,
    rng: Any,
) -> None:
    for grid in some(((5, 7, 6), (1, 1, 1), (3, 300, 2), (4, 3, 150))):
        if max(blocks) > 100 and max(grid) > 100:
            continue
        for density in (0.0, 0.3, 1.1):
            operands = pair(torch, masks(rng, grid, density), blocks, dtype, form)
            check_pair(torch, operands, family=family)


@pytest.mark.parametrize("family", ANY_BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["rows", "columns", "elements"])
def test_any_blocks_in_layouts(torch: Any, layout: str, dtype: str, family: str, rng: Any) -> None:
    for (blocks,) in combined(rng, PORTABLE_BLOCKS, drawn=3):
        operands = pair(torch, masks(rng, (5, 6, 7), 0.4), blocks, dtype)
        scalars = {"alpha": 1.5, "beta": -0.5, "layout": layout, "family": family}
        for c_layout in ("rows", "columns", "elements"):
            check_pair(torch, operands, c_layout=c_layout, **scalars)
        check_pair(torch, operands, in_place=True, **scalars)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("block", "density", "family"),
    [(16, 0.5, "spread"), (16, 0.02, "spread"), (32, 0.5, "spread"), (32, 0.02, "portable")],
)
def test_where_many_meet(torch: Any, block: int, density: float, family: str, rng: Any) -> None:
    """Low blocks of which many meet are written out, and of few it is not worth it."""
    count = 2048 // block
    operands = pair(torch, masks(rng, (count, count, count), density), (block,) * 3, "float16")
    a, b = (p.matrix for p in operands)
    assert a.plan(b).choice == family
    check_pair(torch, operands)
    expected = a @ b
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = a @ b
    graph.replay()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_one_matrix_twice(torch: Any, dtype: str, rng: Any) -> None:
    for block in (64, 128, 48):
        p = random_problem(torch, rng.random((6, 6)) < 0.5, (block, block), dtype)
        turned = DeviceProblem(p.matrix.T, p.dense.T)
        for operands in ((p, p), (p, turned), (turned, p), (turned, turned)):
            check_pair(torch, operands)


@pytest.mark.parametrize("block", [128, 64, 32])
def test_streams_at_the_same_time(torch: Any, block: int, rng: Any) -> None:
    a, _ = pair(torch, masks(rng, (8, 8, 8), 0.5), (block,) * 3, "float16")
    others = [
        pair(torch, masks(rng, (8, 8, 8), 0.5), (block,) * 3, "float16")[1].matrix for _ in range(3)
    ]
    check_streams(torch, lambda b: a.matrix @ b, others)


def test_values_that_meet_nothing_are_not_read(torch: Any) -> None:
    for block in (128, 16):
        both = np.array([[True, True]]), np.array([[True], [False]])
        a, b = pair(torch, both, (block,) * 3, "float16")
        expected = a.dense @ b.dense
        a.matrix.data[1] = float("nan")
        assert relative_error(torch, a.matrix @ b.matrix, expected) < 1e-3


def test_what_pairs_cannot_do(torch: Any, rng: Any) -> None:
    for blocks, dtype, what in (
        ((64, 64, 32), "float16", "multiples of 64"),
        ((64, 64, 64), "float32", "float16 or bfloat16"),
    ):
        a, b = pair(torch, masks(rng, (2, 2, 2), 0.6), blocks, dtype)
        with pytest.raises(ValueError, match=f"family 'pairs' cannot compute .* {what}"):
            product(a.matrix, b.matrix, None, 1.0, 0.0, None, None, "pairs")
    a, b = pair(torch, masks(rng, (2, 2, 2), 0.6), (64, 64, 64), "float16")
    with pytest.raises(TypeError, match="all operands must be on one device"):
        a.matrix @ b.matrix.to("cpu")


def test_structures() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    from hypothesis import given
    from hypothesis import strategies as st
    from strategies import GPU_EXAMPLES, check_pair, pairs, profile

    sides = st.one_of(st.integers(1, 20), st.sampled_from((32, 48, 64, 65, 128, 192)))
    large = st.sampled_from((64, 64, 128, 192, 256))
    scalars = st.sampled_from((0.0, 1.0, -1.0, 0.5, 3.0))

    @profile(reduced(GPU_EXAMPLES))
    @given(st.one_of(pairs(sides), pairs(large, HALVES)), scalars, scalars)
    def run(drawn: tuple, alpha: float, beta: float) -> None:
        check_pair(GPU_SPACES[-1], *drawn, alpha, beta)

    run()
