"""Products of two block-sparse matrices on the CPU, against float64 and against SciPy."""

from __future__ import annotations

import time

import bsrgemm
import cases
import numpy as np
import operations
import pytest
from bsrgemm import bsr_array
from cases import DTYPES, Problem, allowed_error, assert_close, normal, problem
from spaces import CPU_SPACES

# name: block rows and columns of a, block columns of b; block height, shared side, block width
SHAPES = {
    "odd": ((5, 7, 4), (3, 5, 11)),
    "scalar blocks": ((37, 23, 19), (1, 1, 1)),
    "16": ((9, 11, 8), (16, 16, 16)),
    "64": ((4, 5, 3), (64, 64, 64)),
    "tall": ((2, 3, 5), (150, 40, 16)),
    "deep": ((2, 2, 2), (24, 300, 24)),
    "wide": ((3, 4, 2), (8, 24, 200)),
    "one block": ((1, 1, 1), (33, 65, 17)),
}


def pair(
    rng: np.random.Generator, name: str, dtype: str, density: float = 0.4
) -> tuple[Problem, Problem]:
    (rows, inner, cols), (height, depth, width) = SHAPES[name]
    a = problem(rng, rng.random((rows, inner)) < density, (height, depth), 0, dtype)
    b = problem(rng, rng.random((inner, cols)) < density, (depth, width), 0, dtype)
    return a, b


def made(p: Problem) -> bsrgemm.bsr_array:
    return operations.matrix(CPU_SPACES[0], p)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.4, 1.1])
def test_products(name: str, dtype: str, density: float, rng: np.random.Generator) -> None:
    a, b = pair(rng, name, dtype, density)
    c = normal(rng, (a.shape[0], b.shape[1]), dtype)
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
        out = CPU_SPACES[0].poisoned(c.shape, dtype)
        found = bsrgemm.matmul(made(a), made(b), c, alpha=alpha, beta=beta, out=out)
        assert found is out
        assert_close(out, *allowed_error(a.dense, b.dense, c, alpha, beta, dtype))


def test_permitted_tf32_is_not_used(rng: np.random.Generator) -> None:
    a, b = (made(p) for p in pair(rng, "odd", "float32"))
    assert np.array_equal(bsrgemm.matmul(a, b, precision="tf32"), a @ b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views(dtype: str, rng: np.random.Generator) -> None:
    """The same matrix on both sides, as a view on either."""
    p = problem(rng, rng.random((6, 5)) < 0.5, (20, 12), 0, dtype)
    a = made(p)
    assert_close(a @ a.T, *allowed_error(p.dense, p.dense.T, None, 1.0, 0.0, dtype))
    assert_close(a.T @ a, *allowed_error(p.dense.T, p.dense, None, 1.0, 0.0, dtype))
    square = problem(rng, rng.random((5, 5)) < 0.5, (12, 12), 0, dtype)
    b = made(square)
    assert_close(b @ b, *allowed_error(square.dense, square.dense, None, 1.0, 0.0, dtype))
    turned = square.dense.T
    assert_close(b.T @ b.T, *allowed_error(turned, turned, None, 1.0, 0.0, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_scipy_has_it(dtype: str, rng: np.random.Generator) -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed")
    a, b = pair(rng, "16", dtype)
    found = made(a) @ made(b)
    expected = (made(a).to_scipy() @ made(b).to_scipy()).toarray()
    assert found.dtype == np.dtype(dtype) and found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0)])
def test_zero_sizes(shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    rows, inner, cols = shape
    a = problem(rng, np.ones((rows, inner), bool), (4, 3), 0, "float32")
    b = problem(rng, np.ones((inner, cols), bool), (3, 5), 0, "float32")
    assert np.array_equal(made(a) @ made(b), np.zeros((rows * 4, cols * 5), np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_threads(dtype: str, rng: np.random.Generator) -> None:
    mask = rng.random((12, 12)) < 0.5
    a = made(problem(rng, mask, (48, 40), 0, dtype))
    b = made(problem(rng, mask, (40, 56), 0, dtype))
    before = bsrgemm.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            bsrgemm.set_num_threads(threads)
            results.append((a @ b).view(np.uint8))
    finally:
        bsrgemm.set_num_threads(before)
    assert all(np.array_equal(results[0], other) for other in results)


def test_long_sums_of_small_blocks(rng: np.random.Generator) -> None:
    """Sums are taken in parts, so that they lose no more than a dense product's."""
    a = problem(rng, np.ones((2, 20000), bool), (4, 1), 0, "float32")
    b = problem(rng, np.ones((20000, 2), bool), (1, 8), 0, "float32")
    assert_close(made(a) @ made(b), *allowed_error(a.dense, b.dense, None, 1.0, 0.0, "float32"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [(3, 6, 7), (1, 1, 1), (8, 4, 16)])
def test_many_small_blocks(
    block: tuple[int, int, int], dtype: str, rng: np.random.Generator
) -> None:
    """B is written out, some columns at a time, which blocks may lie across the ends of."""
    height, depth, width = block
    rows, inner, cols = 960 // height, 9000 // depth, 320 // width
    masks = rng.random((rows, inner)) < 0.03, rng.random((inner, cols)) < 0.05
    masks[0][0, 0] = masks[1][0, 0] = True  # the first blocks, which meet
    a = problem(rng, masks[0], (height, depth), 0, dtype)
    b = problem(rng, masks[1], (depth, width), 0, dtype)
    c = normal(rng, (a.shape[0], b.shape[1]), dtype)
    allowed = allowed_error(a.dense, b.dense, c, -0.5, 2.0, dtype)
    turned = problem(rng, rng.random((cols, inner)) < 0.05, (width, depth), 0, dtype)
    for out in (c.copy(), np.asfortranarray(c)):
        out[...] = np.nan
        bsrgemm.matmul(made(a), made(b), c, alpha=-0.5, beta=2.0, out=out)
        assert_close(out, *allowed)
    found = made(a) @ made(turned).T
    assert_close(found, *allowed_error(a.dense, turned.dense.T, None, 1.0, 0.0, dtype))
    # What is not finite stays where blocks meet.
    for first in (1.0, np.inf):
        a.data[0], b.data[0] = first, np.nan
        found = np.asarray(made(a) @ made(b), np.float64)
        meets = (a.dense != 0).astype(np.float32) @ (b.dense != 0).astype(np.float32) > 0
        assert np.isfinite(found[~meets]).all() and not np.isfinite(found[meets]).all()


@pytest.mark.parametrize("value", [1.0, np.inf])
def test_long_columns_are_passed_over(value: float, rng: np.random.Generator) -> None:
    """Each group of rows of A looks at those blocks of B alone that it can meet: 30,000 rows once
    took five seconds."""
    count = 30_000
    diagonal, ends = np.arange(count, dtype=np.int32), np.arange(count + 1, dtype=np.int32)
    a_values = rng.standard_normal((count, 1, 1)).astype(np.float32)
    a_values[-1] = value
    a = bsr_array((a_values, diagonal, ends), (count, count))
    dense = rng.standard_normal((count, 8)).astype(np.float32)
    b = bsr_array((dense.reshape(-1, 1, 1), np.tile(diagonal[:8], count), 8 * ends), dense.shape)
    start = time.perf_counter()
    found = a @ b
    assert time.perf_counter() - start < 3
    assert np.array_equal(found, a_values[:, 0] * dense)


def test_blocks_that_meet_nothing_are_not_read(rng: np.random.Generator) -> None:
    a = problem(rng, np.array([[True, True]]), (3, 4), 0, "float32")
    b = problem(rng, np.array([[True], [False]]), (4, 5), 0, "float32")
    a.data[1] = np.nan
    expected = a.data[0].astype(np.float64) @ b.data[0].astype(np.float64)
    assert_close(made(a) @ made(b), expected, 1e-6)


def test_libraries_of_the_result(rng: np.random.Generator) -> None:
    """The result is of the library of a's values, whatever that of b's."""
    a, b = pair(rng, "16", "float32")
    spaces = [space for space in CPU_SPACES if space.name in ("numpy", "torch")]
    expected = made(a) @ made(b)
    for left in spaces:
        left.check()
        for right in spaces:
            found = operations.matrix(left, a) @ operations.matrix(right, b)
            assert np.array_equal(left.host(found), expected)


@pytest.mark.parametrize("mask", [cases.skewed, cases.empty_rows, cases.one_long_row, cases.banded])
def test_patterns(mask: object, rng: np.random.Generator) -> None:
    a = problem(rng, mask(rng, 13, 11), (8, 16), 0, "float32")  # type: ignore[operator]
    b = problem(rng, mask(rng, 11, 9), (16, 24), 0, "float32")  # type: ignore[operator]
    assert_close(made(a) @ made(b), *allowed_error(a.dense, b.dense, None, 1.0, 0.0, "float32"))


def test_structures() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    from hypothesis import given
    from hypothesis import strategies as st
    from strategies import CPU_EXAMPLES, check_pair, pairs, profile

    sides = st.one_of(st.integers(1, 20), st.sampled_from((31, 32, 33, 64, 65, 130)))
    scalars = st.sampled_from((0.0, 1.0, -1.0, 0.5, 3.0))

    @profile(CPU_EXAMPLES)
    @given(pairs(sides), scalars, scalars)
    def run(drawn: tuple, alpha: float, beta: float) -> None:
        check_pair(CPU_SPACES[0], *drawn, alpha, beta)

    run()
