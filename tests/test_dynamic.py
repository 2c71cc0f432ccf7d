"""DynamicPattern and DynamicArray on the CPU, and what they refuse."""

from __future__ import annotations

from typing import Any

import bsrgemm
import numpy as np
import pytest
from bsrgemm import DynamicPattern, _core
from cases import densify, kept
from spaces import CPU_SPACES, Foreign, Space, import_torch


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_follows_its_masks(space: Space, rng: np.random.Generator) -> None:
    space.check()
    pattern = DynamicPattern((12, 20), (3, 4), 11, device="cpu")
    dense = rng.standard_normal((12, 20))
    values = space.array(np.full((11, 3, 4), np.nan))
    a = pattern.array(values)
    x, z = rng.standard_normal((20, 6)), rng.standard_normal((6, 12))
    assert pattern.nnzb == 0 and pattern.counts.tolist() == [0, 0]
    masks = [rng.random((4, 5)) < density for density in (0.0, 0.3, 0.6, 1.0)]
    for mask in (*masks, *masks):
        for given in (mask, mask.astype(np.uint8) * 7, np.asfortranarray(mask)):
            pattern.update(space.array(given))
            left = kept(mask, 11)
            assert np.array_equal(pattern.to_mask(), left)
            assert pattern.counts.tolist() == [left.sum(), mask.sum() - left.sum()]
            assert pattern.dropped == mask.sum() - left.sum()
        assert pattern.gather(space.array(dense), out=values) is values
        assert (space.host(values)[left.sum() :] == 0).all()
        expected = dense * np.kron(left, np.ones((3, 4)))
        assert np.array_equal(space.host(a.todense()), expected)
        assert np.array_equal(space.host(a.T.todense()), expected.T)
        assert np.allclose(space.host(a @ space.array(x)), expected @ x)
        assert np.allclose(space.host(space.array(z) @ a), z @ expected)
        assert np.allclose(space.host(a.T @ space.array(z.T.copy())), expected.T @ z.T)
        stored = a.to_bsr()
        arrays = (space.host(stored.data), stored.indices, stored.indptr)
        assert np.array_equal(densify(*arrays, a.shape), expected)


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_sampled(space: Space, rng: np.random.Generator) -> None:
    """Both readings, with and without values to add, new results, given ones and in place."""
    space.check()
    pattern = DynamicPattern((12, 20), (3, 4), 11, device="cpu")
    a, b = rng.standard_normal((12, 7)), rng.standard_normal((7, 20))
    old = rng.standard_normal((11, 3, 4))
    for density in (0.0, 0.3, 1.0):
        mask = rng.random((4, 5)) < density
        pattern.update(space.array(mask))
        left = kept(mask, 11)
        stored = int(left.sum())
        rows, cols = left.nonzero()
        product = (a @ b).reshape(4, 3, 5, 4).transpose(0, 2, 1, 3)[rows, cols]
        x, z = space.array(a), space.array(b)
        for seen in (pattern, pattern.array(space.array(old.copy()))):
            found = bsrgemm.sampled_matmul(x, z, seen, alpha=0.5)
            assert found.pattern is pattern and not found.is_transposed
            assert np.allclose(space.host(found.data)[:stored], 0.5 * product)
            assert (space.host(found.data)[stored:] == 0).all()
        matrix, given = (
            pattern.array(space.array(old.copy())),
            pattern.array(space.array(np.full_like(old, np.nan))),
        )
        assert bsrgemm.sampled_matmul(x, z, matrix, alpha=2, beta=-1, out=given) is given
        assert np.allclose(space.host(given.data)[:stored], 2 * product - old[:stored])
        assert (space.host(given.data)[stored:] == 0).all()
        turned = matrix.T
        left, right = space.array(b.T.copy()), space.array(a.T.copy())
        assert bsrgemm.sampled_matmul(left, right, turned, beta=3.0, out=turned) is turned
        assert np.allclose(space.host(matrix.data)[:stored], product + 3 * old[:stored])
        assert (space.host(matrix.data)[stored:] == 0).all()


def test_sampled_says_what_it_takes(rng: np.random.Generator) -> None:
    pattern = DynamicPattern((8, 12), (2, 4), 5, device="cpu")
    other = DynamicPattern((8, 12), (2, 4), 5, device="cpu")
    a, b = np.zeros((8, 3)), np.zeros((3, 12))
    matrix = pattern.array(np.zeros((5, 2, 4)))
    fixed = matrix.to_bsr()
    for arguments, options, error, message in (
        ((a, b, pattern), {"beta": 1.0}, TypeError, "a DynamicPattern, which has no values"),
        ((a, b, matrix), {"out": fixed}, TypeError, "out is a bsr_array; accepted: a DynamicArray"),
        ((a, b, fixed), {"out": matrix}, TypeError, "out is a DynamicArray; accepted: a bsr_array"),
        ((a, b, other), {"out": matrix}, ValueError, "another pattern; accepted: a DynamicArray"),
        (
            (a, b, matrix),
            {"out": matrix.T},
            ValueError,
            "another pattern; accepted: a DynamicArray",
        ),
        ((a[None], b, pattern), {}, ValueError, r"a has shape \(1, 8, 3\); accepted: \(8, K\)"),
        ((a, b[:, :9], pattern), {}, ValueError, "b has shape .* but pattern has 12 columns"),
        ((a, fixed, pattern), {}, TypeError, r"b is a bsr_array; accepted: a dense array"),
        ((a.astype(np.float32), b, pattern), {}, TypeError, "dtype"),
        ((a.astype(int), b.astype(int), pattern), {}, TypeError, "a has dtype int64"),
        ((a, b, a), {}, TypeError, "accepted: a bsr_array, a DynamicArray or a DynamicPattern"),
    ):
        with pytest.raises(error, match=message):
            bsrgemm.sampled_matmul(*arguments, **options)


def test_topk(rng: np.random.Generator) -> None:
    pattern = DynamicPattern((8, 20), (2, 4), 9, device="cpu")
    scores = rng.standard_normal((4, 5)).astype(np.float32)
    for k in (0, 1, 2, 3, 9):
        pattern.update_topk(scores, k)
        mask = np.zeros((4, 5), bool)
        np.put_along_axis(mask, np.argsort(-scores, axis=1)[:, :k], True, axis=1)
        assert np.array_equal(pattern.to_mask(), kept(mask, 9))


def test_values_that_are_only_lent(rng: np.random.Generator) -> None:
    pattern = DynamicPattern((4, 12), (2, 4), 4, "cpu")
    pattern.update(np.array([[1, 0, 0], [0, 1, 1]], bool))
    values, x = rng.standard_normal((4, 2, 4)), rng.standard_normal((12, 3))
    lent, plain = pattern.array(Foreign(values)), pattern.array(values)
    assert np.array_equal(lent @ x, plain @ x)
    assert np.array_equal(lent.T @ x[:4], plain.T @ x[:4])
    copy = lent.to_bsr()
    values[:] = 0
    assert copy.data.all()


def test_torch_bfloat16() -> None:
    torch = import_torch()
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    pattern = DynamicPattern((4, 4), (2, 2), 2, device="cpu")
    pattern.update(torch.eye(2, dtype=torch.bool))
    values = pattern.gather(torch.arange(16.0).reshape(4, 4).bfloat16())
    assert values.dtype is torch.bfloat16
    assert values.tolist() == [[[0, 1], [4, 5]], [[10, 11], [14, 15]]]


def test_what_it_says() -> None:
    pattern = DynamicPattern((8, 12), (2, 4), 5, device="cpu")
    assert (pattern.shape, pattern.blocksize, pattern.grid) == ((8, 12), (2, 4), (4, 3))
    assert (pattern.capacity, pattern.device) == (5, "cpu")
    assert repr(pattern) == "<DynamicPattern 8x12, blocksize 2x4, capacity 5, cpu>"
    a = pattern.array(np.zeros((5, 2, 4), np.float32))
    assert (a.shape, a.blocksize, a.is_transposed) == ((8, 12), (2, 4), False)
    assert (a.T.shape, a.T.blocksize, a.T.is_transposed) == ((12, 8), (4, 2), True)
    assert a.T.T.data is a.data and a.pattern is pattern and a.dtype == np.float32
    assert repr(a.T) == ("<DynamicArray 12x8, blocksize 4x2, capacity 5, float32, cpu, transposed>")
    assert len(pattern.indptr) == 5 and len(pattern.indices) == 0
    with pytest.raises(TypeError, match=r"use A\.todense\(\)"):
        np.asarray(a)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((8, 12), (2, 4), 0), ValueError, "capacity is 0; accepted: from 1 to the 12 places"),
        (((8, 12), (2, 4), 13), ValueError, "capacity is 13; accepted: from 1 to the 12 places"),
        (((0, 12), (2, 4), 1), ValueError, "at least one block"),
        (((8, 12), (3, 4), 1), ValueError, "multiple of the block height"),
        (((8, 12), (0, 4), 1), ValueError, "blocksize is"),
        (((8, 12), (2, 4), 1, "tpu"), ValueError, "device is 'tpu'; accepted: "),
        (((8, 12), (2, 4), 1.5), TypeError, "capacity is 1.5; accepted: an integer"),
    ],
)
def test_malformed(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DynamicPattern(*arguments, **({"device": "cpu"} if len(arguments) == 3 else {}))


def test_malformed_operands() -> None:
    pattern = DynamicPattern((8, 12), (2, 4), 5, device="cpu")
    values = np.zeros((5, 2, 4))
    for mask, error, message in (
        (np.zeros((4, 3)), TypeError, "mask has dtype float64; accepted: bool, uint8"),
        (np.zeros((3, 4), bool), ValueError, r"mask has shape \(3, 4\); accepted: \(4, 3\)"),
    ):
        with pytest.raises(error, match=message):
            pattern.update(mask)
    scores = np.zeros((4, 3), np.float32)
    with pytest.raises(ValueError, match="k is -1"):
        pattern.update_topk(scores, -1)
    with pytest.raises(TypeError, match="scores has dtype float64"):
        pattern.update_topk(scores.astype(np.float64), 1)
    for dense, out, error, message in (
        (np.zeros((8, 11)), None, ValueError, r"dense has shape \(8, 11\); accepted: \(8, 12\)"),
        (np.zeros((8, 12), int), None, TypeError, "dense has dtype int64"),
        (np.zeros((8, 12)), np.zeros((4, 2, 4)), ValueError, "out has shape"),
        (np.zeros((8, 12)), values.astype(np.float32), TypeError, "out has dtype float32"),
        (np.zeros((8, 12)), np.broadcast_to(0.0, (5, 2, 4)), ValueError, "read-only"),
        (values_and_dense := np.zeros(96).reshape(8, 12), values_and_dense.reshape(-1)[:40]
         .reshape(5, 2, 4), ValueError, "out overlaps dense"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            pattern.gather(dense, out=out)
    for wrong, error, message in (
        (np.zeros((6, 2, 4)), ValueError, r"values has shape .*accepted: \(5, 2, 4\)"),
        (np.zeros((5, 4, 2)).transpose(0, 2, 1), ValueError, "not C-contiguous"),
        (np.zeros((5, 2, 4), int), TypeError, "int64"),
    ):
        with pytest.raises(error, match=message):
            pattern.array(wrong)
    with pytest.raises(ValueError, match="b must have 12 rows"):
        pattern.array(values) @ np.zeros((11, 2))


def test_core_types() -> None:
    with pytest.raises(TypeError, match="structure is 3, but must be a Structure"):
        _core.matmul(3, np.zeros((1, 1, 1)), np.zeros((1, 1)), np.zeros((1, 1)))
    for call in (
        lambda: _core.pattern_update(3, np.zeros((1, 1), bool)),
        lambda: _core.pattern_topk(3, np.zeros((1, 1), np.float32), 1),
        lambda: _core.pattern_gather(3, np.zeros((1, 1)), np.zeros((1, 1, 1))),
    ):
        with pytest.raises(TypeError, match="must be a DynamicStructure"):
            call()


def test_two_sparse_operands() -> None:
    pattern = DynamicPattern((8, 8), (2, 2), 5, device="cpu")
    a = pattern.array(np.zeros((5, 2, 2)))
    with pytest.raises(TypeError):
        bsrgemm.matmul(a, a)
