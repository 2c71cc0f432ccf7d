"""What outlives what: results their inputs, views their owners, exports nobody takes."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import bsrgemm
import calls
import fake_cuda
import numpy as np
import pytest
from bsrgemm import BlockMask, DynamicPattern, _core, bsr_array
from spaces import Space, import_torch


class Traced(np.ndarray):
    """An array that can be watched."""


def traced(array: np.ndarray, gone: list[str], name: str) -> np.ndarray:
    view = array.view(Traced)
    weakref.finalize(view, gone.append, name)
    return view


def test_results_outlive_their_inputs(rng: np.random.Generator) -> None:
    """Of every operation: what freed memory is used for next does not show in them."""
    space = Space()
    made = calls.calls(space, rng, "float32", (16, 16)) | calls.host_calls(space, rng)
    results = {name: call() for name, call in made.items()}
    expected = {name: calls.bits(space, result) for name, result in results.items()}
    del made
    gc.collect()
    noise = [np.full(size, np.nan, np.float32) for size in range(1, 4000, 7)]
    assert {name: calls.bits(space, result) for name, result in results.items()} == expected
    assert len(noise) == 572


def test_a_matrix_keeps_its_values_and_no_more() -> None:
    gone: list[str] = []
    data = traced(np.ones((2, 2, 2)), gone, "data")
    x = traced(np.ones((4, 3)), gone, "x")
    out = traced(np.zeros((4, 3)), gone, "out")
    a = bsr_array((data, [0, 1], [0, 1, 2]), (4, 4))
    bsrgemm.matmul(a, x, out=out)
    del x, out
    assert set(gone) == {"x", "out"}, "a product keeps its operands"
    del data
    assert "data" not in gone
    view = a.T
    del a
    assert "data" not in gone, "a view does not keep the values"
    assert np.array_equal(view @ np.ones((4, 1)), np.full((4, 1), 2.0))
    del view
    assert "data" in gone


def test_index_arrays_are_copied() -> None:
    indices, indptr = np.array([0, 1], np.int32), np.array([0, 1, 2], np.int32)
    a = bsr_array((np.ones((2, 2, 2)), indices, indptr), (4, 4))
    expected = a @ np.eye(4)
    indices[:] = 99
    indptr[:] = -5
    assert np.array_equal(a @ np.eye(4), expected)
    assert np.array_equal(a.T @ np.eye(4), expected.T)


def test_failed_calls_keep_nothing() -> None:
    gone: list[str] = []
    a = bsr_array(np.eye(4), blocksize=(2, 2))
    for wrong in ("b", "c", "out"):
        b, c, out = (
            traced(np.ones((5 if name == wrong else 4, 3)), gone, f"{wrong}: {name}")
            for name in ("b", "c", "out")
        )
        with pytest.raises(ValueError, match=f"^{wrong} has shape"):
            bsrgemm.matmul(a, b, c, out=out)
        del b, c, out
    gc.collect()
    assert len(gone) == 9


def test_views_of_structures_live_by_themselves() -> None:
    """The transposed structure belongs to its original, which it keeps."""
    a = bsr_array(np.arange(32.0).reshape(8, 4), blocksize=(2, 2))
    expected = a.T @ np.eye(8)
    data, turned = a.data, a._structure.transposed()
    del a
    gc.collect()
    nothing = np.zeros(0, np.int32)
    noise = [_core.Structure(nothing, np.zeros(5, np.int32), (8, 4), (2, 2)) for _ in range(100)]
    out = np.full((4, 8), np.nan)
    _core.matmul(turned, data, np.eye(8), out)
    assert np.array_equal(out, expected) and len(noise) == 100


def test_masks_keep_what_calls_need(rng: np.random.Generator) -> None:
    q = rng.standard_normal((1, 1, 32, 8))
    a = bsr_array(np.kron(np.eye(4), np.ones((8, 8))), blocksize=(8, 8))
    expected = bsrgemm.attention(q, q, q, block_mask=a)
    mask = BlockMask.from_bsr(a)
    del a
    gc.collect()
    assert np.array_equal(bsrgemm.attention(q, q, q, block_mask=mask), expected)


def test_a_changing_matrix_keeps_its_pattern() -> None:
    pattern = DynamicPattern((4, 4), (2, 2), 2, device="cpu")
    pattern.update(np.eye(2, dtype=bool))
    a = pattern.array(np.ones((2, 2, 2)))
    watch = weakref.ref(pattern)
    del pattern
    gc.collect()
    assert watch() is not None
    assert np.array_equal(a @ np.ones((4, 1)), np.full((4, 1), 2.0))
    del a
    gc.collect()
    assert watch() is None


class Producer:
    """Of DLPack capsules, of which it counts those that are alive."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.capsules = array, 0

    def __dlpack__(self, **options: Any) -> Any:
        self.capsules += 1
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_capsules_are_taken_and_given_back() -> None:
    """Whether the call works or fails behind the import."""
    array = np.ones((4, 3))
    producer = Producer(array)
    a = bsr_array(np.eye(4), blocksize=(2, 2))
    references = sys.getrefcount(array)
    for _ in range(10):
        a @ producer
        with pytest.raises(ValueError, match="out has shape"):
            bsrgemm.matmul(a, producer, out=np.zeros((3, 4)))
    assert producer.capsules >= 20
    assert sys.getrefcount(array) == references


def test_capsules_of_torch_are_given_back() -> None:
    torch = import_torch()
    x = torch.ones(4, 3, dtype=torch.float64)
    storage = weakref.ref(x)
    a = bsr_array(np.eye(4), blocksize=(2, 2))
    found = a @ Producer(x)
    assert np.array_equal(np.asarray(found), np.ones((4, 3)))
    del x
    gc.collect()
    assert storage() is None


def test_capsules_that_nobody_takes() -> None:
    """Of a DeviceArray: each keeps the memory until it goes itself, consumed or not."""
    script = """
        import ctypes, gc
        import numpy as np
        from bsrgemm import DeviceArray
        from fake_cuda import driver

        fake = driver()
        DeviceArray.empty((1,), "float32")
        before = fake.fake_live_objects()
        for version in (None, (1, 0)):
            array = DeviceArray.from_host(np.ones(8, np.float32))
            capsules = [array.__dlpack__(max_version=version) for _ in range(50)]
            del array
            gc.collect()
            assert fake.fake_live_objects() == before + 1, "a capsule does not keep the memory"
            del capsules[:49]
            assert fake.fake_live_objects() == before + 1
            del capsules
            gc.collect()
            assert fake.fake_live_objects() == before, "capsules keep the memory for ever"

        # As a consumer takes one: it renames the capsule, and calls the deleter when it is done.
        class Managed(ctypes.Structure):
            _fields_ = [("tensor", ctypes.c_byte * 48), ("context", ctypes.c_void_p),
                        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]

        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
        array = DeviceArray.from_host(np.ones(8, np.float32))
        capsule = array.__dlpack__()
        pointer = api.PyCapsule_GetPointer(capsule, b"dltensor")
        used = b"used_dltensor"
        api.PyCapsule_SetName(capsule, used)
        del array, capsule
        gc.collect()
        assert fake.fake_live_objects() == before + 1, "the consumer's memory is gone"
        Managed.from_address(pointer).deleter(pointer)
        assert fake.fake_live_objects() == before

        # Left for the end of the interpreter.
        left = DeviceArray.from_host(np.ones(8)).__dlpack__()
    """
    fake_cuda.run(script)


def test_views_of_device_arrays() -> None:
    script = """
        import numpy as np
        from bsrgemm import DeviceArray
        from fake_cuda import driver

        fake = driver()
        DeviceArray.empty((1,), "float32")
        before = fake.fake_live_objects()
        array = DeviceArray.from_host(np.arange(6.0))
        view = array.reshape(2, 3).reshape(3, 2)
        del array
        assert fake.fake_live_objects() == before + 1
        assert np.array_equal(view.to_host(), np.arange(6.0).reshape(3, 2))
        del view
        assert fake.fake_live_objects() == before
    """
    fake_cuda.run(script)


@fake_cuda.needs_kernels
def test_plans_go_with_their_matrices() -> None:
    """What a GPU holds of a pattern; shared by matrices, views and results of one structure."""
    script = """
        import gc
        import bsrgemm, numpy as np
        from bsrgemm import DeviceArray
        from fake_cuda import driver

        fake = driver()
        x = DeviceArray.from_host(np.ones((128, 40), np.float16))
        before = fake.fake_live_objects()
        data = DeviceArray.from_host(np.ones((3, 64, 64), np.float16))
        a = bsrgemm.bsr_array((data, [0, 1, 1], [0, 2, 3]), (128, 128))
        y = a @ x
        a.T @ x
        s = bsrgemm.softmax(a)
        held = fake.fake_live_objects()
        assert held > before + 3, "no plan was brought to the GPU"
        del a, data
        gc.collect()
        s @ x
        del s
        gc.collect()
        assert fake.fake_live_objects() == before + 1, "more than y is alive"
    """
    fake_cuda.run(script)
