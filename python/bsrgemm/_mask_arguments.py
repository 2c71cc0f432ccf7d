"""Checks of the numbers that masks and their builders take."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ._interop import library_of


def count_of(value: Any, name: str, least: int = 0) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; accepted: an integer of at least {least}") from None
    if count < least:
        raise ValueError(f"{name} is {count}; accepted: an integer of at least {least}")
    return count


def pair_of(value: Any, name: str) -> tuple[int, int]:
    try:
        first, second = value
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; accepted: a pair of integers") from None
    return count_of(first, name), count_of(second, name)


def on_host(x: Any, name: str) -> np.ndarray:
    """An array, or nested lists, as one of NumPy on the host."""
    if not isinstance(x, (list, tuple)):
        library = library_of(x)
        x = library.to_host(library.importable(x, name, False))
    return np.asarray(x)


def integers_of(x: Any, name: str) -> np.ndarray:
    found = on_host(x, name)
    if found.size == 0:  # NumPy takes an empty list for floats
        found = found.astype(np.int32)
    if found.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {found.dtype}; accepted: integers")
    if found.dtype == np.uint64 and found.size and found.max() >= 2**63:
        raise ValueError(f"{name} has {found.max()}; accepted: integers below 2**63")
    return found if found.dtype in (np.int32, np.int64) else found.astype(np.int64)


def block_shape_of(value: Any) -> tuple[int, int]:
    try:
        height, width = (operator.index(n) for n in value)
    except (TypeError, ValueError):
        raise TypeError(f"block_shape is {value!r}; accepted: a pair of integers") from None
    if height < 1 or width < 1:
        raise ValueError(f"block_shape is {(height, width)}; accepted: a pair of at least 1")
    return height, width


def diagonal_of(queries: int, keys: int, alignment: str, name: str = "alignment") -> int:
    """The key that query 0 is at."""
    if alignment not in ("bottom_right", "top_left"):
        raise ValueError(f"{name} is {alignment!r}; accepted: 'bottom_right', 'top_left'")
    return keys - queries if alignment == "bottom_right" else 0


def window_of(window: Any, what: str = "keys") -> tuple[int, int]:
    """Keys, or blocks, before and after a query's own that it sees; -1: all."""
    try:
        left, right = (operator.index(n) for n in window)
    except (TypeError, ValueError):
        raise TypeError(
            f"window is {window!r}; accepted: a pair of integers, ({what} before, {what} after)"
        ) from None
    if min(left, right) < -1 or max(left, right) >= 2**63:
        raise ValueError(
            f"window is {(left, right)}; accepted: at least 0 and below 2**63 each, or -1 for all"
        )
    return left, right
