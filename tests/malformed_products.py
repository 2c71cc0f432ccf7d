"""Malformed operands of products."""

from __future__ import annotations

from typing import Any

import numpy as np
from bsrgemm import bsr_array, matmul
from malformed_inputs import Bad, Cuda, build, i32, misaligned, read_only, x


def overlapping() -> tuple[np.ndarray, np.ndarray]:
    """b and an out that begins inside it."""
    memory = np.ones(64, np.float32)
    return memory[:18].reshape(6, 3), memory[10:22].reshape(4, 3)


def _into_data_of_b() -> Any:
    memory = np.ones((2, 8, 8), np.float32)
    b = bsr_array((memory, i32(0, 0), i32(0, 1, 2)), (16, 8))
    a = bsr_array((np.ones((1, 8, 8), np.float32), i32(0), i32(0, 1)), (8, 16))
    return matmul(a, b, out=memory[1])


class NoStream:
    def __cuda_stream__(self) -> tuple[int, str]:
        return 0, "default"


class CudaBroken(Cuda):
    def __init__(self, missing: str) -> None:
        super().__init__(shape=(6, 3))
        del self.__cuda_array_interface__[missing]


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
        "two sparse matrices, precision",
        lambda: matmul(build(), build().T, precision="tf33"),
        ValueError,
        ("precision is 'tf33'", "'ieee' or 'tf32'"),
    ),
    Bad(
        "two sparse matrices, tf32 of float64",
        lambda: matmul(build().astype("float64"), build().T.astype("float64"), precision="tf32"),
        TypeError,
        ("precision is 'tf32', but a.data has dtype float64",),
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
    Bad(
        "a is dense", lambda: matmul(x(4, 6), x(6, 3)), TypeError, ("a is an ndarray", "bsr_array")
    ),
    Bad("b at no device address", lambda: build() @ Cuda(shape=(6, 3)), RuntimeError, (), True),
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
    Bad(
        "alpha beyond float32",
        lambda: matmul(build(), x(6, 3), alpha=1e39),
        ValueError,
        ("alpha is 1e+39", "where a has dtype float32"),
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
        "alpha too large",
        lambda: matmul(build(), x(6, 3), alpha=10**400),
        ValueError,
        ("alpha is an int beyond what float64 holds", "accepted: a real number"),
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
    Bad(
        "cuda interface without shape",
        lambda: build() @ CudaBroken("shape"),
        TypeError,
        ("b", "shape"),
    ),
    Bad(
        "cuda interface without data",
        lambda: build() @ CudaBroken("data"),
        TypeError,
        ("b", "data"),
    ),
)

TABLES = {"matmul": PRODUCTS}
