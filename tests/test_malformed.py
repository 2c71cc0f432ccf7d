"""Malformed inputs: each raises the expected exception, and its message names what is wrong."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import bsrgemm
import numpy as np
import pytest
from bsrgemm import bsr_array, matmul


class Bad(NamedTuple):
    name: str
    call: Callable[[], Any]
    error: type[Exception]
    fragments: tuple[str, ...]


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def build(
    data: Any = None,
    indices: Any = None,
    indptr: Any = None,
    shape: Any = (4, 6),
    **keywords: Any,
) -> bsr_array:
    """A valid 4 x 6 matrix of 2 x 2 blocks at (0, 0), (0, 2) and (1, 1), less what is replaced."""
    data = np.ones((3, 2, 2), np.float32) if data is None else data
    indices = i32(0, 2, 1) if indices is None else indices
    indptr = i32(0, 2, 3) if indptr is None else indptr
    return bsr_array((data, indices, indptr), shape, **keywords)


def x(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def misaligned(count: int) -> np.ndarray:
    return np.zeros(4 * count + 1, np.uint8)[1:].view(np.float32)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def overlapping() -> tuple[np.ndarray, np.ndarray]:
    """b and an out that begins inside it."""
    memory = np.ones(64, np.float32)
    return memory[:18].reshape(6, 3), memory[10:22].reshape(4, 3)


def _into_data_of_b() -> Any:
    memory = np.ones((2, 8, 8), np.float32)
    b = bsr_array((memory, i32(0, 0), i32(0, 1, 2)), (16, 8))
    a = bsr_array((np.ones((1, 8, 8), np.float32), i32(0), i32(0, 1)), (8, 16))
    return matmul(a, b, out=memory[1])


def npz(**entries: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    np.savez(buffer, **entries)
    buffer.seek(0)
    return buffer


class Cuda:
    """An object that says it is on a GPU."""

    def __init__(self, **changes: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (3, 2, 2),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
            "strides": None,
        } | changes


class NoStream:
    def __cuda_stream__(self) -> tuple[int, str]:
        return 0, "default"


STRUCTURE = (
    Bad(
        "descending indptr",
        lambda: build(indptr=i32(0, 4, 3)),
        ValueError,
        ("indptr[2] is 3", "indptr[1] = 4"),
    ),
    Bad(
        "indptr does not begin with 0",
        lambda: build(indptr=i32(1, 2, 3)),
        ValueError,
        ("indptr[0] is 1",),
    ),
    Bad(
        "indptr ends early",
        lambda: build(indptr=i32(0, 1, 2)),
        ValueError,
        ("indptr[2] is 2", "indices has 3"),
    ),
    Bad("indptr ends late", lambda: build(indptr=i32(0, 2, 9)), ValueError, ("indptr[2] is 9",)),
    Bad("indptr too short", lambda: build(indptr=i32(0, 3)), ValueError, ("indptr", "length 2")),
    Bad(
        "indptr too long", lambda: build(indptr=i32(0, 1, 2, 3)), ValueError, ("indptr", "length 4")
    ),
    Bad("indptr empty", lambda: build(indptr=i32()), ValueError, ("indptr", "length 0")),
    Bad("negative indptr", lambda: build(indptr=i32(0, -1, 3)), ValueError, ("indptr[1] is -1",)),
    Bad("negative index", lambda: build(indices=i32(-1, 2, 1)), ValueError, ("indices[0] is -1",)),
    Bad(
        "index out of range", lambda: build(indices=i32(0, 3, 1)), ValueError, ("indices[1] is 3",)
    ),
    Bad(
        "64-bit index out of range",
        lambda: build(indices=np.array([0, 2**32, 1]), indptr=np.array([0, 2, 3])),
        ValueError,
        ("indices[1] is 4294967296",),
    ),
    Bad(
        "unsorted indices",
        lambda: build(indices=i32(2, 0, 1)),
        ValueError,
        ("indices[1] is 0", "block row 0", "sorted"),
    ),
    Bad(
        "duplicate indices",
        lambda: build(indices=i32(2, 2, 1)),
        ValueError,
        ("indices[1]", "both 2", "block row 0", "duplicate"),
    ),
    Bad(
        "range is checked without check",
        lambda: build(indices=i32(0, 7, 1), check=False),
        ValueError,
        ("indices[1] is 7",),
    ),
    Bad(
        "indptr is checked without check",
        lambda: build(indptr=i32(0, 9, 3), check=False),
        ValueError,
        ("indptr[2] is 3",),
    ),
    Bad(
        "a block row too many",
        lambda: build(shape=(5, 6)),
        ValueError,
        ("indptr has length 3", "5 rows in blocks of height 2 are 3 block rows"),
    ),
    Bad(
        "values below a partial block row",
        lambda: build(shape=(3, 6)),
        ValueError,
        ("not 0 in block row 1 beyond row 2", "shape (3, 6) in blocks of (2, 2); accepted: zeros"),
    ),
    Bad(
        "NaN beside a partial block column",
        lambda: build(data=np.full((3, 2, 2), [1, np.nan]), shape=(4, 5)),
        ValueError,
        ("not 0 in block column 2 beyond column 4", "accepted: zeros there"),
    ),
    Bad("too few block columns", lambda: build(shape=(4, 4)), ValueError, ("indices[1] is 2",)),
    Bad("negative shape", lambda: build(shape=(-4, 6)), ValueError, ("shape is (-4, 6)",)),
    Bad("shape of three", lambda: build(shape=(4, 6, 1)), ValueError, ("shape", "3 entries")),
    Bad("shape of floats", lambda: build(shape=(4.0, 6.0)), TypeError, ("shape", "4.0")),
    Bad(
        "huge shape",
        lambda: build(data=x(0, 1, 1), indices=i32(), shape=(2, 2**40)),
        ValueError,
        ("shape", str(2**40)),
    ),
    Bad(
        "fewer blocks than indices",
        lambda: build(data=x(2, 2, 2)),
        ValueError,
        ("data has 2 blocks", "indices has 3"),
    ),
    Bad("blocksize differs", lambda: build(blocksize=(2, 3)), ValueError, ("blocksize is (2, 3)",)),
    Bad("two arrays", lambda: bsr_array((x(3, 2, 2), i32(0, 2, 1))), ValueError, ("2 entries",)),
)

ARRAYS = (
    Bad("data of two dimensions", lambda: build(data=x(3, 4)), ValueError, ("data", "(3, 4)")),
    Bad("blocks of no rows", lambda: build(data=x(3, 0, 2)), ValueError, ("data", "(3, 0, 2)")),
    Bad(
        "data in Fortran order",
        lambda: build(data=np.asfortranarray(x(3, 2, 2))),
        ValueError,
        ("data is not C-contiguous", "ascontiguousarray"),
    ),
    Bad(
        "strided data",
        lambda: build(data=x(6, 2, 2)[::2]),
        ValueError,
        ("data is not C-contiguous", "(8, 2, 1)"),
    ),
    Bad(
        "reversed data",
        lambda: build(data=x(3, 2, 2)[::-1]),
        ValueError,
        ("data is not C-contiguous", "(-4, 2, 1)"),
    ),
    Bad(
        "misaligned data",
        lambda: build(data=misaligned(12).reshape(3, 2, 2)),
        ValueError,
        ("data", "misaligned"),
    ),
    Bad(
        "integer data",
        lambda: build(data=x(3, 2, 2, dtype=np.int64)),
        TypeError,
        ("data has dtype int64", "float32"),
    ),
    Bad(
        "complex data",
        lambda: build(data=x(3, 2, 2, dtype=complex)),
        TypeError,
        ("data", "complex128", "float32"),
    ),
    Bad("object data", lambda: build(data=x(3, 2, 2, dtype=object)), TypeError, ("data", "object")),
    Bad(
        "big-endian data", lambda: build(data=x(3, 2, 2, dtype=">f4")), TypeError, ("data", "byte")
    ),
    Bad("structured data", lambda: build(data=x(3, 2, 2, dtype="f4,f4")), TypeError, ("data",)),
    Bad(
        "masked data",
        lambda: build(data=np.ma.masked_equal(x(3, 2, 2), 1)),
        TypeError,
        ("data", "MaskedArray"),
    ),
    Bad("data is a string", lambda: build(data="abc"), TypeError, ("data", "str")),
    Bad(
        "int16 indices",
        lambda: build(indices=np.array([0, 2, 1], np.int16)),
        TypeError,
        ("indices has dtype int16", "int32, int64"),
    ),
    Bad(
        "uint32 indptr",
        lambda: build(indptr=np.array([0, 2, 3], np.uint32)),
        TypeError,
        ("indptr has dtype uint32", "int32, int64"),
    ),
    Bad(
        "float indices",
        lambda: build(indices=[0.0, 2.0, 1.0]),
        TypeError,
        ("indices has dtype float64",),
    ),
    Bad(
        "boolean indices",
        lambda: build(indices=np.array([False, True, True])),
        TypeError,
        ("indices has dtype bool",),
    ),
    Bad(
        "indices of two dimensions",
        lambda: build(indices=i32(0, 2, 1).reshape(1, 3)),
        ValueError,
        ("indices", "(1, 3)"),
    ),
    Bad(
        "indices at no device address",
        lambda: build(indices=Cuda(shape=(3,), typestr="<i4")),
        RuntimeError,
        (),
    ),
    Bad("no array", lambda: bsr_array(3), TypeError, ("int",)),
    Bad("None", lambda: bsr_array(None), TypeError, ("NoneType",)),
)

DENSE = (
    Bad("no blocksize", lambda: bsr_array(x(4, 6)), ValueError, ("blocksize is needed",)),
    Bad(
        "blocksize of zero",
        lambda: bsr_array(x(4, 6), blocksize=(0, 2)),
        ValueError,
        ("blocksize is (0, 2)",),
    ),
    Bad(
        "blocksize of one",
        lambda: bsr_array(x(4, 6), blocksize=(2,)),
        ValueError,
        ("blocksize", "1 entries"),
    ),
    Bad("a vector", lambda: bsr_array(x(4), blocksize=(2, 2)), ValueError, ("(4,)",)),
    Bad(
        "integers",
        lambda: bsr_array(x(4, 6, dtype=np.int32), blocksize=(2, 2)),
        TypeError,
        ("int32",),
    ),
    Bad(
        "another shape",
        lambda: bsr_array(x(4, 6), (6, 4), blocksize=(2, 2)),
        ValueError,
        ("shape is (6, 4)", "(4, 6)"),
    ),
)

PRODUCTS = (
    Bad("b too short", lambda: build() @ x(5, 3), ValueError, ("b", "(5, 3)", "6")),
    Bad("b too long", lambda: build() @ x(7), ValueError, ("b", "7", "6")),
    Bad(
        "a batch of matrices too short",
        lambda: build() @ x(2, 5, 3),
        ValueError,
        ("b has shape (K, N) = (5, 3)", "6 rows"),
    ),
    Bad(
        "b of nine dimensions",
        lambda: build() @ x(1, 1, 1, 1, 1, 1, 1, 6, 3),
        ValueError,
        ("b has shape (1, 1, 1, 1, 1, 1, 1, 6, 3)", "(..., K, N)", "1 to 8 dimensions"),
    ),
    Bad(
        "c of another batch",
        lambda: matmul(build(), x(2, 6, 3), x(3, 4, 3)),
        ValueError,
        ("c has shape (3, 4, 3)", "(2, 4, 3)", "broadcasts"),
    ),
    Bad(
        "c of more dimensions",
        lambda: matmul(build(), x(6, 3), x(1, 4, 3)),
        ValueError,
        ("c has shape (1, 4, 3)", "(4, 3)"),
    ),
    Bad(
        "out of another batch",
        lambda: matmul(build(), x(2, 6, 3), out=x(4, 3)),
        ValueError,
        ("out has shape (4, 3)", "(2, 4, 3)"),
    ),
    Bad(
        "out repeats its batch",
        lambda: matmul(
            build(), x(2, 6, 3), out=np.lib.stride_tricks.as_strided(x(4, 3), (2, 4, 3), (0, 12, 4))
        ),
        ValueError,
        ("out has shape (2, 4, 3)", "one address"),
    ),
    Bad("b of no dimensions", lambda: build() @ np.float32(2), (ValueError, TypeError), ("b",)),
    Bad(
        "b of another dtype",
        lambda: build() @ x(6, 3, dtype=np.float64),
        TypeError,
        ("b", "float64", "float32"),
    ),
    Bad(
        "b of integers",
        lambda: build() @ x(6, 3, dtype=np.int64),
        TypeError,
        ("b", "int64", "float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2"),
    ),
    Bad("b complex", lambda: build() @ x(6, 3, dtype=np.complex64), TypeError, ("b", "complex64")),
    Bad("b is a list", lambda: build() @ [[1.0]] * 6, TypeError, ("b", "list")),
    Bad(
        "b is a sparse matrix of other columns",
        lambda: build() @ build(),
        ValueError,
        ("b has shape (4, 6)", "K = 6"),
    ),
    Bad(
        "b is a sparse matrix of other blocks",
        lambda: build() @ build(np.ones((2, 3, 2), np.float32), i32(0, 1), i32(0, 1, 2), (6, 4)),
        ValueError,
        ("a has blocksize (2, 2)", "b has blocksize (3, 2)", "here 2"),
    ),
    Bad(
        "c of another shape than that of two sparse matrices",
        lambda: matmul(build(), build().T, x(4, 5)),
        ValueError,
        ("c has shape (4, 5)", "(4, 4)"),
    ),
    Bad(
        "out of another dtype than two sparse matrices",
        lambda: matmul(build(), build().T, out=x(4, 4, dtype=np.float64)),
        TypeError,
        ("out", "float64", "float32"),
    ),
    Bad(
        "sparse matrices of different dtypes",
        lambda: build() @ build().T.astype("float64"),
        TypeError,
        ("b.data", "float64", "float32"),
    ),
    Bad(
        "out is the data of b",
        lambda: _into_data_of_b(),
        ValueError,
        ("out overlaps b.data",),
    ),
    Bad(
        "two sparse matrices, beta without c",
        lambda: matmul(build(), build().T, beta=1.0),
        ValueError,
        ("beta is 1.0", "c"),
    ),
    Bad(
        "b masked",
        lambda: build() @ np.ma.masked_equal(x(6, 3), 1),
        TypeError,
        ("b", "MaskedArray"),
    ),
    Bad("a is dense", lambda: matmul(x(4, 6), x(6, 3)), TypeError, ("a is a ndarray", "bsr_array")),
    Bad("b at no device address", lambda: build() @ Cuda(shape=(6, 3)), RuntimeError, ()),
    Bad(
        "c of another shape",
        lambda: matmul(build(), x(6, 3), x(4, 2)),
        ValueError,
        ("c has shape (4, 2)", "(4, 3)"),
    ),
    Bad("c is a column", lambda: matmul(build(), x(6, 3), x(4)), ValueError, ("c has shape (4,)",)),
    Bad(
        "c of another dtype",
        lambda: matmul(build(), x(6, 3), x(4, 3, dtype=np.float16)),
        TypeError,
        ("c", "float16", "float32"),
    ),
    Bad("beta without c", lambda: matmul(build(), x(6, 3), beta=2), ValueError, ("beta is 2", "c")),
    Bad(
        "out of another shape",
        lambda: matmul(build(), x(6, 3), out=x(3, 4)),
        ValueError,
        ("out has shape (3, 4)", "(4, 3)"),
    ),
    Bad(
        "out of another dtype",
        lambda: matmul(build(), x(6, 3), out=x(4, 3, dtype=np.float64)),
        TypeError,
        ("out", "float64", "float32"),
    ),
    Bad(
        "out read-only",
        lambda: matmul(build(), x(6, 3), out=read_only(x(4, 3))),
        ValueError,
        ("out", "read-only"),
    ),
    Bad(
        "out misaligned",
        lambda: matmul(build(), x(6, 3), out=misaligned(12).reshape(4, 3)),
        ValueError,
        ("out", "align"),
    ),
    Bad(
        "out is broadcast",
        lambda: matmul(build(), x(6, 3), out=np.lib.stride_tricks.as_strided(x(3), (4, 3), (0, 4))),
        ValueError,
        ("out", "strides (0, 1)"),
    ),
    Bad(
        "out is a list",
        lambda: matmul(build(), x(6, 3), out=[[0.0] * 3] * 4),
        TypeError,
        ("out", "list"),
    ),
    Bad(
        "out overlaps b",
        lambda: matmul(build(), (pair := overlapping())[0], out=pair[1]),
        ValueError,
        ("out overlaps b",),
    ),
    Bad(
        "out overlaps values",
        lambda: matmul(a := build(), x(6, 3), out=a.data.reshape(4, 3)),
        ValueError,
        ("out overlaps a.data",),
    ),
    Bad(
        "bias of neither axis",
        lambda: matmul(build(), x(6, 3), bias=x(4)),
        ValueError,
        ("bias has shape (4,)", "accepted: (3,) or (1, 3)", "and (4, 1), added to every column"),
    ),
    Bad(
        "bias of a vector",
        lambda: matmul(build(), x(6), bias=x(4, 1)),
        ValueError,
        ("bias has shape (4, 1); accepted: (4,)",),
    ),
    Bad(
        "row_scale of columns",
        lambda: matmul(build(), x(6, 3), row_scale=x(3)),
        ValueError,
        ("row_scale has shape (3,); accepted: (4,) or (4, 1), one for each row",),
    ),
    Bad(
        "col_scale of rows",
        lambda: matmul(x(3, 4), build(), col_scale=x(4)),
        ValueError,
        ("col_scale has shape (4,); accepted: (6,) or (1, 6), one for each column",),
    ),
    Bad(
        "col_scale without columns",
        lambda: matmul(build(), x(6), col_scale=x(4)),
        ValueError,
        ("col_scale is given", "a single column; accepted: row_scale or alpha"),
    ),
    Bad(
        "row_scale without rows",
        lambda: matmul(x(4), build(), row_scale=x(6)),
        ValueError,
        ("row_scale is given", "a single row; accepted: col_scale or alpha"),
    ),
    Bad(
        "bias of another dtype",
        lambda: matmul(build(), x(6, 3), bias=x(3, dtype=np.float64)),
        TypeError,
        ("bias has dtype float64, but must have dtype float32",),
    ),
    Bad(
        "scale of another dtype",
        lambda: matmul(
            build(np.ones((3, 2, 2), np.float16)),
            x(6, 3, dtype=np.float16),
            row_scale=x(4, dtype=np.float64),
        ),
        TypeError,
        ("row_scale has dtype float64, but must have dtype float16 or float32",),
    ),
    Bad(
        "bias is no array",
        lambda: matmul(build(), x(6, 3), bias="b"),
        TypeError,
        ("bias",),
    ),
    Bad(
        "activation",
        lambda: matmul(build(), x(6, 3), activation="tanh"),
        ValueError,
        ("activation is 'tanh'", "None, 'relu', 'gelu', 'gelu_tanh' or 'silu'"),
    ),
    Bad(
        "activation is no string",
        lambda: matmul(build(), x(6, 3), activation=np.maximum),
        TypeError,
        ("activation is", "must be a string or None"),
    ),
    Bad(
        "out overlaps bias",
        lambda: matmul(build(), x(6, 3), bias=(m := x(5, 3))[0], out=m[:4]),
        ValueError,
        ("out overlaps bias",),
    ),
    Bad(
        "out overlaps scale",
        lambda: matmul(build(), x(6, 3), row_scale=(m := x(4, 4))[:, 0], out=m[:, :3]),
        ValueError,
        ("out overlaps row_scale",),
    ),
    Bad(
        "out overlaps c",
        lambda: matmul(build(), x(6, 3), (m := x(5, 3))[1:], beta=1, out=m[:4]),
        ValueError,
        ("out overlaps c",),
    ),
    Bad(
        "alpha complex", lambda: matmul(build(), x(6, 3), alpha=1j), TypeError, ("alpha", "complex")
    ),
    Bad(
        "beta a string",
        lambda: matmul(build(), x(6, 3), x(4, 3), beta="1"),
        TypeError,
        ("beta", "str"),
    ),
    Bad(
        "stream a string",
        lambda: matmul(build(), x(6, 3), stream="0"),
        TypeError,
        ("stream is a str", "CUstream"),
    ),
    Bad(
        "stream negative",
        lambda: matmul(build(), x(6, 3), stream=-1),
        ValueError,
        ("stream is -1",),
    ),
    Bad(
        "stream protocol",
        lambda: matmul(build(), x(6, 3), stream=NoStream()),
        TypeError,
        ("stream",),
    ),
    Bad("numpy on a bsr_array", lambda: np.asarray(build()), TypeError, ("todense",)),
)

OTHER = (
    Bad("threads", lambda: bsrgemm.set_num_threads(-1), ValueError, ("-1",)),
    Bad("astype", lambda: build().astype("int8"), TypeError, ("int8", "float32")),
    Bad(
        "npz without format", lambda: bsrgemm.load(npz(data=x(1))), ValueError, ("lacks", "format")
    ),
    Bad(
        "npz of csr",
        lambda: bsrgemm.load(npz(format=np.array(b"csr"))),
        ValueError,
        ("'csr'", "'bsr'"),
    ),
    Bad(
        "npz with bad pattern",
        lambda: bsrgemm.load(
            npz(
                format=np.array(b"bsr"),
                shape=i32(4, 6),
                data=x(3, 2, 2),
                indices=i32(0, 9, 1),
                indptr=i32(0, 2, 3),
            )
        ),
        ValueError,
        ("indices[1] is 9",),
    ),
    Bad(
        "no npz", lambda: bsrgemm.load(io.BytesIO(b"not a zip file")), ValueError, ("no .npz file",)
    ),
    Bad(
        "cuda interface without shape",
        lambda: build() @ CudaBroken("shape"),
        (TypeError, ValueError),
        ("b", "shape"),
    ),
    Bad(
        "cuda interface without data",
        lambda: build() @ CudaBroken("data"),
        (TypeError, ValueError),
        ("b", "data"),
    ),
)


class CudaBroken(Cuda):
    def __init__(self, missing: str) -> None:
        super().__init__(shape=(6, 3))
        del self.__cuda_array_interface__[missing]


ALL = STRUCTURE + ARRAYS + DENSE + PRODUCTS + OTHER


@pytest.mark.parametrize("bad", ALL, ids=lambda b: b.name)
def test_raises(bad: Bad) -> None:
    with pytest.raises(bad.error) as caught:
        bad.call()
    message = str(caught.value)
    print(message)
    for fragment in bad.fragments:
        assert fragment in message, f"{fragment!r} is not in the message"


def test_the_valid_matrix_is_valid() -> None:
    """So that each input above fails for its one defect."""
    assert np.array_equal(build() @ x(6, 3), [[4, 4, 4]] * 2 + [[2, 2, 2]] * 2)


def test_failed_products_leave_out_alone() -> None:
    out = np.full((4, 3), np.nan, np.float32)
    with pytest.raises(ValueError, match="beta"):
        matmul(build(), x(6, 3), beta=1, out=out)
    with pytest.raises(TypeError, match="c"):
        matmul(build(), x(6, 3), x(4, 3, dtype=np.float64), out=out)
    assert np.isnan(out).all()
