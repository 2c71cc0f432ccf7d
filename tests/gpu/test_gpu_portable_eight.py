"""8-bit floats in tiles of the portable family, which take blocks of any shape, against float64."""

from __future__ import annotations

from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import GUARD, combined, random_problem, relative_error, repeats, some
from precision_cases import EIGHT, RESULTS, check, forms
from spaces import OwnDevice, Space, Torch
from test_gpu_precision import PATTERNS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("torch")]

SPACE = Torch("cuda:0")
# So many that tiles are chosen and not the kernels for few columns: all columns of a tile, or some.
COLUMNS = (512, 520, 600, 640, 777)
ORDER = 640  # of matrices, or a little more
# Products are exact and sums float32: the rounding of the result is all.
ERROR = 2.0**-20
# Chunks of 16 k, copied by 16 bytes, by 4 and by 1, whole and filled up.
WIDTHS = (8, 9, 12, 15, 16, 20, 24, 32, 48, 64, 80, 100, 128, 144)


def blocks_of(blocksize: tuple[int, int]) -> tuple[int, int]:
    return -(-ORDER // blocksize[0]), -(-ORDER // blocksize[1])


def goes_by_tiles(mask: np.ndarray, blocksize: tuple[int, int], n: int, turned: bool) -> bool:
    zeros = np.zeros((int(mask.sum()), *blocksize), cases.numpy_dtype(EIGHT[0]))
    indptr = np.concatenate([[0], mask.sum(axis=1).cumsum()]).astype(np.int32)
    a = bsrgemm.bsr_array((zeros, np.nonzero(mask)[1].astype(np.int32), indptr))
    candidates = (a.T if turned else a).plan(n).candidates
    reason = next(c["reason"] for c in candidates if c["family"] == "portable")
    return "few columns" not in reason


def compute(
    rng: np.random.Generator,
    mask: np.ndarray,
    blocksize: tuple[int, int],
    n: int,
    dtype: str,
    space: Space = SPACE,
    **options: Any,
) -> None:
    turned = options.get("transposed", False) != options.get("right", False)
    assert goes_by_tiles(mask, blocksize, n, turned), "these are other kernels' tests"
    check(space, rng, mask, blocksize, n, dtype, sum_error=ERROR, family="portable", **options)


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("height", [8, 16, 17, 24, 32, 40, 48, 64, 96, 128, 200])
def test_shapes(rng: np.random.Generator, height: int, dtype: str) -> None:
    for width in rng.permutation(WIDTHS)[:6]:
        blocksize = height, int(width)
        mask = cases.uniform(0.5)(rng, *blocks_of(blocksize))
        mask[-1, -1] = True
        compute(rng, mask, blocksize, int(rng.choice(COLUMNS)), dtype, **forms(rng))


@pytest.mark.parametrize(
    "pattern", [name for name in PATTERNS if name not in ("none", "one block")]
)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_patterns(rng: np.random.Generator, pattern: str, right: bool, transposed: bool) -> None:
    for blocksize in some(((16, 16), (32, 32), (64, 24), (48, 80), (64, 64), (128, 128))):
        mask = PATTERNS[pattern](rng, *blocks_of(blocksize))
        options = {"right": right, "transposed": transposed, **forms(rng)}
        compute(rng, mask, blocksize, int(rng.choice(COLUMNS)), str(rng.choice(EIGHT)), **options)


@pytest.mark.parametrize("how", ["none", "one", "blocks"])
@pytest.mark.parametrize("out_dtype", RESULTS)
@pytest.mark.parametrize("side", [16, 32, 48, 64, 128])
def test_results_and_scales(rng: np.random.Generator, side: int, out_dtype: str, how: str) -> None:
    mask = cases.uniform(0.4)(rng, *blocks_of((side, side)))
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
    mask = cases.uniform(0.5)(rng, *blocks_of((16, 16)))
    compute(rng, mask, (16, 16), 520, "float8_e4m3fn", space=OwnDevice(), how="blocks")


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("blocksize", [(16, 16), (32, 48), (20, 12), (24, 15), (128, 64)], ids=str)
def test_edges(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], columns: bool
) -> None:
    """The last block row and column reach beyond the matrix, by parts of a chunk, too."""
    mask = cases.uniform(0.5)(rng, *blocks_of(blocksize))
    mask[-1], mask[:, -1] = True, True
    assert goes_by_tiles(mask, blocksize, 520, turned=False)
    for cut in some([(3, 5), (0, 1), (7, blocksize[1] - 1)]):
        p = cases.problem(rng, mask, blocksize, 520, "float8_e4m3fn", cut=cut)
        a = bsrgemm.bsr_array((SPACE.array(p.data), p.indices, p.indptr), p.shape)
        x = cases.normal(rng, (p.shape[1], 520), "float8_e4m3fn")
        given = SPACE.column_major(x) if columns else SPACE.array(x)
        out = SPACE.poisoned((p.shape[0], 520), "float32")
        product(a, given, None, 1.0, 0.0, out, None, "portable")
        expected = torch.from_numpy(p.dense @ x.astype(np.float64)).cuda()
        assert relative_error(torch, out, expected) <= ERROR


@pytest.mark.parametrize("blocksize", [(16, 16), (64, 32), (20, 12)], ids=str)
def test_unaligned_operands(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    """The dense operand and the result begin and step anywhere."""
    mask = cases.uniform(0.5)(rng, *blocks_of(blocksize))
    p = random_problem(torch, mask, blocksize, "float8_e4m3fn")
    rows, cols = p.dense.shape
    x = torch.randn(cols + 1, 1234, device="cuda").to(torch.float8_e4m3fn)
    for view in (x[1:, 7:527], x[:-1, 1:602], x[1:].T[9:1200:2].T):
        n = view.shape[1]
        assert goes_by_tiles(mask, blocksize, n, turned=False)
        memory = torch.full((rows + 2 * GUARD, n + 20), torch.nan, device="cuda")
        out = memory[GUARD:-GUARD, 3 : 3 + n]
        product(p.matrix, view, None, 1.0, 0.0, out, None, "portable")
        assert relative_error(torch, out, p.dense @ view.double()) <= ERROR
        out.fill_(torch.nan)
        assert memory.isnan().all()


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", EIGHT)
def test_every_value(torch: Any, dtype: str, scaled: bool) -> None:
    """NaN and the infinities, too, each times 1, in a row and at a k of its own."""
    values = torch.arange(256, device="cuda", dtype=torch.uint8)
    data = torch.zeros(16, 16, 16, device="cuda", dtype=torch.uint8)  # bits of zeros
    data.diagonal(dim1=1, dim2=2).copy_(values.view(16, 16))
    data = data.repeat(4, 1, 1).view(getattr(torch, dtype))
    assert goes_by_tiles(np.ones((64, 1), bool), (16, 16), 1024, turned=False)
    a = bsrgemm.bsr_array((data, np.zeros(64, np.int32), np.arange(65)), (1024, 16))
    x = torch.ones(16, 1024, device="cuda").to(data.dtype)
    scale = torch.full((64,), 0.5, device="cuda") if scaled else None
    options = {"a_scale": scale, "out_dtype": "float32"}
    found = product(a, x, None, 1.0, 0.0, None, None, "portable", **options)
    expected = values.view(data.dtype).float().repeat(4) * (0.5 if scaled else 1)
    expected = expected[:, None].expand(1024, 1024)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", EIGHT)
def test_same_bits(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Again and again, and captured in a graph."""
    mask = cases.uniform(0.2)(rng, 40, 50)
    assert goes_by_tiles(mask, (16, 16), 600, turned=False)
    p = random_problem(torch, mask, (16, 16), dtype)
    x = torch.randn(800, 600, device="cuda").to(getattr(torch, dtype))
    out = torch.empty(640, 600, device="cuda", dtype=torch.float32)

    def multiply() -> Any:
        out.fill_(torch.nan)
        product(p.matrix, x, None, 1.0, 0.0, out, None, "portable")
        return out.clone()

    expected = multiply()
    assert relative_error(torch, expected, p.dense @ x.double()) <= ERROR
    for _ in repeats(20):
        assert torch.equal(multiply(), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = multiply()
    graph.replay()
    assert torch.equal(found, expected)
