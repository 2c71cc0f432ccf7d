"""500 structures on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")
pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")

from bsrgemm import bsr_array
from cases import Problem, densify
from hypothesis import given
from hypothesis import strategies as st
from spaces import CPU_SPACES
from strategies import CPU_EXAMPLES, check_product, problems, profile

SIZES = st.one_of(st.integers(1, 20), st.sampled_from((31, 32, 33, 48, 64, 65)))
COLUMNS = st.one_of(st.integers(0, 40), st.sampled_from((63, 64, 65, 100, 129)))
SCALARS = st.sampled_from((0.0, 1.0, -1.0, 0.5, 3.0))


@profile(CPU_EXAMPLES)
@given(problems(SIZES, SIZES, COLUMNS), SCALARS, SCALARS)
def test_products(drawn: tuple[Problem, np.random.Generator], alpha: float, beta: float) -> None:
    check_product(CPU_SPACES[0], *drawn, alpha, beta)


@profile(CPU_EXAMPLES)
@given(problems(st.integers(1, 9), st.integers(1, 9), st.just(0), ("float32",)))
def test_transpose_and_dense(drawn: tuple[Problem, np.random.Generator]) -> None:
    p, _ = drawn
    a = bsr_array((p.data, p.indices, p.indptr), p.shape)
    assert np.array_equal(a.todense(), p.dense)
    assert np.array_equal(a.T.todense(), p.dense.T)
    t = a.T.copy()
    assert np.array_equal(densify(t.data, t.indices, t.indptr, t.shape), p.dense.T)
    back = t.T.copy()
    assert np.array_equal(back.indices, a.indices) and np.array_equal(back.indptr, a.indptr)
    assert np.array_equal(back.data, a.data)
    if 0 not in p.shape:
        assert np.array_equal(bsr_array(p.dense, blocksize=a.blocksize).todense(), p.dense)


INDEX_ARRAYS = st.lists(st.integers(-3, 12), max_size=12)


@profile(CPU_EXAMPLES)
@given(
    INDEX_ARRAYS,
    INDEX_ARRAYS,
    st.sampled_from((np.int32, np.int64)),
    st.tuples(st.integers(-1, 9), st.integers(-1, 9)),
)
def test_any_index_arrays_are_right_or_refused(
    indices: list[int], indptr: list[int], index_type: type, blocks: tuple[int, int]
) -> None:
    """Whatever stands in the index arrays: a matrix that can be multiplied, or ValueError."""
    columns, rows = np.array(indices, index_type), np.array(indptr, index_type)
    shape = (2 * blocks[0], 3 * blocks[1])
    lengths = np.diff(rows)
    valid = (
        min(blocks) >= 0
        and len(rows) == blocks[0] + 1
        and rows[0] == 0
        and (lengths >= 0).all()
        and rows[-1] == len(columns)
        and ((columns >= 0) & (columns < blocks[1])).all()
        and all((np.diff(columns[rows[i] : rows[i + 1]]) > 0).all() for i in range(blocks[0]))
    )
    data = np.ones((len(columns), 2, 3))
    if not valid:
        with pytest.raises(ValueError, match="indptr|indices|shape"):
            bsr_array((data, columns, rows), shape)
        return
    found = bsr_array((data, columns, rows), shape) @ np.ones(shape[1])
    assert np.array_equal(found, np.repeat(3.0 * lengths, 2))
