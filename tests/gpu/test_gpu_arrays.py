"""DeviceArray, moving matrices between devices, and mixtures of devices and libraries."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm import DeviceArray, _core, bsr_array, matmul
from cases import DTYPES, normal, problem
from device_cases import LONG
from operations import matrix
from spaces import GPU_SPACES, OwnDevice, Space

pytestmark = pytest.mark.gpu


def sample(rng: np.random.Generator, dtype: str = "float16") -> cases.Problem:
    return problem(rng, rng.random((6, 5)) < 0.5, (64, 16), 24, dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, "int32", "int64"])
def test_device_array(dtype: str, rng: np.random.Generator) -> None:
    host = (
        normal(rng, (5, 3), dtype)
        if dtype in DTYPES
        else rng.integers(99, size=(5, 3)).astype(dtype)
    )
    array = DeviceArray.from_host(host)
    assert array.shape == (5, 3) and array.dtype == dtype and array.device == "cuda:0"
    assert array.ndim == 2 and array.size == 15 and array.nbytes == host.nbytes
    assert "cuda:0" in repr(array) and dtype in repr(array)
    assert np.array_equal(array.to_host().view(np.uint8), host.view(np.uint8))
    flat = array.reshape((15, 1))
    del array
    assert np.array_equal(flat.to_host().view(np.uint8), host.reshape(15, 1).view(np.uint8))
    with pytest.raises(ValueError, match="shape is .*15 elements"):
        flat.reshape((4, 4))


def test_device_array_sizes() -> None:
    assert DeviceArray.empty((0, 3), "float32").to_host().shape == (0, 3)
    with pytest.raises(ValueError, match="shape"):
        DeviceArray.empty((-1,), "float32")
    with pytest.raises(TypeError, match="dtype is 'float31'"):
        DeviceArray.empty((1,), "float31")
    with pytest.raises(MemoryError, match="cuda:0"):
        DeviceArray.empty((2**50,), "float64")
    with pytest.raises(ValueError, match="device is 'cpu'"):
        DeviceArray.empty((1,), "float32", "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_device_array_and_torch(torch: Any, dtype: str, rng: np.random.Generator) -> None:
    """DLPack out and in, without a copy."""
    host = normal(rng, (7, 4), dtype)
    array = DeviceArray.from_host(host)
    tensor = torch.from_dlpack(array)
    assert tensor.dtype is getattr(torch, dtype)
    assert tensor.data_ptr() == _core.describe(array).pointer
    del array
    assert np.array_equal(tensor.double().cpu().numpy(), host.astype(np.float64))


def test_device_array_and_cupy(rng: np.random.Generator) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    host = normal(rng, (7, 4), "float32")
    array = DeviceArray.from_host(host)
    for view in (cupy.asarray(array), cupy.from_dlpack(array)):
        assert np.array_equal(view.get(), host)


@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back(space: Space, dtype: str, rng: np.random.Generator, tmp_path: Path) -> None:
    space.check()
    p = sample(rng, dtype)
    a = matrix(space, p)
    assert a.device == "cuda:0" and "cuda:0" in repr(a) and a.to("cuda") is a
    on_host = a.to("cpu")
    assert on_host.device == "cpu" and on_host._structure is a._structure
    back = on_host.to("cuda:0")
    assert back.device == "cuda:0"
    a.save(tmp_path / "a.npz")
    others = [back, a.copy(), copy.deepcopy(a), pickle.loads(pickle.dumps(a)), a.T.T]
    for other in [*others, bsrgemm.load(tmp_path / "a.npz").to("cuda")]:
        dense = other.todense()
        assert _core.describe(dense).device == "cuda:0"
        host = dense.to_host() if isinstance(dense, DeviceArray) else space.host(dense)
        assert np.array_equal(host.astype(np.float64), p.dense)
    assert type(others[1].data) is type(a.data) and type(a.astype("float32").data) is type(a.data)


@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
def test_dense_to_blocks(space: Space, rng: np.random.Generator) -> None:
    space.check()
    p = sample(rng, "float32")
    a = bsr_array(space.array(p.dense.astype(np.float32)), blocksize=(64, 16))
    assert type(a.data) is type(space.array(p.data)) and np.array_equal(a.indices, p.indices)
    assert np.array_equal(space.host(a.data), p.data)


def test_indices_on_the_device(torch: Any, rng: np.random.Generator) -> None:
    p = sample(rng)
    arrays = [torch.from_numpy(x).cuda() for x in (p.data, p.indices, p.indptr)]
    a = bsr_array(tuple(arrays), p.shape)
    inferred = bsr_array(tuple(arrays))
    assert inferred.shape[0] == p.shape[0] and inferred.nnzb == a.nnzb
    assert a.indices is arrays[1] and np.array_equal(a.todense().double().cpu().numpy(), p.dense)
    assert a.to("cpu").indices.device.type == "cpu" and a.to("cpu").to("cuda").indices.is_cuda
    sparse = a.to_torch()
    assert sparse.is_cuda and sparse.values().data_ptr() == a.data.data_ptr()
    again = bsr_array(sparse)
    assert again.data.data_ptr() == a.data.data_ptr() and again.nnzb == a.nnzb
    with pytest.raises(TypeError, match="indices is on cuda:0 and data is on cpu"):
        bsr_array((p.data, arrays[1], arrays[2]), p.shape)


def test_malformed_indices_on_the_device(torch: Any) -> None:
    data = torch.ones(2, 4, 4, device="cuda")
    indptr = torch.tensor([0, 2], device="cuda")
    for indices, fragment in (
        ([0, 9], r"indices\[1\] is 9"),
        ([1, 0], "sorted"),
        ([-1, 0], "is -1"),
    ):
        with pytest.raises(ValueError, match=fragment):
            bsr_array((data, torch.tensor(indices, device="cuda"), indptr), (4, 8))
    with pytest.raises(TypeError, match="indices has dtype int16"):
        bsr_array((data, torch.tensor([0, 1], device="cuda", dtype=torch.int16), indptr), (4, 8))
    with pytest.raises(ValueError, match="data is not C-contiguous"):
        bsr_array(
            (torch.ones(2, 4, 8, device="cuda")[..., ::2], np.array([0, 1]), np.array([0, 2])),
            (4, 8),
        )


def test_mixtures_of_devices(rng: np.random.Generator) -> None:
    p = sample(rng)
    space = OwnDevice()
    on_gpu, on_host = matrix(space, p), matrix(Space(), p)
    x, c = normal(rng, (80, 8), "float16"), normal(rng, (384, 8), "float16")
    with pytest.raises(TypeError, match="(?s)b.*cpu.*cuda:0|b.*cuda:0.*cpu"):
        on_gpu @ x
    with pytest.raises(TypeError, match="(?s)b.*cuda:0.*cpu|b.*cpu.*cuda:0"):
        on_host @ space.array(x)
    with pytest.raises(TypeError, match="c.*cpu"):
        matmul(on_gpu, space.array(x), c)
    with pytest.raises(TypeError, match="out.*cpu"):
        matmul(on_gpu, space.array(x), out=c)
    with pytest.raises(TypeError, match="SciPy has host memory only"):
        on_gpu.to_scipy()


def test_results_are_of_the_library_of_b(torch: Any, rng: np.random.Generator) -> None:
    p = sample(rng)
    x = normal(rng, (80, 8), "float16")
    own = matrix(OwnDevice(), p) @ torch.from_numpy(x).cuda()
    theirs = matrix(GPU_SPACES[0], p) @ DeviceArray.from_host(x)
    assert isinstance(own, torch.Tensor) and isinstance(theirs, DeviceArray)
    assert np.array_equal(own.cpu().numpy(), theirs.to_host())


class CudaInterface:
    """A device array that speaks nothing but the CUDA array interface, of any version."""

    def __init__(self, tensor: Any, version: int, stream: int | None = None) -> None:
        interface = {
            "shape": tuple(tensor.shape),
            "typestr": {2: "<f2", 4: "<f4"}[tensor.element_size()],
            "data": (tensor.data_ptr(), False),
            "version": version,
        }
        if version > 0:
            interface["strides"] = tuple(s * tensor.element_size() for s in tensor.stride())
        if version == 3:
            interface["stream"] = stream
        self.__cuda_array_interface__ = interface
        self.tensor = tensor


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_cuda_array_interface(torch: Any, version: int, rng: np.random.Generator) -> None:
    p = sample(rng, "float32")
    a = matrix(GPU_SPACES[0], p)
    x = torch.randn(80, 24, device="cuda")
    expected = a @ x
    torch.cuda.synchronize()
    values = bsr_array((CudaInterface(a.data, version), p.indices, p.indptr), p.shape)
    found = values @ CudaInterface(x, version)
    assert isinstance(found, DeviceArray) and np.array_equal(
        found.to_host(), expected.cpu().numpy()
    )
    vector = values @ CudaInterface(x[:, 0].contiguous(), version)
    assert np.array_equal(vector.to_host(), (a @ x[:, 0]).cpu().numpy())


def test_cuda_array_interface_stream(torch: Any, rng: np.random.Generator) -> None:
    """The work of the producer's stream comes first; stream 0 is refused."""
    p = sample(rng, "float32")
    a = matrix(GPU_SPACES[0], p)
    x = torch.randn(80, 24, device="cuda")
    expected = a @ x
    stream = torch.cuda.Stream()
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        late.copy_(x)
    found = a @ CudaInterface(late, 3, stream.cuda_stream)
    assert np.array_equal(found.to_host(), expected.cpu().numpy())
    with pytest.raises(TypeError, match="stream.*0"):
        a @ CudaInterface(x, 3, 0)
