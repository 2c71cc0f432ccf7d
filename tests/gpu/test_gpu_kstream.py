"""float32 as tf32 by the stream kernels, against float64."""

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
    need_cublas,
    random_problem,
    relative_error,
    repeats,
    some,
)
from precision_cases import TF32_ERROR
from test_gpu_precision import FORMS, PATTERNS, check_tf32

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper", "torch")]

COLUMNS = (1, 3, 8, 64, 128, 200, 264, 333, 520, 1024)


def multiply(a: Any, x: Any, out: Any = None, **options: Any) -> Any:
    return product(a, x, None, 1.0, None, out, None, "kstream", precision="tf32", **options)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [8, 16, 24, 32, 64, 80])
@pytest.mark.parametrize("height", [8, 16, 24, 32, 40, 48, 56, 64, 96, 128])
def test_shapes(torch: Any, rng: np.random.Generator, height: int, width: int, form: str) -> None:
    for rows, cols in ((1, 1), (3, 5), (17, 9)):
        mask = cases.uniform(0.4)(rng, rows, cols)
        mask[-1, -1] = True
        for n in some(COLUMNS)[:4]:
            check_tf32(torch, rng, mask, (height, width), n, form, "kstream")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "none"])
def test_patterns(torch: Any, rng: np.random.Generator, pattern: str, form: str) -> None:
    for blocksize in some(((16, 16), (32, 32), (8, 8), (48, 24), (64, 64))):
        mask = PATTERNS[pattern](rng, 45, 31)
        check_tf32(torch, rng, mask, blocksize, int(rng.choice(COLUMNS)), form, "kstream")


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("blocksize", [(16, 16), (32, 48), (40, 8)], ids=str)
def test_edges(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], columns: bool
) -> None:
    """The last block row and column reach beyond the matrix."""
    mask = cases.uniform(0.5)(rng, 12, 14)
    mask[-1], mask[:, -1] = True, True
    for cut in ((3, 5), (0, 1), (7, blocksize[1] - 1)):
        for n in some((17, 520)):
            p = cases.problem(rng, mask, blocksize, n, "float32", cut=cut)
            data = torch.from_numpy(p.data).cuda()
            a = bsrgemm.bsr_array((data, p.indices, p.indptr), p.shape)
            x = torch.randn(p.shape[1], n, device="cuda")
            given = x.T.contiguous().T if columns else x
            memory = torch.full((p.shape[0] + 2 * GUARD, n), torch.nan, device="cuda")
            out = memory[GUARD:-GUARD]
            multiply(a, given, out)
            expected = torch.from_numpy(p.dense).cuda() @ x.double()
            assert relative_error(torch, out, expected) <= TF32_ERROR
            assert memory[:GUARD].isnan().all() and memory[-GUARD:].isnan().all()


@pytest.mark.parametrize("blocksize", [(16, 16), (32, 32), (24, 8)], ids=str)
def test_unaligned_operands(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    """The dense operand and the result begin and step anywhere."""
    p = random_problem(torch, cases.uniform(0.5)(rng, 20, 24), blocksize, "float32")
    rows, cols = p.dense.shape
    x = torch.randn(cols + 1, 1234, device="cuda")
    for view in (x[1:, 7:527], x[:-1, 1:602], x[1:].T[9:1200:2].T, x[:-1, :1]):
        n = view.shape[1]
        for by_columns in (False, True):
            memory = torch.full((rows + 2 * GUARD, n + 20), torch.nan, device="cuda")
            if by_columns:
                memory = torch.full((n + 20, rows + 2 * GUARD), torch.nan, device="cuda").T
            out = memory[GUARD:-GUARD, 3 : 3 + n]
            multiply(p.matrix, view, out)
            assert relative_error(torch, out, p.dense @ view.double()) <= TF32_ERROR
            out.fill_(torch.nan)
            assert memory.isnan().all()


def test_against_cublas(torch: Any, rng: np.random.Generator) -> None:
    """No more than twice what its dense product of tf32 loses."""
    need_cublas()
    for side, density in ((32, 0.25), (16, 1.0)):
        count = 2048 // side
        p = random_problem(
            torch, cases.uniform(density)(rng, count, count), (side, side), "float32"
        )
        x = torch.randn(2048, 2048, device="cuda")
        expected = p.dense @ x.double()
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            dense = torch.mm(p.dense.float(), x)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        lost = relative_error(torch, dense, expected)
        assert relative_error(torch, multiply(p.matrix, x), expected) <= 2 * lost


def test_infinite_elsewhere(torch: Any, rng: np.random.Generator) -> None:
    """What a row has no blocks for does not reach it."""
    mask = np.zeros((24, 24), bool)
    mask[:, ::2] = cases.uniform(0.5)(rng, 24, 12)
    p = random_problem(torch, mask, (16, 8), "float32")
    x = torch.randn(192, 300, device="cuda")
    clean = multiply(p.matrix, x)
    for column in range(1, 24, 2):
        x[8 * column : 8 * column + 8] = torch.inf
    assert torch.equal(multiply(p.matrix, x), clean)


def test_same_bits(torch: Any, rng: np.random.Generator) -> None:
    """Again and again, on several streams, and captured in a graph."""
    p = random_problem(torch, cases.uniform(0.2)(rng, 40, 50), (16, 16), "float32")
    xs = [torch.randn(800, 600, device="cuda") for _ in range(3)]
    expected = multiply(p.matrix, xs[0])
    for _ in repeats(20):
        assert torch.equal(multiply(p.matrix, xs[0]), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = multiply(p.matrix, xs[0])
    graph.replay()
    assert torch.equal(found, expected)
    check_streams(torch, lambda x: multiply(p.matrix, x), xs)


def test_what_it_cannot_do(torch: Any, rng: np.random.Generator) -> None:
    def refused(blocksize: tuple[int, int], message: str, precision: str = "tf32") -> None:
        p = random_problem(torch, cases.uniform(0.5)(rng, 6, 5), blocksize, "float32")
        x = torch.randn(p.dense.shape[1], 24, device="cuda")
        options = {"precision": precision}
        with pytest.raises(ValueError, match=f"family 'kstream'.*{message}"):
            product(p.matrix, x, None, 1.0, None, None, None, "kstream", **options)
        assert product(p.matrix, x, None, 1.0, None, None, None, **options).isfinite().all()

    refused((16, 12), "block width that is a multiple of 8")
    refused((12, 16), "block height that is a multiple of 8")
    refused((16, 16), "precision 'tf32'", "ieee")
