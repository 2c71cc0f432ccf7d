"""What this installation can do on this machine."""

from __future__ import annotations

import argparse
import platform

import numpy as np

from . import _core
from ._interop import ACCEPTED_DTYPES

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
        "\nkernel family that the planner takes for 1024 x 1024 blocks' worth of an H200 product:"
    )
    _print_families()
    return 0


def _print_families() -> None:
    """Ask the planner about a block-diagonal matrix of every block shape, times 4096 columns."""
    print(f"{'block':>10}" + "".join(f"{dtype:>12}" for dtype in ACCEPTED_DTYPES))
    for height, width in BLOCKS:
        count = max(8192 // max(height, width), 1)
        structure = _core.Structure(
            np.arange(count, dtype=np.int32),
            np.arange(count + 1, dtype=np.int32),
            (count * height, count * width),
            (height, width),
            True,
        )
        row = [structure.explain(4096, dtype)["chosen"] for dtype in ACCEPTED_DTYPES]
        print(f"{f'{height}x{width}':>10}" + "".join(f"{family:>12}" for family in row))
