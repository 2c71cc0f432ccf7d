"""Kernels on a CPU, thread by thread: see tests/emulator. No GPU is needed for that.

Those of float16 for all GPUs, what all types share, and one of each family for Hopper, compiled as
they come; ``--thorough`` takes all kernels, optimised, and more calls.
"""

from __future__ import annotations

from pathlib import Path

import emulation
import fake_cuda
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")
pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
pytest.importorskip("torch", reason="torch is not installed")

OTHER_TYPES = {"bf16", "f32", "f64", "tf32", "e4m3", "e5m2"}
OF_HOPPER = {"tall", "tall_pieces", "stream", "stream_fused", "narrow_tma", "narrow_cluster"}
OF_HOPPER |= {"narrow_tma_gapless", "narrow_shares", "pairs", "sampled", "attention"}


@pytest.fixture(scope="module")
def thorough(request: pytest.FixtureRequest) -> bool:
    return request.config.getoption("--thorough")


@pytest.fixture(scope="module")
def kernels(thorough: bool) -> Path:
    def is_quick(name: str) -> bool:
        folder, _, rest = name.partition("/")
        if folder == "sm90":
            return rest.removesuffix("_f16") in OF_HOPPER
        return not OTHER_TYPES & set(rest.split("_"))

    names = filter(None if thorough else is_quick, emulation.all_names())
    return emulation.library(tuple(names), optimised=thorough)


def test_rows_that_become_columns(kernels: Path) -> None:
    """Of as many strips as fill an H200, which calls drawn at random do not have."""
    script = """
import numpy as np
from bsrgemm import DeviceArray, bsr_array
from bsrgemm._matmul import product

rng, rows = np.random.default_rng(0), 130
for height, width in ((64, 64), (64, 48), (32, 32)):
    counts = np.where(np.arange(rows) == 5, 12, rng.integers(0, 5, rows))
    indptr = np.concatenate([[0], counts.cumsum()])
    indices = np.concatenate([np.sort(rng.permutation(12)[:count]) for count in counts])
    blocks = rng.integers(-3, 4, (len(indices), height, width)).astype(np.float16)
    dense = bsr_array((blocks, indices, indptr), (rows * height, 12 * width)).todense()
    a = bsr_array((DeviceArray.from_host(blocks), indices, indptr), dense.shape)
    for n in (1, 8, 16, 24, 32):
        x = rng.integers(-3, 4, (12 * width, n)).astype(np.float16)
        y = product(a, DeviceArray.from_host(x), None, 1.0, None, None, None, "narrow").to_host()
        expected = dense.astype(np.float64) @ x.astype(np.float64)
        print(np.array_equal(y.astype(np.float64), expected))
"""
    said = fake_cuda.run(script, arch=90, sms=132, kernels=kernels)
    assert said.split() == ["True"] * 15


# Of few SMs, each CTA has several tiles even of small products.
@pytest.mark.parametrize("arch, sms", [(80, 132), (90, 7)])
def test_any_call(kernels: Path, arch: int, sms: int, thorough: bool) -> None:
    """Computed as it should be, or refused with a reason, on GPUs before Hopper and on Hopper."""
    count = 3000 if thorough else 150
    script = f"import emulated; print(emulated.any_calls({count}))"
    said = fake_cuda.run(script, arch=arch, sms=sms, kernels=kernels)
    assert int(said.splitlines()[-1]) >= count // 10


@pytest.mark.parametrize("arch", [80, 90])
def test_all_operations(kernels: Path, arch: int, thorough: bool) -> None:
    rounds = 20 if thorough else 1
    dtypes = ("float16", "float32", "float64") if thorough else ("float16",)
    script = f"import emulated; print(emulated.all_operations({rounds}, {dtypes}))"
    said = fake_cuda.run(script, arch=arch, kernels=kernels)
    assert int(said.splitlines()[-1]) >= 5 * rounds


@pytest.mark.parametrize("arch", [80, 90])
def test_batches_of_values(kernels: Path, arch: int) -> None:
    script = "import emulated; print(emulated.batches_of_values())"
    said = fake_cuda.run(script, arch=arch, kernels=kernels)
    assert int(said.splitlines()[-1]) == 2


@pytest.mark.parametrize("arch", [80, 90])
def test_views(kernels: Path, arch: int) -> None:
    said = fake_cuda.run("import emulated; print(emulated.views())", arch=arch, kernels=kernels)
    assert int(said.splitlines()[-1]) >= 4


def test_rows_of_all_lengths(kernels: Path) -> None:
    script = "import emulated; print(emulated.rows_of_all_lengths())"
    said = fake_cuda.run(script, arch=90, kernels=kernels)
    assert int(said.splitlines()[-1]) >= 4


@pytest.mark.parametrize("arch", [80, 90])
def test_special_values(kernels: Path, arch: int) -> None:
    script = "import emulated; print(emulated.special_values())"
    said = fake_cuda.run(script, arch=arch, kernels=kernels)
    assert int(said.splitlines()[-1]) == (15 if arch == 90 else 12)


# ---- what the emulator finds ---------------------------------------------------------------------

FAULTS = """
#include "ptx/cp_async.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"

struct Params {
  const float *from;
  float *to;
  int right;
};

extern "C" __global__ void neighbour(const __grid_constant__ Params p) {
  __shared__ float values[64];
  values[threadIdx.x] = p.from[threadIdx.x];
  if (p.right) __syncthreads();
  p.to[threadIdx.x] = values[(threadIdx.x + 1) % 64];
  __syncthreads();
}

extern "C" __global__ void copied(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const uint32_t mine = bsrg::ptx::shared_address(memory) + 4 * threadIdx.x;
  bsrg::ptx::cp_async<4>(mine, p.from + threadIdx.x, true);
  bsrg::ptx::cp_async_commit();
  if (p.right) bsrg::ptx::cp_async_wait<0>();
  p.to[threadIdx.x] = reinterpret_cast<float *>(memory)[threadIdx.x];
  bsrg::ptx::cp_async_wait<0>();
}

extern "C" __global__ void bulk(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const uint32_t values = bsrg::ptx::shared_address(memory), barrier = values + 256;
  if (threadIdx.x == 0) {
    bsrg::ptx::barrier_init(barrier, 1);
    bsrg::ptx::barrier_arrive_expect(barrier, 256);
    bsrg::ptx::bulk_load(values, p.from, 256, barrier);
  }
  __syncthreads();
  if (p.right) bsrg::ptx::barrier_wait(barrier, 0);
  p.to[threadIdx.x] = reinterpret_cast<float *>(memory)[threadIdx.x];
}

extern "C" __global__ void waiting(const __grid_constant__ Params p) {
  if (p.right || threadIdx.x < 32) bsrg::ptx::named_barrier_sync(1, 64);
  p.to[threadIdx.x] = p.from[threadIdx.x];
  __syncthreads();
}
"""

CALL = """
    import ctypes
    import numpy as np

    class Params(ctypes.Structure):
        _fields_ = [("x", ctypes.c_void_p), ("to", ctypes.c_void_p), ("right", ctypes.c_int)]

    launch = ctypes.CDLL("{path}").emulation_launch
    launch.restype = ctypes.c_bool
    x, one = np.arange(64, dtype=np.float32), (ctypes.c_uint * 3)(1, 1, 1)
    wrong = 0
    for _ in range(20):
        to = np.full(64, -1, np.float32)
        params = Params(x.ctypes.data, to.ctypes.data, {right})
        assert launch(b"{name}", one, (ctypes.c_uint * 3)(64, 1, 1), 1, ctypes.byref(params))
        wrong += not np.array_equal(to, np.roll(x, -1) if "{name}" == "neighbour" else x)
    print(wrong)
"""


@pytest.fixture(scope="module")
def faults() -> Path:
    return emulation.library((), text=FAULTS)


@pytest.mark.parametrize("name", ["neighbour", "copied", "bulk"])
def test_missing_waits_are_found(faults: Path, name: str) -> None:
    for right in (1, 0):
        said = fake_cuda.run(CALL.format(path=faults, name=name, right=right))
        assert (int(said) == 0) == bool(right)


def test_threads_that_wait_for_one_another_are_found(faults: Path) -> None:
    assert int(fake_cuda.run(CALL.format(path=faults, name="waiting", right=1))) == 0
    with pytest.raises(
        AssertionError, match="emulation of waiting: its threads wait for one another"
    ):
        fake_cuda.run(CALL.format(path=faults, name="waiting", right=0))
