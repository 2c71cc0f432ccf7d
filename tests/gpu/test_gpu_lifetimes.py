"""Memory on the GPU: freed while work is in flight, kept by what needs it, and none left behind."""

from __future__ import annotations

import gc
from typing import Any

import bsrgemm
import calls
import cases
import numpy as np
import pytest
from bsrgemm import BlockMask, DeviceArray, attention, bsr_array
from calls import BLOCKSIZES
from device_cases import LONG, device_memory, few, least_growth, need_many_rounds, reduced, repeats
from malformed_table import caught, tables
from spaces import GPU_SPACES, OwnDevice, Space

pytestmark = pytest.mark.gpu

# About 0.1 s on a GPU of 1 to 2 GHz.
SPACE = GPU_SPACES[0]


def poison(torch: Any) -> list[Any]:
    """Takes the sizes of operands that were freed on the current stream."""
    sizes = [2**k for k in range(9, 22)] * 8
    return [torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda") for size in sizes]


@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_everything_dropped_in_flight(
    torch: Any, rng: np.random.Generator, dtype: str, blocksize: tuple[int, int]
) -> None:
    """Operands, matrices, masks and what they hold on the GPU, of each call by itself."""
    seed = int(rng.integers(2**62))

    def made() -> dict[str, calls.Call]:
        return calls.calls(SPACE, np.random.default_rng(seed), dtype, blocksize)

    expected = {name: calls.bits(SPACE, call()) for name, call in made().items()}
    for name in few(expected):
        all_calls = made()
        call = all_calls[name]
        torch.cuda.synchronize()
        torch.cuda._sleep(reduced(LONG) // 4)
        result = call()
        del all_calls, call
        gc.collect()
        noise = poison(torch)
        torch.cuda.synchronize()
        assert calls.bits(SPACE, result) == expected[name], name
        del noise


@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids=str)
def test_operands_dropped_in_flight(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    """The matrix stays, so nothing waits: dense operands and values are reused at once."""
    p = cases.problem(rng, cases.uniform(0.5)(rng, 6, 5), blocksize, 64, "float16")
    pattern = bsr_array((SPACE.array(p.data), p.indices, p.indptr), p.shape)
    blocks = BlockMask.from_dense(rng.random((3, 3)) < 0.7, (64, 64))
    (m, k), n = p.shape, p.n
    shapes = {
        "x": (k, n),
        "left": (n, k),
        "tall": (m, n),
        "q": (1, 2, 192, 64),
        "one": (1, 2, 1, 64),
    }
    host = {name: cases.normal(rng, shape, "float16") for name, shape in shapes.items()}

    def results() -> list[Any]:
        """All operands are on the GPU before the first call, and gone behind the last."""
        on = {name: SPACE.array(array) for name, array in host.items()}
        a = pattern._with_values(SPACE.array(p.data))
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG // 5)
        q = on["q"]
        return [
            a @ on["x"],
            on["left"] @ a.T,
            bsrgemm.matmul(a, on["x"], bias=on["x"][0], activation="silu"),
            bsrgemm.softmax(a).data,
            bsrgemm.sampled_matmul(on["tall"], on["left"], pattern).data,
            a.T @ a,
            attention(q, q, q, is_causal=True),
            attention(q, q, q, block_mask=blocks),
            attention(on["one"], q, q),
        ]

    expected = calls.bits(SPACE, results())
    for _ in repeats(10):
        found = results()
        noise = poison(torch)
        torch.cuda.synchronize()
        assert calls.bits(SPACE, found) == expected
        del noise


def test_device_arrays_dropped_in_flight(torch: Any, rng: np.random.Generator) -> None:
    """Freed in the order of their last stream, however early another one asks for memory."""
    space = OwnDevice()
    p = cases.problem(rng, cases.uniform(0.5)(rng, 6, 5), (64, 64), 64, "float16")
    a = bsr_array((space.array(p.data), p.indices, p.indptr), p.shape)
    x = cases.normal(rng, (p.shape[1], p.n), "float16")
    expected = space.host(a @ space.array(x))
    busy, other = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in repeats(20):
        operand = space.array(x)
        with torch.cuda.stream(busy):
            torch.cuda._sleep(LONG)
        found = bsrgemm.matmul(a, operand, stream=busy)
        assert not busy.query(), "the product was not behind the sleep"
        del operand
        noise = [
            DeviceArray.from_host(np.full(x.nbytes, 0xFF, np.uint8), stream=other.cuda_stream)
            for _ in range(8)
        ]
        assert np.array_equal(found.to_host(), expected)
        del noise


def test_results_outlive_their_inputs(torch: Any, rng: np.random.Generator) -> None:
    made = calls.calls(SPACE, rng, "float16", (64, 64))
    results = {name: call() for name, call in few(made).items()}
    expected = {name: calls.bits(SPACE, result) for name, result in results.items()}
    del made
    gc.collect()
    noise = poison(torch)
    torch.cuda.synchronize()
    assert {name: calls.bits(SPACE, result) for name, result in results.items()} == expected
    del noise


def test_capsules_that_nobody_takes(torch: Any) -> None:
    """Each keeps the memory, and gives it back, consumed or not."""
    size = 64 << 20

    def one_round() -> None:
        array = DeviceArray.empty((size,), "uint8")
        capsules = [array.__dlpack__(), array.__dlpack__(max_version=(1, 0))]
        taken = torch.from_dlpack(array)
        del array
        assert taken.shape == (size,) and len(capsules) == 2

    one_round()
    assert least_growth(one_round, device_memory, len(repeats(100)), 2 * size) <= 2 * size


# ---- nothing is left ----------------------------------------------------------------------------


@pytest.mark.parametrize("space", [GPU_SPACES[0], OwnDevice()], ids=repr)
def test_mixed_calls_leave_no_device_memory(
    torch: Any, rng: np.random.Generator, space: Space
) -> None:
    """10,000 of them, with new matrices in each round, and errors."""
    need_many_rounds()
    space.check()
    seed = int(rng.integers(2**62))
    errors = [bad for rows in tables(False).values() for bad in rows if not bad.varies]

    def one_round() -> None:
        for blocksize in BLOCKSIZES:
            made = calls.calls(space, np.random.default_rng(seed), "float16", blocksize)
            for call in few(made).values():
                call()
        for bad in few(dict(enumerate(errors))).values():
            caught(bad)

    def of_torch() -> int:
        gc.collect()
        return torch.cuda.memory_allocated()

    rounds = len(repeats(30))
    for _ in repeats(3):
        one_round()
    # About 330 calls a round.
    assert least_growth(one_round, of_torch, 1) <= 0
    assert least_growth(one_round, device_memory, rounds) <= 0


def test_errors_on_the_gpu_leave_nothing(torch: Any) -> None:
    """Of products whose operands have been imported by then."""
    a = bsr_array(torch.ones(128, 128, device="cuda", dtype=torch.float16), blocksize=(64, 64))
    x = torch.ones(128, 64, device="cuda", dtype=torch.float16)
    before = torch.cuda.memory_allocated()
    for _ in repeats(1000):
        with pytest.raises(ValueError, match="out has shape"):
            bsrgemm.matmul(a, x, out=x[:64])
        with pytest.raises(TypeError, match="b has dtype float32"):
            a @ x.float()
        with pytest.raises(TypeError, match="on cpu"):
            a @ x.cpu()
        with pytest.raises(MemoryError):
            DeviceArray.empty((1 << 45,), "uint8")
    assert torch.cuda.memory_allocated() == before
