"""The dtypes of values: their names, sizes and what NumPy has for them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

ACCEPTED_DTYPES = ("float16", "bfloat16", "float32", "float64")
# Of these there are matrices and products, too, with results of more bits.
EIGHT_BIT_DTYPES = ("float8_e4m3fn", "float8_e5m2")
_SIZES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    **dict.fromkeys(EIGHT_BIT_DTYPES, 1),
}
_ACCEPTED = ", ".join(_SIZES)
ML_DTYPES = ("bfloat16", *EIGHT_BIT_DTYPES)


def dtype_name(dtype: Any, name: str = "dtype") -> str:
    """The name of a dtype given as a string, a NumPy dtype or scalar type, or a torch dtype.

    Raises
    ------
    TypeError
        If it is none of float16, bfloat16, float32, float64, float8_e4m3fn and float8_e5m2.
    """
    text = str(dtype).removeprefix("torch.")
    if text not in _SIZES and dtype is not None:  # which NumPy takes for float64
        with contextlib.suppress(TypeError):
            found = np.dtype(dtype)
            text = found.name if found.isnative else text
    if text not in _SIZES:
        raise TypeError(f"{name} is {dtype!r}; accepted: {_ACCEPTED}")
    return text


def dtype_size(name: str) -> int:
    """Bytes of one value of an accepted dtype."""
    return _SIZES[name]


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name; bfloat16 and those of 8 bits are of the ml_dtypes package."""
    if name not in ML_DTYPES:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            f"NumPy has no {name} of its own: install the package ml_dtypes, keep the values in "
            "torch tensors, or use float16, float32 or float64"
        ) from None
    return np.dtype(getattr(ml_dtypes, name))


def check_dtype(dtype: str, name: str) -> None:
    """Raise TypeError unless values of ``dtype`` can be multiplied."""
    if dtype not in _SIZES:
        raise TypeError(
            f"{name} has dtype {dtype}; accepted: {_ACCEPTED}. Convert it first: nothing is cast "
            "silently"
        )
