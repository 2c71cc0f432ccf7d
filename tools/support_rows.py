"""The calls that docs/support.md says about whether, and by which kernels, they are computed."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import bsrgemm
import numpy as np
from bsrgemm._dtypes import numpy_dtype
from bsrgemm._interop import TORCH

TF32 = "float32 as tf32"
FLOATS = ("float16", "bfloat16", "float32", "float64")
EIGHT = ("float8_e4m3fn", "float8_e5m2")
DTYPES = (*FLOATS[:3], TF32, FLOATS[3], *EIGHT)
WITHOUT_TF32 = (*FLOATS, *EIGHT)

BLOCKS = ((128, 128), (64, 32), (32, 32), (16, 16), (5, 3))
FORMS = ("A @ X", "A.T @ X", "X @ A", "X @ A.T")
LAYOUTS = ("row-major", "column-major", "strided")


class Operands:
    """Of one dtype, in sizes that suit the device: what is said to be on a GPU is not read."""

    def __init__(self, dtype: str, device: str, library: str = "numpy") -> None:
        self.precision = "tf32" if dtype == TF32 else "ieee"
        self.name = "float32" if dtype == TF32 else dtype
        self.dtype = numpy_dtype(self.name)
        self.device, self.library = device, library
        self.side = 16 if device == "cpu" else 4096
        self.columns = 16 if device == "cpu" else 1024

    def dense(self, shape: tuple[int, ...], layout: str = "row-major", dtype: Any = None) -> Any:
        dtype = self.dtype if dtype is None else numpy_dtype(dtype)
        if self.library == "torch":
            return TORCH.from_host(np.zeros(shape, dtype), TORCH.torch.empty(0))
        make = np.zeros if self.device == "cpu" else np.empty  # which touches no memory
        if layout == "row-major":
            return make(shape, dtype)
        if layout == "column-major":
            return make((*shape[:-2], shape[-1], shape[-2]), dtype).swapaxes(-1, -2)
        return make((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]

    def result(self, shape: tuple[int, ...]) -> Any:
        """Of the result's dtype."""
        return self.dense(shape, dtype="bfloat16" if self.name in EIGHT else None)

    def grid(self, block: tuple[int, int]) -> tuple[int, int]:
        return max(2, self.side // block[0]), max(2, self.side // block[1])

    def shape(self, block: tuple[int, int], cut: bool = False) -> tuple[int, int]:
        """``cut``: half of the last block row and of the last block column is beyond it."""
        rows, cols = self.grid(block)
        less = (block[0] // 2, block[1] // 2) if cut else (0, 0)
        return rows * block[0] - less[0], cols * block[1] - less[1]

    def batch(self, block: tuple[int, int], transposed: bool = False) -> bsrgemm.bsr_array:
        return self.matrix(block, transposed, (2,))

    def partial(self, block: tuple[int, int], transposed: bool = False) -> bsrgemm.bsr_array:
        return self.matrix(block, transposed, cut=True)

    def matrix(
        self,
        block: tuple[int, int],
        transposed: bool = False,
        batch: tuple[int, ...] = (),
        cut: bool = False,
    ) -> bsrgemm.bsr_array:
        indices, indptr = _pattern(self.grid(block))
        values = self.dense((*batch, len(indices), *block))
        base = _base(self.shape(block, cut), block)
        a = bsrgemm.bsr_array(base)._sharing(values, self.device)
        return a.T if transposed else a

    def dynamic(self, block: tuple[int, int], transposed: bool = False) -> bsrgemm.DynamicArray:
        pattern = self.pattern(block)
        a = pattern.array(self.dense((pattern.capacity, *block)))
        return a.T if transposed else a

    def pattern(self, block: tuple[int, int]) -> bsrgemm.DynamicPattern:
        capacity = len(_pattern(self.grid(block))[0])
        return bsrgemm.DynamicPattern(self.shape(block), block, capacity, self.device)


@functools.cache
def _pattern(grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """indices and indptr of an eighth of the blocks, spread evenly."""
    rows, cols = (np.arange(size) for size in grid)
    mask = (3 * rows[:, None] + cols) % min(8, *grid) == 0
    return np.nonzero(mask)[1].astype(np.int32), np.append(0, mask.sum(axis=1).cumsum())


@functools.cache
def _base(shape: tuple[int, int], block: tuple[int, int]) -> bsrgemm.bsr_array:
    """Matrices of all dtypes have its structure, which keeps its plans."""
    indices, indptr = _pattern((-(-shape[0] // block[0]), -(-shape[1] // block[1])))
    return bsrgemm.bsr_array((np.zeros((len(indices), *block)), indices, indptr), shape)


class Row(NamedTuple):
    """``library``: that of the arrays computes it, on any device, or else the extension does."""

    label: str
    run: Callable[[Operands], Any]
    dtypes: tuple[str, ...] = WITHOUT_TF32
    library: str | None = None


# ---- products with a dense matrix ----------------------------------------------------------------


def _product(
    o: Operands,
    form: str,
    block: tuple[int, int],
    layout: str = "row-major",
    columns: int | None = None,
    kind: str = "matrix",
    batch: tuple[int, ...] = (),
    out_layout: str | None = None,
    options: Callable[[Operands, tuple[int, ...], Any], dict[str, Any]] | None = None,
) -> None:
    """``options`` makes further arguments, see OPTIONS."""
    a = getattr(o, kind)(block, ".T" in form)
    n = o.columns if columns is None else columns
    right = form.startswith("X")
    inner, outer = a.shape[-2:] if right else a.shape[:-3:-1]
    x_shape = (*batch, n, inner) if right else (*batch, inner, n)
    shape = (*batch, n, outer) if right else (*batch, outer, n)
    shape = (*np.broadcast_shapes(batch, a.shape[:-2]), *shape[-2:])
    result = "bfloat16" if o.name in EIGHT else o.name
    given = {"out": o.dense(shape, out_layout or layout, result)}
    if options is not None:
        given |= options(o, shape, a)
    x = o.dense(x_shape, layout)
    bsrgemm.matmul(*((x, a) if right else (a, x)), precision=o.precision, **given)


def _vector(o: Operands, form: str, block: tuple[int, int]) -> None:
    a = o.matrix(block, ".T" in form)
    right = form.startswith("X")
    x = o.dense((a.shape[0 if right else 1],))
    bsrgemm.matmul(*((x, a) if right else (a, x)), precision=o.precision)


def _products(block: tuple[int, int]) -> Iterator[Row]:
    for form in FORMS:
        for layout in LAYOUTS:
            yield Row(
                f"`{form}`, {layout}", partial(_product, form=form, block=block, layout=layout)
            )
        odd = partial(_product, form=form, block=block, columns=509)
        yield Row(f"`{form}`, row-major, N = 509", odd)
        few = partial(_product, form=form, block=block, columns=8)
        yield Row(f"`{form}`, row-major, N = 8", few)
        yield Row(f"`{form}`, a vector", partial(_vector, form=form, block=block))


def _with_tf32(rows: Iterator[Row]) -> list[Row]:
    return [row._replace(dtypes=DTYPES) for row in rows]


# Arguments of matmul beyond operands and out, for a result of a shape and the matrix a.
OPTIONS: dict[str, Callable[[Operands, tuple[int, ...], Any], dict[str, Any]]] = {
    "`alpha`, `beta`, `c`": lambda o, shape, a: {
        "c": o.result(shape),
        "alpha": 0.5,
        "beta": 2.0,
    },
    "`c` of one row, broadcast": lambda o, shape, a: {"c": o.result(shape[-1:])},
    "`bias` of columns": lambda o, shape, a: {"bias": o.result((shape[1],))},
    "`bias` of rows": lambda o, shape, a: {"bias": o.result((shape[0], 1))},
    "`bias` of float32": lambda o, shape, a: {"bias": o.dense((shape[1],), dtype="float32")},
    '`activation="relu"`': lambda o, shape, a: {"activation": "relu"},
    '`activation="gelu"`': lambda o, shape, a: {"activation": "gelu"},
    '`activation="gelu_tanh"`': lambda o, shape, a: {"activation": "gelu_tanh"},
    '`activation="silu"`': lambda o, shape, a: {"activation": "silu"},
    "`row_scale`": lambda o, shape, a: {"row_scale": o.result(shape[:1])},
    "`col_scale`": lambda o, shape, a: {"col_scale": o.result(shape[1:])},
    "`a_scale`, a number": lambda o, shape, a: {"a_scale": 2.0},
    "`a_scale`, an element": lambda o, shape, a: {"a_scale": o.dense((1,), dtype="float32")},
    "`a_scale`, one a block": lambda o, shape, a: {"a_scale": o.dense((a.nnzb,), dtype="float32")},
    "`b_scale`, a number": lambda o, shape, a: {"b_scale": 2.0},
    '`out_dtype="float16"`': lambda o, shape, a: {
        "out_dtype": "float16",
        "out": o.dense(shape, dtype="float16"),
    },
    '`out_dtype="float32"`': lambda o, shape, a: {
        "out_dtype": "float32",
        "out": o.dense(shape, dtype="float32"),
    },
    '`out_dtype="float64"`': lambda o, shape, a: {
        "out_dtype": "float64",
        "out": o.dense(shape, dtype="float64"),
    },
}


def _options(block: tuple[int, int]) -> Iterator[Row]:
    for label, make in OPTIONS.items():
        yield Row(label, partial(_product, form="A @ X", block=block, options=make))
    for form, batch in (("A @ X", (3,)), ("X @ A", (2, 3)), ("X @ A", (1,) * 6)):
        label = f"`{form}`, batch {batch}"
        yield Row(label, partial(_product, form=form, block=block, batch=batch, columns=16))
    for form, batch in (("A @ X", ()), ("A @ X", (2,)), ("X @ A.T", (3, 1))):
        run = partial(_product, form=form, block=block, kind="batch", batch=batch)
        yield Row(f"`{form}`, a batch (2,) of A, and {batch} of X", run)
    many = partial(_product, form="A @ X", block=block, batch=(1,) * 7, columns=8)
    yield Row("`A @ X`, batch of seven dimensions", many)


# ---- two block-sparse matrices, sampled products, softmax ----------------------------------------


def _pair(
    o: Operands,
    form: str,
    block: tuple[int, int],
    layout: str,
    kind: str = "matrix",
    **options: Any,
) -> None:
    turned = ["A.T" in form, "B.T" in form]
    inner = block[1]
    a = getattr(o, kind)((inner, block[0]) if turned[0] else (block[0], inner), turned[0])
    other = o.partial if kind == "partial" else o.matrix
    b = other((block[0], inner) if turned[1] else (inner, block[0]), turned[1])
    shape = (a.shape[-2], b.shape[1])
    made = {name: value(o, shape) for name, value in options.items()}
    made.setdefault("out", o.dense(shape, layout))
    bsrgemm.matmul(a, b, precision=o.precision, **made)


def _pairs() -> Iterator[Row]:
    for block in ((128, 64), (32, 32), (5, 3)):
        for form in ("A @ B", "A.T @ B", "A @ B.T", "A.T @ B.T"):
            for layout in LAYOUTS:
                run = partial(_pair, form=form, block=block, layout=layout)
                yield Row(f"{block[0]} × {block[1]}: `{form}`, out {layout}", run)
    whole = partial(_pair, form="A @ B", block=(64, 64), layout="row-major")
    yield Row("64 × 64: a batch of A", partial(whole, kind="batch"))
    yield Row("64 × 64: `c`", partial(whole, c=lambda o, shape: o.dense(shape)))
    bias = partial(whole, bias=lambda o, shape: o.dense(shape[1:]))
    yield Row("64 × 64: `bias`", bias)
    yield Row("64 × 64: `activation`", partial(whole, activation=lambda o, shape: "relu"))


def _sampled(
    o: Operands,
    block: tuple[int, int],
    a: str = "row-major",
    b: str = "row-major",
    transposed: bool = False,
    batch: tuple[int, ...] = (),
    kind: str = "matrix",
    **options: float,
) -> None:
    pattern = getattr(o, kind)(block, transposed)
    (m, n), k = pattern.shape[-2:], o.columns
    operands = o.dense((*batch, m, k), a), o.dense((*batch, k, n), b)
    bsrgemm.sampled_matmul(*operands, pattern, **options)


def _samples() -> Iterator[Row]:
    for block in ((128, 128), (64, 192), (32, 32), (5, 3)):
        for turned in (False, True):
            name = f"{block[0]} × {block[1]}: pattern `{'A.T' if turned else 'A'}`"
            run = partial(_sampled, block=block, transposed=turned)
            for a, b in zip(LAYOUTS, LAYOUTS, strict=True):
                yield Row(f"{name}, a and b {a}", partial(run, a=a, b=b))
            mixed = partial(run, a="column-major", b="row-major")
            yield Row(f"{name}, a column-major, b row-major", mixed)
    yield Row("64 × 64: `alpha`, `beta`", partial(_sampled, block=(64, 64), alpha=0.5, beta=2.0))
    yield Row("64 × 64: batch (3,)", partial(_sampled, block=(64, 64), batch=(3,)))
    both = partial(_sampled, block=(64, 64), kind="batch", beta=1.0)
    yield Row("64 × 64: a batch of patterns, with `beta`", both)


def _softmax(o: Operands, block: tuple[int, int], transposed: bool, kind: str = "matrix") -> None:
    bsrgemm.softmax(getattr(o, kind)(block, transposed), 0.5)


def _softmaxes() -> Iterator[Row]:
    for block in ((64, 64), (5, 3)):
        for turned in (False, True):
            label = f"{block[0]} × {block[1]}: `{'A.T' if turned else 'A'}`"
            yield Row(label, partial(_softmax, block=block, transposed=turned))
    batch = partial(_softmax, block=(64, 64), transposed=False, kind="batch")
    yield Row("64 × 64: a batch", batch)
    dynamic = partial(_softmax, block=(64, 64), transposed=False, kind="dynamic")
    yield Row("64 × 64: a DynamicArray", dynamic)


# ---- blocks that reach beyond the matrix ---------------------------------------------------------


def _partial_blocks() -> Iterator[Row]:
    for block in BLOCKS:
        name = f"{block[0]} × {block[1]}"
        for form in FORMS:
            run = partial(_product, form=form, block=block, kind="partial")
            yield Row(f"{name}: `{form}`, row-major", run)
            yield Row(f"{name}: `{form}`, column-major", partial(run, layout="column-major"))
        few = partial(_product, form="A @ X", block=block, kind="partial", columns=8)
        yield Row(f"{name}: `A @ X`, row-major, N = 8", few)
    for block in ((128, 64), (5, 3)):
        run = partial(_pair, form="A @ B", block=block, layout="row-major", kind="partial")
        yield Row(f"{block[0]} × {block[1]}: `A @ B` of two block-sparse matrices", run)
    for block in ((128, 128), (5, 3)):
        name = f"{block[0]} × {block[1]}"
        sampled = partial(_sampled, block=block, kind="partial")
        yield Row(f"{name}: `sampled_matmul(a, b, A)`", sampled)
        weights = partial(_softmax, block=block, transposed=False, kind="partial")
        yield Row(f"{name}: `softmax(A)`", weights)
    yield Row("64 × 64: a DynamicPattern", _partial_pattern)


def _partial_pattern(o: Operands) -> None:
    block = (64, 64)
    bsrgemm.DynamicPattern(o.shape(block, cut=True), block, 4, o.device)


# ---- patterns that change ------------------------------------------------------------------------


def _update(o: Operands) -> None:
    o.pattern((64, 64)).update(np.zeros(o.grid((64, 64)), bool))


def _update_topk(o: Operands) -> None:
    o.pattern((64, 64)).update_topk(o.dense(o.grid((64, 64))), 2)


def _gather(o: Operands) -> None:
    pattern = o.pattern((64, 64))
    pattern.gather(o.dense(pattern.shape))


def _dynamic_pair(o: Operands) -> None:
    bsrgemm.matmul(o.dynamic((64, 64)), o.matrix((64, 64)))


def _dynamic_products() -> Iterator[Row]:
    yield Row("`update(mask)`", _update)
    yield Row("`update_topk(scores, k)`", _update_topk)
    yield Row("`gather(dense)`", _gather)
    for block in ((128, 128), (32, 32), (5, 3)):
        for form in FORMS:
            run = partial(_product, form=form, block=block, kind="dynamic")
            for layout in LAYOUTS:
                label = f"{block[0]} × {block[1]}: `{form}`, {layout}"
                yield Row(label, partial(run, layout=layout))
    for block in ((128, 128), (32, 32), (5, 3)):
        for turned in (False, True):
            name = f"{block[0]} × {block[1]}: `sampled_matmul(a, b, {'A.T' if turned else 'A'})`"
            run = partial(_sampled, block=block, transposed=turned, kind="dynamic")
            for layout in LAYOUTS:
                yield Row(f"{name}, a and b {layout}", partial(run, a=layout, b=layout))
    sums = partial(_sampled, block=(64, 64), kind="dynamic", alpha=0.5, beta=2.0)
    yield Row("64 × 64: `sampled_matmul` with `alpha`, `beta`", sums)
    batch = partial(_sampled, block=(64, 64), kind="dynamic", batch=(3,))
    yield Row("64 × 64: `sampled_matmul` of a batch", batch)
    fused = partial(_product, form="A @ X", block=(64, 64), kind="dynamic")
    bias = OPTIONS["`bias` of columns"]
    yield Row("64 × 64: `A @ X` with `bias`", partial(fused, options=bias))
    yield Row("64 × 64: with a bsr_array", _dynamic_pair)


# ---- what the library of the arrays computes -----------------------------------------------------


def _structures(library: str, block: tuple[int, int] = (4, 2)) -> Iterator[Row]:
    """``a`` is a matrix, ``o.dense(a.shape)`` of its size."""
    operations: dict[str, Callable[[Operands, Any], Any]] = {
        "`A.todense()`": lambda o, a: a.todense(),
        "`A.T.todense()`": lambda o, a: a.T.todense(),
        "`A.copy()`, `A.T.copy()`": lambda o, a: (a.copy(), a.T.copy()),
        '`A.astype("float32")`': lambda o, a: a.astype("float32"),
        "`bsr_array(dense, blocksize=)`": lambda o, a: bsrgemm.bsr_array(
            o.dense(a.shape), blocksize=block
        ),
        "`2 * A`, `A / 2`, `-A`": lambda o, a: (2 * a, a / 2, -a),
        "`A + B`, `A - B`": lambda o, a: (a + a.copy(), a - a[:, :] if a.nnzb else a),
        "`A * B`": lambda o, a: a * a.copy(),
        "`A.sum()`": lambda o, a: a.sum(),
        "`A.sum(axis=0)`, `A.sum(axis=1)`": lambda o, a: (a.sum(axis=0), a.sum(axis=1)),
        "`A[r0:r1, c0:c1]`": lambda o, a: a[:4, 2:],
        "`A.reblock(blocksize)`": lambda o, a: a.reblock((2, 2)),
        "`A.reblock(blocksize, drop_zeros=True)`": lambda o, a: a.reblock((2, 2), drop_zeros=True),
        "`A.block_mask()`": lambda o, a: a.block_mask(),
        "`from_block_mask`": lambda o, a: bsrgemm.bsr_array.from_block_mask(
            o.dense(a.shape), a.block_mask(), block
        ),
        "`prune(dense, blocksize, density)`": lambda o, a: bsrgemm.prune(
            o.dense(a.shape), block, 0.5
        ),
        "`vstack`, `hstack`, `block_diag`": lambda o, a: (
            bsrgemm.vstack([a, a]),
            bsrgemm.hstack([a, a]),
            bsrgemm.block_diag([a, a]),
        ),
        "`A.save(path)`, `load(path)`": lambda o, a: _round_trip(a),
        "`A.to_scipy()`": lambda o, a: a.to_scipy(),
        "`A.to_torch()`": lambda o, a: a.to_torch(),
        "`bsr_array(A.to_torch())`": lambda o, a: bsrgemm.bsr_array(a.to_torch()),
    }
    for label, run in operations.items():
        yield Row(label, partial(_on_matrix, run=run, block=block), library=library)
    of_partial = ("`A.todense()`", "`A.reblock(blocksize)`", "`A.to_scipy()`", "`A.to_torch()`")
    for label in (*of_partial, "`vstack`, `hstack`, `block_diag`", "`A.save(path)`, `load(path)`"):
        run = partial(_on_matrix, run=operations[label], block=block, kind="partial")
        yield Row(f"partial last blocks: {label}", run, library=library)


def _on_matrix(
    o: Operands,
    run: Callable[[Operands, Any], Any],
    block: tuple[int, int],
    kind: str = "matrix",
) -> None:
    run(o, getattr(o, kind)(block))


def _round_trip(a: bsrgemm.bsr_array) -> None:
    file = io.BytesIO()
    a.save(file)
    file.seek(0)
    bsrgemm.load(file)


def sections() -> Iterator[tuple[str, str, list[Row]]]:
    """Titles, what is to be known of the tables, and their rows."""
    from support_attention import attentions

    for block in BLOCKS:
        text = (
            "X is the dense operand, of the layout given, and the result has the same layout."
            if block == BLOCKS[0]
            else "As above."
        )
        title = f"Products with a dense matrix, blocks of {block[0]} × {block[1]}"
        yield title, text, _with_tf32(_products(block))
    for block in ((128, 128), (32, 32)):
        title = f"Options of products with a dense matrix, blocks of {block[0]} × {block[1]}"
        text = "Of `A @ X` unless said otherwise, all operands row-major."
        yield title, text, _with_tf32(_options(block))
    text = "Blocks of A are given; those of B are as high as those of A are wide."
    yield "Products of two block-sparse matrices", text, _with_tf32(_pairs())
    yield "Sampled products", "`sampled_matmul(a, b, pattern)`.", list(_samples())
    yield "Softmax over stored elements", "`softmax(A, scale)`.", list(_softmaxes())
    text = (
        "Half of the last block row and of the last block column is beyond the matrix. Otherwise "
        "as above."
    )
    yield "Blocks that reach beyond the matrix", text, _with_tf32(_partial_blocks())
    text = "`A = pattern.array(values)`; an eighth of all places for blocks is its capacity."
    yield "Patterns that a GPU makes: DynamicPattern", text, list(_dynamic_products())
    text = "`attention(q, k, v)`: 4 heads of size 64, 1024 queries and keys, unless said otherwise."
    yield "Attention", text, list(attentions())
    text = (
        "Computed by the library that holds the values, on its device; CuPy does what NumPy does. "
        "For arrays of other\nlibraries what works on values raises `TypeError`."
    )
    for library, name in (("numpy", "NumPy"), ("torch", "PyTorch")):
        yield f"Arithmetic and structure, {name}", text, list(_structures(library))
