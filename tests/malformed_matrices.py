"""Malformed calls of what makes and changes matrices, and of functions beside products."""

from __future__ import annotations

import io
from typing import Any

import bsrgemm
import numpy as np
from bsrgemm import (
    DynamicArray,
    DynamicPattern,
    bsr_array,
    sampled_matmul,
    softmax,
)
from malformed_inputs import Bad, build, i32, read_only, x


def npz(**entries: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    np.savez(buffer, **entries)
    buffer.seek(0)
    return buffer


def stored(**changes: Any) -> io.BytesIO:
    """A file with the matrix of ``build``, but for what is replaced."""
    entries: dict[str, Any] = {
        "format": np.array(b"bsr"),
        "shape": i32(4, 6),
        "data": x(3, 2, 2),
        "indices": i32(0, 2, 1),
        "indptr": i32(0, 2, 3),
    }
    return npz(**(entries | changes))


def broken(at: bytes, flags: int = 0) -> io.BytesIO:
    """The same with other flags in the headers of its entries, or another byte behind ``at``."""
    content = bytearray(stored().getvalue())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        begin = content.find(signature)
        while flags and begin >= 0:
            content[begin + offset] |= flags
            begin = content.find(signature, begin + 4)
    if at:
        content[content.index(at) + len(at)] ^= 255
    return io.BytesIO(content)


def masked(mask: Any = None, blocksize: Any = (2, 2)) -> bsr_array:
    return bsr_array.from_block_mask(
        x(4, 6), np.ones((2, 3), bool) if mask is None else mask, blocksize
    )


def sampled(a: Any = None, b: Any = None, pattern: Any = None, **options: Any) -> Any:
    """A call that is right but for what is replaced: 4 x 5, 5 x 6 and the matrix of ``build``."""
    a, b = (x(4, 5) if a is None else a), (x(5, 6) if b is None else b)
    return sampled_matmul(a, b, build() if pattern is None else pattern, **options)


def changing() -> DynamicArray:
    return DynamicPattern((4, 6), (2, 2), 3, device="cpu").array(x(3, 2, 2))


METHODS = (
    Bad("astype", lambda: build().astype("int8"), TypeError, ("int8", "float32")),
    Bad("sum of a third axis", lambda: build().sum(2), ValueError, ("axis is 2", "accepted: None")),
    Bad(
        "sum of two axes at once",
        lambda: build().sum(np.array([0, 1])),
        ValueError,
        ("axis is array([0, 1])", "accepted: None"),
    ),
    Bad(
        "part that cuts blocks",
        lambda: build()[1:4],
        ValueError,
        ("row range is 1:4", "multiples of 2"),
    ),
    Bad("part with steps", lambda: build()[::2], ValueError, ("row range is 0:4 in steps of 2",)),
    Bad("one row", lambda: build()[0], TypeError, ("index of a bsr_array is 0", "A[r0:r1, c0:c1]")),
    Bad("plus a number", lambda: build() + 1, TypeError, ("an int", "accepted: a bsr_array")),
    Bad(
        "minus a dense array",
        lambda: x(4, 6) - build(),
        TypeError,
        ("ndarray", "accepted: a bsr_array"),
    ),
    Bad(
        "plus another dtype",
        lambda: build() + build(x(3, 2, 2, dtype=np.float64)),
        TypeError,
        ("b has dtype float64", "a has float32"),
    ),
    Bad(
        "plus another shape",
        lambda: build() + build().T,
        ValueError,
        ("b has shape (6, 4)", "a has (4, 6)"),
    ),
    Bad(
        "plus a pattern that changes",
        lambda: build() + changing(),
        TypeError,
        ("operand of + with a bsr_array is a DynamicArray", "to_bsr()"),
    ),
    Bad(
        "a pattern that changes minus it",
        lambda: changing() - build(),
        TypeError,
        ("operand of - with a bsr_array is a DynamicArray", "accepted: a bsr_array of its shape"),
    ),
    Bad(
        "times a pattern that changes",
        lambda: build() * changing(),
        TypeError,
        ("operand of * with a bsr_array is a DynamicArray", "accepted: a real number or"),
    ),
    Bad("times a string", lambda: build() * "2", TypeError, ("a str", "accepted: a real number")),
    Bad("divided by a matrix", lambda: build() / build(), TypeError, ("divisor", "accepted")),
    Bad(
        "other blocks without rows",
        lambda: build().reblock((0, 2)),
        ValueError,
        ("blocksize is (0, 2)", "accepted: integers that are at least 1"),
    ),
    Bad(
        "other blocks of too many columns",
        lambda: build().reblock((2, 2**40)),
        ValueError,
        ("blocksize is (2, 1099511627776)", "accepted: integers that are at most 2147483647"),
    ),
    Bad(
        "other blocks of one number",
        lambda: build().reblock(2),
        TypeError,
        ("blocksize is 2", "accepted: a pair"),
    ),
    Bad(
        "device",
        lambda: bsr_array.to(build(), "tpu"),
        ValueError,
        ("device is 'tpu'", "accepted: 'cpu', 'cuda'"),
    ),
    Bad("plan of no columns", lambda: build().plan(0), ValueError, ("n is 0", "at least one")),
    Bad(
        "plan of two matrices, precision",
        lambda: build().plan(build().T, precision=1),
        TypeError,
        ("precision is 1", "'ieee' or 'tf32'"),
    ),
    Bad(
        "plan of an unknown chip",
        lambda: build().plan(8, chip={"cores": 3}),
        (TypeError, ValueError),
        ("chip", "cores"),
    ),
    Bad("plan of half a column", lambda: build().plan(4.0), TypeError, ("n is 4.0", "integer")),
    Bad("plan of a word", lambda: build().plan("a"), TypeError, ("n is 'a'", "an integer")),
    Bad(
        "plan of too many columns",
        lambda: build().plan(2**63),
        ValueError,
        ("n is 9223372036854775808", "must be an integer that fits in 64 bits"),
    ),
    Bad("sampled plan", lambda: build().plan_sampled(0.5), TypeError, ("k is 0.5", "integer")),
    Bad(
        "plan of a half SM",
        lambda: build().plan(8, chip={"sm_count": 1.5}),
        TypeError,
        ("chip['sm_count'] is 1.5", "must be an integer"),
    ),
    Bad(
        "plan of too many SMs",
        lambda: build().plan(8, chip={"sm_count": 2**70}),
        ValueError,
        ("chip['sm_count'] is 1180591620717411303424",),
    ),
    Bad(
        "plan of a cache in words",
        lambda: build().plan(8, chip={"l2_bytes": "50 MB"}),
        TypeError,
        ("chip['l2_bytes'] is '50 MB'", "must be a real number"),
    ),
    Bad(
        "plan of an endless cache",
        lambda: build().plan(8, chip={"l2_bytes": 10**400}),
        ValueError,
        ("chip['l2_bytes'] is beyond what float64 holds", "must be"),
    ),
    Bad(
        "factor too large",
        lambda: build() * 10**400,
        ValueError,
        ("the factor is an int beyond what float64 holds", "accepted: a real number"),
    ),
    Bad("divisor too large", lambda: build() / 10**400, ValueError, ("the divisor is an int",)),
    Bad(
        "mask of another shape",
        lambda: masked(np.ones((2, 2), bool)),
        ValueError,
        ("mask has shape (2, 2)", "accepted: (2, 3)"),
    ),
    Bad(
        "mask of floats",
        lambda: masked(x(2, 3)),
        TypeError,
        ("mask has dtype float32", "accepted: bool"),
    ),
    Bad(
        "mask of other blocks",
        lambda: masked(blocksize=(3, 4)),
        ValueError,
        ("mask has shape (2, 3)", "accepted: (2, 2), an entry for each block of (3, 4)"),
    ),
    Bad(
        "masked mask",
        lambda: masked(np.ma.masked_all((2, 3), bool)),
        TypeError,
        ("mask is a numpy.ma.MaskedArray", "accepted: a plain array"),
    ),
    Bad(
        "spy of a width in words",
        lambda: build().spy(text=True, width="a"),
        TypeError,
        ("width is 'a'", "accepted: an integer of at least 8"),
    ),
    Bad("spy on a number", lambda: build().spy(5), TypeError, ("ax is an int", "accepted: axes")),
    Bad(
        "save without a path",
        lambda: build().save(None),
        TypeError,
        ("path is None", "accepted: a string, an os.PathLike or a binary file"),
    ),
    Bad(
        "save to a path in bytes",
        lambda: build().save(b"a.npz"),
        TypeError,
        ("path is b'a.npz'", "accepted: a string"),
    ),
    Bad(
        "partial blocks to torch",
        lambda: bsr_array(x(3, 5), blocksize=(2, 2)).to_torch(),
        ValueError,
        ("shape (3, 5) in blocks of (2, 2)", "whole blocks only, so use A.reblock"),
    ),
)

STORAGE = (
    Bad("without a format", lambda: bsrgemm.load(npz(data=x(1))), ValueError, ("lacks", "format")),
    Bad(
        "of csr", lambda: bsrgemm.load(npz(format=np.array(b"csr"))), ValueError, ("'csr'", "'bsr'")
    ),
    Bad(
        "with a bad pattern",
        lambda: bsrgemm.load(stored(indices=i32(0, 9, 1))),
        ValueError,
        ("path <_io.BytesIO", "holds no BSR matrix: indices[1] is 9"),
    ),
    Bad(
        "of integers",
        lambda: bsrgemm.load(stored(data=x(3, 2, 2, dtype=int))),
        ValueError,
        ("path", "holds no BSR matrix: data has dtype int64; accepted"),
    ),
    Bad(
        "shape of floats",
        lambda: bsrgemm.load(stored(shape=np.array([4.0, 6.0]))),
        ValueError,
        ("path", "entry shape has dtype float64 and 1 dimensions; accepted: two integers"),
    ),
    Bad(
        "shape of one number",
        lambda: bsrgemm.load(stored(shape=np.array(4))),
        ValueError,
        ("path", "entry shape has dtype int64 and 0 dimensions"),
    ),
    Bad(
        "of two formats",
        lambda: bsrgemm.load(stored(format=np.array([b"bsr", b"csr"]))),
        ValueError,
        ("path", "an entry format of 2 words; accepted: one"),
    ),
    Bad(
        "of an unknown dtype",
        lambda: bsrgemm.load(stored(bsrgemm_dtype=np.array("int3"))),
        ValueError,
        ("path", "its bsrgemm_dtype is 'int3'; accepted: float16"),
    ),
    Bad(
        "of objects",
        lambda: bsrgemm.load(stored(data=np.array([None]))),
        ValueError,
        ("path", "an entry data that cannot be read"),
        True,
    ),
    Bad(
        "with another byte",
        lambda: bsrgemm.load(broken(b"\x93NUMPY")),
        ValueError,
        ("path", "an entry format that cannot be read: "),
        True,
    ),
    Bad(
        "with a name that is no .npy",
        lambda: bsrgemm.load(broken(b"data.n")),
        ValueError,
        ("path",),
        True,
    ),
    Bad(
        "encrypted",
        lambda: bsrgemm.load(broken(b"", flags=1)),
        ValueError,
        ("path", "an entry format that cannot be read: "),
        True,
    ),
    Bad("path of a number", lambda: bsrgemm.load(5), TypeError, ("path is 5", "accepted: a str")),
    Bad(
        "no .npz",
        lambda: bsrgemm.load(io.BytesIO(b"not a zip file")),
        ValueError,
        ("no .npz file", "it begins with b'not a '"),
        True,
    ),
)

STACKS = {
    "vstack": (
        Bad(
            "nothing",
            lambda: bsrgemm.vstack([]),
            ValueError,
            ("blocks is empty", "accepted: at least one"),
        ),
        Bad(
            "a matrix",
            lambda: bsrgemm.vstack(build()),
            TypeError,
            ("blocks is a bsr_array", "accepted: a sequence"),
        ),
        Bad(
            "other columns",
            lambda: bsrgemm.vstack([build(), build().T]),
            ValueError,
            ("blocks[1] has 4 columns",),
        ),
        Bad(
            "one below a partial block row",
            lambda: bsrgemm.vstack([bsr_array(x(3, 6), blocksize=(2, 2)), build()]),
            ValueError,
            ("blocks[0] has 3 rows in blocks of 2", "accepted there: a multiple of 2"),
        ),
    ),
    "hstack": (
        Bad(
            "a dense array",
            lambda: bsrgemm.hstack([x(4, 6)]),
            TypeError,
            ("blocks[0] is an ndarray", "accepted"),
        ),
        Bad(
            "other rows",
            lambda: bsrgemm.hstack([build(), build().T]),
            ValueError,
            ("blocks[1] has 6 rows",),
        ),
    ),
    "block_diag": (
        Bad(
            "another dtype",
            lambda: bsrgemm.block_diag([build(), build().astype("float64")]),
            TypeError,
            ("mats[1] has dtype float64",),
        ),
    ),
    "prune": (
        Bad(
            "density above 1",
            lambda: bsrgemm.prune(x(4, 6), (2, 2), 1.5),
            ValueError,
            ("density is 1.5", "accepted: from 0 to 1"),
        ),
        Bad(
            "density a string",
            lambda: bsrgemm.prune(x(4, 6), (2, 2), "1"),
            TypeError,
            ("density is a str", "accepted"),
        ),
        Bad(
            "a vector",
            lambda: bsrgemm.prune(x(4), (2, 2), 1),
            ValueError,
            ("dense has shape (4,)", "accepted"),
        ),
        Bad(
            "integers",
            lambda: bsrgemm.prune(x(4, 6, dtype=int), (2, 2), 1),
            TypeError,
            ("dense has dtype int64",),
        ),
        Bad(
            "a list",
            lambda: bsrgemm.prune([[1.0]], (1, 1), 1),
            TypeError,
            ("dense is a list", "accepted"),
        ),
    ),
}

SOFTMAX = (
    Bad("dense", lambda: softmax(x(4, 6)), TypeError, ("a is an ndarray", "accepted: a bsr_array")),
    Bad(
        "scale a string",
        lambda: softmax(build(), "1"),
        TypeError,
        ("scale is a str", "accepted: a real number"),
    ),
    Bad(
        "scale beyond float32",
        lambda: softmax(build(), 1e39),
        ValueError,
        ("scale is 1e+39", "where a has dtype float32"),
    ),
    Bad(
        "stream a string",
        lambda: softmax(build(), stream="1"),
        TypeError,
        ("stream is a str", "accepted"),
    ),
    Bad(
        "values of no known dtype",
        lambda: softmax(build(x(3, 2, 2, dtype="V4"))),
        TypeError,
        ("data",),
    ),
)

SAMPLED = (
    Bad(
        "pattern is dense",
        lambda: sampled(pattern=x(4, 6)),
        TypeError,
        ("pattern is an ndarray", "accepted: a bsr_array, a DynamicArray or a DynamicPattern"),
    ),
    Bad(
        "out is dense",
        lambda: sampled(out=x(4, 6)),
        TypeError,
        ("out is an ndarray", "accepted: a bsr_array"),
    ),
    Bad(
        "out of a pattern that changes",
        lambda: sampled(out=changing()),
        TypeError,
        ("out is a DynamicArray", "accepted: a bsr_array"),
    ),
    Bad(
        "out of a fixed pattern",
        lambda: sampled(pattern=changing(), out=build()),
        TypeError,
        ("out is a bsr_array", "accepted: a DynamicArray"),
    ),
    Bad(
        "out of another pattern that changes",
        lambda: sampled(pattern=changing(), out=changing()),
        ValueError,
        ("another pattern", "accepted: a DynamicArray of the same DynamicPattern"),
    ),
    Bad(
        "beta with a pattern without values",
        lambda: sampled(pattern=changing().pattern, beta=1.0),
        TypeError,
        ("pattern is a DynamicPattern, which has no values", "accepted with beta: a DynamicArray"),
    ),
    Bad(
        "a batch at a pattern that changes",
        lambda: sampled(x(2, 4, 5), pattern=changing()),
        ValueError,
        ("a has shape (2, 4, 5)", "accepted: (4, K)", "takes no batches"),
    ),
    Bad(
        "a is block-sparse",
        lambda: sampled(build()),
        TypeError,
        ("a is a bsr_array", "a.todense()"),
    ),
    Bad(
        "a is a vector",
        lambda: sampled(x(5)),
        ValueError,
        ("a has shape (5,)", "accepted: (..., 4, K)"),
    ),
    Bad(
        "a of other rows",
        lambda: sampled(x(3, 5)),
        ValueError,
        ("a has shape (M, K) = (3, 5)", "pattern has 4 rows"),
    ),
    Bad(
        "b of other columns",
        lambda: sampled(b=x(5, 5)),
        ValueError,
        ("b has shape (K, N) = (5, 5)", "pattern has 6 columns"),
    ),
    Bad("inner dimensions", lambda: sampled(b=x(4, 6)), ValueError, ("b must have as many rows",)),
    Bad(
        "b of another dtype",
        lambda: sampled(b=x(5, 6, dtype=np.float64)),
        TypeError,
        ("b has dtype float64", "a has dtype float32"),
    ),
    Bad(
        "integers",
        lambda: sampled(x(4, 5, dtype=int), x(5, 6, dtype=int)),
        TypeError,
        ("a has dtype int64, but must have dtype float16, bfloat16, float32 or float64",),
    ),
    Bad(
        "out of other blocks",
        lambda: sampled(out=build(indices=i32(0, 1, 1))),
        ValueError,
        ("out stores other blocks than pattern",),
    ),
    Bad(
        "out is read-only",
        lambda: sampled(out=build(read_only(x(3, 2, 2)))),
        ValueError,
        ("out.data is read-only",),
    ),
    Bad(
        "alpha a string",
        lambda: sampled(alpha="1"),
        TypeError,
        ("alpha is a str", "accepted: a real number"),
    ),
)

TABLES = {
    "bsr_array, methods": METHODS,
    "load": STORAGE,
    **STACKS,
    "softmax": SOFTMAX,
    "sampled_matmul": SAMPLED,
}
