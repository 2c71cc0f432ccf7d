"""The narrow family with 8-bit floats: few columns of blocks as they are stored, on Hopper."""

from __future__ import annotations

from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from device_cases import check_same_bits, product_cancellation, random_problem, relative_error
from precision_cases import EIGHT, RESULTS, SUM_ERROR, check, forms
from spaces import Torch
from test_gpu_narrow import in_pieces, one_an_sm, three_an_sm, two_an_sm, uncut
from test_gpu_precision import PATTERNS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper", "torch")]

SPACE = Torch("cuda:0")
COLUMNS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64)
# Of two and of four panels of 64, whole ones and parts.
MANY_COLUMNS = (65, 72, 100, 127, 128, 129, 160, 192, 200, 255, 256)


def compute(
    rng: np.random.Generator,
    mask: np.ndarray,
    blocksize: tuple[int, int],
    n: int,
    dtype: str,
    **options: Any,
) -> None:
    check(SPACE, rng, mask, blocksize, n, dtype, sum_error=SUM_ERROR, family="narrow", **options)


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("width", [32, 64, 96, 128, 160, 256, 288])
@pytest.mark.parametrize("height", [17, 24, 32, 40, 64, 96, 128, 200])
def test_shapes(rng: np.random.Generator, height: int, width: int, dtype: str) -> None:
    for rows, cols in ((1, 1), (3, 5), (6, 13)):
        mask = cases.uniform(0.5)(rng, rows, cols)
        mask[-1, -1] = True
        for n in (*rng.permutation(COLUMNS)[:5], *rng.permutation(MANY_COLUMNS)[:3]):
            compute(rng, mask, (height, width), int(n), dtype, **forms(rng))


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("width", [16, 32, 48, 64, 80, 128, 144])
@pytest.mark.parametrize("height", [1, 8, 13, 16, 24, 32])
def test_low_blocks(rng: np.random.Generator, height: int, width: int, dtype: str) -> None:
    """Those that WGMMA does not take, or not with so few rows: made float16 in registers."""
    for rows, cols in ((1, 1), (3, 5), (6, 13)):
        mask = cases.uniform(0.5)(rng, rows, cols)
        mask[-1, -1] = True
        for n in (*rng.permutation(COLUMNS)[:5], *rng.permutation(MANY_COLUMNS)[:2]):
            options = forms(rng, scales=("none", "numbers", "one"))
            compute(rng, mask, (height, width), int(n), dtype, **options)


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("height", [8, 16, 32])
def test_low_crowds(torch: Any, rng: np.random.Generator, height: int, dtype: str) -> None:
    """Every number of warps of a CTA, strips in pieces, and every ring again."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for mask in (uncut, in_pieces, one_an_sm, two_an_sm, three_an_sm):
        width = int(rng.choice((16, 32, 48)))
        for n in rng.permutation(COLUMNS)[:4]:
            options = forms(rng, scales=("none", "numbers", "one"))
            made = mask(rng, (height, width), sms)
            compute(rng, made, (height, width), int(n), dtype, **options)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("dtype", EIGHT)
def test_patterns(rng: np.random.Generator, dtype: str, pattern: str) -> None:
    mask = PATTERNS[pattern](rng, 13, 70)
    if not mask.any():
        mask[5, 7] = True  # these kernels need a block
    for blocksize in ((32, 32), (64, 64), (128, 128), (64, 160)):
        for n in (*rng.permutation(COLUMNS)[:3], *rng.permutation(MANY_COLUMNS)[:2]):
            compute(rng, mask, blocksize, int(n), dtype, **forms(rng))
    for n in rng.permutation(COLUMNS)[:4]:
        compute(rng, mask, (16, 16), int(n), dtype, **forms(rng, scales=("none", "one")))


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("height", [32, 64, 128])
def test_crowds(torch: Any, rng: np.random.Generator, height: int, dtype: str) -> None:
    """As many CTAs as each form of the kernels is for, strips in pieces, and every ring again."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for mask in (uncut, in_pieces, one_an_sm, two_an_sm, three_an_sm):
        width = int(rng.choice((32, 64, 128)))
        p = random_problem(torch, mask(rng, (height, width), sms), (height, width), dtype)
        scales = torch.rand(p.matrix.nnzb, device="cuda") + 0.5
        tiles = p.dense.view(p.dense.shape[0] // height, height, -1, width)
        rows = np.repeat(np.arange(tiles.shape[0]), np.diff(p.matrix.indptr))
        at = torch.from_numpy(rows), slice(None), torch.from_numpy(p.matrix.indices), slice(None)
        tiles[at] *= scales.double()[:, None, None]
        for n in (*rng.permutation(COLUMNS)[:3], *rng.permutation(MANY_COLUMNS)[:3]):
            x = torch.randn(int(n), p.dense.shape[1], device="cuda").to(p.matrix.dtype).T
            expected = p.dense @ x.double()
            for out_dtype in RESULTS:
                kind = getattr(torch, out_dtype)
                out = torch.full(expected.shape, torch.nan, device="cuda", dtype=kind)
                product(p.matrix, x, None, 1.0, None, out, None, "narrow", a_scale=scales)
                allowed = SUM_ERROR + 1.2 * cases.ROUNDOFF[out_dtype]
                assert relative_error(torch, out, expected) <= allowed, (mask, width, n, out_dtype)


@pytest.mark.parametrize("dtype", EIGHT)
def test_edges(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Matrices that end within a block, X in no layout that maps describe, memory around Y."""
    kind = getattr(torch, dtype)
    blocks = (((300, 500), (128, 128)), ((95, 130), (32, 64)), ((1, 33), (64, 32)))
    for shape, block in (*blocks, ((95, 130), (16, 16)), ((13, 33), (8, 48))):
        dense = torch.randn(*shape, device="cuda").to(kind)
        a = bsrgemm.bsr_array(dense, blocksize=block)
        for n in (1, 5, 64, 100, 192):
            memory = torch.randn(2 * shape[1], 3 * n, device="cuda").to(kind)
            for x in (memory[::2, ::3], memory[: shape[1], :n], memory.T[:n].T[1::2, :n]):
                x = x[: shape[1]]
                expected = dense.double() @ x.double()
                cancelled = product_cancellation(expected, dense.double(), x.double())
                out = torch.full((shape[0] + 2, n + 3), torch.nan, device="cuda")
                product(a, x, None, 1.0, None, out[1:-1, 1 : n + 1], None, "narrow")
                error = (out[1:-1, 1 : n + 1] - expected).norm() / expected.norm()
                assert error <= SUM_ERROR * cancelled
                out[1:-1, 1 : n + 1] = torch.nan
                assert out.isnan().all()


def test_is_chosen(torch: Any, rng: np.random.Generator) -> None:
    a = random_problem(torch, cases.uniform(0.25)(rng, 64, 64), (128, 128), "float16").matrix
    data = torch.randn(a.data.shape, device="cuda").to(torch.float8_e4m3fn)
    a = bsrgemm.bsr_array((data, a.indices, a.indptr), a.shape)
    for n in (1, 16, 64, 128, 256):
        assert a.plan(n).choice == "narrow"
    assert a.plan(1024).choice == "kmajor"


def test_same_bits(torch: Any, rng: np.random.Generator) -> None:
    """Again and again, and in a graph, where strips are in pieces and X is copied."""
    mask = in_pieces(rng, (64, 64), 132)
    data = torch.randn(int(mask.sum()), 64, 64, device="cuda").to(torch.float8_e4m3fn)
    indices, indptr = np.nonzero(mask)[1], np.concatenate([[0], mask.sum(1).cumsum()])
    a = bsrgemm.bsr_array((data, indices, indptr), (64 * mask.shape[0], 64 * mask.shape[1]))
    x = torch.randn(a.shape[1], 24, device="cuda").to(torch.float8_e4m3fn)

    def multiply() -> Any:
        return product(a, x, None, 1.0, None, None, None, "narrow")

    check_same_bits(torch, multiply, x)


def test_says_what_it_needs(torch: Any) -> None:
    def refuse(
        blocksize: tuple[int, int],
        message: str,
        transposed: bool = False,
        n: int = 4,
        scales: Any = None,
    ) -> None:
        data = torch.ones(1, *blocksize, device="cuda").to(torch.float8_e5m2)
        data = data.expand(2, *blocksize).contiguous()
        a = bsrgemm.bsr_array((data, np.arange(2, dtype=np.int32), np.array([0, 2])))
        a = a.T if transposed else a
        x = torch.ones(a.shape[1], n, device="cuda").to(torch.float8_e5m2)
        with pytest.raises(ValueError, match=f"family 'narrow'.*{message}"):
            product(a, x, None, 1.0, None, None, None, "narrow", a_scale=scales)

    refuse((64, 40), "multiple of 16 for 8-bit floats")
    refuse((16, 32), "one factor for all blocks", scales=torch.ones(2, device="cuda"))
    refuse((64, 64), "not those of a transposed view", transposed=True)
    refuse((64, 64), "at most 256 columns of 8-bit floats", n=257)
