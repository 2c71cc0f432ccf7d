"""8-bit floats by the kernels of 16-bit ones, on copies, against float64."""

from __future__ import annotations

from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import (
    GUARD,
    check_streams,
    combined,
    random_problem,
    relative_error,
    repeats,
    some,
)
from precision_cases import EIGHT, check, forms
from spaces import OwnDevice, Space, Torch
from test_gpu_precision import PATTERNS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper", "torch")]

SPACE = Torch("cuda:0")
# Copies are exact, and so are products; sums are float32.
ERROR = 2.0**-20
HALVES = ("float16", "bfloat16")
SCALES = ("none", "numbers", "one")
COLUMNS = (1, 3, 8, 40, 72, 128, 264, 333, 520)


def compute(
    rng: np.random.Generator,
    mask: np.ndarray,
    blocksize: tuple[int, int],
    n: int,
    dtype: str,
    space: Space = SPACE,
    **options: Any,
) -> None:
    check(space, rng, mask, blocksize, n, dtype, sum_error=ERROR, family="widen", **options)


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("width", [1, 8, 12, 16, 24, 32, 64, 80])
@pytest.mark.parametrize("height", [1, 5, 8, 16, 24, 32, 48, 64, 96])
def test_shapes(rng: np.random.Generator, height: int, width: int, dtype: str) -> None:
    for rows, cols in ((1, 1), (3, 5), (17, 9)):
        mask = cases.uniform(0.4)(rng, rows, cols)
        mask[-1, -1] = True
        for n in some(COLUMNS)[:4]:
            compute(rng, mask, (height, width), n, dtype, **forms(rng, HALVES, SCALES))


@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "none"])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_patterns(rng: np.random.Generator, pattern: str, right: bool, transposed: bool) -> None:
    for blocksize in some(((16, 16), (32, 32), (64, 24), (8, 8), (64, 64))):
        mask = PATTERNS[pattern](rng, 13, 11)
        options = {"right": right, "transposed": transposed, **forms(rng, HALVES, SCALES)}
        n = int(rng.choice(COLUMNS))
        compute(rng, mask, blocksize, n, str(rng.choice(EIGHT)), **options)


@pytest.mark.parametrize("how", SCALES)
@pytest.mark.parametrize("out_dtype", HALVES)
@pytest.mark.parametrize("side", [16, 32])
def test_results_and_scales(rng: np.random.Generator, side: int, out_dtype: str, how: str) -> None:
    mask = cases.uniform(0.4)(rng, 20, 24)
    both = (False, True)
    for dtype in EIGHT:
        for columns, out_columns, n, beta in combined(rng, both, both, (24, 520), (0.0, 2.0)):
            options = {"columns": columns, "out_columns": out_columns, "out_dtype": out_dtype}
            compute(rng, mask, (side, side), n, dtype, how=how, beta=beta, **options)


def test_own_arrays(rng: np.random.Generator) -> None:
    mask = cases.uniform(0.5)(rng, 20, 24)
    compute(rng, mask, (16, 16), 520, "float8_e4m3fn", space=OwnDevice(), how="one")


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("blocksize", [(16, 16), (32, 48), (20, 12)], ids=str)
def test_edges(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], columns: bool
) -> None:
    """The last block row and column reach beyond the matrix."""
    mask = cases.uniform(0.5)(rng, 12, 14)
    mask[-1], mask[:, -1] = True, True
    for cut in ((3, 5), (0, 1), (7, blocksize[1] - 1)):
        for n in some((17, 520)):
            p = cases.problem(rng, mask, blocksize, n, "float8_e4m3fn", cut=cut)
            a = bsrgemm.bsr_array((SPACE.array(p.data), p.indices, p.indptr), p.shape)
            x = cases.normal(rng, (p.shape[1], n), "float8_e4m3fn")
            given = SPACE.column_major(x) if columns else SPACE.array(x)
            out = SPACE.poisoned((p.shape[0], n), "float16")
            product(a, given, None, 1.0, 0.0, out, None, "widen")
            expected = torch.from_numpy(p.dense @ x.astype(np.float64)).cuda()
            assert relative_error(torch, out, expected) <= 1.1 * 2.0**-11


@pytest.mark.parametrize("blocksize", [(16, 16), (32, 32), (20, 12)], ids=str)
def test_unaligned_operands(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    """The dense operand and the result begin and step anywhere."""
    p = random_problem(torch, cases.uniform(0.5)(rng, 20, 24), blocksize, "float8_e4m3fn")
    rows, cols = p.dense.shape
    x = torch.randn(cols + 1, 1234, device="cuda").to(torch.float8_e4m3fn)
    for view in (x[1:, 7:527], x[:-1, 1:602], x[1:].T[9:1200:2].T, x[:-1, :1]):
        n = view.shape[1]
        memory = torch.full((rows + 2 * GUARD, n + 20), torch.nan, device="cuda").bfloat16()
        out = memory[GUARD:-GUARD, 3 : 3 + n]
        product(p.matrix, view, None, 1.0, 0.0, out, None, "widen")
        assert relative_error(torch, out, p.dense @ view.double()) <= 1.1 * 2.0**-8
        out.fill_(torch.nan)
        assert memory.isnan().all()


@pytest.mark.parametrize("out_dtype", HALVES)
@pytest.mark.parametrize("dtype", EIGHT)
def test_every_value(torch: Any, dtype: str, out_dtype: str) -> None:
    """NaN and the infinities, too, each times 1, in a row and at a k of its own."""
    values = torch.arange(256, device="cuda", dtype=torch.uint8)
    data = torch.zeros(16, 16, 16, device="cuda", dtype=torch.uint8)  # bits of zeros
    data.diagonal(dim1=1, dim2=2).copy_(values.view(16, 16))
    data = data.view(getattr(torch, dtype))
    a = bsrgemm.bsr_array((data, np.zeros(16, np.int32), np.arange(17)), (256, 16))
    x = torch.ones(16, 264, device="cuda").to(data.dtype)
    found = product(a, x, None, 1.0, 0.0, None, None, "widen", out_dtype=out_dtype).float()
    expected = values.view(data.dtype).float()[:, None].expand(256, 264)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", EIGHT)
def test_same_bits(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Again and again, on several streams, and captured in a graph."""
    p = random_problem(torch, cases.uniform(0.2)(rng, 40, 50), (16, 16), dtype)
    scale = torch.full((), 0.5, device="cuda")
    xs = [torch.randn(800, 600, device="cuda").to(getattr(torch, dtype)) for _ in range(3)]

    def multiply(x: Any) -> Any:
        return product(p.matrix, x, None, 1.0, None, None, None, "widen", a_scale=scale)

    expected = multiply(xs[0])
    wanted = 0.5 * (p.dense @ xs[0].double())
    assert relative_error(torch, expected, wanted) <= 1.1 * 2.0**-8
    for _ in repeats(20):
        assert torch.equal(multiply(xs[0]), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = multiply(xs[0])
    graph.replay()
    assert torch.equal(found, expected)
    check_streams(torch, multiply, xs)


def test_what_it_cannot_do(torch: Any, rng: np.random.Generator) -> None:
    p = random_problem(torch, cases.uniform(0.5)(rng, 6, 5), (16, 16), "float8_e4m3fn")
    x = torch.randn(80, 24, device="cuda").to(torch.float8_e4m3fn)
    one, each = torch.ones((), device="cuda"), torch.ones(p.matrix.nnzb, device="cuda")
    rows = torch.ones(96, device="cuda", dtype=torch.bfloat16)
    for message, options in {
        "result of float16 or bfloat16": {"out_dtype": "float32"},
        "one factor for all blocks": {"a_scale": each},
        "not both": {"a_scale": one, "row_scale": rows},
    }.items():
        with pytest.raises(ValueError, match=f"family 'widen'.*{message}"):
            product(p.matrix, x, None, 1.0, None, None, None, "widen", **options)
        assert product(p.matrix, x, None, 1.0, None, None, None, **options).isfinite().all()
    half = random_problem(torch, cases.uniform(0.5)(rng, 6, 5), (16, 16), "float16").matrix
    with pytest.raises(ValueError, match="family 'widen'.*needs 8-bit floats"):
        product(half, x.half(), None, 1.0, None, None, None, "widen")
