"""More than 2**31 elements in an operand."""

from __future__ import annotations

from typing import Any

import bsrgemm
import device_cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from cases import ROUNDOFF

pytestmark = pytest.mark.gpu


def _needs(torch: Any, gib: float) -> None:
    if device_cases.brief:
        pytest.skip("a large problem has no brief form")
    free, _ = torch.cuda.mem_get_info()
    if free < gib * 2**30:
        pytest.skip(f"needs {gib} GiB of GPU memory, {free / 2**30:.1f} are free")


@pytest.mark.parametrize("family", ["auto", "portable"])
def test_columns(torch: Any, family: str) -> None:
    """out has 2**31 + 1024 elements; every element is compared."""
    _needs(torch, 24)
    m, k = 128, 64
    n = 2**31 // m + 8
    data = torch.randn(2, 64, 64, device="cuda").half()
    a = bsrgemm.bsr_array((data, np.array([0, 0]), np.array([0, 1, 2])), (m, k))
    x = torch.randn(k, n, device="cuda", dtype=torch.float16)
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    product(a, x, None, 1.0, None, out, None, family)
    dense = data.reshape(m, k).float()
    for begin in range(0, n, 2**22):
        part = slice(begin, begin + 2**22)
        expected = dense @ x[:, part].float()
        error = torch.linalg.norm(out[:, part].float() - expected) / torch.linalg.norm(expected)
        assert error.item() <= ROUNDOFF["float16"], f"columns from {begin}"


@pytest.mark.parametrize(("family", "n"), [("auto", 16), ("portable", 16), ("narrow", 40)])
def test_values(torch: Any, family: str, n: int) -> None:
    """values have more than 2**31 elements; every row is compared."""
    _needs(torch, 16)
    rows, cols = 260, 512
    data = torch.empty(rows * cols, 128, 128, device="cuda", dtype=torch.float16)
    for block_row in range(rows):
        data[block_row * cols : (block_row + 1) * cols].normal_()
    indices = np.tile(np.arange(cols, dtype=np.int32), rows)
    indptr = np.arange(0, rows * cols + 1, cols, dtype=np.int32)
    a = bsrgemm.bsr_array((data, indices, indptr), (rows * 128, cols * 128))
    assert data.numel() > 2**31
    x = torch.randn(cols * 128, n, device="cuda", dtype=torch.float16)
    out = torch.full((rows * 128, n), float("nan"), device="cuda", dtype=torch.float16)
    product(a, x, None, 1.0, None, out, None, family)
    for block_row in range(rows):
        blocks = data[block_row * cols : (block_row + 1) * cols]
        expected = blocks.transpose(0, 1).reshape(128, -1).double() @ x.double()
        found = out[block_row * 128 : (block_row + 1) * 128].double()
        error = torch.linalg.norm(found - expected) / torch.linalg.norm(expected)
        assert error.item() <= 1.1 * ROUNDOFF["float16"], f"block row {block_row}"


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("n", [16, 64])
def test_few_columns(torch: Any, n: int, by_columns: bool) -> None:
    """The block selects rows of X beyond its first 2**31 elements."""
    _needs(torch, 8)
    side = 64
    k = 2**31 // n + side
    x = torch.zeros((n, k) if by_columns else (k, n), device="cuda", dtype=torch.float16)
    x = x.T if by_columns else x
    x[-side:] = torch.randn(side, n, device="cuda")
    data = torch.randn(1, side, side, device="cuda").half()
    a = bsrgemm.bsr_array((data, np.array([k // side - 1]), np.array([0, 1])), (side, k))
    found = product(a, x, None, 1.0, None, None, None, "narrow")
    expected = data[0].double() @ x[-side:].double()
    error = torch.linalg.norm(found.double() - expected) / torch.linalg.norm(expected)
    assert error.item() <= ROUNDOFF["float16"]
