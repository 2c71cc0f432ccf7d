"""Products of bands, which take block columns in an order of their own, on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bsrgemm._matmul import product
from cases import least_error
from device_cases import check, random_problem, relative_error
from precision_cases import EIGHT, SUM_ERROR
from precision_cases import check as check_precision
from spaces import Torch
from test_gpu_regroup_in_place import multiply_in_place
from test_gpu_shapes import HALVES

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

# Blocks, and how many a row has: 1024 k and more, with holes, too, for shorter tiles keep ascending
# columns. Tiles of one block row, of two, several of a block row, pairs along rows.
BANDS = (
    ((128, 128), 9),
    ((64, 64), 18),
    ((64, 112), 10),
    ((192, 80), 14),
    ((256, 64), 17),
    ((384, 48), 23),
)
# More rows than are ordered together.
ROWS, COLUMNS = 75, 36


def band(rows: int, cols: int, width: int) -> np.ndarray:
    """So many blocks in each row, each row's one further to the right, around the end."""
    behind = np.arange(cols)[None, :] - np.arange(rows)[:, None]
    return behind % cols < width


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("blocksize", "width"), BANDS)
def test_tall(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], width: int, dtype: str
) -> None:
    """Every tile of its own, whole rows and with holes."""
    for holes in (0.0, 0.04):
        mask = band(ROWS, COLUMNS, width)
        mask &= rng.random(mask.shape) >= holes
        p = random_problem(torch, mask, blocksize, dtype)
        check(torch, p, 264, family="tall")
        check(torch, p, 1032, alpha=1.5, beta=-1.0, family="tall")


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_transposed(torch: Any, rng: np.random.Generator, transposed: bool, columns: bool) -> None:
    """A view of the matrix, and dense operands by columns."""
    mask = band(ROWS, COLUMNS, 8)
    p = random_problem(torch, mask.T if transposed else mask, (128, 128), "bfloat16")
    a, dense = (p.matrix.T, p.dense.T) if transposed else p
    x = torch.randn(a.shape[1], 520, device="cuda").bfloat16()
    out = torch.full((a.shape[0], 520), float("nan"), device="cuda").bfloat16()
    if columns:
        x, out = (of.T.contiguous().T for of in (x, out))
    product(a, x, None, 1.0, 0.0, out, None, "tall")
    expected = dense @ x.double()
    lost = relative_error(torch, dense.bfloat16() @ x, expected)
    allowed = max(2 * lost, least_error("bfloat16", a.shape[1]))
    assert relative_error(torch, out, expected) <= allowed


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", [(32, 32), (16, 64)])
def test_in_place(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    """Of blocks of 128 x 64, which lack some of the stored ones."""
    larger = np.ones((128 // blocksize[0], 64 // blocksize[1]), bool)
    mask = np.kron(band(70, 40, 18), larger)
    mask &= rng.random(mask.shape) < 0.9
    p = random_problem(torch, mask, blocksize, dtype)
    for n in (264, 1032):
        multiply_in_place(torch, p, n)


@pytest.mark.parametrize("dtype", [*EIGHT, "float32"])
def test_precision(rng: np.random.Generator, torch: Any, dtype: str) -> None:
    mask = band(ROWS, COLUMNS, 9)
    out = "bfloat16" if dtype in EIGHT else "float32"
    check_precision(
        Torch("cuda:0"), rng, mask, (128, 128), 264, dtype, out_dtype=out, sum_error=SUM_ERROR
    )
