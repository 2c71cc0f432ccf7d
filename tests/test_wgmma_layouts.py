"""The images that the WGMMA test on the GPU relies on."""

from __future__ import annotations

import numpy as np
import pytest
from wgmma_layouts import LAYOUTS


@pytest.mark.parametrize("name", LAYOUTS)
def test_image_holds_every_element_once(name: str) -> None:
    layout = LAYOUTS[name]
    operand = np.arange(1024, dtype=np.uint16).reshape(64, 16)
    words = np.frombuffer(layout.image(operand), np.uint16)
    mn, k = np.indices(operand.shape)
    assert np.array_equal(words[layout.offset(mn, k) // 2], operand)
    assert (words == 0x7FFF).sum() == len(words) - operand.size


def test_known_places() -> None:
    """Element (9, 8) and (8, 9) of the layouts that the kernels use, worked out by hand."""
    # Row 1 of group 1 of 128-byte rows; its 16-byte column 1 is exchanged to column 0.
    assert LAYOUTS["K 128"].offset(np.array(9), np.array(8)) == 1024 + 128
    # Row k = 9: group 1, row 1 of 128 bytes; mn = 8 is 16-byte column 1, exchanged to column 0.
    assert LAYOUTS["MN 128"].offset(np.array(8), np.array(9)) == 1024 + 128
    # 32-byte rows: bit 4 is exchanged with bit 7, which row 9 % 8 = 1 at 32 bytes does not set.
    assert LAYOUTS["K 32"].offset(np.array(9), np.array(8)) == 256 + 32 + 16
    assert LAYOUTS["K 32"].offset(np.array(12), np.array(8)) == 256 + 128
