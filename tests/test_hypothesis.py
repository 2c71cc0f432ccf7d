"""Random calls on the CPU: 600 of any operation (10,000 with --thorough), 500 structures."""

from __future__ import annotations

import bsrgemm
import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")
pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
pytest.importorskip("torch", reason="torch is not installed")

import support  # of tools/
from bsrgemm import bsr_array
from cases import Problem, densify
from drawn_calls import Drawn, calls, check
from drawn_products import Target
from hypothesis import given
from hypothesis import strategies as st
from spaces import CPU_SPACES, Space, import_torch
from strategies import (
    CPU_EXAMPLES,
    GPU_COLUMNS,
    GPU_SIDES,
    check_product,
    problems,
    profile,
)

SIZES = st.one_of(st.integers(1, 20), st.sampled_from((31, 32, 33, 48, 64, 65)))
COLUMNS = st.one_of(st.integers(0, 40), st.sampled_from((63, 64, 65, 100, 129)))
SCALARS = st.sampled_from((0.0, 1.0, -1.0, 0.5, 3.0))


SHARDS = 8


@pytest.mark.parametrize("shard", range(SHARDS))
def test_any_call(shard: int, request: pytest.FixtureRequest) -> None:
    """Is computed as it should, or refused with a reason."""
    import_torch()
    full = request.config.getoption("--thorough")
    spaces = st.sampled_from((CPU_SPACES[0], *CPU_SPACES))

    @profile((10_000 if full else 600) // SHARDS)
    @given(calls(SIZES, SIZES, COLUMNS), spaces)
    def run(drawn: Drawn, space: Space) -> None:
        check(drawn, space, Target())

    run()


@pytest.mark.filterwarnings("ignore")  # results that nobody wrote are compared
@pytest.mark.parametrize("name", support.CHIPS)
def test_any_call_as_on_a_gpu(name: str, request: pytest.FixtureRequest) -> None:
    """Is refused where the tests on GPUs expect it, and nowhere else; no GPU is needed for that."""
    full = request.config.getoption("--thorough")
    space = Space()
    space.device = "cuda:0"
    target = Target(on_gpu=True, hopper=name == "Hopper")

    @profile(1000 if full else 60)
    @given(calls(GPU_SIDES, GPU_SIDES, GPU_COLUMNS))
    def run(drawn: Drawn) -> None:
        try:
            check(drawn, space, target)
        except (AssertionError, bsrgemm.DeviceUnavailableError):
            # Nothing was computed: it has not been refused.
            assert drawn.refusal(target) is None

    with support.rehearsal(support.CHIPS[name]), np.errstate(all="ignore"):
        run()


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
