"""DLPack's capsules, in and out: their versions, and flags that say what memory may be written."""

from __future__ import annotations

import ctypes
from typing import Any

import fake_cuda
import numpy as np
import pytest
from bsrgemm import _core, bsr_array, matmul
from spaces import Foreign

READ_ONLY, COPIED, SUBBYTE_PADDED = 1, 2, 4
CPU, FLOAT = 1, 2


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def capsule(pointer: Any, name: bytes) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    return new(ctypes.addressof(pointer), name, None)


class Flagged(Foreign):
    """An array that comes with these flags, and what its producer was asked."""

    def __init__(self, array: np.ndarray, flags: int, version: tuple[int, int] = (1, 0)) -> None:
        super().__init__(array)
        assert array.dtype == np.float32 and array.flags.c_contiguous
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        tensor = Tensor(array.ctypes.data, (CPU, 0), array.ndim, FLOAT, 32, 1, shape)
        self.managed = Versioned(version, flags=flags, tensor=tensor)
        self.asked: list[dict[str, Any]] = []

    def __dlpack__(self, **keywords: Any) -> Any:
        self.asked.append(keywords)
        return capsule(self.managed, b"dltensor_versioned")


class Older(Flagged):
    """Of before version 1: without keywords that came with it."""

    def __dlpack__(self, **keywords: Any) -> Any:
        self.asked.append(keywords)
        if keywords:
            raise TypeError(f"unexpected: {keywords}")
        return capsule(self.managed.tensor, b"dltensor")


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("flags", "readonly"),
    [
        (0, False),
        (READ_ONLY, True),
        (COPIED, True),
        (READ_ONLY | COPIED, True),
        (SUBBYTE_PADDED, False),
    ],
)
def test_what_would_be_lost_is_not_written(flags: int, readonly: bool) -> None:
    """A result in a copy that the producer has made for this call, too. Both can be read."""
    a, x, y = bsr_array(ones(4, 4), blocksize=(2, 2)), ones(4, 3), np.zeros((4, 3), np.float32)
    assert _core.describe(Flagged(y, flags)).readonly == readonly
    if readonly:
        with pytest.raises(ValueError, match="^out is read-only, but must be writable$"):
            matmul(a, x, out=Flagged(y, flags))
    else:
        matmul(a, x, out=Flagged(y, flags))
    assert (y == (0 if readonly else 4)).all()
    assert (matmul(a, Flagged(x, flags), Flagged(x, flags)) == 5).all()
    data = Flagged(ones(2, 2, 2), flags)
    assert (bsr_array((data, [0, 1], [0, 1, 2]), (4, 4)) @ x == 2).all()


def test_producers_are_asked_for_no_copy() -> None:
    x = Flagged(ones(4, 3), 0)
    _core.describe(x)
    assert x.asked == [{"max_version": (1, 3), "copy": False}]
    older = Older(ones(4, 3), COPIED)  # a flag that it does not have
    assert not _core.describe(older).readonly
    assert older.asked == [*x.asked, {}]


def test_versions_that_are_not_understood() -> None:
    """Minor ones have the same layout."""
    assert _core.describe(Flagged(ones(4, 3), 0, (1, 99))).shape == (4, 3)
    with pytest.raises(
        TypeError, match=r"^x comes as DLPack version 2\.7, but only major version 1"
    ):
        _core.describe(Flagged(ones(4, 3), 0, (2, 7)), "x")


def test_device_arrays_are_lent_as_they_are() -> None:
    """No flag, since a DeviceArray is writable and makes no copies."""
    script = """
        import ctypes
        from bsrgemm import DeviceArray, _core
        from test_dlpack import Tensor, Versioned

        array = DeviceArray.empty((2, 3), "float16", "cuda:1")
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

        def check(tensor):
            assert tensor.data == _core.describe(array).pointer and list(tensor.device) == [2, 1]
            assert tensor.shape[:2] == [2, 3] and tensor.strides[:2] == [3, 1]
            assert (tensor.ndim, tensor.code, tensor.bits, tensor.lanes) == (2, 2, 16, 1)

        for keywords in ({}, {"copy": False}, {"copy": None, "dl_device": (2, 1)}):
            for version in ((1, 0), (1, 3), (2, 0)):
                capsule = array.__dlpack__(max_version=version, **keywords)
                managed = Versioned.from_address(get(capsule, b"dltensor_versioned"))
                assert list(managed.version) == [1, 3] and managed.flags == 0
                check(managed.tensor)
            for version in (None, (0, 8)):
                capsule = array.__dlpack__(max_version=version, **keywords)
                check(Tensor.from_address(get(capsule, b"dltensor")))
        for keywords in ({"copy": True}, {"dl_device": (2, 0)}, {"dl_device": (1, 1)}):
            try:
                array.__dlpack__(max_version=(1, 0), **keywords)
            except BufferError as error:
                print(error)
    """
    copy, *devices = fake_cuda.run(script, devices=2).splitlines()
    assert copy == "copy is True, but a DeviceArray shares its memory and makes no copy"
    assert devices == [
        f"dl_device is {device}, but this array stays on (2, 1): use to_host() for a copy"
        for device in ((2, 0), (1, 1))
    ]
