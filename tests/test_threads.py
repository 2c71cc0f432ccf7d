"""Sixteen Python threads at once, over matrices that they share and ones of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import bsrgemm
import calls
import numpy as np
import pytest
from bsrgemm import BlockMask, bsr_array
from spaces import Space

SPACE = Space()
THREADS = 16


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Threads change places as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
    bsrgemm.set_num_threads(0)


@pytest.mark.parametrize("pool", [1, 4])
def test_shared_matrices(rng: np.random.Generator, pool: int, repeats: int) -> None:
    """One set of operands, and of what the calls keep of them."""
    bsrgemm.set_num_threads(pool)
    all_calls = calls.calls(SPACE, rng, "float32", (32, 32), n=100) | calls.host_calls(SPACE, rng)
    # A DynamicPattern is for one thread at a time, and archives take long.
    made = [(n, c) for n, c in all_calls.items() if "Dynamic" not in n and "save" not in n]
    expected = {name: calls.bits(SPACE, call()) for name, call in made}

    def work(number: int) -> None:
        for i in range(repeats // 10 * len(made)):
            name, call = made[(7 * i + 5 * number) % len(made)]
            assert calls.bits(SPACE, call()) == expected[name], f"{name} in thread {number}"

    calls.together(work, THREADS)


def test_own_matrices(repeats: int) -> None:
    """Made, used and dropped in each thread."""
    bsrgemm.set_num_threads(3)
    expected = [
        {
            name: calls.bits(SPACE, call())
            for name, call in calls.calls(SPACE, np.random.default_rng(number), "float64").items()
        }
        for number in range(THREADS)
    ]

    def work(number: int) -> None:
        for _ in range(max(repeats // 50, 1)):
            made = calls.calls(SPACE, np.random.default_rng(number), "float64")
            for name, call in made.items():
                assert calls.bits(SPACE, call()) == expected[number][name], f"{name} in {number}"

    calls.together(work, THREADS)


def test_first_uses_at_one_time(rng: np.random.Generator, repeats: int) -> None:
    """What a structure makes once (its transposed, lists for masks and pairs) is made by many."""
    data = rng.standard_normal((20, 8, 8))
    indices, indptr = np.tile(np.arange(4), 5), np.arange(0, 21, 4)
    x, q = rng.standard_normal((32, 7)), rng.standard_normal((1, 1, 40, 8))
    for _ in range(max(repeats // 5, 4)):
        a = bsr_array((data, indices, indptr), (40, 32))
        mask = BlockMask.from_dense(np.eye(5, dtype=bool), (8, 8))
        found: list[list[bytes]] = []

        def work(number: int, a=a, mask=mask, found=found) -> None:
            results = [
                a.T @ (a @ x),
                a.T @ a,
                bsrgemm.softmax(a.T).T.data,
                bsrgemm.attention(q, q, q, block_mask=mask),
                np.array([a.plan(64).tflops]),
            ]
            found.append(calls.bits(SPACE, results))

        calls.together(work, THREADS)
        assert len(found) == THREADS and all(one == found[0] for one in found)


def test_number_of_threads_changes_meanwhile(rng: np.random.Generator, repeats: int) -> None:
    made = calls.calls(SPACE, rng, "float32", (64, 64), n=128)
    a_product, softmax = made["matmul"], made["softmax"]
    expected = calls.bits(SPACE, [a_product(), softmax()])

    def work(number: int) -> None:
        for i in range(repeats // 5):
            if number % 4 == 0:
                bsrgemm.set_num_threads(1 + (i + number) % 6)
            assert calls.bits(SPACE, [a_product(), softmax()]) == expected

    calls.together(work, THREADS)


def test_errors_stay_with_their_thread(repeats: int) -> None:
    """Each thread fails in its own way and is told of that."""
    a = bsr_array(np.ones((8, 8)), blocksize=(2, 2))

    def work(number: int) -> None:
        for _ in range(repeats):
            wrong = np.ones((number + 10, 3))
            with pytest.raises(ValueError, match=rf"\({number + 10}, 3\)"):
                a @ wrong

    calls.together(work, THREADS)


def test_offsets_change_meanwhile(rng: np.random.Generator) -> None:
    """A call computes from the offsets that it has checked, whatever becomes of the caller's."""
    x = rng.standard_normal((4096, 2, 16), dtype=np.float32)
    good = np.linspace(0, len(x), 65, dtype=np.int64)
    offsets = good.copy()
    end = time.monotonic() + 2

    def work(number: int) -> None:
        while time.monotonic() < end:
            if number == 0:
                for bad in (-(2**40), 2**50, 0):
                    offsets[10:30] = bad
                    offsets[:] = good
                continue
            try:
                bsrgemm.attention(x, x, x, cu_seqlens_q=offsets, cu_seqlens_k=offsets)
            except ValueError as error:
                assert "cu_seqlens" in str(error)

    calls.together(work, 2)
