"""The array libraries and devices that generic tests run over."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import bsrgemm
import numpy as np
import pytest
from cases import numpy_dtype


def import_torch() -> Any:
    """torch, after the one warning in a process that its sparse layouts are in beta."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.eye(2).to_sparse_bsr((1, 1))
        torch.eye(2).to_sparse_csr().to_sparse_csc()
    return torch


def count_compilations(backend: str) -> Any:
    """A backend of torch.compile that counts what it compiles in ``frame_count``."""
    testing = importlib.import_module("torch._dynamo.testing")
    return testing.CompileCounterWithBackend(backend)


class Space:
    """Arrays of one library on one device. ``strided``: the library has strided views."""

    name = "numpy"
    device = "cpu"
    strided = True

    def check(self) -> None:
        """Skip the test where the library is missing."""

    def array(self, x: np.ndarray) -> Any:
        return x

    def host(self, x: Any) -> np.ndarray:
        assert isinstance(x, np.ndarray)
        return x

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.array(np.full(shape, np.nan, numpy_dtype(dtype)))

    def column_major(self, x: np.ndarray) -> Any:
        return np.asfortranarray(x)

    def __repr__(self) -> str:
        return f"{self.name}-{self.device.partition(':')[0]}"


class Torch(Space):
    name = "torch"

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def check(self) -> None:
        torch = import_torch()
        if self.device != "cpu" and not torch.cuda.is_available():
            pytest.skip("this torch cannot use the GPU")

    def array(self, x: np.ndarray) -> Any:
        import torch

        x = np.array(x)
        bits = (
            np.int16
            if x.dtype.name == "bfloat16"
            else np.uint8
            if "float8" in x.dtype.name
            else None
        )
        if bits is not None:
            kind = getattr(torch, x.dtype.name)
            return torch.from_numpy(x.view(bits)).view(kind).to(self.device)
        return torch.from_numpy(x).to(self.device)

    def host(self, x: Any) -> np.ndarray:
        import torch

        assert isinstance(x, torch.Tensor) and str(x.device) == self.device
        x = x.cpu()
        if x.dtype == torch.bfloat16:
            return x.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
        if x.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            name = str(x.dtype).removeprefix("torch.")
            return x.view(torch.uint8).numpy().view(numpy_dtype(name))
        return x.numpy()

    def column_major(self, x: np.ndarray) -> Any:
        return self.array(np.ascontiguousarray(x.T)).T


class CuPy(Space):
    name = "cupy"
    device = "cuda:0"

    def check(self) -> None:
        cupy = pytest.importorskip("cupy", reason="cupy is not installed")
        if not cupy.cuda.is_available():
            pytest.skip("this CuPy cannot use the GPU")

    def array(self, x: np.ndarray) -> Any:
        import cupy

        if x.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            pytest.skip(f"CuPy has no {x.dtype.name}")
        return cupy.asarray(x)

    def host(self, x: Any) -> np.ndarray:
        import cupy

        assert isinstance(x, cupy.ndarray)
        return x.get()

    def column_major(self, x: np.ndarray) -> Any:
        return self.array(np.ascontiguousarray(x.T)).T


class OwnDevice(Space):
    name = "bsrgemm"
    device = "cuda:0"
    strided = False

    def array(self, x: np.ndarray) -> Any:
        return bsrgemm.DeviceArray.from_host(np.asarray(x, order="C"))

    def host(self, x: Any) -> np.ndarray:
        assert isinstance(x, bsrgemm.DeviceArray)
        return x.to_host()


class Foreign:
    """Host memory of a library that is not known here: it speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Lent:
    """An array of NumPy's that says that it is on a GPU: for one that is emulated."""

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


CPU_SPACES = (Space(), Torch())
GPU_SPACES = (Torch("cuda:0"), CuPy(), OwnDevice())
if os.environ.get("FAKE_CUDA_KERNELS"):  # the memory of an emulated GPU is the host's
    GPU_SPACES += (LentSpace(),)
