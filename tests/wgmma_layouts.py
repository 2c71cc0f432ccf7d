"""Shared-memory images of WGMMA operands and the descriptors that say how to read them.

Built from the canonical layouts of the PTX ISA (wgmma, matrix descriptor): 16-byte rows of eight
elements in atoms of eight such rows, with strides chosen so that exchanging or ignoring one shows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

IMAGE_BYTES = 16384
LAYOUT_FIELD = {0: 0, 128: 1, 64: 2, 32: 3}  # by bytes of swizzle; bits 62 and 63


class Layout(NamedTuple):
    """Where element (mn, k) of a 64 x 16 operand stands. Strides are in bytes."""

    mn_major: bool
    swizzle: int  # bytes: 0, 32, 64 or 128
    leading: int
    stride: int

    def offset(self, mn: np.ndarray, k: np.ndarray) -> np.ndarray:
        row = 16 * (self.swizzle // 16 or 1)  # bytes of an atom's row
        if self.mn_major:
            across, along = mn, k
        else:
            across, along = k, mn
        # Eight rows `along`, each of row bytes `across`, form an atom.
        inside = (along % 8) * row + across * 2 % row
        if not self.mn_major:
            outer = along // 8 * self.stride
            # Only without swizzle is the second 16-byte column of k a stride of its own.
            outer = outer + (across * 2 // row * self.leading if self.swizzle == 0 else 0)
        elif self.swizzle == 0:
            outer = across * 2 // row * self.stride + along // 8 * self.leading
        else:
            outer = across * 2 // row * self.leading + along // 8 * self.stride
        place = inside + outer
        # Address bits 4.. are exchanged with bits 7.. by as many bits as the swizzle has 16-byte
        # columns.
        return place ^ ((place >> 7 & (self.swizzle // 16 - 1 if self.swizzle else 0)) << 4)

    def descriptor(self) -> int:
        """The 64-bit word of PTX without the address."""
        fields = (self.leading >> 4) << 16 | (self.stride >> 4) << 32
        return fields | LAYOUT_FIELD[self.swizzle] << 62

    def image(self, operand: np.ndarray) -> bytes:
        """Shared memory that holds ``operand`` (64 x 16), and NaN where nothing should be read."""
        assert operand.itemsize == 2
        mn, k = np.indices(operand.shape)
        words = np.full(IMAGE_BYTES // 2, 0x7FFF, np.uint16)
        at = self.offset(mn, k)
        assert at.max() < IMAGE_BYTES and len(np.unique(at)) == operand.size
        words[at // 2] = operand.view(np.uint16)
        return words.tobytes()


LAYOUTS = {
    # Without swizzle: 16-byte columns of k, and groups of eight rows.
    "K none": Layout(False, 0, 128, 256),
    "K none, apart": Layout(False, 0, 2176, 256),
    # With swizzle the 16 k lie in one row of an atom and the leading offset is not used.
    "K 32": Layout(False, 32, 16, 256),
    "K 64": Layout(False, 64, 16, 512),
    "K 128": Layout(False, 128, 16, 1024),
    "K 64, apart": Layout(False, 64, 16, 1536),
    # MN-major: groups of 8 mn apart by the stride, groups of eight k by the leading offset.
    "MN none": Layout(True, 0, 1024, 128),
    "MN none, apart": Layout(True, 0, 128, 512),
    # With swizzle: atoms along mn apart by the leading offset, groups of eight k by the stride.
    "MN 32": Layout(True, 32, 256, 1024),
    "MN 64": Layout(True, 64, 512, 1024),
    "MN 64, apart": Layout(True, 64, 3072, 512),
    "MN 128": Layout(True, 128, 16, 1024),
    "MN 128, apart": Layout(True, 128, 16, 2048),
}
