"""Block columns that do not ascend, or that a row has more than once, in every family."""

from __future__ import annotations

from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm import bsr_array
from bsrgemm._matmul import product
from device_cases import relative_error

pytestmark = pytest.mark.gpu

FAMILIES = ("auto", "tall", "kmajor", "kstream", "stream", "narrow", "portable", "align")


def unordered_band(
    torch: Any, dtype: str, blocksize: tuple[int, int], repeats: bool
) -> tuple[bsr_array, Any]:
    """64 block rows of 24 columns around the end, the first of them twice or the last one first;
    and the same as a dense matrix of float64."""
    (height, width), count = blocksize, 24
    columns = (np.arange(64)[:, None] + np.arange(count)) % 64
    first = columns[:, :1] if repeats else columns[:, -1:]
    columns = np.hstack([first, columns if repeats else columns[:, :-1]])
    indptr = np.arange(65, dtype=np.int32) * columns.shape[1]
    values = torch.randn(columns.size, height, width, device="cuda")
    values = values.to(getattr(torch, dtype))
    dense = torch.zeros(64, 64, height, width, dtype=torch.float64, device="cuda")
    place = torch.from_numpy((np.arange(64)[:, None] * 64 + columns).ravel()).cuda()
    dense.view(-1, height, width).index_add_(0, place, values.double())
    dense = dense.transpose(1, 2).reshape(64 * height, 64 * width)
    indices = columns.ravel().astype(np.int32)
    return bsr_array((values, indices, indptr), tuple(dense.shape), check=False), dense


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("blocksize", [(128, 64), (64, 64), (32, 32), (16, 16)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_family(torch: Any, dtype: str, blocksize: tuple[int, int], repeats: bool) -> None:
    a, dense = unordered_band(torch, dtype, blocksize, repeats)
    allowed = {"ieee": 8 * cases.ROUNDOFF[dtype], "tf32": 2.0**-10}
    taken = set()
    for n in (8, 512):
        x = torch.randn(dense.shape[1], n, device="cuda").to(a.dtype)
        expected = dense @ x.double()
        for precision in ("ieee", "tf32") if dtype == "float32" else ("ieee",):
            for family in FAMILIES:
                out = torch.full_like(expected, float("nan"), dtype=a.dtype)
                try:
                    product(a, x, None, 1.0, None, out, None, family, precision=precision)
                except ValueError:
                    continue
                taken.add(family)
                error = relative_error(torch, out, expected)
                assert error <= allowed[precision], (family, n, precision, error)
    tall = blocksize[0] >= 64 and dtype == "float16" and torch.cuda.get_device_capability()[0] == 9
    assert {"auto", "portable", *(["tall"] if tall else [])} <= taken
