"""Products of block-sparse (BSR) matrices, and attention, on CPUs and NVIDIA GPUs.

``bsr_array`` holds a matrix, ``matmul`` (or ``@``) multiplies it with a dense array of NumPy,
PyTorch, CuPy, JAX or of any library that speaks DLPack or the CUDA array interface, where that
array lives. ``sampled_matmul`` computes a product of two dense arrays at the blocks of a pattern
only. ``attention`` computes scaled dot-product attention, dense or over the blocks of a
``BlockMask``, with the same arrays.
"""

import sys

# Python looks for no extension of the stable ABI there and would say that there is none.
if "t" in sys.abiflags:
    raise ImportError(
        "bsrgemm does not support free-threaded builds of Python: its extension uses the stable "
        "ABI, which they do not have. Use a build with the GIL, which products release"
    )

# Before anything that imports NumPy, which says less clearly what it does not support.
from ._core import (
    DeviceArray,
    DeviceUnavailableError,
    __version__,
    get_num_threads,
    set_num_threads,
)

# isort: split
from ._array import bsr_array
from ._attention import attention
from ._dynamic import DynamicPattern
from ._dynamic_array import DynamicArray
from ._load import load
from ._mask import BlockMask
from ._matmul import matmul
from ._plan import Plan
from ._sampled import sampled_matmul
from ._softmax import softmax
from ._stack import block_diag, hstack, prune, vstack

__all__ = [
    "BlockMask",
    "DeviceArray",
    "DeviceUnavailableError",
    "DynamicArray",
    "DynamicPattern",
    "Plan",
    "__version__",
    "attention",
    "block_diag",
    "bsr_array",
    "get_num_threads",
    "hstack",
    "load",
    "matmul",
    "prune",
    "sampled_matmul",
    "set_num_threads",
    "softmax",
    "vstack",
]
