"""What the tables of malformed inputs share: tests/malformed_*.py, each of one part of the package.

test_malformed.py runs them all, and docs/errors.md lists them with the message that each gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from bsrgemm import bsr_array


class Bad(NamedTuple):
    """``fragments`` are in the message. ``varies``: the whole of it is not the same everywhere."""

    name: str
    call: Callable[[], Any]
    error: type[Exception] | tuple[type[Exception], ...]
    fragments: tuple[str, ...]
    varies: bool = False


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def build(
    data: Any = None,
    indices: Any = None,
    indptr: Any = None,
    shape: Any = (4, 6),
    **keywords: Any,
) -> bsr_array:
    """A valid 4 x 6 matrix of 2 x 2 blocks at (0, 0), (0, 2) and (1, 1), less what is replaced."""
    data = np.ones((3, 2, 2), np.float32) if data is None else data
    indices = i32(0, 2, 1) if indices is None else indices
    indptr = i32(0, 2, 3) if indptr is None else indptr
    return bsr_array((data, indices, indptr), shape, **keywords)


def x(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def misaligned(count: int) -> np.ndarray:
    return np.zeros(4 * count + 1, np.uint8)[1:].view(np.float32)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


class Cuda:
    """An object that says it is on a GPU."""

    def __init__(self, **changes: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (3, 2, 2),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
            "strides": None,
        } | changes
