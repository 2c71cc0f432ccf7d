"""JAX arrays on the CPU: JAX's results, immutable, in traced code by callbacks."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Iterator
from typing import Any

import bsrgemm
import numpy as np
import pytest
from bsrgemm import bsr_array
from cases import normal, problem

# JAX would take three quarters of a GPU's memory, whether it computes there or not.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

jax = pytest.importorskip("jax", reason="JAX is not installed")

DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


def make(rng: np.random.Generator, dtype: str = "float32") -> tuple[Any, Any, Any]:
    """A matrix around JAX arrays, the same around NumPy's, and a right operand."""
    p = problem(rng, rng.random((4, 5)) < 0.5, (8, 4), 9, dtype)
    theirs = bsr_array(tuple(jax.numpy.asarray(x) for x in (p.data, p.indices, p.indptr)), p.shape)
    return theirs, bsr_array((p.data, p.indices, p.indptr), p.shape), normal(rng, (20, 9), dtype)


def same(found: Any, expected: np.ndarray) -> bool:
    assert isinstance(found, jax.Array) and found.dtype == expected.dtype
    return np.array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_jax_arrays(dtype: str, rng: np.random.Generator) -> None:
    theirs, ours, x = make(rng, dtype)
    assert isinstance(theirs.data, jax.Array)
    y = jax.numpy.asarray(x)
    for matrix in (theirs, ours):
        assert same(matrix @ y, ours @ x)
        assert same(matrix @ y[:, 0], ours @ np.ascontiguousarray(x[:, 0]))
        left = x.T.copy()
        assert same(jax.numpy.asarray(left) @ matrix.T, left @ ours.T)
    assert (theirs @ y).devices() == y.devices()
    column = (ours @ x)[:, :1].copy()
    found = bsrgemm.matmul(theirs, y, jax.numpy.asarray(column), beta=2.0)
    assert same(found, bsrgemm.matmul(ours, x, column, beta=2.0))


def test_results_of_other_functions_are_jax_arrays(rng: np.random.Generator) -> None:
    theirs, ours, x = make(rng)
    assert same(theirs.todense(), ours.todense())
    assert same(bsrgemm.softmax(theirs).data, bsrgemm.softmax(ours).data)
    right = x[:, :8].copy()
    found = theirs @ bsr_array(jax.numpy.asarray(right), blocksize=(4, 8))
    assert same(found, ours @ bsr_array(right, blocksize=(4, 8)))
    a, b = normal(rng, (32, 6), "float32"), normal(rng, (6, 20), "float32")
    sampled = bsrgemm.sampled_matmul(jax.numpy.asarray(a), jax.numpy.asarray(b), theirs)
    assert same(sampled.data, bsrgemm.sampled_matmul(a, b, ours).data)
    q = normal(rng, (1, 2, 16, 32), "float32")
    out, lse = bsrgemm.attention(*[jax.numpy.asarray(q)] * 3, return_lse=True)
    expected = bsrgemm.attention(q, q, q, return_lse=True)
    assert same(out, expected[0]) and same(lse, expected[1])
    pattern = bsrgemm.DynamicPattern((32, 20), (8, 4), 20, device="cpu")
    pattern.update(ours.block_mask())
    dense = ours.todense()
    assert same(pattern.gather(jax.numpy.asarray(dense)), pattern.gather(dense))


@pytest.mark.parametrize("batch", [(), (2,)])
def test_float64_stays_where_jax_makes_float32(
    batch: tuple[int, ...], rng: np.random.Generator
) -> None:
    theirs, ours, x = make(rng, "float64")
    if batch:
        arrays = theirs.indices, theirs.indptr
        theirs = bsr_array((jax.numpy.stack([theirs.data] * 2), *arrays), theirs.shape)
        ours = bsr_array((np.stack([ours.data] * 2), ours.indices, ours.indptr), ours.shape)
    y = jax.numpy.asarray(x)
    with jax.enable_x64(False):
        assert same(theirs @ y, ours @ x) and same(theirs.T.copy().data, ours.T.copy().data)
        assert same(theirs.todense(), ours.todense()) and same(theirs.copy().data, ours.data)
        assert same(theirs.astype("float32").data, ours.data.astype("float32"))
        assert jax.numpy.ones(3, "float32").sum().dtype == jax.numpy.asarray(np.ones(3)).dtype


def test_copies(rng: np.random.Generator) -> None:
    theirs, ours, _ = make(rng)
    for twin in (theirs.copy(), copy.deepcopy(theirs), pickle.loads(pickle.dumps(theirs))):
        assert same(twin.data, ours.data) and np.array_equal(twin.indices, ours.indices)
    assert same(theirs.T.copy().data, ours.T.copy().data)
    assert same(theirs.astype("float16").data, ours.data.astype("float16"))


def test_unfinished_operands_are_waited_for() -> None:
    """JAX hands out arrays before they are computed."""
    eye = bsr_array(np.eye(1024, dtype=np.float32), blocksize=(32, 32))
    product = jax.jit(lambda x: x @ x @ x @ x)
    x = jax.random.normal(jax.random.key(0), (1024, 1024), jax.numpy.float32)
    product(x).block_until_ready()
    late = product(x)
    assert np.array_equal(np.asarray(eye @ late), np.asarray(late))


def test_immutable_arrays_are_not_written_to(rng: np.random.Generator) -> None:
    theirs, ours, x = make(rng)
    y = jax.numpy.asarray(ours @ x)
    before = np.array(y)
    right = bsr_array(np.eye(20, 9, dtype=np.float32), blocksize=(4, 9))
    a, b = normal(rng, (32, 2), "float32"), normal(rng, (2, 20), "float32")
    q = normal(rng, (1, 1, 32, 9), "float32")
    for call in (
        lambda: bsrgemm.matmul(ours, x, out=y),
        lambda: bsrgemm.matmul(ours, x, y, out=y),
        lambda: bsrgemm.matmul(ours, right, out=y),
        lambda: bsrgemm.matmul(ours, right, y, out=y),
        lambda: bsrgemm.sampled_matmul(a, b, theirs, out=theirs),
        lambda: bsrgemm.attention(q, q, q, out=jax.numpy.asarray(q)),
    ):
        with pytest.raises(TypeError, match=r"out(\.data)? is a jax.Array, .*; accepted: none"):
            call()
    assert np.array_equal(np.asarray(y), before)
    out = np.full_like(before, np.nan)
    assert bsrgemm.matmul(ours, jax.numpy.asarray(x), out=out) is out
    assert np.array_equal(out, before)


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap"])
def test_traced_operands_are_refused(transform: str, rng: np.random.Generator) -> None:
    _, ours, x = make(rng)
    function = getattr(jax, transform)(lambda x: (ours @ x).sum())
    with pytest.raises(TypeError, match="b is a .*Tracer, .*accepted: a concrete array.*callback"):
        function(jax.numpy.asarray(x[None] if transform == "vmap" else x))


def test_arithmetic_says_what_to_do(rng: np.random.Generator) -> None:
    theirs, *_ = make(rng)
    with pytest.raises(TypeError, match="accepted here: an array of NumPy, torch or CuPy"):
        2 * theirs


def test_array_api() -> None:
    """Arrays that speak the array API standard only, as its strict implementation does."""
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    a = bsr_array(np.eye(8, dtype=np.float32), blocksize=(4, 4))
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    found = a @ strict.asarray(x)
    assert isinstance(found, np.ndarray) and np.array_equal(found, x)
    out = strict.zeros((8, 3), dtype=strict.float32)
    assert bsrgemm.matmul(a, strict.asarray(x), out=out) is out
    assert np.array_equal(np.from_dlpack(out), x)
