"""``bsr_array``: construction, attributes, other forms, files, pickles and copies."""

from __future__ import annotations

import copy
import ctypes
import io
import itertools
import mmap
import pickle
from array import array as typed_array
from pathlib import Path

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm import bsr_array
from cases import DTYPES, numpy_dtype, problem
from operations import matrix
from spaces import CPU_SPACES, Space


def sample(
    rng: np.random.Generator, dtype: str = "float32", block: tuple[int, int] = (3, 5)
) -> cases.Problem:
    return problem(rng, rng.random((6, 4)) < 0.5, block, 7, dtype)


def same(a: bsr_array, dense: np.ndarray) -> bool:
    host = a.data if isinstance(a.data, np.ndarray) else a.data.float().numpy()
    indptr = a._structure.indptr
    return np.array_equal(cases.densify(host, a._structure.indices, indptr, a.shape), dense)


def test_attributes(rng: np.random.Generator) -> None:
    p = sample(rng)
    a = bsr_array((p.data, p.indices, p.indptr), p.shape)
    nnzb = len(p.indices)
    assert a.data is p.data and a.indices is p.indices and a.indptr is p.indptr
    assert a.shape == (18, 20) and a.blocksize == (3, 5) and a.nnzb == nnzb and a.ndim == 2
    assert a.density == pytest.approx(nnzb / 24) and a.device == "cpu"
    assert a.dtype == np.float32 and isinstance(a.dtype, np.dtype)
    assert a.nbytes == p.data.nbytes + p.indices.nbytes + p.indptr.nbytes
    assert repr(a) == (
        f"<bsr_array 18x20, blocksize 3x5, nnzb {nnzb}, density {nnzb / 24:.4g}, float32, cpu>"
    )


def test_shape_is_inferred_as_in_scipy() -> None:
    data = np.ones((3, 2, 4), np.float64)
    a = bsr_array((data, np.array([1, 0, 6]), np.array([0, 1, 1, 3])))
    assert a.shape == (6, 28)
    with pytest.raises(ValueError, match="shape is not given and cannot be inferred"):
        bsr_array((data[:0], np.array([], np.int32), np.array([0, 0])))


def test_lists_are_arrays() -> None:
    a = bsr_array(([[[1.0, 2.0]], [[3.0, 4.0]]], [0, 1], [0, 1, 2]), (2, 4))
    assert np.array_equal(a.todense(), [[1, 2, 0, 0], [0, 0, 3, 4]])
    assert bsr_array((np.ones((0, 2, 2)), [], [0, 0]), (2, 2)).nnzb == 0


def test_objects_of_the_buffer_protocol_are_arrays() -> None:
    data = np.arange(1.0, 5).reshape(2, 1, 2)
    values = memoryview(typed_array("d", data.ravel())).cast("B").cast("d", (2, 1, 2))
    shared = mmap.mmap(-1, 12)
    shared[:] = np.array([0, 1, 2], np.int32).tobytes()
    for indices, indptr in (
        (typed_array("i", [0, 1]), typed_array("q", [0, 1, 2])),
        ((ctypes.c_int32 * 2)(0, 1), memoryview(shared).cast("i")),
    ):
        a = bsr_array((values, indices, indptr), (2, 4))
        assert np.array_equal(a.todense(), [[1, 2, 0, 0], [0, 0, 3, 4]])
        assert np.shares_memory(a.data, np.asarray(values))
    with pytest.raises(TypeError, match="indices has dtype float32"):
        bsr_array((data, typed_array("f", [0, 1]), [0, 1, 2]), (2, 4))
    with pytest.raises(TypeError, match="indices is a set; accepted: .*the buffer protocol"):
        bsr_array((data, {0, 1}, [0, 1, 2]), (2, 4))


def test_pattern_is_copied_and_values_are_not(rng: np.random.Generator) -> None:
    p = sample(rng)
    a = bsr_array((p.data, p.indices, p.indptr), p.shape)
    dense = p.dense
    p.indices[:] = 99
    p.indptr[:] = -1
    assert same(a, dense)
    p.data[...] = 0
    assert not a.todense().any()


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_other_forms_have_the_pattern_as_it_was_given(
    space: Space, index_type: type, tmp_path: Path, rng: np.random.Generator
) -> None:
    space.check()
    p = problem(rng, rng.random((6, 4)) < 0.5, (3, 5), 1, "float64", index_type)
    given = space.array(p.indices.copy()), space.array(p.indptr.copy())
    a = bsr_array((space.array(p.data), *given), p.shape)
    for array in given:
        array[:] = 0
    a.save(tmp_path / "a.npz")
    made = a.copy(), copy.deepcopy(a), pickle.loads(pickle.dumps(a))
    for b in (*made, bsrgemm.load(tmp_path / "a.npz")):
        for own, wanted in ((b.indices, p.indices), (b.indptr, p.indptr)):
            assert np.array_equal(own, wanted) and index_type.__name__ in str(own.dtype)
        assert np.array_equal(space.host(b.todense()) if b in made else b.todense(), p.dense)
    assert all(type(b.indices) is type(given[0]) for b in made)
    pytest.importorskip("scipy", reason="SciPy is not installed")
    assert np.array_equal(a.to_scipy().toarray(), p.dense)


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_round_trip(space: Space, dtype: str, rng: np.random.Generator) -> None:
    space.check()
    p = sample(rng, dtype)
    dense = space.array(p.dense.astype(numpy_dtype(dtype)))
    a = bsr_array(dense, blocksize=(3, 5))
    assert a.nnzb == len(p.indices)
    assert np.array_equal(a.indices, p.indices) and np.array_equal(a.indptr, p.indptr)
    assert type(a.data) is type(dense) and a.dtype == dense.dtype
    for back in (a.todense(), a.toarray()):
        assert np.array_equal(space.host(back).astype(np.float64), p.dense)


def test_dense_keeps_blocks_with_nan_and_drops_negative_zero() -> None:
    dense = np.zeros((4, 6))
    dense[0, 0], dense[3, 5], dense[2, 2] = -0.0, np.nan, np.inf
    a = bsr_array(dense, blocksize=(2, 2))
    assert np.array_equal(a.indptr, [0, 0, 2]) and np.array_equal(a.indices, [1, 2])
    assert np.array_equal(a.todense(), dense, equal_nan=True)


@pytest.mark.parametrize("order", ["F", "strided"])
def test_dense_of_any_strides(order: str, rng: np.random.Generator) -> None:
    p = sample(rng)
    dense = np.asfortranarray(p.dense) if order == "F" else np.repeat(p.dense, 2, axis=1)[:, ::2]
    assert np.array_equal(bsr_array(dense, blocksize=(6, 10)).todense(), p.dense)


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_transpose(space: Space, dtype: str, rng: np.random.Generator) -> None:
    """A view of the values, which other forms copy."""
    space.check()
    p = sample(rng, dtype)
    a = matrix(space, p)
    view = a.T
    assert view.is_transposed and view.shape == p.shape[::-1] and view.blocksize == (5, 3)
    assert view.nnzb == a.nnzb and view.dtype == a.dtype and repr(view).endswith("transposed>")
    assert not view.T.is_transposed and view.T.data is a.data and view.T.shape == p.shape
    for other in (view, bsr_array(view), view.astype("float64"), pickle.loads(pickle.dumps(view))):
        assert other.is_transposed
        assert np.array_equal(space.host(other.todense()).astype(np.float64), p.dense.T)
    for name in ("data", "indices", "indptr"):
        with pytest.raises(AttributeError, match=f"has no {name}: .*Use view.T.{name}, or view.c"):
            getattr(view, name)
    made = view.copy()
    assert not made.is_transposed and type(made.data) is type(space.array(p.data))
    assert np.array_equal(space.host(made.todense()).astype(np.float64), p.dense.T)
    a.data[0] = 7  # seen by the view alone
    assert not np.array_equal(space.host(view.todense()), space.host(made.todense()))


def test_files_and_other_forms_of_a_transposed_view(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    p = sample(rng)
    view = matrix(CPU_SPACES[0], p).T
    view.save(tmp_path / "view.npz")
    assert np.array_equal(bsrgemm.load(tmp_path / "view.npz").todense(), p.dense.T)
    pytest.importorskip("scipy")
    assert np.array_equal(view.to_scipy().toarray(), p.dense.T)


@pytest.mark.parametrize("transposed", [False, True])
def test_values_that_are_exchanged_have_blocks_of_the_same_sides(transposed: bool) -> None:
    """Whoever holds them may give them other memory, as torch's modules do."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    made = bsrgemm.bsr_array((torch.ones(3, 2, 4), [0, 2, 1], [0, 2, 3]), shape=(4, 12))
    a = made.T if transposed else made
    made.data.data = torch.full((3, 2, 4), 2.0)
    assert float(a.sum()) == 48 and float(a[:4].sum()) == (16 if transposed else 48)
    for shape in ((3, 4, 2), (3, 1, 4), (2, 2, 4)):
        made.data.data = torch.ones(shape)
        for call in (
            lambda: repr(a),
            lambda: a.todense(),
            lambda: a + a,
            lambda: a[:4],
            lambda: a.reblock((1, 1)),
            lambda: a.sum(),
            lambda: a.to_scipy(),
            lambda: bsrgemm.softmax(a),
            lambda: (
                bsrgemm.sampled_matmul(torch.ones(a.shape), torch.ones(12, 12), a, beta=1.0)
                if not transposed
                else a.sum()
            ),
        ):
            with pytest.raises(ValueError, match=r"data has (blocks of|2 blocks)"):
                call()


def test_empty_matrices() -> None:
    for shape in ((0, 0), (0, 6), (4, 0), (4, 6)):
        a = bsr_array(
            (np.ones((0, 2, 3)), np.zeros(0, np.int32), np.zeros(shape[0] // 2 + 1, np.int32)),
            shape,
        )
        assert a.nnzb == 0 and a.density == 0.0 and a.todense().shape == shape
        assert a.T.shape == shape[::-1] and not a.todense().any()
        assert bsr_array(np.zeros(shape), blocksize=(2, 3)).nnzb == 0


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_unchecked_contents(space: Space) -> None:
    """check=False accepts unsorted and repeated block columns, which add up as in SciPy."""
    space.check()
    values = np.arange(20.0).reshape(5, 2, 2)
    data, x = space.array(values), np.arange(6.0)
    a = bsr_array((data, np.array([2, 0, 2, 2, 1]), np.array([0, 4, 5])), (4, 6), check=False)
    dense = np.zeros((4, 6))
    dense[:2, 4:], dense[:2, :2], dense[2:, 2:4] = values[[0, 2, 3]].sum(0), values[1], values[4]
    assert np.array_equal(space.host(a @ space.array(x)), dense @ x)
    assert np.array_equal(space.host(a.todense()), dense)
    assert np.array_equal(space.host(a.T.todense()), dense.T)
    for of in (a, a.T):
        for b in (pickle.loads(pickle.dumps(of)), copy.deepcopy(of)):
            assert np.array_equal(space.host(b.todense()), space.host(of.todense()))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("columns", [3, 40, 700])
def test_unsorted_and_repeated_columns(dtype: str, columns: int, rng: np.random.Generator) -> None:
    """Of wide matrices, too, whose columns the CPU would otherwise meet chunk by chunk."""
    height, width, rows = int(rng.integers(1, 20)), int(rng.integers(1, 20)), 4
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 2 * columns, rows))])
    indices = rng.integers(0, columns, indptr[-1])
    shape = rows * height - int(rng.integers(height)), columns * width - int(rng.integers(width))
    data = rng.standard_normal((len(indices), height, width)).astype(dtype)
    dense = np.zeros((rows, height, columns, width))
    for row, (begin, end) in enumerate(itertools.pairwise(indptr)):
        for block in range(begin, end):
            data[block, shape[0] - row * height :] = 0
            data[block, :, shape[1] - indices[block] * width :] = 0
            dense[row, :, indices[block]] += data[block]
    dense = dense.reshape(rows * height, -1)[: shape[0], : shape[1]]
    a = bsr_array((data, indices, indptr), shape, check=False)
    for n in (1, 17, 64):
        x, y = (rng.standard_normal((side, n)).astype(dtype) for side in a.shape[::-1])
        for found, expected in ((a @ x, dense @ x), (a.T @ y, dense.T @ y), (y.T @ a, y.T @ dense)):
            error = np.linalg.norm(found - expected)
            assert error <= 20 * np.finfo(dtype).eps * np.linalg.norm(expected)


@pytest.mark.parametrize("height, width", [(1, 3), (5, 4), (64, 64)])
def test_views_of_unsorted_columns_are_in_order(
    height: int, width: int, rng: np.random.Generator
) -> None:
    mask = rng.random((4, 7)) < 0.6
    indices = np.concatenate([rng.permutation(np.flatnonzero(row)) for row in mask])
    indptr = np.concatenate([[0], mask.sum(1).cumsum()])
    data = rng.standard_normal((len(indices), height, width))
    a = bsr_array((data, indices, indptr), (4 * height, 7 * width), check=False)
    b = bsr_array(rng.standard_normal((a.shape[0], 90)), blocksize=(height, 3))
    dense = a.todense()
    np.testing.assert_allclose(a.T @ b, dense.T @ b.todense(), atol=1e-12)
    x = rng.standard_normal((a.shape[0], 9))
    np.testing.assert_allclose(a.T @ x, dense.T @ x, atol=1e-12)


def test_what_needs_ascending_columns(rng: np.random.Generator) -> None:
    ones = np.ones((3, 2, 2))
    repeated = bsr_array((ones, [0, 0, 1], [0, 2, 3]), (4, 4), check=False)
    unsorted = bsr_array((ones, [1, 0, 1], [0, 2, 3]), (4, 4), check=False)
    fine = bsr_array((ones, [0, 1, 1], [0, 2, 3]), (4, 4), check=False)
    assert np.array_equal((fine @ fine), fine.todense() @ fine.todense())
    # Of a view the columns are in order, but b is read by what it views.
    assert np.array_equal(unsorted.T @ fine, unsorted.todense().T @ fine.todense())
    for a, b, message in (
        (repeated, fine, "a has block columns that are repeated"),
        (fine, repeated, "b has block columns that are repeated"),
        (unsorted, fine, "a has block columns that are unsorted"),
        (fine.T, repeated.T, "b has block columns that are repeated"),
        (fine.T, unsorted.T, "b has block columns that are unsorted"),
    ):
        with pytest.raises(ValueError, match=f"{message} within a block row.*ascend strictly"):
            a @ b
    for found in (bsrgemm.softmax(repeated), bsrgemm.softmax(unsorted)):
        assert np.allclose(found.data[:2], 0.25) and np.allclose(found.data[2], 0.5)
    partial = np.ones((2, 2, 2))
    partial[0, :, 1] = 0
    with pytest.raises(ValueError, match="a has block columns that are unsorted"):
        bsrgemm.softmax(bsr_array((partial, [1, 0], [0, 2]), (2, 3), check=False))


def test_zeros_beyond_unsorted_columns() -> None:
    """Whatever was in the memory before."""
    values = np.full((3, 2, 2), np.nan)
    values[1:] = 1
    values[0, :, 0] = 1
    a = bsr_array((values, [2, 0, 1], [0, 3]), (2, 5), check=False)
    into = a._with_values(np.full_like(values, np.nan))
    b = np.ones((4, 5))
    found = bsrgemm.sampled_matmul(np.ones((2, 4)), b, a, out=into).data
    assert (found[0] == [[4, 0], [4, 0]]).all() and (found[1:] == 4).all()
    found = bsrgemm.softmax(a.T).T.data
    assert (found[0] == [[0.5, 0], [0.5, 0]]).all() and (found[1:] == 0.5).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_astype(dtype: str, rng: np.random.Generator) -> None:
    p = sample(rng, "float32")
    a = bsr_array((p.data, p.indices, p.indptr), p.shape)
    numpy_dtype(dtype)
    b = a.astype(dtype)
    assert b.dtype.name == dtype and b.indices is a.indices
    assert not np.shares_memory(a.data, b.data)
    assert np.array_equal(b.data.astype(np.float64), p.data.astype(b.dtype).astype(np.float64))
    assert a.astype(np.float64).dtype == np.float64 and a.astype(np.dtype("f2")).dtype == np.float16


def test_to_the_same_device_is_itself(rng: np.random.Generator) -> None:
    p = sample(rng)
    a = bsr_array((p.data, p.indices, p.indptr), p.shape)
    assert a.to("cpu") is a
    with pytest.raises(ValueError, match="device is 'tpu'; accepted: 'cpu', 'cuda'"):
        a.to("tpu")


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_and_pickles(space: Space, dtype: str, rng: np.random.Generator) -> None:
    space.check()
    p = sample(rng, dtype)
    a = matrix(space, p)
    shallow = copy.copy(a)
    assert shallow.data is a.data and shallow is not a
    deep = [a.copy(), copy.deepcopy(a), pickle.loads(pickle.dumps(a))]
    before = p.dense
    a.data[...] = 0
    a.indices[...] = 0
    for b in deep:
        assert type(b.data) is type(a.data) and b.dtype == a.dtype
        assert np.array_equal(space.host(b.todense()).astype(np.float64), before)
    assert not shallow.todense().any()


def test_from_bsr_array(rng: np.random.Generator) -> None:
    p = sample(rng)
    a = matrix(CPU_SPACES[0], p)
    assert bsr_array(a).data is a.data and bsr_array(a, (18, 20), blocksize=(3, 5)).nnzb == a.nnzb
    with pytest.raises(ValueError, match=r"shape is \(18, 21\), but the bsr_array given has"):
        bsr_array(a, (18, 21))
    with pytest.raises(ValueError, match=r"blocksize is \(1, 1\), but the bsr_array given has"):
        bsr_array(a, blocksize=(1, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_npz_round_trip(
    dtype: str, index_type: type, tmp_path: Path, rng: np.random.Generator
) -> None:
    p = problem(rng, rng.random((5, 6)) < 0.4, (4, 3), 1, dtype, index_type)
    a = bsr_array((p.data, p.indices, p.indptr), p.shape)
    a.save(tmp_path / "a.npz")
    b = bsrgemm.load(tmp_path / "a.npz")
    assert b.shape == a.shape and b.dtype == a.dtype and b.indices.dtype == index_type
    assert np.array_equal(b.data.view(np.uint8), a.data.view(np.uint8))
    assert np.array_equal(b.indices, a.indices) and np.array_equal(b.indptr, a.indptr)
    buffer = io.BytesIO()
    a.save(buffer)
    buffer.seek(0)
    assert same(bsrgemm.load(buffer), p.dense)


def test_npz_of_torch_values(tmp_path: Path, rng: np.random.Generator) -> None:
    CPU_SPACES[1].check()
    for dtype in DTYPES:
        p = sample(rng, dtype)
        matrix(CPU_SPACES[1], p).save(str(tmp_path / dtype))
        b = bsrgemm.load(str(tmp_path / f"{dtype}.npz"))
        assert b.dtype.name == dtype and same(b, p.dense)


@pytest.mark.parametrize("dtype", DTYPES)
def test_npz_of_scipy(dtype: str, tmp_path: Path, rng: np.random.Generator) -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    p = sample(rng, dtype)
    bsr_array((p.data, p.indices, p.indptr), p.shape).save(tmp_path / "ours.npz")
    theirs = sparse.load_npz(tmp_path / "ours.npz")
    assert isinstance(theirs, sparse.bsr_array) and theirs.blocksize == (3, 5)
    assert np.array_equal(theirs.toarray().astype(np.float64), p.dense)
    for kind, compressed in ((sparse.bsr_array, True), (sparse.bsr_matrix, False)):
        sparse.save_npz(tmp_path / "theirs.npz", kind(theirs), compressed=compressed)
        assert same(bsrgemm.load(tmp_path / "theirs.npz"), p.dense)


def test_npz_of_unsorted_blocks(tmp_path: Path, rng: np.random.Generator) -> None:
    """As SciPy's conversions and products of BSR matrices leave them."""
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    data, indices = rng.standard_normal((5, 2, 3)), np.array([2, 0, 1, 1, 0])
    theirs = sparse.bsr_array((data, indices, np.array([0, 3, 3, 5])), shape=(6, 9))
    sparse.save_npz(tmp_path / "theirs.npz", theirs)
    ours = bsrgemm.load(tmp_path / "theirs.npz")
    assert ours.nnzb == 5 and np.array_equal(ours.todense(), theirs.toarray())
    # And duplicates, which are added, as they are of a matrix.
    for kind in (np.float32, np.float64):
        arrays = data.astype(kind), np.array([1, 0, 1, 2, 2]), np.array([0, 3, 3, 5])
        repeated = sparse.bsr_array(arrays, shape=(6, 9))
        sparse.save_npz(tmp_path / "repeated.npz", repeated)
        ours, expected = bsrgemm.load(tmp_path / "repeated.npz"), bsr_array(repeated)
        assert ours.nnzb == 3 and ours.indices.tolist() == [0, 1, 2]
        assert ours.indptr.tolist() == [0, 2, 2, 3] and ours.indptr.dtype == expected.indptr.dtype
        assert np.array_equal(ours.data, expected.data)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float64"])
def test_npz_of_repeated_blocks(dtype: str, tmp_path: Path) -> None:
    """They are added in the dtype of the file: float32 for those that files do not have."""
    values = np.arange(24).reshape(4, 2, 3).astype(numpy_dtype(dtype))
    repeated = bsr_array((values, np.array([1, 0, 1, 0]), np.array([0, 3, 4])), (4, 6), check=False)
    repeated.save(tmp_path / "repeated.npz")
    found = bsrgemm.load(tmp_path / "repeated.npz")
    wide = values.astype(np.float64)
    expected = np.stack([wide[1], wide[0] + wide[2], wide[3]]).astype(values.dtype)
    assert found.dtype == values.dtype and found.indices.tolist() == [0, 1, 0]
    assert np.array_equal(found.data.view(np.uint8), expected.view(np.uint8))


def test_plan(rng: np.random.Generator) -> None:
    p = problem(rng, rng.random((8, 8)) < 0.5, (64, 64), 1, "float16")
    plan = bsr_array((p.data, p.indices, p.indptr), p.shape).plan(4096)
    nnzb = len(p.indices)
    assert plan.useful_flops == 2 * nnzb * 64 * 64 * 4096
    supported = [c for c in plan.candidates if c["supported"]]
    assert plan.seconds == min(c["seconds"] for c in supported) > 0
    assert plan.choice in [c["family"] for c in supported] and plan.choice in repr(plan)
    table = plan.explain()
    assert all(c["family"] in table for c in plan.candidates) and f"* {plan.choice}" in table
    with pytest.raises(ValueError, match="n is -1"):
        bsr_array((p.data, p.indices, p.indptr), p.shape).plan(-1)


@pytest.mark.parametrize("n", [1, 4, 16])
def test_plan_of_few_columns(rng: np.random.Generator, n: int) -> None:
    """Where A's bytes are what counts, it is streamed."""
    for order, block in ((4096, 16), (4096, 32), (8192, 64), (8192, 128)):
        mask = rng.random((order // block, order // block)) < 0.25
        p = problem(rng, mask, (block, block), 1, "float16")
        plan = bsr_array((p.data, p.indices, p.indptr), p.shape).plan(n)
        assert plan.choice == "narrow" and "narrow" in plan.explain()
        chosen = next(c for c in plan.candidates if c["family"] == "narrow")
        assert chosen["hbm_bytes"] >= p.data.nbytes
        assert p.data.nbytes / 4.2e12 < plan.seconds < p.data.nbytes / 2e12 + 8e-6


@pytest.mark.parametrize("n", [1, 4])
def test_plan_of_few_columns_of_any_dtype_and_block(rng: np.random.Generator, n: int) -> None:
    """A few columns at a time, near what it takes to read A."""
    for dtype, block in (("float32", 4), ("float32", 6), ("float64", 3), ("float16", 4)):
        mask = rng.random((4096 // block, 4096 // block)) < 0.1
        p = problem(rng, mask, (block, block), 1, dtype)
        a = bsr_array((p.data, p.indices, p.indptr), p.shape)
        for plan in (a.plan(n), a.T.plan(n)):
            assert plan.choice == "portable" and "a few columns at a time" in plan.explain()
            assert plan.seconds < p.data.nbytes / 0.3e12 + 8e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("block", [8, 16, 32, 64])
def test_plan_of_few_columns_of_wide_types(
    rng: np.random.Generator, block: int, dtype: str
) -> None:
    """Where A's bytes are what counts, on Hopper, and rows of X are whole units of 16 bytes or are
    copied to such."""
    mask = rng.random((4096 // block, 4096 // block)) < 0.25
    p = problem(rng, mask, (block, block), 1, dtype)
    a = bsr_array((p.data, p.indices, p.indptr), p.shape)
    for plan in (a.plan(8), a.plan(32), a.T.plan(8), a.T.plan(32)):
        assert plan.choice == "narrow"
    assert a.plan(9).choice == "align" and "as narrow on aligned copies" in a.plan(9).explain()
    for plan in (a.plan(8, chip={"sm_arch": 80}), a.plan(2048)):
        assert plan.choice == "portable"


def test_plan_says_why_a_product_is_not_narrow(rng: np.random.Generator) -> None:
    def why(blocksize: tuple[int, int], n: int, dtype: str) -> str:
        p = problem(rng, np.ones((2, 2), bool), blocksize, 1, dtype)
        plan = bsr_array((p.data, p.indices, p.indptr), p.shape).plan(n)
        candidate = next(c for c in plan.candidates if c["family"] == "narrow")
        return "" if candidate["supported"] else candidate["reason"]

    assert why((16, 16), 64, "float16") == ""
    assert why((16, 16), 520, "float16") == "needs at most 512 columns"
    assert why((16, 16), 72, "float16") == ""
    assert "multiples of 16 bytes, for more than 64 columns" in why((16, 16), 65, "float16")
    assert why((16, 12), 8, "float16") == "needs a block width that is a multiple of 8"
    assert why((16, 16), 8, "float32") == why((16, 16), 8, "float64") == ""
    assert why((16, 10), 8, "float32") == "needs a block width that is a multiple of 4"
    assert why((16, 5), 8, "float64") == "needs a block width that is a multiple of 2"
    assert "rows or columns of b that begin at multiples of 16 bytes" in why((16, 16), 5, "float32")
    assert why((64, 64), 64, "float8_e4m3fn") == why((16, 48), 8, "float8_e5m2") == ""
    assert "width that is a multiple of 16" in why((64, 40), 8, "float8_e5m2")
