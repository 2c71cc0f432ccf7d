"""Every function gives the same bits each time, from any number of threads.

Thread counts change from call to call; with 1 there is no pool, and with more than there are
processors the order in which threads find their work is never the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import bsrgemm
import calls
import cases
import numpy as np
import pytest
from spaces import Space

THREADS = (1, 2, 3, 5, 16)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    yield
    bsrgemm.set_num_threads(0)


def check(made: dict[str, calls.Call], repeats: int) -> None:
    space, different = Space(), set()
    for name, call in made.items():
        bsrgemm.set_num_threads(1)
        expected = calls.bits(space, call())
        # Archives take long.
        for i in range(repeats // 20 if "save" in name else repeats):
            bsrgemm.set_num_threads(THREADS[i % len(THREADS)])
            if calls.bits(space, call()) != expected:
                different.add(name)
    assert not different


def test_products(rng: np.random.Generator, repeats: int) -> None:
    """Large enough for 4 threads and more, each of which has some 100,000 vectors to multiply."""
    check(calls.calls(Space(), rng, "float32", (64, 64), n=256, length=192), repeats)


def test_matrices(rng: np.random.Generator, repeats: int) -> None:
    check(calls.host_calls(Space(), rng), repeats)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("blocksize", [(64, 64), (12, 20)])
def test_other_dtypes(
    rng: np.random.Generator, dtype: str, blocksize: tuple[int, int], repeats: int
) -> None:
    cases.numpy_dtype(dtype)
    check(calls.calls(Space(), rng, dtype, blocksize, n=250, length=192), repeats // 10)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bits(rng: np.random.Generator, dtype: str, repeats: int) -> None:
    p = cases.problem(rng, cases.uniform(0.5)(rng, 6, 5), (64, 32), 24, dtype)
    a = bsrgemm.bsr_array((p.data, p.indices, p.indptr), p.shape)
    x = cases.normal(rng, (p.shape[1], p.n), dtype)
    q = cases.normal(rng, (1, 2, 70, 32), "float8_e4m3fn")
    check(
        {
            "matmul": lambda: bsrgemm.matmul(a, x, out_dtype="float32", a_scale=0.5),
            "attention": lambda: bsrgemm.attention(q, q, q, q_descale=2.0),
        },
        repeats // 10,
    )


def test_it_would_be_seen(rng: np.random.Generator) -> None:
    """A sum in the order of arrival, or one bit in one of many calls."""
    values = iter([1.0, 1.0, 1.0, np.nextafter(1.0, 2.0), 1.0, 1.0])
    with pytest.raises(AssertionError, match="wrong"):
        check({"wrong": lambda: np.array([next(values)])}, 5)
