"""Operands and results that are views of larger arrays, by every family."""

from __future__ import annotations

import numpy as np
import pytest
import view_cases
from cases import numpy_dtype
from device_cases import reduced
from spaces import GPU_SPACES, Space

pytestmark = pytest.mark.gpu

SPACES = [space for space in GPU_SPACES if space.strided]


@pytest.mark.parametrize("space", SPACES, ids=repr)
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "tf32", "float64", "float8_e4m3fn"]
)
def test_products(space: Space, dtype: str, rng: np.random.Generator) -> None:
    space.check()
    tf32 = dtype == "tf32"
    name = "float32" if tf32 else dtype
    numpy_dtype(name)
    for p, n, form in view_cases.product_cases(rng, name, reduced(200)):
        assert view_cases.check_product(space, rng, p, n, form, tf32) > 0


@pytest.mark.parametrize("space", SPACES, ids=repr)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_two_block_sparse_matrices(space: Space, dtype: str, rng: np.random.Generator) -> None:
    space.check()
    numpy_dtype(dtype)
    for side in (64, 128, 32, 12):
        for cut in (0, 1, 2):
            assert view_cases.check_pairs(space, rng, dtype, side, cut) >= 2
