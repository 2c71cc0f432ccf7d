"""One WGMMA m64n64k16 for every operand layout: what a matrix descriptor means."""

from __future__ import annotations

import numpy as np
import pytest
from bsrgemm import _core
from cases import normal
from wgmma_layouts import IMAGE_BYTES, LAYOUTS, Layout

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]


def multiply(
    dtype: str, a: np.ndarray, b: np.ndarray, layout_a: Layout, layout_b: Layout
) -> np.ndarray:
    return _core.probe_wgmma(
        dtype,
        layout_a.mn_major,
        layout_b.mn_major,
        layout_a.descriptor(),
        layout_b.descriptor(),
        layout_a.image(a),
        layout_b.image(b),
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("b_layout", LAYOUTS)
@pytest.mark.parametrize("a_layout", LAYOUTS)
def test_probe(a_layout: str, b_layout: str, dtype: str, rng: np.random.Generator) -> None:
    """D = A @ B.T of A (64 x 16) and B (64 x 16), against float64."""
    a, b = normal(rng, (64, 16), dtype), normal(rng, (64, 16), dtype)
    found = multiply(dtype, a, b, LAYOUTS[a_layout], LAYOUTS[b_layout])
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    assert found.shape == (64, 64) and found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-4


def test_probe_refuses_what_it_cannot_take() -> None:
    layout = LAYOUTS["K none"]
    image = bytes(IMAGE_BYTES)
    with pytest.raises(TypeError, match="float32"):
        _core.probe_wgmma(
            "float32", False, False, layout.descriptor(), layout.descriptor(), image, image
        )
    with pytest.raises(ValueError, match="16384"):
        _core.probe_wgmma(
            "float16", False, False, 0, 0, bytes(2 * IMAGE_BYTES), bytes(2 * IMAGE_BYTES)
        )
