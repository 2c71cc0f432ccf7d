"""Matrices whose sides are no multiple of the block."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle

import bsrgemm
import numpy as np
import operations
import pytest
from bsrgemm import _core, bsr_array
from cases import DTYPES, Problem, fill_beyond, normal, problem
from operations import matrix
from partial_cases import SHAPES, make
from spaces import CPU_SPACES, Foreign, Space
from structure_cases import stored

NUMPY = CPU_SPACES[0]


@pytest.mark.parametrize("operation", operations.OPERATIONS, ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_operation(operation: operations.Operation, dtype: str, rng: np.random.Generator) -> None:
    for name, shape in SHAPES.items():
        print(f"shape {name!r}")
        operations.check(operation, NUMPY, make(shape, rng, dtype), rng)


def with_nan(p: Problem) -> bsr_array:
    """The matrix, with NaN where its blocks reach beyond it."""
    poisoned = dataclasses.replace(p, data=p.data.copy())
    fill_beyond(poisoned, np.nan)
    return bsr_array((poisoned.data, p.indices, p.indptr), p.shape, check=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_beyond_is_not_read(name: str, dtype: str, rng: np.random.Generator) -> None:
    """Products of any number of columns, on either side, have the bits that zeros there give."""
    p = make(SHAPES[name], rng, dtype)
    a, poisoned = matrix(NUMPY, p), with_nan(p)
    m, k = p.shape
    for n in (1, 3, 8, 40, 130):
        x, y = normal(rng, (k, n), dtype), normal(rng, (m, n), dtype)
        for given in (x, np.asfortranarray(x)):
            assert np.array_equal(poisoned @ given, a @ given)
            assert np.array_equal(given.T @ poisoned.T, given.T @ a.T)
        assert np.array_equal(poisoned.T @ y, a.T @ y)
        assert np.array_equal(y.T @ poisoned, y.T @ a)
    square = poisoned.T @ poisoned
    assert np.array_equal(square, a.T @ a) and np.isfinite(square.astype(np.float32)).all()
    for of, other in ((a, poisoned), (a.T, poisoned.T)):
        weights = bsrgemm.softmax(other)
        assert np.array_equal(weights.todense(), bsrgemm.softmax(of).todense())
        stored(NUMPY, weights)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_zero_beyond(dtype: str, rng: np.random.Generator) -> None:
    """Of sampled products too, whatever the operands and the old values hold."""
    p = make(SHAPES["odd"], rng, dtype)
    m, k = p.shape
    x, y = normal(rng, (m, 4), dtype), normal(rng, (4, k), dtype)
    x[0], y[:, -1] = np.inf, np.nan
    old = with_nan(p)
    with np.errstate(invalid="ignore", divide="ignore"):
        bsrgemm.sampled_matmul(x, y, old, beta=1.0, out=old)
        bsr_array((old.data, old.indices, old.indptr), p.shape)  # which looks at what is beyond
        a = matrix(NUMPY, p)
        for found in (np.inf * a, a / 0, a * np.nan, (np.inf * a.T).T):
            assert np.isnan(found.data).any() or np.isinf(found.data).any()
            bsr_array((found.data, found.indices, found.indptr), p.shape)


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_that_overflow_leave_zeros_beyond(
    space: Space, dtype: str, rng: np.random.Generator
) -> None:
    """Those of 64 bits that are infinite in the dtype that 16-bit floats and float32 have."""
    space.check()
    a = matrix(space, make(SHAPES["odd"], rng, dtype))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for found in (a * 1e300, a / 1e-300, a * -1e39, a / 5e-324, (1e300 * a.T).T, a / np.inf):
            bsr_array((found.data, found.indices, found.indptr), found.shape)
            assert pickle.loads(pickle.dumps(found)).shape == a.shape


def test_long_rows_and_many_columns(rng: np.random.Generator) -> None:
    """X in several chunks and panels, the last of which ends with a partial block."""
    mask = rng.random((8, 90)) < 0.5
    mask[:, -1] = True
    p = problem(rng, mask, (12, 128), 100, "float32", cut=(5, 1))
    for operation in operations.OPERATIONS[:2]:
        operations.check(operation, NUMPY, p, rng)


# ---- construction and other forms ---------------------------------------------------------------


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_forms(space: Space, rng: np.random.Generator) -> None:
    space.check()
    for shape in SHAPES.values():
        p = make(shape, rng, "float32")
        a = matrix(space, p)
        assert a.shape == p.shape and a.nnzb == len(p.data)
        assert a.density == a.nnzb / a.block_mask().size
        for view, dense in ((a, p.dense), (a.T, p.dense.T)):
            assert np.array_equal(space.host(view.todense()), dense)
            assert np.array_equal(stored(space, view.copy()), dense)
            assert np.array_equal(stored(space, copy.deepcopy(view)), dense)
            assert np.array_equal(stored(space, pickle.loads(pickle.dumps(view))), dense)
            assert np.array_equal(stored(space, view.astype("float64")), dense)
            made = bsr_array(view.todense(), blocksize=view.blocksize)
            assert np.array_equal(stored(space, made), dense)


def test_repr(rng: np.random.Generator) -> None:
    a = bsr_array(np.ones((5, 7)), blocksize=(2, 4))
    assert repr(a) == "<bsr_array 5x7, blocksize 2x4, nnzb 6, density 1, float64, cpu>"


def test_scipy(rng: np.random.Generator) -> None:
    """SciPy has whole blocks only: out comes a csr_array, and files have a rounded shape for it."""
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    for shape in SHAPES.values():
        p = make(shape, rng, "float64")
        a = matrix(NUMPY, p)
        for view, dense in ((a, p.dense), (a.T, p.dense.T)):
            theirs = view.to_scipy()
            assert theirs.format == "csr" and theirs.shape == view.shape
            assert np.array_equal(theirs.toarray(), dense)
            back = bsr_array(theirs, blocksize=view.blocksize)
            assert np.array_equal(stored(NUMPY, back), dense)
            file = io.BytesIO()
            view.save(file)
            file.seek(0)
            loaded = bsrgemm.load(file)
            assert loaded.shape == view.shape and np.array_equal(stored(NUMPY, loaded), dense)
            file.seek(0)
            theirs = sparse.load_npz(file)
            assert theirs.format == "bsr" and theirs.blocksize == view.blocksize
            assert np.array_equal(theirs.toarray()[: dense.shape[0], : dense.shape[1]], dense)


def test_torch(rng: np.random.Generator) -> None:
    space = CPU_SPACES[1]
    space.check()
    import torch

    p = make(SHAPES["odd"], rng, "float32")
    with pytest.raises(ValueError, match="torch's BSR tensors have whole blocks only, so use"):
        matrix(space, p).to_torch()
    dense = torch.from_numpy(p.dense)
    for sparse in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()):
        made = bsr_array(sparse, blocksize=(3, 5))
        assert made.shape == p.shape and np.array_equal(stored(space, made), p.dense)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_eight_bits(space: Space, dtype: str, rng: np.random.Generator) -> None:
    space.check()
    p = make(SHAPES["odd"], rng, dtype)
    x = normal(rng, (p.shape[1], 9), dtype)
    a = matrix(space, p)
    found = bsrgemm.matmul(a, space.array(x), out_dtype="float32")
    expected = p.dense @ x.astype(np.float64)
    assert np.allclose(space.host(found), expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(space.host(a.todense()).astype(np.float64), p.dense)
    fill_beyond(p, 1)
    with pytest.raises(ValueError, match="data has elements that are not 0"):
        matrix(space, p)


@pytest.mark.parametrize("cut", [(0, 0), (0, 2), (1, 0), (1, 2)], ids=str)
@pytest.mark.parametrize("foreign", [False, True])
def test_values_beyond_are_refused(
    cut: tuple[int, int], foreign: bool, rng: np.random.Generator
) -> None:
    shape = SHAPES["odd"]._replace(cut=cut)
    p = make(shape, rng, "float32")
    given = Foreign if foreign else np.asarray
    bsr_array((given(p.data), p.indices, p.indptr), p.shape)
    for value in (1.0, np.nan, -np.inf):
        fill_beyond(p, value)
        if cut == (0, 0):
            bsr_array((given(p.data), p.indices, p.indptr), p.shape)
            continue
        with pytest.raises(ValueError, match="data has elements that are not 0 in block (row|col)"):
            bsr_array((given(p.data), p.indices, p.indptr), p.shape)
        bsr_array((given(p.data), p.indices, p.indptr), p.shape, check=False)
    # Blocks that are not stored have nothing there.
    empty = (p.data[:0], p.indices[:0], np.zeros_like(p.indptr))
    assert not bsr_array(empty, p.shape).todense().any()


def test_parts_with_the_end() -> None:
    dense = np.arange(35.0).reshape(5, 7)
    a = bsr_array(dense, blocksize=(2, 3))
    for rows, cols in (((2, 5), (3, 7)), ((4, 5), (6, 7)), ((0, 4), (0, 6)), ((5, 5), (0, 7))):
        found = a[rows[0] : rows[1], cols[0] : cols[1]]
        assert np.array_equal(stored(NUMPY, found), dense[rows[0] : rows[1], cols[0] : cols[1]])
    with pytest.raises(ValueError, match="row range is 0:3 .*multiples of 2, or the end, in steps"):
        a[:3]


@pytest.mark.parametrize("side", [0, 1])
def test_plans(side: int, rng: np.random.Generator) -> None:
    """Families whose kernels end where the matrices do are as fast; others need copies."""
    mask = rng.random((32, 32)) < 0.2
    cut = (40, 0) if side == 0 else (0, 40)
    whole = matrix(NUMPY, problem(rng, mask, (128, 128), 1, "float16"))
    partial = matrix(NUMPY, problem(rng, mask, (128, 128), 1, "float16", cut=cut))
    before = {c["family"]: c for c in whole.plan(1024).candidates}
    after = {c["family"]: c for c in partial.plan(1024).candidates}
    copied = "with copies of " + ("out" if side == 0 else "b") + " for partial blocks"
    for family in ("tall", "stream", "portable"):
        assert before[family]["supported"] == after[family]["supported"]
        assert (copied in after[family]["reason"]) == (family == "portable")
    assert after["portable"]["seconds"] > before["portable"]["seconds"]
    assert after["tall"]["seconds"] == pytest.approx(before["tall"]["seconds"], rel=0.01)
    narrow = {c["family"]: c for c in partial.plan(8).candidates}["narrow"]
    assert narrow["supported"] and ("with copies of b" in narrow["reason"]) == (side == 1)


def elements(p: Problem) -> np.ndarray:
    """1 where a stored block has an element of the matrix."""
    return dataclasses.replace(p, data=np.ones_like(p.data)).dense


def test_plans_of_sampled_products(rng: np.random.Generator) -> None:
    """Those of Hopper need no copies of a and b; both clear what is beyond the matrix."""
    mask = rng.random((16, 16)) < 0.4
    mask[:, -1] = True
    for cut, copied in (((40, 0), "a"), ((0, 40), "b"), ((8, 24), "a and b")):
        p = problem(rng, mask, (64, 64), 0, "float16", cut=cut)
        whole = matrix(NUMPY, problem(rng, mask, (64, 64), 0, "float16")).plan_sampled(256)
        partial = matrix(NUMPY, p).plan_sampled(256)
        assert partial.useful_flops == 2 * 256 * elements(p).sum() < whole.useful_flops
        for before, after in zip(whole.candidates, partial.candidates, strict=True):
            if after["family"] == "cover":  # for other blocks
                continue
            assert before["supported"] == after["supported"] == 1
            assert before["seconds"] < after["seconds"]
            assert "zeros beyond the matrix" in after["reason"]
            portable = after["family"] == "portable"
            assert (f"with copies of {copied}, and zeros" in after["reason"]) == portable
        turned = {"a": "b", "b": "a"}.get(copied, copied)
        reason = matrix(NUMPY, p).T.plan_sampled(256).candidates[2]["reason"]
        assert f"with copies of {turned}, and zeros" in reason


def test_plans_of_two_block_sparse_matrices(rng: np.random.Generator) -> None:
    mask = rng.random((12, 12)) < 0.5
    for dtype, family, cuts in (
        ("float16", "pairs", ((64, 40), (40, 24))),
        ("float16", "pairs", ((64, 40), (40, 23))),
        ("float32", "portable", ((33, 17), (17, 0))),
        ("float32", "portable", ((0, 17), (17, 0))),
    ):
        p, q = (problem(rng, mask, (128, 128), 0, dtype, cut=cut) for cut in cuts)
        plan = matrix(NUMPY, p).plan(matrix(NUMPY, q))
        assert plan.choice == family
        met = elements(p) @ elements(q)
        assert plan.useful_flops == 2 * met.sum()
        reason = {c["family"]: c["reason"] for c in plan.candidates}[family]
        copies = family == "portable" and cuts[0][0] > 0
        assert ("with copies of out for partial blocks" in reason) == copies
        rows = family == "pairs" and (q.shape[1] % 8 != 0)
        assert ("with a copy of out, whose rows have no vectors" in reason) == rows


def test_old_gpus_are_refused(rng: np.random.Generator) -> None:
    p = make(SHAPES["odd"], rng, "float32")
    a, old = matrix(NUMPY, p), {"sm_arch": 75}
    x, out = np.ones((p.shape[1], 8), np.float32), np.ones((p.shape[0], 8), np.float32)
    left, right = np.ones((p.shape[0], 4), np.float32), np.ones((4, p.shape[1]), np.float32)
    for ask in (
        lambda: _core.matmul(a._structure, a.data, x, out, chip=old),
        lambda: _core.sampled_matmul(a._structure, left, right, a.data.copy(), chip=old),
        lambda: _core.softmax(a._structure, a.data, a.data.copy(), chip=old),
    ):
        with pytest.raises(bsrgemm.DeviceUnavailableError, match="8.0 or later"):
            ask()


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_batches(space: Space, rng: np.random.Generator) -> None:
    """All matrices of a batch are looked at, and have zeros; test_value_batch has the rest."""
    space.check()
    p = make(SHAPES["odd"], rng, "float32")
    values = np.stack([p.data, 2 * p.data])
    a = bsr_array((space.array(values), p.indices, p.indptr), p.shape)
    dense = np.stack([p.dense, 2 * p.dense]).astype(np.float32)
    assert np.array_equal(space.host(a.todense()), dense)
    assert np.array_equal(space.host(a.T.todense()), dense.swapaxes(1, 2))
    with np.errstate(invalid="ignore"):
        for found in (np.inf * a, (np.inf * a.T).T):
            bsr_array((found.data, p.indices, p.indptr), p.shape)  # looks at what is beyond
    fill_beyond(spoiled := dataclasses.replace(p, data=p.data.copy()), np.nan)
    for data in (np.stack([p.data, spoiled.data]), np.stack([spoiled.data, p.data])):
        with pytest.raises(ValueError, match="data has elements that are not 0 in block (row|col)"):
            bsr_array((space.array(data), p.indices, p.indptr), p.shape)


@pytest.mark.parametrize("shape", [(7, 8), (8, 7)])
def test_dynamic_patterns_take_whole_blocks(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="a dynamic pattern takes whole blocks alone: the number"):
        bsrgemm.DynamicPattern(shape, (4, 4), 1, device="cpu")


def test_linear_layer() -> None:
    """Values beyond the weight stay 0 through training, as their gradients are."""
    CPU_SPACES[1].check()
    import torch
    from bsrgemm.torch import BSRLinear

    dense = torch.nn.Linear(37, 21)
    layer = BSRLinear.from_linear(dense, blocksize=(8, 16), density=1.0)
    assert layer.density == 1.0 and torch.equal(
        layer.weight.copy().todense(), dense.weight.detach()
    )
    optimizer = torch.optim.AdamW([*layer.parameters()], lr=0.1)
    x = torch.randn(5, 37)
    for model in (dense, layer):
        model(x).square().sum().backward()
    assert torch.allclose(layer(x), dense(x), atol=1e-5)
    gradient = layer.weight._with_values(layer.values.grad)
    assert torch.allclose(gradient.todense(), dense.weight.grad, rtol=1e-4, atol=1e-4)
    for _ in range(3):
        optimizer.step()
    layer.prune_(0.5, optimizer)
    assert layer.values.shape[0] == 5 and layer.density == 5 / 9
    weight = layer.weight
    bsr_array((weight.data, weight.indices, weight.indptr), weight.shape)
