"""The rivals on the CPU. Each takes a problem and gives back a call and its useful work."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from bsrgemm import _core

from .cases import Case
from .patterns import Pattern


@dataclass
class Problem:
    """Operands of a case as NumPy arrays."""

    case: Case
    pattern: Pattern
    values: np.ndarray  # [nnzb, bh, bw]
    dense: Any  # [M, K], the same matrix with its zeros
    x: np.ndarray  # [K, N]


Rival = Callable[[Problem], tuple[Callable[[], Any], float]]


def numpy_dense(p: Problem) -> tuple[Callable[[], Any], float]:
    """NumPy's BLAS on the whole matrix."""
    out = np.full((p.case.m, p.case.n), np.nan, p.x.dtype)
    return lambda: np.matmul(p.dense, p.x, out=out), _dense_flops(p.case)


def torch_dense(p: Problem) -> tuple[Callable[[], Any], float]:
    """torch's dense product of the whole matrix."""
    import torch

    left, right = _tensor(p.dense), _tensor(p.x)
    out = torch.full((p.case.m, p.case.n), float("nan"), dtype=right.dtype)
    return lambda: torch.mm(left, right, out=out), _dense_flops(p.case)


def scipy_bsr(p: Problem) -> tuple[Callable[[], Any], float]:
    """``scipy.sparse.bsr_array @ dense``."""
    import scipy.sparse

    arrays = (p.values, p.pattern.indices, p.pattern.indptr)
    matrix = scipy.sparse.bsr_array(arrays, shape=(p.case.m, p.case.k))
    return lambda: matrix @ p.x, p.case.useful_flops


def torch_bsr(p: Problem) -> tuple[Callable[[], Any], float]:
    """torch's product of a BSR tensor and a dense one."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse .* tensor support is in beta")
        matrix = torch.sparse_bsr_tensor(
            torch.from_numpy(p.pattern.indptr),
            torch.from_numpy(p.pattern.indices),
            _tensor(p.values),
            size=(p.case.m, p.case.k),
            check_invariants=False,
        )
    right = _tensor(p.x)
    return lambda: matrix @ right, p.case.useful_flops


RIVALS: dict[str, Rival] = {f.__name__: f for f in (numpy_dense, torch_dense, scipy_bsr, torch_bsr)}


def wanted(case: Case) -> list[str]:
    """The rivals that can compute a case in less than a minute.

    NumPy has no BLAS and SciPy no sparse matrices for 16-bit floats, torch needs ten minutes for a
    dense float16 product of 4096^3, without AVX-512 for one of bfloat16 too, and SciPy's loop is as
    slow in float64 as in float32.
    """
    return {
        "float32": ["numpy_dense", "scipy_bsr", "torch_bsr"],
        "float64": ["numpy_dense", "torch_bsr"],
        "bfloat16": [
            *(["torch_dense"] if _core.cpu_isa().startswith("avx512") else []),
            "torch_bsr",
        ],
        "float16": ["torch_bsr"],
    }[case.dtype]


def as_numpy(result: Any) -> np.ndarray:
    """A NumPy array or torch tensor as a NumPy array; bfloat16 as float32."""
    if isinstance(result, np.ndarray):
        return result
    return (result.float() if result.dtype.itemsize == 2 else result).numpy()


def _tensor(array: np.ndarray) -> Any:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _dense_flops(case: Case) -> float:
    return 2.0 * case.m * case.n * case.k
