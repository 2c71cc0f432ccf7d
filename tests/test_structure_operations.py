"""Arithmetic and structure operations on the CPU: values, patterns, sharing and refusals."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import bsrgemm
import numpy as np
import pytest
import structure_cases
from bsrgemm import bsr_array
from cases import DTYPES, Problem, numpy_dtype, problem
from operations import matrix
from precision_cases import EIGHT
from spaces import CPU_SPACES, Foreign, Space

SHAPES = (
    (6, 4, (3, 5)),
    (5, 7, (4, 2)),
    (1, 1, (1, 1)),
    (0, 3, (2, 2)),
    (3, 0, (2, 3)),
    (0, 0, (1, 4)),
)


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("check", structure_cases.CHECKS, ids=lambda c: c.__name__)
def test_operation(
    check: Callable[..., None], space: Space, dtype: str, rng: np.random.Generator
) -> None:
    space.check()
    for rows, cols, blocksize in SHAPES:
        for density in (0.0, 0.4, 1.0):
            p = problem(rng, rng.random((rows, cols)) < density, blocksize, 1, dtype)
            check(space, p, rng)
        cut = blocksize[0] - 1, blocksize[1] // 2
        mask = rng.random((rows, cols)) < 0.5
        check(space, problem(rng, mask, blocksize, 1, dtype, cut=cut), rng)


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", EIGHT)
def test_eight_bits_are_moved_not_computed_with(
    space: Space, dtype: str, rng: np.random.Generator
) -> None:
    space.check()
    for rows, cols, blocksize in SHAPES:
        p = problem(rng, rng.random((rows, cols)) < 0.4, blocksize, 1, dtype)
        for check in structure_cases.MOVES:
            check(space, p, rng)
    a = matrix(space, p)
    calls: list[Callable[[], Any]] = [
        lambda: 2 * a,
        lambda: -a,
        lambda: a / 2,
        lambda: a + a,
        lambda: a.T - a.T,
        lambda: a * a,
        lambda: a.sum(),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="arithmetic takes float16, bfloat16, float32 and"):
            call()


def test_random_structures() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    from hypothesis import given
    from hypothesis import strategies as st
    from strategies import problems, profile

    sizes = st.integers(1, 12)

    @profile(150)
    @given(problems(sizes, sizes, st.just(1)))
    def run(drawn: tuple[Problem, np.random.Generator]) -> None:
        for check in structure_cases.CHECKS:
            check(CPU_SPACES[0], *drawn)

    run()


def test_as_scipy(rng: np.random.Generator) -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    p, q = (problem(rng, rng.random((4, 6)) < 0.5, (2, 3), 1, "float64") for _ in range(2))
    a, b = matrix(CPU_SPACES[0], p), matrix(CPU_SPACES[0], q)
    s, t = a.to_scipy(), b.to_scipy()
    for ours, theirs in (
        (a + b, s + t),
        (a - b, s - t),
        (a * b, s.multiply(t)),
        (2.5 * a, 2.5 * s),
        (a / 3, s / 3),
        (-a, -s),
        (bsrgemm.vstack([a, b]), sparse.vstack([s, t])),
        (bsrgemm.hstack([a, b]), sparse.hstack([s, t])),
        (bsrgemm.block_diag([a, b]), sparse.block_diag([s, t])),
        (a[2:6, 3:12], s.tocsr()[2:6, 3:12]),
    ):
        # SciPy divides by multiplying with the reciprocal.
        assert np.allclose(ours.todense(), theirs.toarray(), rtol=1e-15, atol=0)
    for axis in (None, 0, 1, -1):
        assert np.allclose(a.sum(axis), s.sum(axis))
        assert np.shape(a.sum(axis)) == np.shape(s.sum(axis))
    assert np.array_equal(sum([a, b, a]).todense(), (s + t + s).toarray())


def test_patterns_are_shared_and_values_are_not(rng: np.random.Generator) -> None:
    p = problem(rng, rng.random((4, 6)) < 0.5, (2, 3), 1, "float32")
    a = matrix(CPU_SPACES[0], p)
    for b in (2 * a, a / 2, -a, a + a, a - a, a * a):
        assert b.indices is a.indices and b.indptr is a.indptr
        assert not np.shares_memory(a.data, b.data)
    for b in (a[:4], a[:, :9], bsrgemm.vstack([a]), a.reblock((2, 3)), a.reblock((4, 3))):
        assert not np.shares_memory(a.data, b.data)


class Named(bsr_array):
    """A subclass whose constructor takes something else."""

    def __init__(self, name: str, dense: np.ndarray) -> None:
        super().__init__(dense, blocksize=(2, 2))
        self.name = name


def test_subclasses_give_plain_matrices() -> None:
    dense = np.arange(24.0).reshape(4, 6)
    dense[:2, :2] = 0
    a, b = Named("a", dense), Named("b", np.eye(4, 6))
    results = {
        "views": (a.T, dense.T),
        "copies": (a.copy(), dense),
        "copy.copy": (copy.copy(a), dense),
        "copy.deepcopy": (copy.deepcopy(a), dense),
        "pickles": (pickle.loads(pickle.dumps(a)), dense),
        "factors": (2 * a, 2 * dense),
        "sums": (a + a, 2 * dense),
        "sums of patterns": (a + b, dense + np.eye(4, 6)),
        "differences": (a - b, dense - np.eye(4, 6)),
        "products": (a * a, dense * dense),
        "products of patterns": (a * b, dense * np.eye(4, 6)),
        "parts": (a[:2], dense[:2]),
        "parts of views": (a.T[:2], dense.T[:2]),
        "other blocks": (a.reblock((1, 3)), dense),
        "stacks": (bsrgemm.vstack([a, a]), np.vstack([dense, dense])),
    }
    for what, (found, expected) in results.items():
        assert type(found) is bsr_array and np.array_equal(found.todense(), expected), what


def test_sixteen_bit_floats_are_rounded_once() -> None:
    a = bsr_array(np.full((2, 2), 1024.0, np.float16), blocksize=(2, 2))
    assert (a * 1e-7).data[0, 0, 0] == np.float16(1024e-7) and (a / 1e6).data.dtype == np.float16
    many = bsr_array(np.ones((64, 64), np.float16), blocksize=(8, 8))
    assert many.sum() == 4096 and many.sum(0).dtype == np.float16 and many.sum().dtype == np.float16


def test_blocks_of_one_position_are_added() -> None:
    """check=False accepts unsorted and repeated block columns, which add up."""
    data = np.arange(20.0).reshape(5, 2, 2)
    a = bsr_array((data, np.array([2, 0, 2, 2, 1]), np.array([0, 4, 5])), (4, 6), check=False)
    b = bsr_array(np.ones((4, 6)), blocksize=(2, 2))
    dense = a.todense()
    for found, expected in (
        (a + b, dense + 1),
        (b - a, 1 - dense),
        (a + a, 2 * dense),
        (a * a, dense * dense),
        (a * b, dense),
        (a.reblock((4, 3)), dense),
        (a.reblock((1, 2)), dense),
        (bsrgemm.vstack([a, a]), np.vstack([dense, dense])),
        (bsrgemm.hstack([a, b]), np.hstack([dense, np.ones((4, 6))])),
        (a[:2], dense[:2]),
    ):
        assert np.array_equal(found.todense(), expected)
    assert a.sum() == dense.sum() and np.array_equal(a.sum(0), dense.sum(0))
    batch = bsr_array((data[None], a.indices, a.indptr), (4, 6), check=False)
    with pytest.raises(ValueError, match="several blocks at one place"):
        batch * batch


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_products_of_blocks_in_any_order(space: Space) -> None:
    space.check()
    data = np.arange(16.0).reshape(4, 2, 2)
    pattern = np.array([2, 0, 2, 1]), np.array([0, 2, 4])
    a = bsr_array((space.array(data), *pattern), (4, 6), check=False)
    dense = space.host(a.todense())
    ordered = bsr_array(space.array(dense), blocksize=(2, 2))
    for x, y in ((a, a), (a, ordered), (ordered, a), (a.T, a.T), (a, a.copy())):
        found = space.host((x * y).todense())
        assert np.array_equal(found, (dense * dense).T if x.is_transposed else dense * dense)
    batch = bsr_array((space.array(np.stack([data, -data])), *pattern), (4, 6), check=False)
    assert np.array_equal(space.host((batch * batch).todense()), np.stack([dense * dense] * 2))


def test_pruned_blocks() -> None:
    dense = np.zeros((4, 8))
    dense[0, 0], dense[2, 3], dense[3, 7], dense[0, 6] = 2, -3, np.nan, 3
    for count, kept in enumerate([[], [7], [3, 7], [3, 5, 7], [0, 3, 5, 7], [0, 1, 3, 5, 7]]):
        a = bsrgemm.prune(dense, (2, 2), count / 8)
        assert np.flatnonzero(a.block_mask()).tolist() == kept
    partial = bsrgemm.prune(np.ones((5, 7)), (2, 3), 0.5)
    assert partial.shape == (5, 7) and partial.nnzb == 5
    assert bsrgemm.prune(np.ones((4, 4)), (2, 2), 0.5).block_mask()[0].all()


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_pruning_compares_norms_whose_squares_leave_the_range(space: Space) -> None:
    space.check()
    pairs = ((1e-170, 3e-170), (5e-324, 1.5e-323), (1e200, 3e200), (1e-300, 1e300))
    for low, high in (*pairs, (1.2e308, 1.7e308)):
        for signs in (1, -1):
            dense = np.full((2, 6), signs * low)
            dense[:, 2:4] = high
            kept = bsrgemm.prune(space.array(dense), (2, 2), 1 / 3)
            assert kept.indices.tolist() == [1], (low, high)
    dense = np.zeros((3, 7))
    dense[0, 4], dense[0, 0], dense[0, 2] = np.inf, np.nan, 1e300
    assert bsrgemm.prune(space.array(dense), (2, 2), 3 / 8).indices.tolist() == [0, 1, 2]


def test_numpy_matrices_are_dense_matrices() -> None:
    """Which have two dimensions whatever becomes of them."""
    dense = np.diag([1.0, 2, 3, 4])
    with pytest.warns(PendingDeprecationWarning):
        given, mask = np.matrix(dense), np.matrix(np.eye(2, dtype=bool))
    kept = dense[:, :2].copy()
    assert np.array_equal(bsrgemm.prune(given, (2, 2), 0.25).todense()[2:, 2:], dense[2:, 2:])
    for a in (
        bsr_array.from_block_mask(given, mask, (2, 2)),
        bsr_array(given, blocksize=(2, 2)),
        bsrgemm.prune(given, (2, 2), 0.5),
    ):
        assert type(a.data) is np.ndarray and np.array_equal(a.todense(), dense)
        assert np.array_equal(a @ given[:, :2], dense @ kept)


def small(dtype: Any = np.float32, blocksize: tuple[int, int] = (2, 2)) -> bsr_array:
    return bsr_array(np.ones((4, 6), dtype), blocksize=blocksize)


def foreign() -> bsr_array:
    a = small()
    return bsr_array((Foreign(a.data), a.indices, a.indptr), a.shape)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: small() + 1,
            TypeError,
            r"of \+ with a bsr_array is an int; accepted: a bsr_array",
        ),
        (lambda: np.ones((4, 6)) + small(), TypeError, "is an ndarray; accepted: a bsr_array"),
        (lambda: np.ones((4, 6)) - small(), TypeError, "is an ndarray; accepted: a bsr_array"),
        (lambda: small() * np.ones(6), TypeError, "is an ndarray; accepted: a real number or"),
        (lambda: small() * "2", TypeError, "is a str; accepted: a real number or"),
        (lambda: small() * Foreign(np.ones(())), TypeError, "a Foreign; .*real number or a bsr_ar"),
        (lambda: small() * np.array("2"), TypeError, "is an ndarray; accepted: a real number or"),
        (lambda: small() * np.array(2j), TypeError, "is an ndarray; accepted: a real number or"),
        (lambda: small() + np.array(1.0), TypeError, "is an ndarray; accepted: a bsr_array"),
        (lambda: small() / np.ones(1), TypeError, "is an ndarray; accepted: a real number$"),
        (lambda: small() / small(), TypeError, "divisor of a bsr_array is a bsr_array; accepted"),
        (lambda: small() + small(np.float64), TypeError, "b has dtype float64 and a has float32"),
        (lambda: small() * small(blocksize=(4, 2)), ValueError, r"b has blocksize \(4, 2\) and a"),
        (lambda: small() - small().T, ValueError, r"b has shape \(6, 4\) and a has \(4, 6\)"),
        (lambda: small().sum(2), ValueError, "axis is 2; accepted: None, 0, 1, -1 or -2"),
        (lambda: small()[1:4], ValueError, "the row range is 1:4 in steps of 1, .*multiples of 2"),
        (lambda: small()[:, 2:5], ValueError, "the column range is 2:5 .*A.reblock"),
        (lambda: small()[::2], ValueError, "the row range is 0:4 in steps of 2"),
        (lambda: small()[0], TypeError, r"index of a bsr_array is 0; accepted: A\[r0:r1, c0:c1\]"),
        (lambda: small()[:, 0], TypeError, "the index of a bsr_array is"),
        (lambda: small()[:, :, :], TypeError, "the index of a bsr_array is"),
        (lambda: small()["a":], TypeError, "the row range is .*a slice of integers"),
        (lambda: list(small()), TypeError, "not iterable"),
        (lambda: small().reblock((3, 2))[:4, :3], ValueError, "multiples of 2, or the end"),
        (lambda: small().reblock(2), TypeError, "blocksize is 2; accepted: a pair"),
        (lambda: bsrgemm.vstack([]), ValueError, "blocks is empty; accepted: at least one"),
        (lambda: bsrgemm.vstack(small()), TypeError, "blocks is a bsr_array; accepted: a sequence"),
        (lambda: bsrgemm.hstack([np.ones((4, 6))]), TypeError, r"blocks\[0\] is an ndarray"),
        (
            lambda: bsrgemm.vstack([small(), small().T]),
            ValueError,
            r"blocks\[1\] has 4 columns and",
        ),
        (lambda: bsrgemm.hstack([small(), small().T]), ValueError, r"blocks\[1\] has 6 rows and"),
        (lambda: bsrgemm.block_diag([small(), small(np.float16)]), TypeError, "has dtype float16"),
        (lambda: bsrgemm.prune(np.ones((4, 6)), (2, 2), 1.5), ValueError, "density is 1.5; accep"),
        (lambda: bsrgemm.prune(np.ones((4, 6)), (2, 2), "1"), TypeError, "density is a str; accep"),
        (lambda: bsrgemm.prune(np.ones(4), (2, 2), 1), ValueError, r"dense has shape \(4,\); acc"),
        (lambda: bsrgemm.prune(np.ones((4, 6), int), (2, 2), 1), TypeError, "dense has dtype int"),
        (lambda: bsrgemm.prune([[1.0]], (1, 1), 1), TypeError, "dense is a list; accepted here"),
        (
            lambda: bsr_array.from_block_mask(np.ones((4, 6)), np.ones((2, 2), bool), (2, 2)),
            ValueError,
            r"mask has shape \(2, 2\); accepted: \(2, 3\)",
        ),
        (
            lambda: bsr_array.from_block_mask(np.ones((4, 6)), np.ones((2, 3)), (2, 2)),
            TypeError,
            "mask has dtype float64; accepted: bool",
        ),
        (
            lambda: bsr_array.from_block_mask(np.ones((4, 6)), np.ones((1, 3), bool), (3, 2)),
            ValueError,
            r"mask has shape \(1, 3\); accepted: \(2, 3\), an entry for each block of \(3, 2\)",
        ),
        (lambda: 2 * foreign(), TypeError, "a.data is a Foreign; accepted here: an array of NumPy"),
        (lambda: foreign() + foreign(), TypeError, "a.data is a Foreign; accepted here"),
        (lambda: foreign().sum(), TypeError, "a.data is a Foreign; accepted here"),
        (lambda: foreign()[:2], TypeError, "a.data is a Foreign; accepted here"),
        (lambda: foreign() + small(), TypeError, "b has library numpy and a has foreign"),
        (lambda: bsrgemm.vstack([foreign()]), TypeError, "Foreign; accepted here"),
    ],
)
def test_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", *DTYPES])
def test_numbers_of_numpy_are_scalars(dtype: str) -> None:
    """And its arrays of no dimensions, as of SciPy's matrices."""
    a = small()
    array = np.array(1 if dtype == "bool" else 3).astype(numpy_dtype(dtype))
    for number in (array, array[()]):
        for found in (a * number, number * a):
            assert found.dtype == np.float32 and np.array_equal(found.data, a.data * float(number))
        assert np.array_equal((a / number).data, a.data / np.float32(number))
        product = bsrgemm.matmul(a, np.ones((6, 2), np.float32), alpha=number)
        assert np.array_equal(product, np.full((4, 2), 6 * float(number)))
    total = a.astype(dtype).sum() if dtype in DTYPES else a.sum()
    assert np.array_equal((a / total).data, a.data / np.float32(24))


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_arrays_of_a_number_name_their_method(library: str) -> None:
    """Which waits for a device, so that it is not called silently."""
    xp = pytest.importorskip(library)
    a, number = small(), xp.ones(())
    for call in (
        lambda: a / number,
        lambda: a * number,
        lambda: number * a,
        lambda: bsrgemm.matmul(a, np.ones((6, 2), np.float32), alpha=number),
        lambda: bsrgemm.prune(a.todense(), (2, 2), number),
    ):
        with pytest.raises(TypeError, match=r"accepted: a real number.* Its method item\(\) gives"):
            call()


def test_sums_of_any_library() -> None:
    """Sums of rows and columns are products."""
    assert np.array_equal(foreign().sum(1), np.full(4, 6)) and foreign().sum(0).shape == (6,)


def test_numpy_asks_for_sums() -> None:
    a = small()
    assert np.sum(a) == 24 and np.array_equal(np.sum(a, axis=1), a.sum(1))
    with pytest.raises(TypeError, match="dtype is a type; accepted: None"):
        np.sum(a, dtype=float)
    with pytest.raises(TypeError, match="out is a.* ndarray; accepted: None"):
        a.sum(0, out=np.zeros(6, np.float32))


@pytest.mark.parametrize("number", [np.ma.masked, np.ma.array(2.0), np.timedelta64(2, "s")])
def test_what_only_looks_like_a_number_is_refused(number: Any) -> None:
    for call in (
        lambda: small() / number,
        lambda: bsrgemm.matmul(small(), np.ones((6, 2), np.float32), alpha=number),
    ):
        with pytest.raises(TypeError, match="accepted: a real number"):
            call()


def test_torch_gradients_are_refused() -> None:
    CPU_SPACES[1].check()
    import torch

    values = torch.ones(2, 2, 2, requires_grad=True)
    a = bsr_array((values, np.array([0, 1]), np.array([0, 1, 2])), (4, 4))
    for call in (lambda: 2 * a, lambda: a + a, lambda: a.sum(), lambda: a[:2]):
        with pytest.raises(TypeError, match="a.data requires grad"):
            call()
        with torch.no_grad():
            call()


def test_prune_sees_blocks_much_smaller_than_others() -> None:
    dense = np.zeros((1, 6))
    dense[0, 0], dense[0, 5] = 1e280, 1e-300
    assert bsrgemm.prune(dense, (1, 2), 2 / 3).indices.tolist() == [0, 2]
