"""``sampled_matmul`` on the CPU: values, structures, and what is refused."""

from __future__ import annotations

import itertools

import bsrgemm
import cases
import numpy as np
import pytest
import sampled_cases
from bsrgemm import bsr_array, sampled_matmul
from cases import DTYPES, problem
from sampled_cases import ORDERS, Call
from spaces import CPU_SPACES, Space

SPACE = Space()

# name: (pattern, block rows, block columns, block shape, K)
SHAPES = {
    "odd": (cases.uniform(0.4), 5, 7, (3, 5), 11),
    "scalar blocks": (cases.uniform(0.3), 37, 23, (1, 1), 9),
    "16": (cases.uniform(0.25), 9, 11, (16, 16), 33),
    "narrow": (cases.uniform(0.5), 3, 40, (40, 4), 130),
    "wide": (cases.uniform(0.5), 3, 3, (5, 150), 64),
    "tall": (cases.uniform(0.6), 2, 3, (300, 20), 129),
    "64": (cases.uniform(0.4), 5, 6, (64, 64), 256),
    "no k": (cases.uniform(0.4), 4, 5, (6, 7), 0),
    "one k": (cases.uniform(0.4), 4, 5, (6, 7), 1),
    "empty rows": (cases.empty_rows, 5, 6, (16, 8), 40),
    "one block": (cases.one_block, 6, 7, (5, 9), 21),
    "all blocks": (cases.uniform(1.1), 4, 5, (12, 16), 24),
    "no blocks": (cases.uniform(0.0), 3, 4, (16, 16), 8),
    "one long row": (cases.one_long_row, 12, 40, (4, 4), 19),
    "partial": (cases.uniform(0.5), 5, 7, (3, 5), 11, 1, 3),
    "partial, tall": (cases.uniform(0.6), 3, 4, (150, 6), 9, 140, 1),
    "partial, wide": (cases.uniform(0.6), 4, 3, (2, 150), 9, 1, 141),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_shapes(space: Space, dtype: str, name: str, rng: np.random.Generator) -> None:
    space.check()
    pattern, rows, cols, blocksize, k, *cut = SHAPES[name]
    p = problem(rng, pattern(rng, rows, cols), blocksize, 0, dtype, cut=tuple(cut or (0, 0)))
    for a, b in itertools.product(ORDERS, ORDERS):
        sampled_cases.check(space, p, k, rng, Call(a=a, b=b))
    for out, transposed in itertools.product(("new", "given", "pattern"), (False, True)):
        sampled_cases.check(space, p, k, rng, Call(0.5, -2.0, transposed=transposed, out=out))
        sampled_cases.check(space, p, k, rng, Call(-1.75, transposed=transposed, out=out))
        if sampled_cases.may_change(p):
            call = Call(1.5, 0.5, transposed=transposed, out=out, changing=True)
            sampled_cases.check(space, p, k, rng, call)
            sampled_cases.check(space, p, k, rng, call._replace(beta=0.0))


@pytest.mark.parametrize(("rows", "cols"), [(0, 3), (3, 0), (0, 0)])
def test_zero_sizes(rows: int, cols: int, rng: np.random.Generator) -> None:
    p = problem(rng, np.ones((rows, cols), bool), (16, 8), 0, "float32")
    sampled_cases.check(SPACE, p, 5, rng)
    sampled_cases.check(SPACE, p, 0, rng, Call(beta=1.0, transposed=True))


def test_structures() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    from hypothesis import given
    from hypothesis import strategies as st
    from strategies import CPU_EXAMPLES, problems, profile

    sides = st.one_of(st.integers(1, 20), st.sampled_from((32, 48, 64, 130)))
    inner = st.one_of(st.integers(0, 40), st.sampled_from((127, 128, 129, 260)))
    scalars, order = st.sampled_from((0.0, 1.0, -0.5, 3.0)), st.sampled_from(ORDERS)
    calls = st.builds(
        Call,
        scalars,
        scalars,
        order,
        order,
        st.booleans(),
        st.sampled_from(("new", "pattern")),
        st.booleans(),
    )

    @profile(CPU_EXAMPLES)
    @given(problems(sides, sides, inner), calls)
    def run(drawn: tuple, call: Call) -> None:
        p, rng = drawn
        call = call._replace(changing=call.changing and sampled_cases.may_change(p))
        sampled_cases.check(SPACE, p, p.n, rng, call)

    run()


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_any_number_of_threads(dtype: str, rng: np.random.Generator) -> None:
    p = problem(rng, cases.uniform(0.3)(rng, 20, 20), (24, 20), 0, dtype)
    a, b = (cases.normal(rng, shape, dtype) for shape in ((480, 300), (300, 400)))
    pattern = bsr_array((p.data, p.indices, p.indptr), p.shape)
    before = bsrgemm.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            bsrgemm.set_num_threads(threads)
            found.append(sampled_matmul(a, b, pattern).data)
    finally:
        bsrgemm.set_num_threads(before)
    assert all(np.array_equal(x.view(np.uint8), found[0].view(np.uint8)) for x in found)


def test_result_shares_the_structure(rng: np.random.Generator) -> None:
    p = problem(rng, cases.uniform(0.5)(rng, 4, 5), (8, 4), 0, "float32")
    pattern = bsr_array((p.data, p.indices, p.indptr), p.shape)
    a, b = rng.standard_normal((32, 6)), rng.standard_normal((6, 20))
    result = sampled_matmul(a, b, pattern)  # float64 at the blocks of a float32 matrix
    assert result.dtype == np.float64
    assert result._structure is pattern._structure
    assert result.indices is pattern.indices and result.indptr is pattern.indptr
    view = sampled_matmul(b.T, a.T, pattern.T)
    assert view.is_transposed and np.array_equal(view.T.data, result.data)


def test_gradient_of_a_product(rng: np.random.Generator) -> None:
    """d(sum(dy * (A @ x))) / dA is what the docstring says."""
    mask = cases.uniform(0.5)(rng, 3, 4)
    mask[-1, -1] = True
    p = problem(rng, mask, (5, 6), 0, "float64")
    matrix = bsr_array((p.data, p.indices, p.indptr), p.shape)
    x, dy = rng.standard_normal((24, 7)), rng.standard_normal((15, 7))
    found = sampled_matmul(dy, x.T, matrix).data
    step = np.zeros_like(p.data)
    step[-1, 2, 3] = 1.0
    moved = bsr_array((p.data + step, p.indices, p.indptr), p.shape)
    change = np.sum(dy * (moved @ x)) - np.sum(dy * (matrix @ x))
    assert found[-1, 2, 3] == pytest.approx(change)


# ---- what is refused -----------------------------------------------------------------------------


def small(dtype: str = "float32", indices: tuple[int, ...] = (0, 2, 1)) -> bsr_array:
    """Two block rows of 2 x 3 blocks, of shape (4, 9)."""
    data = np.zeros((3, 2, 3), dtype)
    return bsr_array((data, np.array(indices, np.int32), np.array([0, 2, 3], np.int32)), (4, 9))


def left(dtype: str = "float32") -> np.ndarray:
    return np.ones((4, 5), dtype)


def right(dtype: str = "float32") -> np.ndarray:
    return np.ones((5, 9), dtype)


def read_only() -> bsr_array:
    matrix = small()
    matrix.data.flags.writeable = False
    return matrix


def overlapping() -> None:
    memory = np.zeros(64, np.float32)
    out = bsr_array((memory[:18].reshape(3, 2, 3), small().indices, small().indptr), (4, 9))
    sampled_matmul(memory[10:30].reshape(4, 5), right(), small(), out=out)


def shifted() -> None:
    memory = np.zeros(64, np.float32)
    arrays = small().indices, small().indptr
    pattern, out = (
        bsr_array((memory[i : i + 18].reshape(3, 2, 3), *arrays), (4, 9)) for i in (0, 4)
    )
    sampled_matmul(left(), right(), pattern, beta=1.0, out=out)


BAD = {
    "pattern": (
        lambda: sampled_matmul(left(), right(), right()),
        TypeError,
        "pattern is an ndarray; accepted: a bsr_array",
    ),
    "out": (
        lambda: sampled_matmul(left(), right(), small(), out=right()),
        TypeError,
        "out is an ndarray; accepted: a bsr_array",
    ),
    "sparse a": (
        lambda: sampled_matmul(small(), right(), small()),
        TypeError,
        r"a is a bsr_array; accepted: a dense array, so use a\.todense\(\)",
    ),
    "vector": (
        lambda: sampled_matmul(left()[0], right(), small()),
        ValueError,
        r"a has shape \(5,\); accepted: \(\.\.\., 4, K\), of 2 to 7 dimensions",
    ),
    "batches": (
        lambda: sampled_matmul(left()[None].repeat(2, 0), right()[None].repeat(3, 0), small()),
        ValueError,
        r"batches of \(2,\), \(3,\); accepted: what NumPy broadcasts to one shape",
    ),
    "rows of a": (
        lambda: sampled_matmul(left()[:3], right(), small()),
        ValueError,
        r"a has shape \(M, K\) = \(3, 5\), but pattern has 4 rows",
    ),
    "columns of b": (
        lambda: sampled_matmul(left(), right()[:, :8], small()),
        ValueError,
        r"b has shape \(K, N\) = \(5, 8\), but pattern has 9 columns",
    ),
    "inner": (
        lambda: sampled_matmul(left(), right()[:4], small()),
        ValueError,
        r"\(4, 5\) and b has shape \(K, N\) = \(4, 9\), but b must have as many rows",
    ),
    "dtype of b": (
        lambda: sampled_matmul(left(), right("float64"), small()),
        TypeError,
        "b has dtype float64, but a has dtype float32",
    ),
    "dtype of pattern": (
        lambda: sampled_matmul(left(), right(), small("float64"), beta=1.0),
        TypeError,
        r"pattern\.data has dtype float64, but a has dtype float32",
    ),
    "dtype of out": (
        lambda: sampled_matmul(left(), right(), small(), out=small("float64")),
        TypeError,
        r"out\.data has dtype float64, but a has dtype float32",
    ),
    "integers": (
        lambda: sampled_matmul(left("int32"), right("int32"), small()),
        TypeError,
        "a has dtype int32, but must have dtype float16, bfloat16, float32 or float64",
    ),
    "integers with out": (
        lambda: sampled_matmul(left("int32"), right("int32"), small(), out=small()),
        TypeError,
        "a has dtype int32, but must have dtype float16, bfloat16, float32 or float64",
    ),
    "other blocks": (
        lambda: sampled_matmul(left(), right(), small(), out=small(indices=(0, 1, 1))),
        ValueError,
        "out stores other blocks than pattern",
    ),
    "other number": (
        lambda: sampled_matmul(
            left(),
            right(),
            small(),
            out=bsr_array((np.zeros((1, 2, 3), "f4"), [0], [0, 1, 1]), (4, 9)),
        ),
        ValueError,
        "out has nnzb 1, but pattern has 3",
    ),
    "view": (
        lambda: sampled_matmul(left(), right(), small(), out=small().T.copy().T),
        ValueError,
        "out has is_transposed True, but pattern has False",
    ),
    "read-only": (
        lambda: sampled_matmul(left(), right(), small(), out=read_only()),
        ValueError,
        r"out\.data is read-only",
    ),
    "overlap": (overlapping, ValueError, r"out\.data overlaps a in memory"),
    "shifted": (shifted, ValueError, r"out\.data overlaps pattern\.data in memory without being"),
    "alpha": (
        lambda: sampled_matmul(left(), right(), small(), alpha="1"),
        TypeError,
        "alpha is a str; accepted: a real number",
    ),
    "stream": (
        lambda: sampled_matmul(left(), right(), small(), stream="1"),
        TypeError,
        "stream is a str",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_family_is_refused_on_the_cpu() -> None:
    from bsrgemm._sampled import sampled

    with pytest.raises(ValueError, match="family is 'sampled', but the operands are on cpu"):
        sampled(left(), right(), small(), family="sampled")
    with pytest.raises(
        ValueError, match="family is 'tall' .*'auto', 'sampled', 'cover', 'portable' and"
    ):
        sampled(left(), right(), small(), family="tall")
