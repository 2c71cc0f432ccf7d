"""8-bit floats in tiles of the portable family, which take blocks of any shape, against float64."""

from __future__ import annotations

from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import GUARD, combined, random_problem, relative_error, repeats, some
from precision_cases import EIGHT, RESULTS, SUM_ERROR, check, forms
from spaces import OwnDevice, Space, Torch
from test_gpu_precision import PATTERNS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("torch")]

SPACE = Torch("cuda:0")
# All columns of a tile, some of them, and more tiles.
COLUMNS = (100, 128, 250, 256, 257, 300, 512, 777)
WIDTHS = (1, 3, 4, 7, 8, 12, 15, 16, 20, 24, 32, 48, 64, 80, 100, 128, 144)


def compute(
    rng: np.random.Generator,
    mask: np.ndarray,
    blocksize: tuple[int, int],
    n: int,
    dtype: str,
    space: Space = SPACE,
    **options: Any,
) -> None:
    """With products that are exact and sums in float32, so that the result's rounding is all."""
    check(space, rng, mask, blocksize, n, dtype, sum_error=2.0**-20, family="portable", **options)


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("height", [1, 3, 8, 16, 17, 24, 32, 40, 48, 64, 96, 128, 200])
def test_shapes(rng: np.random.Generator, height: int, dtype: str) -> None:
    for width in rng.permutation(WIDTHS)[:6]:
        for rows, cols in ((1, 1), (3, 5), (6, 40)):
            mask = cases.uniform(0.5)(rng, rows, cols)
            mask[-1, -1] = True
            compute(rng, mask, (height, int(width)), int(rng.choice(COLUMNS)), dtype, **forms(rng))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_patterns(rng: np.random.Generator, pattern: str, right: bool, transposed: bool) -> None:
    mask = PATTERNS[pattern](rng, 13, 31)
    for blocksize in some(((16, 16), (32, 32), (8, 24), (48, 80), (64, 64), (128, 128), (5, 9))):
        options = {"right": right, "transposed": transposed, **forms(rng)}
        compute(rng, mask, blocksize, int(rng.choice(COLUMNS)), str(rng.choice(EIGHT)), **options)


@pytest.mark.parametrize("how", ["none", "one", "blocks"])
@pytest.mark.parametrize("out_dtype", RESULTS)
@pytest.mark.parametrize("side", [16, 32, 48, 64, 128])
def test_results_and_scales(rng: np.random.Generator, side: int, out_dtype: str, how: str) -> None:
    mask = cases.uniform(0.4)(rng, 7, 19)
    for dtype in EIGHT:
        for columns, out_columns in combined(rng, (False, True), (False, True), drawn=2):
            options = {"columns": columns, "out_columns": out_columns, "out_dtype": out_dtype}
            n = int(rng.choice(COLUMNS))
            compute(rng, mask, (side, side), n, dtype, how=how, beta=2.0, **options)
            compute(rng, mask, (side, side), n, dtype, how=how, **options)


def test_long_sums(rng: np.random.Generator) -> None:
    for dtype in EIGHT:
        compute(rng, np.ones((2, 1024), bool), (16, 32), 256, dtype, out_dtype="float32")


def test_own_arrays(rng: np.random.Generator) -> None:
    mask = cases.uniform(0.5)(rng, 4, 25)
    compute(rng, mask, (16, 16), 200, "float8_e4m3fn", space=OwnDevice(), how="blocks")


def test_unaligned_operands(torch: Any, rng: np.random.Generator) -> None:
    """The dense operand and the result begin and step anywhere."""
    for blocksize in ((16, 16), (64, 32), (7, 5)):
        p = random_problem(torch, cases.uniform(0.5)(rng, 6, 11), blocksize, "float8_e4m3fn")
        rows, cols = p.dense.shape
        x = torch.randn(cols + 1, 333, device="cuda").to(torch.float8_e4m3fn)
        for view in (x[1:, 7:207], x[:-1, 1:210], x[1:].T[9:300:2].T):
            expected = p.dense @ view.double()
            memory = torch.full((rows + 2 * GUARD, 400), torch.nan, device="cuda")
            out = memory[GUARD:-GUARD, 3 : 3 + view.shape[1]]
            product(p.matrix, view, None, 1.0, 0.0, out, None, "portable")
            assert relative_error(torch, out, expected) <= 2.0**-20
            out.fill_(torch.nan)
            assert memory.isnan().all()


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", EIGHT)
def test_every_value(torch: Any, dtype: str, scaled: bool) -> None:
    """NaN and the infinities, too, each times 1 and in a product of its own."""
    values = torch.arange(256, device="cuda", dtype=torch.uint8).view(getattr(torch, dtype))
    data = values.reshape(256, 1, 1)
    scale = torch.full((256,), 0.5, device="cuda") if scaled else None
    a = bsrgemm.bsr_array((data, np.zeros(256, np.int32), np.arange(257)), (256, 1))
    x = torch.ones(1, 128, device="cuda").to(values.dtype)
    options = {"a_scale": scale, "out_dtype": "float32"}
    found = product(a, x, None, 1.0, 0.0, None, None, "portable", **options)
    expected = (values.float() * (0.5 if scaled else 1))[:, None].expand(256, 128)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", EIGHT)
def test_same_bits(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Again and again, and captured in a graph."""
    p = random_problem(torch, cases.uniform(0.2)(rng, 40, 50), (16, 16), dtype)
    x = torch.randn(800, 600, device="cuda").to(getattr(torch, dtype))
    out = torch.empty(640, 600, device="cuda", dtype=torch.bfloat16)

    def multiply() -> Any:
        out.fill_(torch.nan)
        bsrgemm.matmul(p.matrix, x, out=out)
        return out.clone()

    expected = multiply()
    assert relative_error(torch, expected, p.dense @ x.double()) <= 2.0**-8 + SUM_ERROR
    for _ in repeats(20):
        assert torch.equal(multiply(), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = multiply()
    graph.replay()
    assert torch.equal(found, expected)
