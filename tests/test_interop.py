"""SciPy, torch and the array protocols on the CPU."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm import bsr_array, matmul
from cases import DTYPES, normal, problem
from operations import matrix
from spaces import CPU_SPACES, Foreign, import_torch


def sample(rng: np.random.Generator, dtype: str = "float64") -> cases.Problem:
    return problem(rng, rng.random((7, 5)) < 0.4, (4, 6), 9, dtype)


# ---- SciPy
# -----------------------------------------------------------------------------------------


@pytest.fixture
def sparse() -> Any:
    return pytest.importorskip("scipy.sparse", reason="SciPy is not installed")


@pytest.mark.parametrize("kind", ["bsr_array", "bsr_matrix"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scipy_round_trip(sparse: Any, kind: str, dtype: str, rng: np.random.Generator) -> None:
    p = sample(rng, dtype)
    theirs = getattr(sparse, kind)((p.data, p.indices, p.indptr), shape=p.shape)
    a = bsr_array(theirs)
    assert np.shares_memory(a.data, p.data) and a.blocksize == (4, 6) and a.shape == p.shape
    back = a.to_scipy()
    assert isinstance(back, sparse.bsr_array) and np.shares_memory(back.data, p.data)
    assert np.array_equal(back.toarray(), p.dense)
    x = normal(rng, (p.shape[1], p.n), dtype)
    expected, allowed = cases.allowed_error(p.dense, x, None, 1.0, 0.0, dtype)
    cases.assert_close(a @ x, expected, allowed)
    cases.assert_close(np.asarray(theirs @ x), expected, 4 * allowed)


def test_scipy_of_other_formats(sparse: Any, rng: np.random.Generator) -> None:
    p = sample(rng)
    for form in ("csr", "csc", "coo", "lil", "dia"):
        theirs = sparse.csr_array(p.dense).asformat(form)
        assert np.array_equal(bsr_array(theirs, blocksize=(4, 6)).todense(), p.dense)
        with pytest.raises(
            ValueError, match=f"blocksize is needed for a SciPy matrix of format '{form}'"
        ):
            bsr_array(theirs)
    ours = bsr_array(sparse.bsr_array(p.dense, blocksize=(4, 6)), blocksize=(2, 3))
    assert ours.blocksize == (2, 3) and np.array_equal(ours.todense(), p.dense)
    with pytest.raises(ValueError, match=r"SciPy array given has shape \(3,\); accepted: 2 dim"):
        bsr_array(sparse.coo_array([1.0, 0.0, 2.0]), blocksize=(1, 1))
    partial = bsr_array(sparse.csr_array(p.dense), blocksize=(5, 7))
    assert partial.shape == p.shape and np.array_equal(partial.todense(), p.dense)


def test_scipy_blocks_out_of_order_are_sorted_in_a_copy(sparse: Any) -> None:
    data = np.arange(12.0).reshape(3, 2, 2)
    theirs = sparse.bsr_array((data, np.array([2, 0, 0]), np.array([0, 3])), shape=(2, 6))
    expected = theirs.toarray()
    a = bsr_array(theirs)
    assert a.nnzb == 2 and np.array_equal(a.todense(), expected)
    assert theirs.indices.tolist() == [2, 0, 0]


def test_to_scipy_of_16_bit_floats_says_what_to_do(sparse: Any, rng: np.random.Generator) -> None:
    p = sample(rng, "float16")
    a = bsr_array((p.data, p.indices, p.indptr), p.shape)
    with pytest.raises(TypeError, match=r"float16.*astype\('float32'\)"):
        a.to_scipy()
    assert np.array_equal(a.astype("float32").to_scipy().toarray(), p.dense)


def test_scipy_integers_are_refused(sparse: Any) -> None:
    with pytest.raises(TypeError, match="data has dtype int64"):
        bsr_array(sparse.bsr_array(np.eye(4, dtype=np.int64), blocksize=(2, 2)))


# ---- torch
# -----------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return import_torch()


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_round_trip(torch: Any, dtype: str, rng: np.random.Generator) -> None:
    p = sample(rng, dtype)
    ours = matrix(CPU_SPACES[1], p)
    theirs = ours.to_torch()
    assert theirs.layout is torch.sparse_bsr and theirs.values().data_ptr() == ours.data.data_ptr()
    assert np.array_equal(theirs.to_dense().double().numpy(), p.dense)
    a = bsr_array(theirs)
    assert a.data.data_ptr() == ours.data.data_ptr() and a.dtype is getattr(torch, dtype)
    assert np.array_equal(a.todense().double().numpy(), p.dense)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_values_to_torch(torch: Any, dtype: str, rng: np.random.Generator) -> None:
    p = sample(rng, dtype)
    theirs = bsr_array((p.data, p.indices, p.indptr), p.shape).to_torch()
    assert theirs.dtype is getattr(torch, dtype)
    assert theirs.values().data_ptr() == p.data.ctypes.data
    assert np.array_equal(theirs.to_dense().double().numpy(), p.dense)


def test_torch_of_other_layouts(torch: Any, rng: np.random.Generator) -> None:
    p = sample(rng)
    dense = torch.from_numpy(p.dense)
    for theirs in (
        dense.to_sparse_csr(),
        dense.to_sparse_coo(),
        dense.to_sparse_csc(),
        dense.to_sparse_bsc((2, 2)),
        dense.to_sparse_bsc((4, 6)),
    ):
        a = bsr_array(theirs, blocksize=(4, 6))
        assert np.array_equal(a.todense().numpy(), p.dense)
        with pytest.raises(ValueError, match="blocksize is needed for a torch tensor of layout"):
            bsr_array(theirs)
    batch = torch.stack([dense, dense]).to_sparse_bsr((4, 6))
    with pytest.raises(ValueError, match="has 3 dimensions"):
        bsr_array(batch)
    with pytest.raises(ValueError, match="has 1 sparse dimensions; accepted: 2"):
        bsr_array(dense.to_sparse(1), blocksize=(4, 6))
    with pytest.raises(TypeError, match="data has dtype int8"):
        bsr_array(dense.to(torch.int8).to_sparse_csr(), blocksize=(4, 6))
    eight = dense.to(torch.float8_e4m3fn).to_sparse_csr()
    with pytest.raises(TypeError, match="accepted of 8 bits: torch.sparse_bsr, or a dense one"):
        bsr_array(eight, blocksize=(4, 6))


def test_torch_results(torch: Any, rng: np.random.Generator) -> None:
    p = sample(rng, "float32")
    a = matrix(CPU_SPACES[1], p)
    x = torch.from_numpy(normal(rng, (p.shape[1], 3), "float32"))
    y = a @ x
    assert isinstance(y, torch.Tensor) and y.dtype is torch.float32 and y.shape == (28, 3)
    numpy_result = a @ x.numpy()
    assert isinstance(numpy_result, np.ndarray) and np.array_equal(numpy_result, y.numpy())
    left = torch.from_numpy(normal(rng, (3, p.shape[0]), "float32")) @ a
    assert isinstance(left, torch.Tensor) and left.dtype is torch.float32 and left.shape[0] == 3


def test_torch_that_requires_grad(torch: Any, rng: np.random.Generator) -> None:
    p = sample(rng, "float32")
    values = torch.nn.Parameter(torch.from_numpy(p.data))
    x = torch.ones(p.shape[1], 2)
    weight = bsr_array((values, p.indices, p.indptr), p.shape)
    assert weight.data is values
    with pytest.raises(TypeError, match=r"a\.data requires grad.*detach"):
        weight @ x
    with torch.no_grad():
        expected = weight @ x
    plain = bsr_array((values.detach(), p.indices, p.indptr), p.shape)
    assert torch.equal(plain @ x, expected) and not expected.requires_grad
    for name, arguments in (
        ("b", (x.clone().requires_grad_(), None, None)),
        ("c", (x, torch.ones(28, 2, requires_grad=True), None)),
        ("out", (x, None, torch.ones(28, 2, requires_grad=True))),
    ):
        b, c, out = arguments
        with pytest.raises(TypeError, match=f"{name} requires grad.*autograd is not supported"):
            matmul(plain, b, c, out=out)


def test_no_gradient_is_dropped(torch: Any, rng: np.random.Generator) -> None:
    """But by copies, which say so."""
    p = sample(rng, "float32")
    data, dense = torch.from_numpy(p.data), torch.from_numpy(p.dense)
    values = data.clone().requires_grad_()
    a = bsr_array((values, p.indices, p.indptr), p.shape)
    batch = bsr_array((values[None], p.indices, p.indptr), p.shape)
    pattern = bsrgemm.DynamicPattern((2, 2), (1, 1), 4, device="cpu")
    dynamic = pattern.array(torch.ones(4, 1, 1, requires_grad=True))
    wanted = dense.clone().requires_grad_()
    of_data = (
        a.todense,
        a.T.todense,
        batch.todense,
        dynamic.todense,
        lambda: a.astype("float64"),
        lambda: a.T.astype("float16"),
    )
    of_dense = (lambda: bsr_array(wanted, blocksize=(4, 6)),)
    for name, functions in ((r"A\.data", of_data), ("arg", of_dense)):
        for function in functions:
            with pytest.raises(TypeError, match=f"^{name} requires grad.*under torch.no_grad"):
                function()
            with torch.no_grad():
                assert function() is not None
    with torch.no_grad():
        assert torch.equal(a.todense(), dense)
    for twin, is_detached in ((a.copy(), True), (copy.deepcopy(a), False)):
        assert twin.data.requires_grad is not is_detached
        with torch.no_grad():
            assert torch.equal(twin.todense(), dense)
    assert torch.equal(a.T.copy().todense(), dense.T)


def test_torch_to_a_gpu_that_torch_lacks(torch: Any, rng: np.random.Generator) -> None:
    a = matrix(CPU_SPACES[1], sample(rng, "float32"))
    with pytest.raises(bsrgemm.DeviceUnavailableError, match="device is cuda:99"):
        a.to("cuda:99")


def test_torch_sparse_and_lazy_operands_are_refused(torch: Any, rng: np.random.Generator) -> None:
    p = sample(rng, "float32")
    a = matrix(CPU_SPACES[1], p)
    x = torch.ones(p.shape[1], 2)
    with pytest.raises(TypeError, match="b is a torch tensor of layout torch.sparse_csr"):
        a @ x.to_sparse_csr()
    negative = torch.complex(x, x).conj().imag
    assert negative.is_neg()
    with pytest.raises(TypeError, match=r"b .*negative bit.*resolve_neg"):
        a @ negative
    with pytest.raises(TypeError, match="b.*meta"):
        a @ x.to("meta")


def test_importing_bsrgemm_imports_no_other_library() -> None:
    script = (
        "import bsrgemm, sys; loaded = {'torch', 'cupy', 'scipy', 'ml_dtypes'} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# ---- protocols
# -------------------------------------------------------------------------------------


class Unversioned(Foreign):
    """Speaks DLPack of before version 1."""

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()


class Buffer(bytearray):
    """A buffer of bytes, which has no dtype of floats."""


@pytest.mark.parametrize("kind", [Foreign, Unversioned])
def test_dlpack_objects(kind: type, rng: np.random.Generator) -> None:
    p = sample(rng, "float32")
    a = bsr_array((kind(p.data), kind(p.indices), kind(p.indptr)), p.shape)
    x = normal(rng, (p.shape[1], 8), "float32")
    expected = matrix(CPU_SPACES[0], p) @ x
    found = a @ kind(x)
    assert isinstance(found, np.ndarray) and np.array_equal(found, expected)
    assert np.array_equal(a @ kind(x[:, 0].copy()), matrix(CPU_SPACES[0], p) @ x[:, 0].copy())
    out = np.full_like(expected, np.nan)
    matmul(a, kind(x), out=kind(out))
    assert np.array_equal(out, expected)


def test_dlpack_lifetimes(rng: np.random.Generator) -> None:
    """The matrix keeps its values alive, and a product gives back every reference that it takes."""
    p = sample(rng, "float32")
    x = normal(rng, (p.shape[1], 8), "float32")
    a = bsr_array((Foreign(p.data.copy()), p.indices, p.indptr), p.shape)
    expected = matrix(CPU_SPACES[0], p) @ x
    holder = Foreign(x)
    before = sys.getrefcount(x)
    for _ in range(100):
        assert np.array_equal(a @ holder, expected)
    assert sys.getrefcount(x) == before


def test_an_interface_that_changes_while_it_is_read() -> None:
    class Changing:
        """A version of the protocol that takes the interface apart."""

        def __init__(self, interface: dict[str, Any]) -> None:
            self.interface = interface

        def __index__(self) -> int:
            self.interface.clear()
            return 3

    class Lender:
        pass

    for _ in range(50):
        lender = Lender()
        entries = {"typestr": "<f4", "shape": (4, 4), "data": (1 << 40, False), "strides": None}
        lender.__cuda_array_interface__ = entries
        entries["version"] = Changing(entries)
        with pytest.raises((TypeError, bsrgemm.DeviceUnavailableError)):
            bsrgemm.matmul(bsr_array(np.ones((4, 4), np.float32), blocksize=(2, 2)), lender)
        assert not entries


def test_buffers(rng: np.random.Generator) -> None:
    """memoryview and array.array."""
    import array

    p = sample(rng, "float64")
    a = bsr_array((memoryview(p.data), memoryview(p.indices), memoryview(p.indptr)), p.shape)
    expected = matrix(CPU_SPACES[0], p) @ np.ones(p.shape[1])
    assert np.array_equal(a @ memoryview(np.ones(p.shape[1])), expected)
    out = array.array("d", [float("nan")] * p.shape[0])
    matmul(a, array.array("d", [1.0] * p.shape[1]), out=out)
    assert np.array_equal(np.array(out), expected)
    with pytest.raises(TypeError, match="b.*uint8"):
        a @ Buffer(p.shape[1])


def test_describe() -> None:
    from bsrgemm import _core

    x = np.zeros((6, 4), np.float32)[::2, 1:]
    info = _core.describe(x, "x")
    assert (info.dtype, info.shape, info.strides, info.device) == ("float32", (3, 3), (8, 1), "cpu")
    assert info.pointer == x.ctypes.data and not info.readonly
    x.flags.writeable = False
    assert _core.describe(x).readonly
    with pytest.raises(TypeError, match="weights.*dict"):
        _core.describe({}, "weights")


def test_threads_setting() -> None:
    default = bsrgemm.get_num_threads()
    try:
        bsrgemm.set_num_threads(3)
        assert bsrgemm.get_num_threads() == 3
    finally:
        bsrgemm.set_num_threads(0)
    assert bsrgemm.get_num_threads() == default >= 1
