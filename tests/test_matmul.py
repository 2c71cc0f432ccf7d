"""Products on the CPU, every operation over every library, dtype and pattern."""

from __future__ import annotations

import bsrgemm
import cases
import numpy as np
import operations
import pytest
from cases import DTYPES, normal, problem
from spaces import CPU_SPACES, Space

# name: (pattern, block rows, block columns, block shape, columns of the dense operand)
SHAPES = {
    "odd": (cases.uniform(0.4), 5, 7, (3, 5), 11),
    "scalar blocks": (cases.uniform(0.3), 37, 23, (1, 1), 9),
    "column blocks": (cases.uniform(0.3), 6, 9, (7, 1), 17),
    "row blocks": (cases.uniform(0.3), 9, 6, (1, 7), 18),
    "16": (cases.uniform(0.25), 9, 11, (16, 16), 33),
    "32": (cases.uniform(0.25), 6, 5, (32, 32), 70),
    "64": (cases.uniform(0.3), 4, 6, (64, 64), 100),
    "128": (cases.uniform(0.5), 2, 3, (128, 128), 257),
    "wide": (cases.uniform(0.5), 3, 2, (24, 112), 40),
    "tall": (cases.uniform(0.5), 2, 3, (130, 17), 31),
    "one column": (cases.uniform(0.4), 8, 8, (16, 16), 1),
    "empty rows": (cases.empty_rows, 9, 6, (8, 8), 13),
    "one block": (cases.one_block, 6, 7, (5, 9), 21),
    "all blocks": (cases.uniform(1.1), 4, 5, (13, 8), 25),
    "no blocks": (cases.uniform(0.0), 3, 4, (8, 4), 6),
    "one long row": (cases.one_long_row, 12, 40, (4, 4), 19),
    "skewed": (cases.skewed, 16, 24, (6, 10), 29),
    "banded": (cases.banded, 20, 20, (3, 3), 16),
    "one block is all": (cases.uniform(1.1), 1, 1, (40, 50), 60),
}


def make(rng: np.random.Generator, name: str, dtype: str) -> cases.Problem:
    pattern, rows, cols, blocksize, n = SHAPES[name]
    index_type = np.int64 if rng.integers(2) else np.int32
    return problem(rng, pattern(rng, rows, cols), blocksize, n, dtype, index_type)


@pytest.mark.parametrize("operation", operations.OPERATIONS, ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_operation(
    operation: operations.Operation, dtype: str, space: Space, rng: np.random.Generator
) -> None:
    space.check()
    for name in SHAPES:
        print(f"shape {name!r}")
        operations.check(operation, space, make(rng, name, dtype), rng)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "cols", "n"), [(0, 3, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0), (0, 0, 4)]
)
def test_zero_sizes(dtype: str, rows: int, cols: int, n: int, rng: np.random.Generator) -> None:
    p = problem(rng, np.ones((rows, cols), bool), (4, 2), n, dtype)
    for operation in operations.OPERATIONS:
        print(operation.name)
        operations.check(operation, CPU_SPACES[0], p, rng)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_blocks_scale_c(dtype: str, rng: np.random.Generator) -> None:
    """Rows without blocks are beta * c, and zero where beta is 0."""
    p = problem(rng, np.zeros((3, 4), bool), (8, 8), 10, dtype)
    a = operations.matrix(CPU_SPACES[0], p)
    c = normal(rng, (24, 10), dtype)
    found = bsrgemm.matmul(a, normal(rng, (32, 10), dtype), c, beta=2)
    assert np.array_equal(found.astype(np.float64), 2 * c.astype(np.float64))
    found = bsrgemm.matmul(
        a, normal(rng, (32, 10), dtype), out=CPU_SPACES[0].poisoned(c.shape, dtype)
    )
    assert np.array_equal(found.astype(np.float64), np.zeros(c.shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [(16, 16), (33, 7), (64, 64)])
def test_larger(dtype: str, block: tuple[int, int], rng: np.random.Generator) -> None:
    """Enough work for every thread, and columns in several panels."""
    rows, cols = 640 // block[0] + 1, 700 // block[1] + 1
    p = problem(rng, rng.random((rows, cols)) < 0.2, block, 515, dtype)
    operations.check(operations.OPERATIONS[0], CPU_SPACES[0], p, rng)


def test_infinities_and_nan_stay_in_their_rows(rng: np.random.Generator) -> None:
    """Blocks that are not stored contribute nothing, whatever the dense operand holds there."""
    data = np.ones((1, 2, 2), np.float32)
    a = bsrgemm.bsr_array((data, np.array([1]), np.array([0, 0, 1])), (4, 4))
    x = np.full((4, 3), np.nan, np.float32)
    x[2:] = 1
    assert np.array_equal(a @ x, [[0] * 3, [0] * 3, [2] * 3, [2] * 3])


def test_read_only_operands(rng: np.random.Generator) -> None:
    p = make(rng, "16", "float32")
    x = normal(rng, (p.shape[1], p.n), "float32")
    for array in (p.data, p.indices, p.indptr, x):
        array.flags.writeable = False
    found = bsrgemm.bsr_array((p.data, p.indices, p.indptr), p.shape) @ x
    expected, allowed = cases.allowed_error(p.dense, x, None, 1.0, 0.0, "float32")
    cases.assert_close(found, expected, allowed)


def test_broadcast_and_reversed_operands(rng: np.random.Generator) -> None:
    """Strides of zero and negative strides."""
    p = make(rng, "32", "float32")
    a = operations.matrix(CPU_SPACES[0], p)
    column = normal(rng, (p.shape[1], 1), "float32")
    for x in (
        np.broadcast_to(column, (p.shape[1], 6)),
        normal(rng, (p.shape[1], 6), "float32")[::-1, ::-1],
    ):
        out = np.full((p.shape[0], 6), np.nan, np.float32)
        bsrgemm.matmul(a, x, out=out[::-1])
        expected, allowed = cases.allowed_error(p.dense, x, None, 1.0, 0.0, "float32")
        cases.assert_close(out[::-1], expected, allowed)


def test_values_changed_in_place_are_seen(rng: np.random.Generator) -> None:
    p = make(rng, "16", "float64")
    a = operations.matrix(CPU_SPACES[0], p)
    x = normal(rng, (p.shape[1], p.n), "float64")
    before = a @ x
    a.data[...] *= 2
    assert np.array_equal(a @ x, 2 * before)


def test_float16_accumulates_in_float32() -> None:
    """4096 ones: float16 alone would stop growing at 2048."""
    data = np.ones((64, 1, 64), np.float16)
    a = bsrgemm.bsr_array((data, np.arange(64), np.array([0, 64])), (1, 4096))
    assert (a @ np.ones(4096, np.float16))[0] == 4096


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_any_number_of_threads(dtype: str, rng: np.random.Generator) -> None:
    p = problem(rng, rng.random((24, 20)) < 0.3, (16, 24), 193, dtype)
    a = operations.matrix(CPU_SPACES[0], p)
    x = normal(rng, (p.shape[1], p.n), dtype)
    try:
        results = []
        for count in (1, 2, 3, 7):
            bsrgemm.set_num_threads(count)
            assert bsrgemm.get_num_threads() == count
            results.append((a @ x).tobytes())
        assert len(set(results)) == 1
    finally:
        bsrgemm.set_num_threads(0)


def test_kinds_of_operands(rng: np.random.Generator) -> None:
    p = make(rng, "odd", "float32")
    with pytest.raises(
        TypeError, match="a is an ndarray and b is an ndarray; accepted: a bsr_array"
    ):
        bsrgemm.matmul(p.dense, p.dense.T)


def test_shapes_of_a_dense_left_operand(rng: np.random.Generator) -> None:
    p = make(rng, "odd", "float32")  # 15 x 35
    a = operations.matrix(CPU_SPACES[0], p)
    for x, what in (
        (np.ones((2, 16), np.float32), r"a has shape \(N, K\) = \(2, 16\), but b has 15 rows"),
        (np.ones(16, np.float32), r"a has shape \(N, K\) = \(1, 16\), but b has 15 rows"),
        (np.float32(1), r"a has shape \(\); accepted: \(\.\.\., N, K\) or \(K,\), with K = 15"),
        (np.ones((2, 2, 16), np.float32), r"a has shape \(N, K\) = \(2, 16\), but b has 15 rows"),
    ):
        with pytest.raises(ValueError, match=what):
            bsrgemm.matmul(x, a)
    x, out = np.ones((2, 15), np.float32), np.empty((2, 15), np.float32)
    with pytest.raises(ValueError, match=r"out has shape \(2, 15\); accepted: \(2, 35\)"):
        bsrgemm.matmul(x, a, out=out)
    with pytest.raises(
        TypeError,
        match="a has dtype float64, but b.data has dtype float32|"
        "b.data has dtype float32, but a has dtype float64",
    ):
        bsrgemm.matmul(x.astype(np.float64), a)
    square = np.zeros((15, 35), np.float32)
    with pytest.raises(ValueError, match="out overlaps a in memory"):
        bsrgemm.matmul(square[:, :15], a, out=square)


def test_the_four_forms_are_one_product(rng: np.random.Generator) -> None:
    """X @ A has the bits of the transpose of A.T @ X.T, whichever way the operands lie."""
    p = make(rng, "64", "float32")
    a = operations.matrix(CPU_SPACES[0], p)
    x = normal(rng, (p.n, p.shape[0]), "float32")
    found = x @ a
    assert np.array_equal(found, (a.T @ x.T).T)
    assert np.array_equal(found, np.asfortranarray(x) @ a)
    assert np.array_equal(found, x @ a.T.T)


def test_beta_without_c_and_c_without_beta(rng: np.random.Generator) -> None:
    p = make(rng, "odd", "float64")
    a = operations.matrix(CPU_SPACES[0], p)
    x, c = normal(rng, (p.shape[1], 3), "float64"), normal(rng, (p.shape[0], 3), "float64")
    assert np.array_equal(bsrgemm.matmul(a, x, c), bsrgemm.matmul(a, x, c, beta=1))
    assert np.array_equal(bsrgemm.matmul(a, x, c, beta=0), a @ x)
    with pytest.raises(ValueError, match="beta is 0.5 and c is not given"):
        bsrgemm.matmul(a, x, beta=0.5)
