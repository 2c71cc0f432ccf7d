"""The same bits each time: many repeats on concurrent streams, and from 16 threads of 8 streams."""

from __future__ import annotations

from typing import Any

import calls
import numpy as np
import pytest
from calls import BLOCKSIZES
from device_cases import few, repeats, threads
from spaces import GPU_SPACES

pytestmark = pytest.mark.gpu

SPACE = GPU_SPACES[0]
DTYPES = ("float16", "bfloat16", "float32", "float64")
THREADS, STREAMS = threads(16), 8


def parts(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]


def same(torch: Any, found: Any, expected: Any) -> bool:
    """Bit for bit: NaN counts as itself, and zeros have signs."""
    return all(
        torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        for one, other in zip(parts(found), parts(expected), strict=True)
    )


def made(rng: np.random.Generator, dtype: str, blocksize: tuple[int, int]) -> dict[str, calls.Call]:
    """Without patterns that calls change: on several streams their order would be the caller's."""
    found = calls.calls(SPACE, rng, dtype, blocksize, n=200, length=192)
    return {name: call for name, call in found.items() if name != "DynamicPattern"}


@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_concurrent_streams(
    torch: Any, rng: np.random.Generator, dtype: str, blocksize: tuple[int, int]
) -> None:
    """A thousand times each, on eight streams at a time."""
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    for name, call in few(made(rng, dtype, blocksize)).items():
        expected = call()
        torch.cuda.synchronize()
        for _ in repeats(1000 // STREAMS):
            found = []
            for stream in streams:
                with torch.cuda.stream(stream):
                    found.append(call())
            torch.cuda.synchronize()
            assert all(same(torch, one, expected) for one in found), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_changing_patterns(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    for blocksize in BLOCKSIZES:
        call = calls.calls(SPACE, rng, dtype, blocksize)["DynamicPattern"]
        expected = call()
        for _ in repeats(1000):
            assert same(torch, call(), expected), blocksize


@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids=str)
def test_threads_and_streams(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    """Matrices of all threads, none of which has brought them to the GPU before, and own ones."""
    shared = list(few(made(rng, "float16", blocksize)).items())
    # Of the same values, whose plans the calls below do not share.
    seed = int(rng.integers(2**62))
    own = made(np.random.default_rng(seed), "float16", blocksize)
    expected_own = {name: own[name]() for name, _ in shared}
    torch.cuda.synchronize()
    found: list[list[tuple[str, Any]]] = [[] for _ in range(THREADS)]

    def work(number: int) -> None:
        mine = made(np.random.default_rng(seed), "float16", blocksize)
        streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        torch.cuda.synchronize()
        for i in repeats(100):
            name, call = shared[(i + 3 * number) % len(shared)]
            with torch.cuda.stream(streams[i % STREAMS]):
                found[number].append((name, call()))
                result = mine[name]()
            streams[i % STREAMS].synchronize()
            assert same(torch, result, expected_own[name]), f"{name} in thread {number}"

    calls.together(work, THREADS)
    torch.cuda.synchronize()
    expected = {name: call() for name, call in shared}
    for number, results in enumerate(found):
        for name, result in results:
            assert same(torch, result, expected[name]), f"{name} in thread {number}"
