"""Malformed structures, values and dense arrays that a bsr_array is to be made of."""

from __future__ import annotations

import numpy as np
from bsrgemm import bsr_array
from malformed_inputs import Bad, Cuda, build, i32, misaligned, x

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
    Bad(
        "a batch with values below a partial block row",
        lambda: build(data=np.concatenate([x(1, 3, 2, 2) * 0, x(1, 3, 2, 2)]), shape=(3, 6)),
        ValueError,
        ("not 0 in block row 1 beyond row 2", "accepted: zeros there"),
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
    Bad(
        "masked indices",
        lambda: build(indices=np.ma.masked_equal(i32(0, 2, 1), 2)),
        TypeError,
        ("indices is a numpy.ma.MaskedArray", "accepted: a plain array"),
    ),
    Bad(
        "masked indptr",
        lambda: build(indptr=np.ma.masked_equal(i32(0, 2, 3), 2)),
        TypeError,
        ("indptr is a numpy.ma.MaskedArray", "accepted: a plain array"),
    ),
    Bad(
        "shape of one number beside a bsr_array",
        lambda: bsr_array(build(), 5),
        TypeError,
        ("shape is 5", "accepted: a pair of integers"),
    ),
    Bad(
        "blocksize of one number beside a bsr_array",
        lambda: bsr_array(build(), blocksize=5),
        TypeError,
        ("blocksize is 5", "accepted: a pair of integers"),
    ),
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
        True,
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

TABLES = {"bsr_array": STRUCTURE + ARRAYS + DENSE}
