"""Calls of every kind, errors included, leave nothing behind in host memory.

Python's memory is counted by tracemalloc, the C library's by mallinfo2 (all arenas, and what it
maps by itself): bytes that are handed out and were not given back. Both count what is in use, not
what the process holds, so they do not depend on what allocators keep for later. Python's cache of
attribute names, which fills up slowly, is cleared first. What remains is some hundred bytes however
many calls there are, while one object in each round is 16 bytes a round at least.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import bsrgemm
import calls
import fake_cuda
import numpy as np
import pytest
from malformed_table import caught, tables
from spaces import Space


class Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")
        + ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def settle() -> None:
    gc.collect()
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()


def in_use() -> int:
    """Bytes that the C library has handed out."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("needs glibc")
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    settle()
    info = mallinfo2()
    return info.uordblks + info.hblkhd


@pytest.fixture(autouse=True)
def _few_threads() -> Iterator[None]:
    bsrgemm.set_num_threads(2)
    yield
    bsrgemm.set_num_threads(0)


# After ten to begin with. Some 330 calls each: 10,000.
ROUNDS = 30
WINDOWS = 5


def least_growth(one_round: Callable[[], object], in_use: Callable[[], int], windows: int) -> int:
    """Over as many rounds in each of some windows: what caches keep, NumPy's of small arrays above
    all, grows in some of them, a leak in every one."""
    found = []
    for _ in range(windows):
        before = in_use()
        for _ in range(ROUNDS):
            one_round()
        found.append(in_use() - before)
        if found[-1] < LIMIT:
            break
    return min(found)


LIMIT = 16 * ROUNDS


def traced() -> int:
    settle()
    return tracemalloc.get_traced_memory()[0]


def check(one_round: Callable[[], object], windows: int = WINDOWS) -> None:
    """Growth of the C library's memory and of Python's."""
    for _ in range(10):
        one_round()
    grown = least_growth(one_round, in_use, windows)
    assert grown < LIMIT, f"{grown} bytes of C memory in {ROUNDS} rounds"
    tracemalloc.start()
    try:
        for _ in range(10):
            one_round()
        snapshot = tracemalloc.take_snapshot()
        grown = least_growth(one_round, traced, windows)
        largest = tracemalloc.take_snapshot().compare_to(snapshot, "lineno")[:5]
    finally:
        tracemalloc.stop()
    lines = "\n".join(map(str, largest))
    assert grown < LIMIT, f"{grown} bytes of Python's memory in {ROUNDS} rounds:\n{lines}"


@pytest.fixture
def mixed(rng: np.random.Generator) -> list[Callable[[], object]]:
    """Every operation, twice over in other dtypes, and every kind of malformed input."""
    made = list(calls.host_calls(Space(), rng).values())
    for dtype, blocksize in (("float32", (16, 16)), ("float64", (12, 20)), ("float16", (64, 64))):
        made += calls.calls(Space(), rng, dtype, blocksize).values()
    errors = [bad for rows in tables(False).values() for bad in rows]
    return made + [lambda bad=bad: caught(bad) for bad in errors]


def test_mixed_calls(mixed: list[Callable[[], object]]) -> None:
    def one_round() -> None:
        for call in mixed:
            call()

    check(one_round)


def test_made_and_dropped() -> None:
    """Operands, matrices, views, plans and masks, all of them new."""

    def one_round() -> None:
        rng = np.random.default_rng(0)
        for call in calls.calls(Space(), rng, "float32", (8, 8), n=9).values():
            call()

    check(one_round)


def test_cycles_are_collected() -> None:
    """A matrix whose values know it: the garbage collector sees through what is around them."""

    class Values(np.ndarray):
        pass

    def one_round() -> None:
        data = np.ones((2, 2, 2)).view(Values)
        a = bsrgemm.bsr_array((data, [0, 1], [0, 1, 2]), (4, 4))
        data.matrix = a
        a @ np.ones((4, 2))

    check(one_round)


def test_threads_that_end() -> None:
    a = bsrgemm.bsr_array(np.ones((64, 64)), blocksize=(16, 16))
    x = np.ones((64, 8))

    def one_round() -> None:
        thread = threading.Thread(target=lambda: a @ x)
        thread.start()
        thread.join()

    check(one_round)


def test_a_leak_would_be_seen() -> None:
    """Of C memory, and of a Python object."""
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    with pytest.raises(AssertionError, match="bytes of C memory"):
        check(lambda: malloc(24), windows=2)
    kept: list[object] = []
    with pytest.raises(AssertionError, match=r"test_leaks\.py"):
        check(lambda: kept.append(bytearray(64)), windows=2)


@fake_cuda.needs_kernels
def test_device_memory_of_a_made_up_driver(repeats: int) -> None:
    """Arrays, plans, scratch memory, events and patterns, with tests/c/fake_cuda.c."""
    script = f"""
        import gc
        import bsrgemm, calls, numpy as np
        from fake_cuda import driver
        from spaces import OwnDevice

        def round():
            for blocksize in ((64, 64), (16, 16), (12, 20)):
                made = calls.calls(OwnDevice(), np.random.default_rng(0), "float16", blocksize)
                for call in made.values():
                    call()
            gc.collect()

        fake = driver()
        round()
        objects, bytes = fake.fake_live_objects(), fake.fake_live_bytes()
        for _ in range({max(repeats // 10, 5)}):
            round()
        assert (fake.fake_live_objects(), fake.fake_live_bytes()) == (objects, bytes)
        assert objects == 4, "a context, a pool, a stream and counters"
        assert fake.fake_launches() > 200
    """
    fake_cuda.run(script)
