"""What this installation can do on this machine."""

from __future__ import annotations

import argparse
import platform

import numpy as np

from . import _core
from ._dtypes import ACCEPTED_DTYPES

BLOCKS = ((1, 1), (3, 3), (8, 8), (16, 16), (32, 32), (64, 64), (128, 128), (512, 112))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command has none."""


def run(args: argparse.Namespace) -> int:
    print(
        f"bsrgemm {_core.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    )
    print(f"processor: {_core.cpu_isa()} kernels, {_core.get_num_threads()} threads")
    print(f"CUDA kernels: {'built in' if _core.built_with_cuda else 'not built in'}")
    try:
        devices = _core.cuda_devices()
    except _core.DeviceUnavailableError as error:
        devices = []
        print(f"GPU: none; {error}")
    for gpu in devices:
        arch, driver = gpu["sm_arch"], gpu["driver_version"]
        print(
            f"GPU: cuda:{gpu['index']} {gpu['name']}, sm_{arch}, {gpu['sm_count']} SMs, "
            f"{gpu['memory_bytes'] / 2**30:.0f} GiB, driver for CUDA {driver // 1000}."
            f"{driver % 1000 // 10}"
        )
    print(
        "\nkernels that the planner takes on an NVIDIA H200, by block shape and dtype"
        "\n(64 x 64 blocks of which 1/8 are stored, times 4096 columns):"
    )
    _print_families()
    return 0


def _print_families() -> None:
    """Ask the planner about one pattern with every block shape."""
    across = np.arange(64, dtype=np.int32)
    mask = (3 * across[:, None] + across) % 8 == 0
    indices = np.nonzero(mask)[1].astype(np.int32)
    indptr = np.arange(0, len(indices) + 1, 8, dtype=np.int32)
    print(f"{'block':>10}" + "".join(f"{dtype:>12}" for dtype in ACCEPTED_DTYPES))
    for height, width in BLOCKS:
        structure = _core.Structure(indices, indptr, (64 * height, 64 * width), (height, width))
        row = [structure.explain(4096, dtype)["chosen"] for dtype in ACCEPTED_DTYPES]
        print(f"{f'{height}x{width}':>10}" + "".join(f"{family:>12}" for family in row))
