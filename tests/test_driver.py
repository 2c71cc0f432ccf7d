"""Drivers and GPUs that cannot be used: a clear error each, while the CPU goes on computing."""

from __future__ import annotations

import ctypes
from pathlib import Path

import fake_cuda
import pytest
from bsrgemm import _core

# Prints one line for each call on the GPU: the type of its error, and the message.
CALLS = """
    import bsrgemm, numpy as np
    from bsrgemm import BlockMask, DeviceArray, _core

    def a_product():
        data = DeviceArray.from_host(np.ones((3, 64, 64), np.float16))
        a = bsrgemm.bsr_array((data, [0, 1, 1], [0, 2, 3]), (128, 128))
        return a @ DeviceArray.from_host(np.ones((128, 8), np.float16))

    def told(call):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, error, sep=": ")
        else:
            print("nothing was raised")

    def the_cpu_still_works():
        a = bsrgemm.bsr_array(np.ones((8, 8), np.float32), blocksize=(2, 2))
        assert (a @ np.ones((8, 3), np.float32) == 8).all()
        assert (bsrgemm.softmax(a).data == 0.125).all()
"""


def told(script: str, **options: object) -> list[str]:
    end = "\nthe_cpu_still_works()"
    return fake_cuda.run(CALLS.replace("\n    ", "\n") + script + end, **options).splitlines()


def unusable(message: str) -> list[str]:
    return [f"DeviceUnavailableError: {message}"]


@fake_cuda.needs_kernels
def test_it_works_with_the_driver_that_is_made_up() -> None:
    """So that each case below fails for its one defect."""
    script = "print(_core.cuda_devices()[0]['name'], a_product().shape)"
    assert told(script) == ["Fake GPU (128, 8)"]


def test_no_driver() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(_core.DeviceUnavailableError, match="no CUDA driver on this machine: "):
            _core.cuda_devices()
    else:
        pytest.skip("this machine has a CUDA driver")


def test_driver_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("")
    found = told("told(a_product); told(_core.cuda_devices)", folder=tmp_path)
    assert all("DeviceUnavailableError: no CUDA driver on this machine: " in x for x in found)
    assert len(found) == 2


@pytest.mark.parametrize("lacking", ["cuLibraryLoadData", "cuMemPoolCreate"])
def test_driver_lacks_a_function(lacking: str) -> None:
    assert told("told(a_product)", lacking=lacking) == unusable(
        f"the CUDA driver on this machine is too old: it has no {lacking} (a driver for CUDA 12.0 "
        "or later is needed)"
    )


def test_driver_does_not_start() -> None:
    """As one whose kernel module is of another version."""
    message = "the CUDA driver cannot be used: CUDA_ERROR_803 (by a test)"
    assert told("told(a_product); told(_core.cuda_devices)", init=803) == 2 * unusable(message)


@pytest.mark.parametrize("how", [{"devices": 0}, {"fail": "cuDeviceGetCount:100"}])
def test_no_device(how: dict[str, object]) -> None:
    message = "the CUDA driver sees no GPU on this machine"
    assert told("told(a_product); told(_core.cuda_devices)", **how) == 2 * unusable(message)


def test_no_such_device() -> None:
    script = "told(lambda: DeviceArray.empty((2,), 'float32', 'cuda:5'))"
    message = "ValueError: device is cuda:5, but this machine has cuda:0 to cuda:2"
    assert told(script, devices=3) == [message]


def test_device_is_too_old() -> None:
    """Memory can be had there; whatever needs kernels says so in the same words."""
    script = """
import calls
from spaces import OwnDevice
assert _core.cuda_devices()[0]["sm_arch"] == 70
space = OwnDevice()
told(lambda: bsrgemm.DynamicPattern((64, 64), (64, 64), 1, "cuda"))
told(lambda: BlockMask.topk(space.array(np.ones((1, 1, 2, 2), np.float32)), 1, (64, 64)))
bsrgemm.DynamicPattern = lambda *arguments: None
made = calls.calls(space, np.random.default_rng(0))
for name, call in made.items():
    if "Dynamic" not in name:
        told(call)
"""
    found = told(script, arch=70)
    assert found == len(found) * unusable(
        "cuda:0 (Fake GPU) has compute capability 7.0, but the kernels need 8.0 or later"
    )
    assert len(found) > 12


@pytest.mark.parametrize(
    ("clock", "width", "rate"),
    [(3201000, 6144, 4.2e12), (2619000, 5120, 2.86e12), (0, 6144, 4.2e12), (2619000, 0, 4.2e12)],
)
def test_rate_of_the_memory(clock: int, width: int, rate: float) -> None:
    """Of an H200, of an H100, and of GPUs whose driver does not say: an H200's. Plans use it."""
    script = """
import numpy as np
from bsrgemm import DeviceArray, _core, bsr_array
data = DeviceArray.from_host(np.ones((32 * 64, 128, 128), np.float16))
indices, indptr = np.tile(np.arange(64, dtype=np.int32), 32), np.arange(0, 32 * 64 + 1, 64)
plan = bsr_array((data, indices, indptr), (32 * 128, 64 * 128)).plan(8)
print(_core.cuda_devices()[0]["hbm_bytes_per_s"], data.nbytes / plan.seconds)
"""
    found = fake_cuda.run(script, memory_clock=clock, bus_width=width)
    told_rate, reached = map(float, found.split())
    assert told_rate == pytest.approx(rate, rel=0.01)
    assert 0.6 * rate < reached < rate


@fake_cuda.needs_kernels
@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("cuLibraryLoadData", 209),  # no binary for this GPU
        ("cuLibraryGetKernel", 200),  # invalid image
        ("cuKernelSetAttribute", 209),
        ("cuLaunchKernelEx", 222),  # PTX of a newer CUDA
    ],
)
def test_kernels_that_the_gpu_cannot_run(function: str, error: int) -> None:
    """Drivers may load them as late as at the launch."""
    (found,) = told("told(a_product)", fail=f"{function}:{error}")
    start, _, end = found.partition(" failed: ")
    assert start.startswith(
        "DeviceUnavailableError: cuda:0 (Fake GPU, compute capability 9.0, driver for CUDA 12.8) "
        "cannot run the kernels of this build: "
    )
    # A launch is named by its kernel.
    assert start.endswith("few_f16_n8" if function == "cuLaunchKernelEx" else function)
    assert end == (
        f"CUDA_ERROR_{error} (by a test). Install a newer driver, or bsrgemm built by an nvcc of "
        "that CUDA"
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("cuMemAlloc_v2", "preparing the GPU failed: CUDA_ERROR_2 (by a test)"),
        ("cuMemAllocAsync", "cuda:0 has no room for 24576 bytes"),
    ],
)
def test_no_memory(function: str, message: str) -> None:
    assert told("told(a_product)", fail=f"{function}:2") == [f"MemoryError: {message}"]


@fake_cuda.needs_kernels
def test_values_that_have_no_way_to_the_host() -> None:
    script = """
    class Foreign:
        def __init__(self, array):
            self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__

    data = Foreign(DeviceArray.from_host(np.ones((3, 2, 2), np.float32)))
    a = bsrgemm.bsr_array((data, [0, 1, 1], [0, 2, 3]), (4, 4))
    told(lambda: a @ DeviceArray.from_host(np.ones((4, 8), np.float32)))
    for call in (a.todense, a.T.todense, a.copy, lambda: a.to("cpu")):
        told(call)
    """
    first, *others = told(script)
    assert first == "nothing was raised"
    assert len(others) == 4
    for line in others:
        assert line.startswith("TypeError: a Foreign on cuda:0 is needed on the host"), line
        assert line.endswith(
            "accepted here: an array of NumPy, torch or CuPy or a bsrgemm.DeviceArray"
        )


@fake_cuda.needs_kernels
def test_scratch_memory_of_no_bytes_is_not_asked_for() -> None:
    """Of a batch whose matrices follow one another, to which all one c is added."""
    script = """
for dtype in (np.float16, np.float32):
    data = DeviceArray.from_host(np.ones((4, 64, 64), dtype))
    a = bsrgemm.bsr_array((data, [0, 1, 0, 1], [0, 2, 4]), (128, 128))
    x, c = (DeviceArray.from_host(np.ones(shape, dtype)) for shape in ((4, 16, 128), (16, 128)))
    print(bsrgemm.matmul(x, a, c).shape)
"""
    assert told(script) == ["(4, 16, 128)"] * 2


def test_no_memory_for_a_plan() -> None:
    """It runs out after the device has been prepared, and the next product finds some."""
    script = """
import os
_core.cuda_devices()
data = DeviceArray.from_host(np.ones((3, 64, 64), np.float32))
a = bsrgemm.bsr_array((data, [0, 1, 1], [0, 2, 3]), (128, 128))
x = DeviceArray.from_host(np.ones((128, 8), np.float32))
os.environ["FAKE_CUDA_FAIL"] = "cuMemAlloc_v2:2"
told(lambda: a @ x)
del os.environ["FAKE_CUDA_FAIL"]
a @ x
"""
    assert told(script) == ["MemoryError: cuda:0 has no room for 24 bytes of a plan"]
