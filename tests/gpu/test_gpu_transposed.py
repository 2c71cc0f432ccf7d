"""Products with transposed views and with the block-sparse matrix on the right, on the GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from cases import cancellation, least_error
from device_cases import (
    DeviceProblem,
    check_same_bits,
    corner,
    extent,
    random_problem,
    reduced,
    relative_error,
    some,
)
from test_gpu_shapes import HALVES, PATTERNS

pytestmark = pytest.mark.gpu


class Form(NamedTuple):
    """Which product, and whether it reads the blocks as the rows of A or of A.T."""

    transposed: bool
    right: bool

    @property
    def reads_columns(self) -> bool:
        return self.transposed != self.right

    def __repr__(self) -> str:
        a = "A.T" if self.transposed else "A"
        return f"X @ {a}" if self.right else f"{a} @ X"


FORMS = (Form(True, False), Form(False, True), Form(True, True))
ALL_FORMS = (Form(False, False), *FORMS)

# How a dense matrix lies: by rows, by columns, or by one of these in a wider one with more room.
LAYOUTS = ("rows", "columns", "padded rows", "padded columns")


def placed(torch: Any, rows: int, cols: int, layout: str, dtype: Any) -> tuple[Any, Any]:
    """Memory full of NaN, and the part of it that is the matrix."""
    if layout.endswith("columns"):
        memory, matrix = placed(torch, cols, rows, layout.replace("columns", "rows"), dtype)
        return memory, matrix.T
    pad = 8 if layout.startswith("padded") else 0
    memory = torch.full((rows + 2, cols + pad), float("nan"), device="cuda", dtype=dtype)
    return memory, memory[1 : rows + 1, :cols]


def check_form(
    torch: Any,
    p: DeviceProblem,
    form: Form,
    n: int,
    *,
    layout: str = "rows",
    alpha: float = 1.0,
    beta: float = 0.0,
    c_layout: str | None = None,
    in_place: bool = False,
    family: str = "auto",
) -> None:
    """Compare the whole result with float64; nothing around it may be written to."""
    a, dense = (p.matrix.T, p.dense.T) if form.transposed else (p.matrix, p.dense)
    dtype = p.matrix.dtype
    inner, outer = (dense.shape[0], dense.shape[1]) if form.right else dense.shape[::-1]
    x_shape, y_shape = ((n, inner), (n, outer)) if form.right else ((inner, n), (outer, n))
    _, x = placed(torch, *x_shape, layout, dtype)
    x.copy_(torch.randn(x_shape, device="cuda"))
    memory, out = placed(torch, *y_shape, layout, dtype)
    c = None
    if beta:
        c = out if in_place else placed(torch, *y_shape, c_layout or layout, dtype)[1]
        c.copy_(torch.randn(y_shape, device="cuda"))
    given = None if c is None else c.clone()
    operands = (x, a) if form.right else (a, x)
    product(*operands, c, alpha, beta, out, None, family)

    def exact(kind: Any, part: Any = lambda value: value) -> Any:
        left, right = (part(of.to(kind)) for of in ((x, dense) if form.right else (dense, x)))
        result = part(alpha) * torch.mm(left, right)
        return result if given is None else result + part(beta) * part(given.to(kind))

    expected = exact(torch.float64)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    name = str(dtype).removeprefix("torch.")
    lost = relative_error(torch, exact(wide).to(dtype), expected)
    cancelled = cancellation(expected, exact(torch.float64, abs), inner)
    allowed = max(2.0 * lost, least_error(name, inner, cancelled))
    what = f"{form!r} {p.matrix!r} n={n} {layout} alpha={alpha} beta={beta} family={family}"
    assert not out.isnan().any(), f"{what}: not all of out was written, {extent(out.isnan())}"
    error = relative_error(torch, out, expected)
    assert error <= allowed, f"{what}: relative error {error:.3e}, allowed {allowed:.3e}"
    out.fill_(float("nan"))
    assert memory.isnan().all(), f"{what}: something outside out was written to"


def make(
    torch: Any,
    mask: np.ndarray,
    form: Form,
    tall: tuple[int, int],
    dtype: str,
) -> DeviceProblem:
    """A problem whose blocks, as the product reads them, have the shape and pattern given."""
    if form.reads_columns:
        return random_problem(torch, np.ascontiguousarray(mask.T), tall[::-1], dtype)
    return random_problem(torch, mask, tall, dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [16, 32, 48, 64, 80, 112, 128, 144])
@pytest.mark.parametrize("height", [64, 128, 192, 256])
@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_tall(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    form: Form,
    height: int,
    width: int,
    dtype: str,
) -> None:
    """Operands as they lie, in numbers of columns or rows below, at and above a tile."""
    for rows, cols in ((1, 1), (3, 5), (6, 13)):
        mask = cases.uniform(0.5)(rng, rows, cols) | corner(rows, cols)
        p = make(torch, mask, form, (height, width), dtype)
        numbers = (
            (2, 5, 63, 200, 255, 256, 257, 520, 771) if form.right else (8, 200, 256, 264, 768)
        )
        for n in some(numbers):
            check_form(torch, p, form, n, family="tall")
        check_form(torch, p, form, 264, alpha=-0.5, beta=2.0, family="tall")


def check_layouts(torch: Any, p: DeviceProblem, form: Form, family: str) -> None:
    """All layouts of the operands, and C in place."""
    for layout in LAYOUTS:
        check_form(torch, p, form, 264, layout=layout, family=family)
        scaled = {"alpha": 2.0, "beta": -1.0, "in_place": True}
        check_form(torch, p, form, 72, layout=layout, family=family, **scaled)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("form", ALL_FORMS, ids=repr)
def test_tall_patterns(
    torch: Any, rng: np.random.Generator, hopper: None, form: Form, pattern: str
) -> None:
    """Long rows in parts, empty ones cleared aside, and C in every layout and in place."""
    pattern_of, rows, cols = PATTERNS[pattern]
    mask = pattern_of(rng, rows, cols) | corner(rows, cols)
    for shape in some(((64, 64), (128, 64), (64, 32), (192, 48))):
        p = make(torch, mask, form, shape, "float16")
        check_layouts(torch, p, form, "tall")
        if form.right:
            for c_layout in LAYOUTS:
                check_form(torch, p, form, 131, beta=0.5, c_layout=c_layout, family="tall")


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_parts(torch: Any, rng: np.random.Generator, hopper: None, form: Form) -> None:
    """One block row has nearly all blocks, a third of the others none."""
    mask = rng.random((12, 160)) < 0.02
    mask[0] = True
    mask[1::3] = False
    for shape in ((64, 64), (128, 64), (64, 112)):
        p = make(torch, mask, form, shape, "bfloat16")
        for n in (256, 771 if form.right else 776):
            check_form(torch, p, form, n, family="tall")
            check_form(torch, p, form, n, alpha=0.5, beta=2.0, family="tall")


STREAMED = [
    (height, width)
    for height in (8, 16, 24, 32, 40, 48, 56, 64, 72, 96, 112, 128)
    for width in (8, 16, 24, 32, 48, 112)
    if height > 8 or width % 16 == 0
]


# A block each, since racecheck takes minutes for all widths.
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", STREAMED, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_stream(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    form: Form,
    block: tuple[int, int],
    dtype: str,
) -> None:
    """Blocks turned while they are packed, X and Y as they lie: by columns in any number of them,
    below, at and above a panel and a tile."""
    numbers = (2, 7, 63, 64, 65, 127, 128, 333) if form.right else (72, 128, 264)
    for rows, cols in ((1, 1), (5, 3), (40, 37)):
        mask = cases.uniform(0.3)(rng, rows, cols) | corner(rows, cols)
        p = make(torch, mask, form, block, dtype)
        for n in some(numbers):
            check_form(torch, p, form, n, family="stream")
        check_form(torch, p, form, 200, alpha=-0.5, beta=2.0, family="stream")
        check_form(torch, p, form, 200, alpha=3.0, family="stream")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("height", [8, 16, 24, 32, 40, 48, 56, 64, 96, 112])
def test_packed_and_stored_blocks(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    height: int,
    width: int,
    right: bool,
    dtype: str,
) -> None:
    """Blocks of a transposed view are packed, others 16 or 32 wide read as they are stored: both
    give the same bits, for clusters of CTAs and single ones, with fused output and without."""
    mask = cases.uniform(0.2)(rng, reduced(3072) // height, 1280 // width)
    stored = random_problem(torch, mask, (height, width), dtype).matrix
    packed = stored.T.copy().T
    for n in some((128, 1024, 1096)):
        x = torch.randn(1280, n, device="cuda").to(stored.dtype)
        bias = torch.randn(stored.shape[0], device="cuda").to(stored.dtype)
        for options in ({}, {"bias": bias, "activation": "relu"}):
            if right:  # y = x @ A.T, in which X and Y lie by columns
                given = x.T.contiguous()
                found = [
                    product(given, a.T, None, 1.0, None, None, None, "stream", **options)
                    for a in (stored, packed)
                ]
            else:
                options = {k: v[:, None] if k == "bias" else v for k, v in options.items()}
                found = [
                    product(a, x, None, 1.0, None, None, None, "stream", **options)
                    for a in (stored, packed)
                ]
            assert found[0].isfinite().all() and torch.equal(*found)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("form", ALL_FORMS, ids=repr)
def test_stream_patterns(
    torch: Any, rng: np.random.Generator, hopper: None, form: Form, pattern: str
) -> None:
    """Rows without blocks and with many, and C in every layout and in place."""
    pattern_of, rows, cols = PATTERNS[pattern]
    mask = pattern_of(rng, rows, cols) | corner(rows, cols)
    for shape in some(((16, 16), (32, 32), (8, 32), (16, 8), (24, 16), (48, 32), (64, 16))):
        p = make(torch, mask, form, shape, "float16")
        check_layouts(torch, p, form, "stream")
        # Where X lies by columns; n is odd, which C by rows is not aligned for either.
        layout = "padded rows" if form.right else "padded columns"
        for c_layout in LAYOUTS:
            check_form(
                torch, p, form, 131, layout=layout, beta=0.5, c_layout=c_layout, family="stream"
            )


@pytest.mark.parametrize("block", [(16, 8), (16, 16), (32, 32)], ids=str)
@pytest.mark.parametrize("form", [Form(False, True), Form(True, True)], ids=repr)
def test_stream_many_tiles(
    torch: Any, rng: np.random.Generator, hopper: None, form: Form, block: tuple[int, int]
) -> None:
    """Several tiles for each SM, in both ways of multiplying blocks."""
    for density in (0.05, 0.4):
        mask = cases.uniform(density)(rng, reduced(2048) // block[0], reduced(1536) // block[1])
        p = make(torch, mask | corner(*mask.shape), form, block, "bfloat16")
        check_form(torch, p, form, reduced(8191), family="stream")
        check_form(torch, p, form, reduced(8191), alpha=0.5, beta=2.0, family="stream")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("density", [0.03, 0.3, 1.1])
@pytest.mark.parametrize("block", [(8, 8), (16, 16), (24, 24), (20, 12), (5, 3), (32, 8)], ids=str)
def test_regroup(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    block: tuple[int, int],
    density: float,
    dtype: str,
) -> None:
    """As they are stored, by columns: larger blocks reach beyond the ends of X and Y."""
    form = Form(True, True)
    for rows, cols in ((8, 8), (24, 40), (104, 72)):
        mask = cases.uniform(density)(rng, rows, cols) | corner(rows, cols)
        p = random_problem(torch, mask, block, dtype)
        for n in some((2, 64, 131, 333)):
            check_form(torch, p, form, n, family="regroup")
        for c_layout in LAYOUTS:
            check_form(
                torch, p, form, 201, alpha=-0.5, beta=2.0, c_layout=c_layout, family="regroup"
            )


def test_regrouped_long_rows(torch: Any, rng: np.random.Generator, hopper: None) -> None:
    """Which would be cut if Y ended where the larger blocks do."""
    for rows in (16, 19):
        mask = np.zeros((rows, 640), bool)
        mask[4:8] = True
        p = random_problem(torch, mask | corner(rows, 640), (16, 16), "float16")
        for n in some((72, 256, 771)):
            check_form(torch, p, Form(True, True), n, family="regroup")
            check_form(torch, p, Form(True, True), n, beta=1.0, family="regroup")


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("blocksize", [(16, 16), (24, 40), (7, 5), (64, 48), (130, 33)])
@pytest.mark.parametrize("form", ALL_FORMS, ids=repr)
def test_portable(
    torch: Any, rng: np.random.Generator, form: Form, blocksize: tuple[int, int], dtype: str
) -> None:
    """Every dtype and block shape, in every layout."""
    p = random_problem(torch, cases.uniform(0.4)(rng, 7, 9), blocksize, dtype)
    for layout in LAYOUTS:
        for n in some((1, 3, 40, 264)):
            check_form(torch, p, form, n, layout=layout, family="portable")
        check_form(torch, p, form, 72, layout=layout, alpha=2.0, beta=-1.0, family="portable")


@pytest.mark.parametrize("blocksize", [(16, 16), (32, 32), (20, 12), (64, 64), (128, 128), (8, 8)])
@pytest.mark.parametrize("form", ALL_FORMS, ids=repr)
def test_chosen_family(
    torch: Any, rng: np.random.Generator, form: Form, blocksize: tuple[int, int]
) -> None:
    """Whatever the planner takes, for aligned and odd sizes and layouts."""
    p = random_problem(torch, cases.uniform(0.3)(rng, 11, 13), blocksize, "float16")
    for layout in LAYOUTS:
        for n in some((1, 16, 100, 512, 777)):
            check_form(torch, p, form, n, layout=layout)


@pytest.mark.parametrize("block", [(64, 64), (32, 32)], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_same_bits(
    torch: Any, rng: np.random.Generator, hopper: None, form: Form, block: tuple[int, int]
) -> None:
    """Again and again, captured in a graph, and from a view made anew."""
    mask = cases.skewed(rng, 24, 40)
    p = make(torch, mask | corner(24, 40), form, block, "float16")
    side = p.dense.T if form.transposed else p.dense
    shape = (600, side.shape[0]) if form.right else (side.shape[1], 600)
    x = torch.randn(shape, device="cuda").half()

    def multiply() -> Any:
        a = p.matrix.T if form.transposed else p.matrix
        return x @ a if form.right else a @ x

    check_same_bits(torch, multiply, x)


def test_values_are_shared(torch: Any, rng: np.random.Generator) -> None:
    """A view allocates nothing, and sees values that change in place."""
    p = random_problem(torch, cases.uniform(0.5)(rng, 8, 8), (64, 64), "float16")
    before = torch.cuda.memory_allocated()
    view = p.matrix.T
    assert torch.cuda.memory_allocated() == before and view.T.data is p.matrix.data
    x = torch.randn(512, 264, device="cuda").half()
    first = view @ x
    p.matrix.data.neg_()
    assert torch.equal(view @ x, -first)


def test_regroup_reads_stored_blocks(torch: Any, rng: np.random.Generator, hopper: None) -> None:
    p = random_problem(torch, cases.uniform(0.5)(rng, 8, 8), (16, 16), "float16")
    x = torch.randn(128, 64, device="cuda").half()
    with pytest.raises(ValueError, match="'regroup' cannot compute .*blocks as they are stored"):
        product(p.matrix.T, x, None, 1.0, None, None, None, "regroup")
