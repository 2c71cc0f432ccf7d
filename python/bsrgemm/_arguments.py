"""What several commands take: numbers and devices."""

from __future__ import annotations

import argparse
from typing import Any

from . import _core
from ._interop import device_index

MOST = 2**31 - 1
# Rows and columns of a matrix that a command makes.
MOST_ORDER = 1 << 20


def natural(text: str) -> int:
    """A type of argparse: a seed, or a number of rows or columns."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: an integer from 0 to {MOST}")
    return number


def gpu_of(device: str) -> dict[str, Any] | None:
    """What the driver says of a device; None of the CPU.

    Raises ValueError if it is none of the GPUs here, and DeviceUnavailableError without any.
    """
    if device == "cpu":
        return None
    gpus, index = _core.cuda_devices(), device_index(device)
    if index >= len(gpus):
        raise ValueError(f"device is {device!r}, but there are {len(gpus)} GPUs")
    return gpus[index]
