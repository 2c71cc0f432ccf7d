"""Batches of matrices with one pattern on the CPU, and what does not take them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bsrgemm
import numpy as np
import pytest
import value_batch_cases
from bsrgemm import bsr_array, matmul, sampled_matmul
from cases import DTYPES
from spaces import CPU_SPACES, Foreign, Space, import_torch


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("check", value_batch_cases.CHECKS, ids=lambda c: c.__name__)
def test_batch(
    check: Callable[..., None], space: Space, dtype: str, rng: np.random.Generator
) -> None:
    space.check()
    for batch in value_batch_cases.BATCHES:
        check(space, rng, dtype, batch)


def sample(batch: tuple[int, ...] = (2, 3)) -> bsr_array:
    indices, indptr = np.array([0, 2, 1]), np.array([0, 2, 3])
    values = np.random.default_rng(0).standard_normal((*batch, 3, 2, 3))
    return bsr_array((values, indices, indptr), (4, 9))


def test_shapes() -> None:
    a = sample()
    assert repr(a) == "<bsr_array 2x3x4x9, blocksize 2x3, nnzb 3, density 0.5, float64, cpu>"
    assert (a.density, a.nbytes) == (0.5, 6 * 18 * 8 + 6 * 8)
    arrays = a.data, a.indices, a.indptr
    for shape in (None, (4, 9), (2, 3, 4, 9)):
        assert bsr_array(arrays, shape).shape == (2, 3, 4, 9)
    for shape in (None, (4, 9), (2, 3, 4, 9)):
        assert bsr_array(a, shape).data is a.data and bsr_array(a, shape).shape == a.shape
    for other in (pickle.loads(pickle.dumps(a)), copy.deepcopy(a), copy.copy(a)):
        assert np.array_equal(other.todense(), a.todense())
    assert pickle.loads(pickle.dumps(a.T)).shape == (2, 3, 9, 4)
    assert a.plan(8).choice == a[0, 0].plan(8).choice
    assert np.array_equal(a.block_mask(), a[1, 2].block_mask())


def test_entries_share() -> None:
    a = sample()
    one = a[1]
    assert one.shape == (3, 4, 9) and one._structure is a._structure
    assert np.shares_memory(one.data, a.data) and a[-1, -2].shape == (4, 9)
    one.data[:] = 0
    assert not a[1].todense().any() and a[0].todense().any()
    assert a.T[0].is_transposed and a.T[0].shape == (3, 9, 4)


def test_values_of_an_unknown_library() -> None:
    a = sample()
    theirs = bsr_array((Foreign(a.data), a.indices, a.indptr), (4, 9))
    assert np.array_equal(theirs.todense(), a.todense())
    assert np.array_equal(theirs.T.copy().data, a.T.copy().data)
    assert np.array_equal(theirs.T.todense(), a.T.todense())


def test_eight_bits(rng: np.random.Generator) -> None:
    """Scales of blocks are those of all matrices."""
    dtype = pytest.importorskip("ml_dtypes").float8_e4m3fn
    values = rng.standard_normal((3, 3, 2, 3)).astype(dtype)
    indices, indptr = np.array([0, 2, 1]), np.array([0, 2, 3])
    a = bsr_array((values, indices, indptr), (4, 9))
    x, scale = rng.standard_normal((9, 5)).astype(dtype), np.array([1, 2, 4], np.float32)
    found = matmul(a, x, out_dtype="float32", a_scale=scale)
    assert found.shape == (3, 4, 5)
    for i in range(3):
        assert np.array_equal(found[i], matmul(a[i], x, out_dtype="float32", a_scale=scale))


A = sample()
X = np.ones((9, 5))
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "shape": (
        lambda: bsr_array((A.data, A.indices, A.indptr), (3, 2, 4, 9)),
        ValueError,
        r"shape is \(3, 2, 4, 9\), but data has a batch of \(2, 3\); accepted",
    ),
    "shape of a batch": (
        lambda: bsr_array(A, (3, 2, 4, 9)),
        ValueError,
        r"shape is \(3, 2, 4, 9\), but data has a batch of \(2, 3\); accepted",
    ),
    "other shape of a batch": (
        lambda: bsr_array(A, [2, 3, 5, 9]),
        ValueError,
        r"shape is \(5, 9\), but the bsr_array given has \(4, 9\)",
    ),
    "dimensions": (
        lambda: bsr_array((np.ones((2, 3)), A.indices, A.indptr), (4, 9)),
        ValueError,
        "behind up to 5 dimensions of a batch",
    ),
    "too many dimensions": (
        lambda: bsr_array((np.ones((1,) * 6 + (3, 2, 3)), A.indices, A.indptr), (4, 9)),
        ValueError,
        "at most 8 are accepted",
    ),
    "contiguity": (
        lambda: bsr_array((A.data[:, ::2], A.indices, A.indptr), (4, 9)),
        ValueError,
        "not C-contiguous",
    ),
    "two": (lambda: A @ sample().T, ValueError, r"a batch of matrices; .* such as a\[0, 0\]"),
    "broadcast": (lambda: A @ np.ones((2, 9, 5)), ValueError, r"batches of \(2, 3\), \(2,\)"),
    "too many": (
        lambda: sample((2, 1)) @ np.ones((1,) * 4 + (2, 1, 9, 5))[None],
        ValueError,
        "of 1 to 8 dimensions",
    ),
    "out": (lambda: matmul(A, X, out=np.ones((3, 2, 4, 5))), ValueError, "out has shape"),
    "sum": (lambda: A.sum(), ValueError, r"a batch of matrices; accepted here: one, such as A\["),
    "sum of rows": (lambda: A.sum(axis=1), ValueError, "a batch of matrices"),
    "patterns": (
        lambda: A + bsr_array((A.data, [1, 2, 0], A.indptr), (4, 9)),
        ValueError,
        "accepted: batches of one pattern",
    ),
    "part": (lambda: A[0:1], TypeError, "accepted: up to 2 integers"),
    "index": (lambda: A[0, 3], IndexError, r"the index 3 is out of range of 3, in \(2, 3\)"),
    "indices": (lambda: A[0, 0, 0], TypeError, "accepted: up to 2 integers"),
    "reblock": (lambda: A.reblock((1, 1)), ValueError, "a batch of matrices"),
    "stack": (lambda: bsrgemm.vstack([A, A]), ValueError, r"such as blocks\[0\]\[0, 0\]"),
    "scipy": (lambda: A.to_scipy(), ValueError, "a batch of matrices"),
    "save": (lambda: A.save(Path("nowhere")), ValueError, "a batch of matrices"),
    "sampled out": (
        lambda: sampled_matmul(np.ones((4, 2)), np.ones((2, 9)), A[0, 0], out=A),
        ValueError,
        "but the operands have a batch of",
    ),
    "sampled overlap": (
        lambda: sampled_matmul(np.ones((3, 4, 2)), np.ones((2, 9)), A[0, 0], out=A[0], beta=1.0),
        ValueError,
        r"out\.data overlaps pattern\.data",
    ),
    "sampled dimensions": (
        lambda: sampled_matmul(np.ones((1,) * 7 + (4, 2)), np.ones((2, 9)), A),
        ValueError,
        "of 2 to 7 dimensions",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def test_torch(rng: np.random.Generator) -> None:
    torch = import_torch()
    a = sample((2,))
    b = bsr_array((torch.from_numpy(a.data), a.indices, a.indptr), (4, 9))
    with pytest.raises(ValueError, match="a batch of matrices"):
        b.to_torch()
    from bsrgemm.torch import BSRLinear, linear

    with pytest.raises(ValueError, match=r"weight has shape \(2, 4, 9\), a batch of matrices"):
        BSRLinear(b)
    with pytest.raises(ValueError, match=r"weight has shape \(2, 4, 9\), a batch of matrices"):
        linear(torch.ones(1, 9, dtype=torch.float64), b)


def test_out_overlaps_values() -> None:
    """Those of another matrix of the batch, too."""
    memory = np.zeros(2 * 18 + 20)
    a = bsr_array((memory[:36].reshape(2, 3, 2, 3), A.indices, A.indptr), (4, 9))
    with pytest.raises(ValueError, match=r"out overlaps a\.data"):
        matmul(a, np.ones((9, 1)), out=memory[30:38].reshape(2, 4, 1))
