"""CuPy, JAX and Numba on the GPU: their streams, their memory, their arrays."""

from __future__ import annotations

import os
from typing import Any

import bsrgemm
import cases
import device_cases
import numpy as np
import pytest
from bsrgemm import DeviceArray, bsr_array, matmul
from cases import normal, problem
from device_cases import LONG, repeats
from operations import matrix
from spaces import OwnDevice

# JAX would take three quarters of the GPU's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

pytestmark = pytest.mark.gpu

# About 0.1 s on a GPU of 1 to 2 GHz.


def sample(rng: np.random.Generator, dtype: str = "float32") -> tuple[cases.Problem, np.ndarray]:
    p = problem(rng, rng.random((6, 5)) < 0.5, (64, 16), 24, dtype)
    return p, normal(rng, (80, 24), dtype)


def reference(p: cases.Problem, x: np.ndarray) -> np.ndarray:
    """The same bits, with arrays of no library."""
    return (matrix(OwnDevice(), p) @ DeviceArray.from_host(x)).to_host()


# ---- CuPy ----------------------------------------------------------------------------------------


@pytest.fixture
def cupy() -> Any:
    module = pytest.importorskip("cupy", reason="cupy is not installed")
    if not module.cuda.is_available():
        pytest.skip("this CuPy cannot use the GPU")
    return module


def test_cupy_current_stream(cupy: Any, torch: Any, rng: np.random.Generator) -> None:
    """Products stand behind what CuPy's current stream has pending, and do not wait for it."""
    p, host = sample(rng)
    a = bsr_array((cupy.asarray(p.data), p.indices, p.indptr), p.shape)
    x = cupy.asarray(host)
    expected = a @ x
    cupy.cuda.runtime.deviceSynchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        late = cupy.zeros_like(x)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            torch.cuda._sleep(LONG)
        late[...] = x
        found = a @ late
        assert not stream.done, "the call waited for the stream"
        doubled = 2 * found
    stream.synchronize()
    assert isinstance(found, cupy.ndarray) and np.array_equal(found.get(), expected.get())
    assert np.array_equal(doubled.get(), 2 * expected.get())


def test_cupy_pool(cupy: Any, rng: np.random.Generator) -> None:
    """Results are memory of CuPy's pool, and go back to it."""
    p, host = sample(rng)
    a = bsr_array((cupy.asarray(p.data), p.indices, p.indptr), p.shape)
    x = cupy.asarray(host)
    a @ x
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        found = a @ x
    assert found.data.mem.ptr and pool.used_bytes() == -(-found.nbytes // 512) * 512
    del found
    assert pool.used_bytes() == 0 and pool.total_bytes() > 0


def test_cupy_graph(cupy: Any, rng: np.random.Generator) -> None:
    p, host = sample(rng)
    a = bsr_array((cupy.asarray(p.data), p.indices, p.indptr), p.shape)
    x, out = cupy.asarray(host), cupy.full((p.shape[0], 24), np.nan, "float32")
    expected = [(a @ (scale * x)).get() for scale in (1, 2)]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        matmul(a, x, out=out)
        graph = stream.end_capture()
        for wanted in expected:
            graph.launch(stream)
            assert np.array_equal(out.get(stream=stream), wanted)
            x *= 2


# ---- JAX -----------------------------------------------------------------------------------------


@pytest.fixture
def jax() -> Any:
    if device_cases.brief:
        pytest.skip("XLA compiles and tries out kernels, which takes too long under a tool")
    module = pytest.importorskip("jax", reason="JAX is not installed")
    try:
        device = module.devices("cuda")[0]
    except RuntimeError as error:
        pytest.skip(f"this JAX cannot use the GPU: {error}")
    with module.default_device(device), module.enable_x64(True):
        yield module


def of_jax(jax: Any, p: cases.Problem) -> bsr_array:
    return bsr_array((jax.numpy.asarray(p.data), p.indices, p.indptr), p.shape)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_jax_results(jax: Any, dtype: str, rng: np.random.Generator) -> None:
    p, host = sample(rng, dtype)
    a, x = of_jax(jax, p), jax.numpy.asarray(host)
    found = a @ x
    assert isinstance(found, jax.Array) and found.devices() == x.devices()
    assert found.dtype == host.dtype and np.array_equal(np.asarray(found), reference(p, host))
    left = jax.numpy.asarray(np.ascontiguousarray(host.T)) @ a.T
    assert isinstance(left, jax.Array) and left.shape == (24, p.shape[0])
    out = DeviceArray.empty(found.shape, dtype)
    assert matmul(a, x, out=out) is out and np.array_equal(out.to_host(), np.asarray(found))
    with pytest.raises(TypeError, match="out is a jax.Array, which is immutable"):
        matmul(a, x, out=found)
    assert a.to("cpu").device == "cpu" and isinstance(a.todense(), jax.Array)


def test_jax_attention_and_samples(jax: Any, rng: np.random.Generator) -> None:
    p, _ = sample(rng, "bfloat16")
    left, right = normal(rng, (384, 40), "bfloat16"), normal(rng, (40, 80), "bfloat16")
    given = [jax.numpy.asarray(x) for x in (left, right)]
    sampled = bsrgemm.sampled_matmul(*given, of_jax(jax, p))
    own = [DeviceArray.from_host(x) for x in (left, right)]
    expected = bsrgemm.sampled_matmul(*own, matrix(OwnDevice(), p))
    assert isinstance(sampled.data, jax.Array)
    assert np.array_equal(np.asarray(sampled.data), expected.data.to_host())
    q = normal(rng, (1, 2, 128, 64), "bfloat16")
    out, lse = bsrgemm.attention(*[jax.numpy.asarray(q)] * 3, return_lse=True)
    expected = bsrgemm.attention(*[DeviceArray.from_host(q)] * 3, return_lse=True)
    assert isinstance(out, jax.Array) and isinstance(lse, jax.Array)
    assert np.array_equal(np.asarray(out), expected[0].to_host())
    assert np.array_equal(np.asarray(lse), expected[1].to_host())


def test_jax_order_of_work(jax: Any, rng: np.random.Generator) -> None:
    """Operands that JAX has not computed yet are waited for; those that it drops and whose memory
    it takes for others have been read by then."""
    p, host = sample(rng)
    a, expected = of_jax(jax, p), reference(p, host)

    @jax.jit
    def late(x: Any, work: Any) -> Any:
        zero = jax.lax.fori_loop(0, 50, lambda _, w: jax.numpy.tanh(w @ w), work)[0, 0] * 0
        return x + zero

    fill = jax.jit(lambda: jax.numpy.full(host.shape, np.nan, "float32"))
    work = jax.random.normal(jax.random.key(0), (2048, 2048), "float32") / 64
    x = jax.numpy.asarray(host)
    late(x, work), fill()  # compiles
    for _ in repeats(10):
        found = a @ late(x, work)
        noise = [fill() for _ in range(8)]
        assert np.array_equal(np.asarray(found), expected) and len(noise) == 8


def test_jax_owns_its_results(jax: Any, rng: np.random.Generator) -> None:
    """They can be donated, and dropped while JAX reads them."""
    p, host = sample(rng)
    a, x, expected = of_jax(jax, p), jax.numpy.asarray(host), reference(p, host)
    double = jax.jit(lambda y: 2 * y, donate_argnums=0)
    assert np.array_equal(np.asarray(double(a @ x)), 2 * expected)

    @jax.jit
    def slow(y: Any, work: Any) -> Any:
        zero = jax.lax.fori_loop(0, 50, lambda _, w: jax.numpy.tanh(w @ w), work)[0, 0] * 0
        return y + zero

    work = jax.random.normal(jax.random.key(0), (2048, 2048), "float32") / 64
    for _ in repeats(10):
        found = slow(a @ x, work)
        others = [a @ (scale * x) for scale in range(2, 6)]
        assert np.array_equal(np.asarray(found), expected) and len(others) == 4


# ---- Numba ---------------------------------------------------------------------------------------


@pytest.fixture
def cuda() -> Any:
    module = pytest.importorskip("numba.cuda", reason="numba is not installed")
    if not module.is_available():
        pytest.skip("this Numba cannot use the GPU")
    return module


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numba_arrays(cuda: Any, dtype: str, rng: np.random.Generator) -> None:
    p, host = sample(rng, dtype)
    expected = reference(p, host)
    a = bsr_array((cuda.to_device(p.data), p.indices, p.indptr), p.shape)
    x = cuda.to_device(host)
    found = a @ x
    assert isinstance(found, DeviceArray)
    assert np.array_equal(cuda.as_cuda_array(found).copy_to_host(), expected)
    out = cuda.to_device(np.full_like(expected, np.nan))
    assert matmul(a, x, out=out) is out and np.array_equal(out.copy_to_host(), expected)
    stream = cuda.stream()
    late = cuda.to_device(host, stream=stream)
    assert np.array_equal((a @ late).to_host(), expected)


@pytest.mark.filterwarnings("ignore:Grid size")
def test_numba_kernels_take_results(cuda: Any, rng: np.random.Generator) -> None:
    if not hasattr(np, "row_stack"):
        pytest.skip("this Numba compiles nothing with a NumPy without row_stack")
    p, host = sample(rng)
    a = bsr_array((cuda.to_device(p.data), p.indices, p.indptr), p.shape)

    @cuda.jit
    def double(y: Any) -> None:
        i, j = cuda.grid(2)
        if i < y.shape[0] and j < y.shape[1]:
            y[i, j] *= 2

    found = a @ cuda.to_device(host)
    double[(48, 3), (8, 8)](found)
    assert np.array_equal(found.to_host(), 2 * reference(p, host))
