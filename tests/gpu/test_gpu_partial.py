"""Matrices whose sides are no multiple of the block, in every family's kernels."""

from __future__ import annotations

import bsrgemm
import numpy as np
import operations
import pytest
import sampled_cases
from bsrgemm import bsr_array
from bsrgemm._matmul import product
from cases import (
    DTYPES,
    Problem,
    allowed_error,
    assert_close,
    fill_beyond,
    normal,
    numpy_dtype,
    problem,
)
from device_cases import some
from operations import matrix
from partial_cases import GPU_SHAPES, SHAPES, Shape, make
from sampled_cases import Call
from spaces import GPU_SPACES, Space
from structure_cases import CHECKS

pytestmark = pytest.mark.gpu

OWN = GPU_SPACES[-1]
HALVES = ("float16", "bfloat16")


@pytest.mark.parametrize("operation", operations.OPERATIONS, ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
def test_operation(
    operation: operations.Operation, dtype: str, space: Space, rng: np.random.Generator
) -> None:
    space.check()
    if operation.strided and not space.strided:
        pytest.skip(f"{space!r} has no strided views")
    shapes = {**SHAPES, **(GPU_SHAPES if dtype in HALVES else {})}
    for name in some(list(shapes)):
        print(f"shape {name!r}")
        operations.check(operation, space, make(shapes[name], rng, dtype), rng)


def check_family(
    p: Problem, family: str, rng: np.random.Generator, beta: float = 0.0, form: str = "plain"
) -> None:
    """alpha * a @ b + beta * c, or the same for A.T or on the right, by kernels of one family."""
    turned = form in ("transposed", "right")
    m, k = p.shape[::-1] if turned else p.shape
    x, c = normal(rng, (k, p.n), p.dtype), normal(rng, (m, p.n), p.dtype)
    a = matrix(OWN, p)
    columns = form in ("right", "right_transposed")  # X and Y are column-major for these
    out = OWN.poisoned((p.n, m) if columns else (m, p.n), p.dtype)
    added = OWN.array(np.ascontiguousarray(c.T) if columns else c) if beta else None
    if columns:
        right = a if form == "right" else a.T
        left = OWN.array(np.ascontiguousarray(x.T))
        product(left, right, added, 0.5, beta, out, None, family)
    else:
        product(a.T if turned else a, OWN.array(x), added, 0.5, beta, out, None, family)
    found = OWN.host(out)
    dense = p.dense.T if turned else p.dense
    expected, allowed = allowed_error(dense, x, c if beta else None, 0.5, beta, p.dtype)
    assert_close(found.T if columns else found, expected, allowed)


# (family, blocksize, block rows, block columns, columns, cuts)
FAMILIES = (
    ("tall", (64, 64), 5, 6, 264, ((23, 41), (63, 0), (0, 63))),
    ("tall", (128, 32), 3, 7, 512, ((127, 1), (64, 31))),
    ("tall", (192, 16), 3, 7, 136, ((191, 15), (65, 3))),
    ("tall", (256, 80), 2, 4, 72, ((255, 79), (129, 17))),
    ("stream", (32, 32), 9, 7, 136, ((31, 31), (7, 0), (0, 9))),
    ("stream", (16, 16), 20, 9, 264, ((15, 1), (1, 15))),
    ("stream", (40, 64), 5, 4, 72, ((39, 63), (3, 33))),
    ("stream", (24, 24), 7, 9, 136, ((23, 23), (1, 9), (0, 17))),
    ("regroup", (12, 20), 11, 9, 136, ((11, 19), (1, 1))),
    ("regroup", (48, 80), 3, 5, 264, ((47, 79), (33, 17))),
    ("align", (64, 64), 3, 4, 101, ((17, 33), (63, 63))),
    ("align", (16, 32), 5, 4, 333, ((15, 31),)),
    ("narrow", (40, 24), 5, 6, 7, ((13, 17), (39, 0), (0, 23))),
    ("narrow", (16, 8), 9, 40, 64, ((15, 7),)),
    ("narrow", (128, 64), 3, 5, 1, ((100, 1), (1, 63))),
    ("narrow", (96, 24), 3, 6, 40, ((33, 0), (0, 7), (70, 23))),
    ("portable", (64, 64), 4, 5, 100, ((33, 31), (63, 0), (0, 63))),
    ("portable", (3, 5), 7, 9, 40, ((2, 4), (1, 0), (0, 1))),
)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", FAMILIES, ids=lambda c: f"{c[0]}-{c[1][0]}x{c[1][1]}")
def test_family(case: tuple, dtype: str, rng: np.random.Generator) -> None:
    numpy_dtype(dtype)
    family, blocksize, rows, cols, n, cuts = case
    for cut in some(cuts):
        for density in (0.4, 1.1, None):
            p = make(Shape(density, rows, cols, blocksize, cut, n), rng, dtype)
            for beta in (0.0, -2.0):
                check_family(p, family, rng, beta)


@pytest.mark.parametrize("form", ["transposed", "right", "right_transposed"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", [(64, 64), (128, 64), (192, 128)])
def test_transposed_tall(
    form: str, dtype: str, blocksize: tuple[int, int], rng: np.random.Generator
) -> None:
    numpy_dtype(dtype)
    rows, cols = 4, 5
    for less in some([(1, 1), (40, 0), (0, 40), (63, 57)]):
        # Columns of X and Y have to begin at multiples of 16 bytes.
        cut = tuple(8 * (x // 8) for x in less)
        p = make(Shape(0.5, rows, cols, blocksize, cut, 272), rng, dtype)
        for beta in (0.0, 1.5):
            check_family(p, "tall", rng, beta, form)


@pytest.mark.parametrize("form", ["transposed", "right", "right_transposed"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", [(16, 8), (16, 16), (32, 32), (48, 16), (64, 64)])
def test_transposed_stream(
    form: str, dtype: str, blocksize: tuple[int, int], rng: np.random.Generator
) -> None:
    """Of Y by columns, too, nothing beyond its last row is written."""
    numpy_dtype(dtype)
    height, width = blocksize
    for cut in some([(8, 8 % width), (height - 8, 0), (0, width - 8)]):
        n = 136 if form == "transposed" else 133
        p = make(Shape(0.4, 9, 7, blocksize, cut, n), rng, dtype)
        for beta in (0.0, 1.5):
            check_family(p, "stream", rng, beta, form)


@pytest.mark.parametrize("form", ["plain", "right_transposed"])
@pytest.mark.parametrize("dtype", HALVES)
def test_long_rows_in_parts(form: str, dtype: str, rng: np.random.Generator) -> None:
    """Rows that are shared out among SMs, the last one of them, and rows without blocks."""
    numpy_dtype(dtype)
    for long_row in some([5, 0]):
        mask = np.zeros((6, 300), bool)
        mask[long_row], mask[2, :3] = True, True
        mask[long_row, -1] = True
        p = problem(rng, mask, (64, 64), 72, dtype, cut=(24, 40))
        for beta in (0.0, 1.0):
            check_family(p, "tall", rng, beta, form)


@pytest.mark.parametrize(
    ("dtype", "family"),
    [
        *(
            ("float32", "kmajor"),
            ("float32", "kstream"),
            ("float8_e4m3fn", "kmajor"),
            ("float8_e5m2", "kmajor"),
        ),
        *(("float8_e4m3fn", "portable"), ("float8_e5m2", "portable")),
    ],
)
def test_tf32_and_8_bits(dtype: str, family: str, rng: np.random.Generator) -> None:
    numpy_dtype(dtype)
    out_dtypes = ("float32",) if dtype == "float32" else ("float16", "bfloat16", "float32")
    for cut in some([(23, 17), (63, 0), (0, 31)]):
        p = make(Shape(0.5, 3, 4, (64, 32), cut, 100), rng, dtype)
        for out_dtype in out_dtypes:
            precision = {"precision": "tf32"} if dtype == "float32" else {"out_dtype": out_dtype}
            for order in ("rows", "columns"):
                x = normal(rng, (p.shape[1], p.n), dtype)
                c = normal(rng, (p.shape[0], p.n), out_dtype)
                out = OWN.poisoned(c.shape, out_dtype)
                a = matrix(OWN, p)
                if order == "rows":
                    left, right, added = a, OWN.array(x), OWN.array(c)
                else:
                    left, right = OWN.array(np.ascontiguousarray(x.T)), a.T
                    added = OWN.array(np.ascontiguousarray(c.T))
                    out = OWN.poisoned(c.T.shape, out_dtype)
                product(left, right, added, 0.5, 2.0, out, None, family, **precision)
                found = OWN.host(out).astype(np.float64)
                found = found if order == "rows" else found.T
                expected = 0.5 * (p.dense @ x.astype(np.float64)) + 2 * c.astype(np.float64)
                error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
                assert error <= {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-3}[out_dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["portable", "pairs", "spread"])
def test_two_block_sparse_matrices(family: str, dtype: str, rng: np.random.Generator) -> None:
    numpy_dtype(dtype)
    if family == "pairs" and dtype not in HALVES:
        pytest.skip("those kernels are for 16-bit floats")
    sizes = ((64, 64, 128), (128, 192, 64)) if family == "pairs" else ((5, 9, 7), (32, 64, 16))
    # Of pairs, with rows of out at multiples of 16 bytes and others.
    cuts = ((4, 8, 3), (1, 0, 6))
    if family == "pairs":
        cuts = ((33, 17, 40), (33, 0, 0), (0, 0, 40), (33, 17, 39), (0, 1, 1))
    for height, depth, width in sizes:
        for cut in some(cuts):
            p = problem(rng, rng.random((4, 5)) < 0.6, (height, depth), 0, dtype, cut=cut[:2])
            q = problem(rng, rng.random((5, 3)) < 0.6, (depth, width), 0, dtype, cut=cut[1:])
            for beta in (0.0, -1.5):
                c = normal(rng, (p.shape[0], q.shape[1]), dtype)
                out = OWN.poisoned(c.shape, dtype)
                added = OWN.array(c) if beta else None
                product(matrix(OWN, p), matrix(OWN, q), added, 0.5, beta, out, None, family)
                expected, allowed = allowed_error(p.dense, q.dense, c, 0.5, beta, dtype)
                assert_close(OWN.host(out), expected, allowed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["portable", "sampled"])
def test_sampled(family: str, dtype: str, rng: np.random.Generator) -> None:
    numpy_dtype(dtype)
    if family == "sampled" and dtype not in HALVES:
        pytest.skip("those kernels are for 16-bit floats")
    of_hopper = family == "sampled"
    for height, width in ((64, 64), (128, 192)) if of_hopper else ((3, 5), (16, 32), (64, 64)):
        cuts = [(height - 1, width - 1), (height // 2, 0), (0, width // 3)]
        if of_hopper:  # rows of b begin at multiples of 16 bytes
            cuts = [(56, 40), (8, 0), (0, 16)]
        for cut in some(cuts):
            p = make(Shape(0.5, 4, 5, (height, width), cut, 0), rng, dtype)
            for transposed in (False, True):
                call = Call(0.5, -2.0, transposed=transposed)
                sampled_cases.check(OWN, p, 64 if of_hopper else 37, rng, call, family)


def test_infinities_do_not_spread(rng: np.random.Generator) -> None:
    """Zeros that meet an infinity or NaN beyond the matrix are zeros again in all results."""
    for dtype, shape in (("float32", SHAPES["odd"]), ("float16", GPU_SHAPES["64"])):
        p = make(shape, rng, dtype)
        m, n = p.shape
        a, b = normal(rng, (m, 64), dtype), normal(rng, (64, n), dtype)
        a[::3], b[:, ::5] = np.inf, np.nan
        for of in (matrix(OWN, p), matrix(OWN, p).T):
            left, right = (b.T.copy(), a.T.copy()) if of.is_transposed else (a, b)
            found = bsrgemm.sampled_matmul(OWN.array(left), OWN.array(right), of, beta=1.0)
            found = found.T if of.is_transposed else found
            bsr_array((found.data, p.indices, p.indptr), p.shape)  # looks at what is beyond
        spoiled = Problem(p.data.copy(), p.indices, p.indptr, p.shape, p.n, dtype)
        spoiled.data[:, 0, 0] = np.nan
        fill_beyond(spoiled, 0)
        for of in (matrix(OWN, spoiled), matrix(OWN, spoiled).T):
            found = bsrgemm.softmax(of)
            found = found.T if of.is_transposed else found
            bsr_array((found.data, p.indices, p.indptr), p.shape)


@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
def test_values_beyond_are_refused(space: Space, rng: np.random.Generator) -> None:
    space.check()
    for cut in ((1, 0), (0, 2), (1, 2)):
        p = make(SHAPES["odd"]._replace(cut=cut), rng, "float32")
        assert np.array_equal(space.host(matrix(space, p).todense()), p.dense.astype(np.float32))
        fill_beyond(p, np.nan)
        with pytest.raises(ValueError, match="data has elements that are not 0 in block (row|col)"):
            matrix(space, p)


class Foreign:
    """Device memory of a library that is not known here."""

    def __init__(self, array: bsrgemm.DeviceArray) -> None:
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def test_foreign_values_are_trusted(rng: np.random.Generator) -> None:
    p = make(SHAPES["odd"], rng, "float32")
    a = bsr_array((Foreign(OWN.array(p.data)), p.indices, p.indptr), p.shape)
    x = normal(rng, (p.shape[1], p.n), "float32")
    expected, allowed = allowed_error(p.dense, x, None, 1.0, 0.0, "float32")
    assert_close(OWN.host(a @ OWN.array(x)), expected, allowed)


@pytest.mark.parametrize("space", GPU_SPACES[:2], ids=repr)
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_structure(check: object, space: Space, rng: np.random.Generator) -> None:
    space.check()
    assert callable(check)
    for name in ("odd", "rows", "columns"):
        check(space, make(SHAPES[name], rng, "float32"), rng)


def test_graphs(torch: object, rng: np.random.Generator) -> None:
    """Products that need copies, and softmax and sampled products, captured and replayed."""
    import torch as library

    space = GPU_SPACES[0]
    for dtype, shape in (("float32", SHAPES["odd"]), ("float16", GPU_SHAPES["64"])):
        p = make(shape, rng, dtype)
        a = matrix(space, p)
        x = space.array(normal(rng, (p.shape[1], p.n), dtype))
        left = space.array(normal(rng, (p.shape[0], 8), dtype))
        right = space.array(normal(rng, (8, p.shape[1]), dtype))

        def run(
            a: bsr_array = a, x: object = x, left: object = left, right: object = right
        ) -> list:
            return [
                a @ x,
                bsrgemm.softmax(a).data,
                bsrgemm.softmax(a.T).T.data,
                bsrgemm.sampled_matmul(left, right, a).data,
            ]

        expected = run()
        library.cuda.synchronize()
        graph = library.cuda.CUDAGraph()
        with library.cuda.graph(graph):
            found = run()
        for tensor in found:
            tensor.fill_(float("nan"))
        graph.replay()
        library.cuda.synchronize()
        assert all(map(library.equal, found, expected))
