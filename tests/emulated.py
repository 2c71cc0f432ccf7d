"""For scripts under the emulated driver of tests/emulation.py: arrays in memory that it takes for a
GPU's, and calls of all operations on them.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import operations
import pytest
from cases import problem
from drawn_calls import Drawn, calls, check
from drawn_products import Target
from hypothesis import given
from spaces import OwnDevice, Space, import_torch
from strategies import GPU_COLUMNS, GPU_SIDES, profile

NO_SUCH_KERNEL = "CUDA_ERROR_500"  # what tests/c/fake_cuda.c says of those that were not compiled


class Lent:
    """An array of NumPy's that says that it is on a GPU."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        told = {k: v for k, v in self.x.__array_interface__.items() if k != "descr"}
        return {**told, "version": 3, "strides": self.x.strides if self.x.size else None}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # other ways to the same memory
            raise AttributeError(name)
        found = getattr(self.x, name)
        if not callable(found):
            return _lend(found)
        return lambda *given, **options: _lend(found(*given, **options))

    def __getitem__(self, key: Any) -> Any:
        return _lend(self.x[key])


def _lend(x: Any) -> Any:
    return Lent(x) if isinstance(x, np.ndarray) else x


class LentSpace(Space):
    """Strided arrays, of the dtypes that __cuda_array_interface__ has."""

    name = "lent"
    device = "cuda:0"

    def array(self, x: np.ndarray) -> Lent:
        if x.dtype.kind != "f" or x.dtype.name.startswith(("bfloat", "float8")):
            pytest.skip(f"__cuda_array_interface__ has no {x.dtype.name}")
        return Lent(x.copy(order="K"))

    def host(self, x: Any) -> np.ndarray:
        return x.x if isinstance(x, Lent) else x.to_host()

    def column_major(self, x: np.ndarray) -> Lent:
        return self.array(np.asfortranarray(x))


def any_calls(count: int) -> int:
    """Checks random calls of any operation; how many of them were computed or rightly refused."""
    import_torch()
    warnings.simplefilter("ignore")
    target = Target(on_gpu=True, hopper=os.environ["FAKE_CUDA_ARCH"] == "90", own=True)
    done = 0

    @profile(count)
    @given(calls(GPU_SIDES, GPU_SIDES, GPU_COLUMNS))
    def run(drawn: Drawn) -> None:
        nonlocal done
        if _is_emulated(lambda: check(drawn, OwnDevice(), target)):
            done += 1

    run()
    return done


def all_operations(rounds: int) -> int:
    """Checks the operations of the table with strided operands; how many were computed."""
    rng = np.random.default_rng()
    blocks = ((64, 64), (16, 16), (32, 32), (12, 20), (128, 64), (8, 8), (64, 16), (48, 80))
    done = 0
    for _ in range(rounds):
        for operation in operations.OPERATIONS:
            p = problem(
                rng,
                rng.random((4, 5)) < 0.5,
                blocks[rng.integers(len(blocks))],
                int(rng.choice([1, 7, 33, 64, 200])),
                str(rng.choice(["float16", "float32", "float64"])),
                cut=(int(rng.integers(3)), int(rng.integers(3))),
            )
            print(operation.name, p.shape, p.data.shape, p.n, p.dtype)
            done += _is_emulated(lambda: operations.check(operation, LentSpace(), p, rng))  # noqa: B023
    return done


def _is_emulated(call: Any) -> bool:
    try:
        call()
    except pytest.skip.Exception:
        return False
    except RuntimeError as error:
        if NO_SUCH_KERNEL not in str(error):
            raise
        return False
    return True
