"""Products of tf32 and of 8-bit floats on the GPU against float64."""

from __future__ import annotations

from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import (
    GUARD,
    check_same_bits,
    check_streams,
    combined,
    corner,
    need_cublas,
    one_behind_the_other,
    product_cancellation,
    random_problem,
    relative_error,
    some,
)
from precision_cases import EIGHT, RESULTS, SUM_ERROR, TF32_ERROR, check
from spaces import OwnDevice, Space, Torch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper", "torch")]

SPACE = Torch("cuda:0")
PATTERNS = {
    "uniform": cases.uniform(0.4),
    "empty rows": cases.empty_rows,
    "one block": cases.one_block,
    "one long row": cases.one_long_row,
    "skewed": cases.skewed,
    "full": lambda rng, rows, cols: np.ones((rows, cols), bool),
    "none": lambda rng, rows, cols: np.zeros((rows, cols), bool),
}


def compute(
    rng: np.random.Generator,
    mask: np.ndarray,
    blocksize: tuple[int, int],
    n: int,
    dtype: str,
    space: Space = SPACE,
    **options: Any,
) -> None:
    check(space, rng, mask, blocksize, n, dtype, sum_error=SUM_ERROR, **options)


# ---- 8 bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("width", [32, 64, 96, 128, 160, 256])
@pytest.mark.parametrize("height", [64, 128, 192, 256])
def test_shapes(rng: np.random.Generator, height: int, width: int, dtype: str) -> None:
    """Numbers of columns below, at and above a tile; single CTAs and pairs."""
    for rows, cols in ((1, 1), (3, 5), (6, 13)):
        mask = cases.uniform(0.5)(rng, rows, cols)
        mask[-1, -1] = True
        for n in some((256, 1, 5, 200, 264, 512, 768, 771, 1024, 4104)):
            options = {"columns": bool(n % 3), "out_columns": n % 2 == 0}
            compute(rng, mask, (height, width), n, dtype, how="blocks", **options)


@pytest.mark.parametrize("out_dtype", RESULTS)
@pytest.mark.parametrize("how", ["none", "numbers", "one", "blocks"])
@pytest.mark.parametrize("dtype", EIGHT)
def test_results_and_scales(rng: np.random.Generator, dtype: str, how: str, out_dtype: str) -> None:
    mask = cases.uniform(0.4)(rng, 7, 9)
    both = (False, True)
    for forms in combined(rng, both, both, (72, 131, 520), (0.0, 2.0), (64, 128), drawn=10):
        columns, out_columns, n, beta, side = forms
        options = {"columns": columns, "out_columns": out_columns, "out_dtype": out_dtype}
        compute(rng, mask, (side, side), n, dtype, how=how, beta=beta, **options)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_patterns(rng: np.random.Generator, pattern: str, right: bool, transposed: bool) -> None:
    """Views, and the matrix on either side: blocks are copied where they are read across."""
    mask = PATTERNS[pattern](rng, 13, 11)
    form = {"right": right, "transposed": transposed, "how": "blocks"}
    for shape in ((64, 64), (128, 128), (64, 192), (128, 64)):
        for n in some((264, 77, 1024)):
            compute(rng, mask, shape, n, "float8_e4m3fn", columns=n % 2 == 0, **form)


def test_long_sums(rng: np.random.Generator) -> None:
    """The tensor cores' own sums would lose a hundred times more over so many products."""
    mask = np.ones((2, 256), bool)
    for dtype in EIGHT:
        compute(rng, mask, (128, 128), 256, dtype, out_dtype="float32", columns=True)


@pytest.mark.parametrize("out_dtype", RESULTS)
@pytest.mark.parametrize("cols", [2, 3, 4, 6, 8, 64])
def test_against_cublas(torch: Any, rng: np.random.Generator, cols: int, out_dtype: str) -> None:
    """No more than twice what its dense product of the same types and result loses."""
    need_cublas()
    k, n = 128 * cols, 768
    for mask in (np.ones((4, cols), bool), cases.uniform(0.5)(rng, 4, cols) | corner(4, cols)):
        p = cases.problem(rng, mask, (128, 128), n, "float8_e4m3fn")
        a = bsrgemm.bsr_array((SPACE.array(p.data), p.indices, p.indptr), p.shape)
        x = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn).T
        dense, one = a.todense(), torch.ones((), device="cuda")
        expected = dense.double() @ x.double()
        theirs = torch._scaled_mm(dense, x, one, one, out_dtype=getattr(torch, out_dtype))
        ours = product(a, x, None, 1.0, None, None, None, "kmajor", out_dtype=out_dtype)
        lost = relative_error(torch, theirs, expected)
        assert relative_error(torch, ours, expected) <= 2 * lost


def test_own_arrays(rng: np.random.Generator) -> None:
    mask = cases.uniform(0.5)(rng, 4, 5)
    compute(rng, mask, (64, 64), 200, "float8_e4m3fn", space=OwnDevice(), how="blocks")


def test_unaligned_operands(torch: Any, rng: np.random.Generator) -> None:
    """The dense operand and the result begin and step anywhere."""
    p = cases.problem(rng, cases.uniform(0.5)(rng, 4, 6), (64, 64), 75, "float8_e4m3fn")
    a = bsrgemm.bsr_array((SPACE.array(p.data), p.indices, p.indptr), p.shape)
    x = torch.randn(385, 93, device="cuda").to(torch.float8_e4m3fn)
    for view in (x[1:, 7:82], x[:384, 1:76], x[1:].T[9:84].T):
        expected = torch.from_numpy(p.dense).cuda() @ view.double()
        memory = torch.full((256 + 2 * GUARD, 91), torch.nan, device="cuda", dtype=torch.bfloat16)
        out = memory[GUARD:-GUARD, 3:78]
        bsrgemm.matmul(a, view, out=out)
        assert relative_error(torch, out, expected) <= 2.0**-8 * 1.1 + SUM_ERROR
        out.fill_(torch.nan)
        assert memory.isnan().all()


def test_every_finite_value(torch: Any) -> None:
    """Each times 1; where products are single, none is rounded on the way to float32."""
    for dtype in EIGHT:
        values = torch.arange(256, device="cuda", dtype=torch.uint8).view(getattr(torch, dtype))
        values = torch.where(values.float().isfinite(), values.float(), 0.0).to(values.dtype)
        data = torch.zeros(1, 256, 256, device="cuda")
        data[0].diagonal().copy_(values.float())
        a = bsrgemm.bsr_array((data.to(values.dtype), np.zeros(1, np.int32), np.arange(2)))
        x = torch.eye(256, device="cuda").to(values.dtype)
        found = bsrgemm.matmul(a, x, out_dtype="float32")
        assert torch.equal(found, data[0])


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("shape", [(96, 64), (64, 48), (16, 16), (4, 4), (3, 5), (1, 1), (32, 8)])
def test_other_blocks(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> None:
    """By the portable kernels, which take a few columns at a time."""
    for rows, cols in ((1, 1), (9, 40)):
        mask = cases.uniform(0.4)(rng, rows, cols)
        mask[-1, -1] = True
        for forms in combined(
            rng, (1, 3, 8, 100), ("none", "one", "blocks"), (False, True), (False, True), drawn=6
        ):
            n, how, right, transposed = forms
            compute(
                rng, mask, shape, n, dtype, how=how, right=right, transposed=transposed,
                columns=bool(rng.integers(2)), out_columns=bool(rng.integers(2)),
                out_dtype=str(rng.choice(RESULTS)), beta=float(rng.integers(2)),
            )  # fmt: skip


@pytest.mark.parametrize("dtype", [*EIGHT, "float32"])
def test_same_bits(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Again and again, on several streams, and captured in a graph."""
    kind = getattr(torch, dtype)
    p = cases.problem(rng, cases.skewed(rng, 24, 40), (64, 64), 600, dtype)
    a = bsrgemm.bsr_array((SPACE.array(p.data), p.indices, p.indptr), p.shape)
    options: dict[str, Any] = {"precision": "tf32"}
    if dtype in EIGHT:
        scales = torch.rand(a.nnzb, device="cuda") + 0.5
        options = {"a_scale": scales, "b_scale": torch.full((), 0.5, device="cuda")}
    x = torch.randn(2560, 600, device="cuda").to(kind)

    def multiply(operand: Any = x) -> Any:
        return bsrgemm.matmul(a, operand, **options)

    check_same_bits(torch, multiply, x)
    check_streams(
        torch, multiply, [torch.randn(2560, 600, device="cuda").to(kind) for _ in range(4)]
    )


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("height", [64, 128])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float32"])
def test_short_tiles(
    torch: Any, rng: np.random.Generator, dtype: str, height: int, blocks: int
) -> None:
    """As of 16 bits: many tiles an SM, all of the same few stages."""
    side = 8192
    mask = rng.random((side // height, side // 128)).argsort(axis=1) < blocks
    p = random_problem(torch, mask, (height, 128), dtype)
    x = torch.randn(side, side, device="cuda").to(p.matrix.dtype).T
    options: dict[str, Any] = {}
    result, accepted = torch.bfloat16, 2.0**-8 * 1.1 + SUM_ERROR
    if dtype == "float32":
        options, result, accepted = {"precision": "tf32"}, torch.float32, TF32_ERROR

    def launch(out: Any) -> None:
        bsrgemm.matmul(p.matrix, x, out=out, **options)

    found = one_behind_the_other(torch, launch, (side, side), result, 50)
    assert relative_error(torch, found, p.dense @ x.double()) <= accepted


# ---- tf32 ---------------------------------------------------------------------------------------


FORMS = ("a @ x", "a.T @ x", "x @ a", "x @ a.T")


def check_tf32(
    torch: Any,
    rng: np.random.Generator,
    mask: np.ndarray,
    blocksize: tuple[int, int],
    n: int,
    form: str,
    family: str,
) -> None:
    """Within the rounding of its operands, and not of float32's exactness: it is used.

    With odd ``n``, x is column-major."""
    p = random_problem(torch, mask, blocksize, "float32")
    a, dense = (p.matrix.T, p.dense.T) if ".T" in form else (p.matrix, p.dense)
    right = form.startswith("x")
    inner = dense.shape[0] if right else dense.shape[1]
    x = torch.randn((n, inner) if right else (inner, n), device="cuda")
    if n % 2:
        x = x.T.contiguous().T
    factors = (x.double(), dense) if right else (dense, x.double())
    expected = factors[0] @ factors[1]
    c = torch.randn(expected.shape, device="cuda")
    rows, columns = expected.shape
    for beta in (0.0, 0.5):
        memory = torch.full((rows + 2 * GUARD, columns), torch.nan, device="cuda")
        out = memory[GUARD:-GUARD]
        operands = (x, a) if right else (a, x)
        options = {"family": family, "precision": "tf32"}
        product(*operands, c if beta else None, 1.0, beta, out, None, **options)
        addend = beta * c.double()
        error = relative_error(torch, out, expected + addend)
        allowed = TF32_ERROR * product_cancellation(expected + addend, *factors, addend)
        assert 2.0**-16 < error <= allowed, (form, blocksize, n, beta, error, allowed)
        assert memory[:GUARD].isnan().all() and memory[-GUARD:].isnan().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [64, 128, 192])
@pytest.mark.parametrize("height", [64, 128, 192])
def test_tf32(torch: Any, rng: np.random.Generator, height: int, width: int, form: str) -> None:
    for rows, cols in ((1, 1), (3, 5), (6, 13)):
        mask = cases.uniform(0.5)(rng, rows, cols)
        mask[-1, -1] = True
        for n in some((264, 5, 256, 520, 771, 1024, 4104)):
            check_tf32(torch, rng, mask, (height, width), n, form, "kmajor")


@pytest.mark.parametrize("width", [8, 16, 24, 32, 40, 64])
def test_tf32_of_narrow_blocks(torch: Any, rng: np.random.Generator, width: int) -> None:
    p = random_problem(torch, cases.uniform(0.3)(rng, 9, 40), (64, width), "float32")
    x = torch.randn(p.matrix.shape[1], 300, device="cuda")
    found = product(p.matrix, x, None, 1.0, None, None, None, "kmajor", precision="tf32")
    assert relative_error(torch, found, p.dense @ x.double()) <= TF32_ERROR


def test_tf32_against_cublas(torch: Any, rng: np.random.Generator) -> None:
    """No more than twice what its dense product of tf32 loses."""
    need_cublas()
    p = random_problem(torch, cases.uniform(0.25)(rng, 16, 16), (128, 128), "float32")
    x = torch.randn(2048, 2048, device="cuda")
    expected = p.dense @ x.double()
    found = bsrgemm.matmul(p.matrix, x, precision="tf32")
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        dense = torch.mm(p.dense.float(), x)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert relative_error(torch, found, expected) <= 2 * relative_error(torch, dense, expected)


OTHER_BLOCKS = ((1, 1), (3, 5), (8, 8), (16, 16), (24, 12), (32, 32), (40, 7), (64, 64), (130, 20))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blocksize", OTHER_BLOCKS, ids=str)
def test_tf32_of_other_blocks(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], form: str
) -> None:
    for rows, cols in ((2, 3), (9, 17)):
        mask = cases.uniform(0.5)(rng, rows, cols)
        mask[-1] = True
        mask[0] = False
        for n in some((300, 65, 77, 128, 1000)):
            check_tf32(torch, rng, mask, blocksize, n, form, "portable")
