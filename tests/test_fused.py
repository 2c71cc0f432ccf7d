"""Fused output of products on the CPU: scales, bias and activation, against float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import bsrgemm
import cases
import numpy as np
import operations
import pytest
from cases import DTYPES, ROUNDOFF, cancellation, least_error, normal, problem, relative_error
from spaces import CPU_SPACES

_ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def _logistic(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * _ERFC(-x / math.sqrt(2)),
    # x (1 + tanh(z)) / 2 without its cancellation
    "gelu_tanh": lambda x: x * _logistic(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * _logistic(x),
}
# Steep functions of a sum lose more than it: so many times its own error is allowed. Activations
# add a few roundings, which count where results are not rounded to 16 bits.
SLACK = {"float16": 1.0, "bfloat16": 1.0, "float32": 2.0, "float64": 2.0}

# name: (pattern, block rows, block columns, block shape, columns of the dense operand). Few columns
# go the dot way, the others by panels, of which one packs all, gathers or reads in place.
SHAPES = {
    "odd": (cases.uniform(0.4), 5, 7, (3, 5), 11),
    "scalar blocks": (cases.uniform(0.3), 37, 23, (1, 1), 9),
    "64": (cases.uniform(0.3), 4, 6, (64, 64), 100),
    "one column": (cases.uniform(0.4), 8, 8, (16, 16), 1),
    "three columns": (cases.uniform(0.4), 8, 8, (32, 48), 3),
    "empty rows": (cases.empty_rows, 9, 6, (8, 8), 13),
    "no blocks": (cases.uniform(0.0), 3, 4, (8, 4), 6),
    "tall": (cases.uniform(0.5), 2, 3, (130, 17), 31),
    "wide result": (cases.uniform(0.5), 3, 2, (24, 112), 257),
}


def vector(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Of the operands' dtype or, for 16-bit ones, perhaps float32; perhaps strided."""
    if dtype in ("float16", "bfloat16") and rng.integers(2):
        dtype = "float32"
    whole = normal(rng, tuple(3 * length for length in shape), dtype)
    return (
        whole[tuple(slice(None, None, 3) for _ in shape)]
        if rng.integers(2)
        else normal(rng, shape, dtype)
    )


def multiply(
    p: cases.Problem, rng: np.random.Generator, form: int, keywords: dict[str, Any], c: Any, **more
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """found, the product in float64, the same with the roundings of the operands' precision, and
    the sums of the terms' absolute values."""
    a, dense = operations.matrix(CPU_SPACES[0], p), p.dense
    if form % 2:
        a, dense = a.T, dense.T
    right = form >= 2
    x = normal(rng, (p.n, dense.shape[0]) if right else (dense.shape[1], p.n), p.dtype)
    if rng.integers(2):
        x = np.asfortranarray(x)
    operands = (x, a) if right else (a, x)
    found = bsrgemm.matmul(*operands, c, **keywords, **more)
    work = np.float64 if p.dtype == "float64" else np.float32
    left, other = (x, dense) if right else (dense, x)
    return (
        found,
        left.astype(np.float64) @ other.astype(np.float64),
        left.astype(work) @ other.astype(work),
        np.abs(left.astype(np.float64)) @ np.abs(other.astype(np.float64)),
    )


def finish(
    product: np.ndarray, keywords: dict[str, Any], c: Any, alpha: float, beta: float
) -> np.ndarray:
    wide = {k: v.astype(np.float64) for k, v in keywords.items() if isinstance(v, np.ndarray)}
    sums = alpha * product.astype(np.float64)
    if "row_scale" in wide:
        sums = sums * wide["row_scale"].reshape(-1, 1)
    if "col_scale" in wide:
        sums = sums * wide["col_scale"].reshape(1, -1)
    if "bias" in wide:
        sums = sums + wide["bias"]
    if c is not None:
        sums = sums + beta * c.astype(np.float64)
    return ACTIVATIONS[keywords.get("activation")](sums)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_fused(name: str, activation: str | None, dtype: str, rng: np.random.Generator) -> None:
    pattern, rows, cols, blocksize, n = SHAPES[name]
    p = problem(rng, pattern(rng, rows, cols), blocksize, n, dtype)
    for form, bias in itertools.product(range(4), (None, "row", "flat", "column")):
        scaled, added = bool(rng.integers(2)), bool(rng.integers(2))
        m, k = p.shape
        free = k if form in (1, 2) else m
        shape = (n, free) if form >= 2 else (free, n)
        keywords: dict[str, Any] = {"activation": activation}
        if bias is not None:
            of = {"row": (shape[0], 1), "flat": (shape[1],), "column": (1, shape[1])}[bias]
            keywords["bias"] = vector(rng, of, dtype)
        if scaled:
            keywords["row_scale"] = vector(rng, (shape[0],), dtype)
            keywords["col_scale"] = vector(rng, (shape[1],), dtype)
        c = normal(rng, shape, dtype) if added else None
        if added and rng.integers(2):
            c = np.asfortranarray(c)
        print(form, bias, scaled, added)
        found, product, same, terms = multiply(
            p, rng, form, keywords, c, alpha=0.75, beta=2.0 * added
        )
        expected = finish(product, keywords, c, 0.75, 2.0)
        rounded = finish(same, keywords, c, 0.75, 2.0).astype(found.dtype)
        lost = relative_error(rounded, expected)
        sizes = {k: np.abs(v) for k, v in keywords.items() if isinstance(v, np.ndarray)}
        terms = finish(terms, sizes, None if c is None else np.abs(c), 0.75, 2.0)
        count = (m if free == k else k) + 2
        # Where ReLU leaves nothing, nothing is lost.
        cancelled = cancellation(expected, terms * (expected != 0), count)
        allowed = SLACK[dtype] * max(2.0 * lost, least_error(dtype, count, cancelled))
        cases.assert_close(found, expected, allowed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_is_c(dtype: str, rng: np.random.Generator) -> None:
    p = problem(rng, rng.random((5, 4)) < 0.5, (16, 24), 40, dtype)
    a, x = operations.matrix(CPU_SPACES[0], p), normal(rng, (p.shape[1], p.n), dtype)
    c, bias = normal(rng, (p.shape[0], p.n), dtype), normal(rng, (p.n,), dtype)
    for order in "CF":
        out = np.array(c, order=order)
        keywords = {"bias": bias, "activation": "gelu", "beta": 0.5}
        expected = bsrgemm.matmul(a, x, c, **keywords)
        assert bsrgemm.matmul(a, x, out, out=out, **keywords) is out
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors(dtype: str, rng: np.random.Generator) -> None:
    """A vector's product has rows, a product with a vector on the left columns."""
    p = problem(rng, rng.random((5, 4)) < 0.5, (16, 24), 1, dtype)
    a = operations.matrix(CPU_SPACES[0], p)
    x, y = normal(rng, (p.shape[1],), dtype), normal(rng, (p.shape[0],), dtype)
    rows, columns = normal(rng, (p.shape[0],), dtype), normal(rng, (p.shape[1],), dtype)
    found = bsrgemm.matmul(a, x, bias=rows, row_scale=rows, activation="silu")
    expected = bsrgemm.matmul(
        a, x[:, None], bias=rows[:, None], row_scale=rows[:, None], activation="silu"
    )
    assert np.array_equal(found, expected[:, 0])
    found = bsrgemm.matmul(y, a, bias=columns, col_scale=columns, activation="relu")
    expected = bsrgemm.matmul(
        y[None], a, bias=columns[None], col_scale=columns[None], activation="relu"
    )
    assert np.array_equal(found, expected[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_infinities(activation: str | None, dtype: str, rng: np.random.Generator) -> None:
    """Infinite and undefined sums, and such that are far out, are what torch makes of them."""
    p = problem(rng, np.zeros((2, 2), bool), (8, 8), 12, dtype)
    a, x = operations.matrix(CPU_SPACES[0], p), normal(rng, (16, 12), dtype)
    largest = {"float16": 6e4, "bfloat16": 1e38, "float32": 1e38, "float64": 1e300}[dtype]
    values = [
        np.inf,
        -np.inf,
        np.nan,
        largest,
        -largest,
        100.0,
        -100.0,
        30.0,
        -30.0,
        0.0,
        -0.0,
        8.0,
    ]
    bias = np.array(values).astype(x.dtype)
    found = bsrgemm.matmul(a, x, bias=bias, activation=activation).astype(np.float64)
    with np.errstate(all="ignore"):
        expected = ACTIVATIONS[activation](bias.astype(np.float64))
        # What rounds to nothing is 0; the reference overflows on its way there.
        expected[4] = -largest if activation is None else 0.0
    assert np.array_equal(found[0], found[-1], equal_nan=True)
    tolerance = 4 * ROUNDOFF[dtype]
    assert np.allclose(found[0], expected, rtol=tolerance, atol=1e-7, equal_nan=True), (
        found[0],
        expected,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a])
def test_each_element(activation: str, dtype: str, rng: np.random.Generator) -> None:
    """Not only the norm is right: every element is, out to where activations vanish."""
    p = problem(rng, np.zeros((1, 1), bool), (8, 8), 2001, dtype)
    a, x = operations.matrix(CPU_SPACES[0], p), normal(rng, (8, 2001), dtype)
    bias = np.linspace(-12, 12, 2001).astype(x.dtype)
    found = bsrgemm.matmul(a, x, bias=bias, activation=activation)[3].astype(np.float64)
    expected = ACTIVATIONS[activation](bias.astype(np.float64))
    tolerance = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 3e-5, "float64": 1e-12}[dtype]
    smallest = 2.0**-23 if dtype == "float16" else 1e-30
    assert np.allclose(found, expected, rtol=tolerance, atol=smallest)


def test_same_bits_for_any_number_of_threads(rng: np.random.Generator) -> None:
    p = problem(rng, rng.random((24, 20)) < 0.3, (16, 24), 193, "float32")
    a, x = operations.matrix(CPU_SPACES[0], p), normal(rng, (p.shape[1], p.n), "float32")
    bias = normal(rng, (p.shape[0], 1), "float32")
    try:
        results = []
        for count in (1, 3):
            bsrgemm.set_num_threads(count)
            results.append(bsrgemm.matmul(a, x, bias=bias, activation="gelu").tobytes())
        assert len(set(results)) == 1
    finally:
        bsrgemm.set_num_threads(0)


def test_torch_agrees(rng: np.random.Generator) -> None:
    """The names mean what they mean in torch."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    p = problem(rng, rng.random((4, 5)) < 0.6, (16, 8), 30, "float32")
    a = bsrgemm.bsr_array((torch.from_numpy(p.data), p.indices, p.indptr), p.shape)
    x, bias = torch.randn(7, p.shape[0]), torch.randn(p.shape[1])
    functional = torch.nn.functional
    plain = functional.linear(x, torch.from_numpy(p.dense.T).float(), bias)
    for name, function in {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda t: functional.gelu(t, approximate="tanh"),
        "silu": functional.silu,
    }.items():
        found = bsrgemm.matmul(x, a, bias=bias, activation=name)
        torch.testing.assert_close(found, function(plain), rtol=1e-5, atol=1e-4)
