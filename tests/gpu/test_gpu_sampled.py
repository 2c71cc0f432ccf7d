"""Sampled products on the GPU: all kernels, any order of the operands, streams and graphs."""

from __future__ import annotations

import itertools
from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
import sampled_cases
from bsrgemm import sampled_matmul
from bsrgemm._sampled import sampled
from cases import DTYPES, least_error, problem
from device_cases import (
    LONG,
    check_streams,
    combined,
    random_problem,
    reduced,
    relative_error,
    repeats,
    some,
)
from sampled_cases import Call
from spaces import GPU_SPACES, Space

pytestmark = pytest.mark.gpu

HALVES = ("float16", "bfloat16")
ORDERS = tuple(itertools.product(("rows", "columns"), repeat=2))

# name: (pattern, block rows, block columns, block shape, K)
SHAPES = {
    "odd": (cases.uniform(0.4), 5, 7, (3, 5), 11),
    "scalar blocks": (cases.uniform(0.3), 37, 23, (1, 1), 9),
    "16": (cases.uniform(0.25), 9, 30, (16, 16), 33),
    "narrow": (cases.uniform(0.5), 3, 60, (40, 4), 130),
    "wide": (cases.uniform(0.5), 3, 3, (5, 200), 64),
    "tall": (cases.uniform(0.6), 2, 3, (300, 24), 129),
    "64": (cases.uniform(0.4), 5, 6, (64, 64), 264),
    "128": (cases.uniform(0.5), 3, 5, (128, 128), 200),
    "no k": (cases.uniform(0.4), 4, 5, (64, 64), 0),
    "one k": (cases.uniform(0.4), 4, 5, (64, 8), 1),
    "empty rows": (cases.empty_rows, 5, 6, (64, 128), 40),
    "one block": (cases.one_block, 6, 7, (128, 64), 72),
    "all blocks": (cases.uniform(1.1), 4, 9, (64, 64), 96),
    "no blocks": (cases.uniform(0.0), 3, 4, (64, 64), 8),
    "one long row": (cases.one_long_row, 12, 40, (4, 4), 19),
    "partial": (cases.uniform(0.5), 5, 7, (3, 5), 11, 1, 3),
    "partial, 16": (cases.uniform(0.4), 5, 7, (16, 32), 40, 0, 17),
    "32": (cases.uniform(0.4), 7, 9, (32, 32), 264),
    "partial, 32": (cases.uniform(0.5), 5, 7, (32, 96), 72, 31, 33),
    "partial, 64": (cases.uniform(0.5), 4, 5, (64, 64), 72, 33, 63),
    "partial, 128": (cases.uniform(0.6), 3, 4, (128, 192), 64, 127, 65),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
def test_shapes(space: Space, dtype: str, name: str, rng: np.random.Generator) -> None:
    """Whatever kernel is chosen."""
    space.check()
    pattern, rows, cols, blocksize, k, *cut = SHAPES[name]
    p = problem(rng, pattern(rng, rows, cols), blocksize, 0, dtype, cut=tuple(cut or (0, 0)))
    orders = sampled_cases.ORDERS if space.strided else ("rows",)
    for a, b in combined(rng, orders, orders, drawn=2):
        sampled_cases.check(space, p, k, rng, Call(a=a, b=b))
    for out, transposed in combined(rng, ("new", "given", "pattern"), (False, True), drawn=2):
        sampled_cases.check(space, p, k, rng, Call(0.5, -2.0, transposed=transposed, out=out))
        sampled_cases.check(space, p, k, rng, Call(-1.75, transposed=transposed, out=out))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocksize", [(64, 64), (128, 128), (16, 32), (24, 40), (130, 33), (8, 8)])
def test_portable(dtype: str, blocksize: tuple[int, int], rng: np.random.Generator) -> None:
    """Blocks of every kernel's, too, and rows of a and b at multiples of 16 bytes and elsewhere."""
    space = GPU_SPACES[0]
    space.check()
    p = problem(rng, cases.uniform(0.4)(rng, 4, 9), blocksize, 0, dtype)
    for k in some((1, 7, 8, 31, 32, 33, 100, 264)):
        for a, b in ORDERS:
            call = Call(0.5, 2.0, a=a, b=b)
            sampled_cases.check(space, p, k, rng, call, "portable")


def check_on_gpu(
    torch: Any,
    mask: np.ndarray,
    blocksize: tuple[int, int],
    k: int,
    dtype: str,
    orders: tuple[str, str] = ("rows", "rows"),
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    transposed: bool = False,
    in_place: bool = False,
    pad: int = 0,
    family: str = "sampled",
) -> None:
    """Made, computed and compared on the GPU; nothing around the values may be written to."""
    p = random_problem(torch, mask, blocksize, dtype)
    kind = p.matrix.dtype
    pattern = p.matrix.T if transposed else p.matrix

    def operand(rows: int, cols: int, order: str) -> Any:
        if order == "columns":
            return operand(cols, rows, "rows").T
        memory = torch.full((rows, -(-cols // 8) * 8 + pad), float("nan"), device="cuda")
        memory = memory.to(kind)
        memory[:, :cols] = torch.randn(rows, cols, device="cuda")
        return memory[:, :cols]

    a, b = operand(pattern.shape[0], k, orders[0]), operand(k, pattern.shape[1], orders[1])
    old = p.matrix.data.clone()
    memory = torch.full((old.numel() + 64,), float("nan"), device="cuda").to(kind)
    values = memory[32:-32].view(old.shape)
    if in_place:
        values.copy_(old)
    elif not beta:
        p.matrix.data.fill_(float("nan"))
    arrays = p.matrix.indices, p.matrix.indptr
    made = bsrgemm.bsr_array((values, *arrays), p.matrix.shape)
    out = made.T if transposed else made
    sampled(a, b, out if in_place else pattern, alpha, beta, out, None, family)

    height, width = blocksize
    rows, cols = (torch.from_numpy(index) for index in np.nonzero(mask))

    def exact(work: Any) -> Any:
        full = alpha * torch.mm(a.to(work), b.to(work))
        full = full.T if transposed else full
        blocks = full.reshape(mask.shape[0], height, mask.shape[1], width)[rows, :, cols, :]
        return blocks + beta * old.to(work) if beta else blocks

    expected = exact(torch.float64)
    lost = relative_error(torch, exact(torch.float32).to(kind), expected)
    allowed = max(2.0 * lost, least_error(dtype, k))
    what = f"{p.matrix!r} k={k} {orders} alpha={alpha} beta={beta} transposed={transposed}"
    assert not values.isnan().any(), f"{what}: not all values were written"
    error = relative_error(torch, values, expected)
    assert error <= allowed, f"{what}: relative error {error:.3e}, allowed {allowed:.3e}"
    assert memory[:32].isnan().all() and memory[-32:].isnan().all(), f"{what}: wrote outside"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "blocksize",
    [
        *itertools.product((64, 128, 192, 256), (64, 128, 192)),
        *((32, 32), (32, 64), (64, 32), (96, 96), (160, 32), (128, 96)),
    ],
)
@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
def test_hopper(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    orders: tuple[str, str],
    blocksize: tuple[int, int],
    dtype: str,
) -> None:
    """Rows of one to many panels, so that tiles have every width, with K below, at and above a
    stage and where it ends within one."""
    for rows, cols in ((1, 1), (3, 5), (reduced(40), 23)):
        mask = cases.uniform(0.4)(rng, rows, cols)
        mask[-1, -1] = True
        for k in some((2, 64, 100, 192, 520)):
            check_on_gpu(torch, mask, blocksize, k, dtype, orders, pad=8)
        check_on_gpu(torch, mask, blocksize, 136, dtype, orders, alpha=-0.5, beta=2.0)
        check_on_gpu(torch, mask, blocksize, 136, dtype, orders, transposed=True)
        check_on_gpu(torch, mask, blocksize, 72, dtype, orders, beta=1.0, in_place=True)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "blocksize", [(16, 16), (8, 8), (24, 40), (5, 3), (48, 64), (2, 2), (130, 33), (16, 256)]
)
@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
def test_covers(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    orders: tuple[str, str],
    blocksize: tuple[int, int],
    dtype: str,
) -> None:
    """At larger blocks, of which those stored are copied: of few blocks others than of many."""
    options: dict[str, Any] = {"family": "cover", "pad": 8}
    for density in (0.02, 0.4, 1.1):
        for rows, cols in ((1, 1), (3, 5), (reduced(60), 33)):
            mask = cases.uniform(density)(rng, rows, cols)
            mask[-1, -1] = True
            for k in some((2, 64, 136, 520))[:2]:
                check_on_gpu(torch, mask, blocksize, k, dtype, orders, **options)
        form = (mask, blocksize, 136, dtype, orders)
        check_on_gpu(torch, *form, alpha=-0.5, beta=2.0, **options)
        check_on_gpu(torch, *form, transposed=True, **options)
        check_on_gpu(torch, *form, beta=1.0, in_place=True, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocksize", [(64, 64), (32, 32), (16, 16), (12, 20)])
def test_copies(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    """Operands that kernels cannot read by vectors, of products that are worth a copy."""
    rows, cols = 1536 // blocksize[0], 1536 // blocksize[1]
    mask = cases.uniform(0.9)(rng, rows, cols)
    for orders in some(ORDERS):
        for k in some((519, 1030)):
            check_on_gpu(torch, mask, blocksize, k, dtype, orders, pad=3, family="auto")
        form = (mask, blocksize, 520, dtype, orders)
        check_on_gpu(torch, *form, beta=-0.5, transposed=True, pad=3, family="auto")
    p = random_problem(torch, mask, blocksize, dtype)
    (m, n), kind = p.matrix.shape, p.matrix.dtype
    a, b = (torch.randn(*shape, device="cuda").to(kind) for shape in ((m, 520), (520, n)))
    every_other = [x.repeat_interleave(2, dim=1)[:, ::2] for x in (a, b)]
    found, expected = sampled_matmul(*every_other, p.matrix), sampled_matmul(a, b, p.matrix)
    assert torch.equal(found.data, expected.data), "not by the same kernels"


@pytest.mark.parametrize("cut", [(0, 0), (7, 0), (0, 9), (15, 15)])
def test_covers_beyond_the_matrix(
    rng: np.random.Generator, hopper: None, cut: tuple[int, int]
) -> None:
    """The last block row and column are partial: what is beyond the matrix becomes zero."""
    space = GPU_SPACES[0]
    space.check()
    for blocksize in ((16, 16), (24, 16)):
        mask = cases.uniform(0.5)(rng, 9, 11)
        mask[-1], mask[:, -1] = True, True
        p = problem(rng, mask, blocksize, 0, "float16", cut=cut)
        if (p.shape[0] | p.shape[1]) % 8 == 0:
            sampled_cases.check(space, p, 72, rng, Call(), "cover")
        sampled_cases.check(space, p, 72, rng, Call(b="columns"), "cover")


def test_which_are_covered(torch: Any, rng: np.random.Generator, hopper: None) -> None:
    """Blocks that fill most of larger ones, by prediction."""
    for density, k, family in ((0.5, 2048, "cover"), (0.005, 64, "portable")):
        p = random_problem(torch, cases.uniform(density)(rng, 256, 256), (16, 16), "float16")
        plan = p.matrix.plan_sampled(k)
        assert plan.choice == family, plan.explain()
        check_on_gpu(
            torch, cases.uniform(density)(rng, 60, 64), (16, 16), 256, "float16", family="auto"
        )


@pytest.mark.parametrize("side", [32, 64, 128])
@pytest.mark.parametrize("number", range(1, 18))
def test_every_number_of_blocks(
    torch: Any, rng: np.random.Generator, hopper: None, number: int, side: int
) -> None:
    """Rows of so many blocks, and of none: tiles of every width and odd halves."""
    mask = np.zeros((150, 17), bool)
    for row in mask[::2]:
        row[rng.permutation(17)[:number]] = True
    check_on_gpu(torch, mask, (side, side), 200, "float16")
    check_on_gpu(torch, mask[:3], (side, side), 72, "bfloat16", ("columns", "columns"))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("side", [32, 64, 128])
def test_large(torch: Any, rng: np.random.Generator, hopper: None, side: int, dtype: str) -> None:
    """Several rounds of tiles and several sweeps over columns, against the portable kernels."""
    rows, cols = 4096 // side, reduced(12288) // side
    mask = cases.uniform(0.2)(rng, rows, cols)
    for orders in ORDERS:
        check_on_gpu(torch, mask, (side, side), 1000, dtype, orders)


def test_structures() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    from hypothesis import given
    from hypothesis import strategies as st
    from strategies import GPU_EXAMPLES, problems, profile

    sides = st.one_of(st.integers(1, 20), st.sampled_from((32, 48, 64, 65, 128, 192)))
    inner = st.one_of(st.integers(0, 40), st.sampled_from((64, 72, 128, 200, 264)))
    scalars = st.sampled_from((0.0, 1.0, -0.5, 3.0))
    calls = st.builds(
        lambda alpha, beta, transposed, out: Call(alpha, beta, "rows", "rows", transposed, out),
        *(scalars, scalars, st.booleans(), st.sampled_from(("new", "given", "pattern"))),
    )

    @profile(reduced(GPU_EXAMPLES))
    @given(problems(sides, sides, inner), calls)
    def run(drawn: tuple, call: Call) -> None:
        p, rng = drawn
        sampled_cases.check(GPU_SPACES[-1], p, p.n, rng, call)

    run()


def make(torch: Any, rng: np.random.Generator, side: int) -> tuple[Any, Any, Any]:
    p = random_problem(torch, cases.skewed(rng, 24, 40), (side, side), "float16")
    a = torch.randn(24 * side, 264, device="cuda").half()
    b = torch.randn(264, 40 * side, device="cuda").half()
    return p.matrix, a, b


@pytest.mark.parametrize("side", [24, 32, 64, 128])
def test_same_bits(torch: Any, rng: np.random.Generator, side: int) -> None:
    """Again and again, and captured in a graph, the first time of all included."""
    pattern, a, b = make(torch, rng, side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = sampled_matmul(a, b, pattern)
    first = sampled_matmul(a, b, pattern).data
    for _ in repeats(20):
        assert torch.equal(sampled_matmul(a, b, pattern).data, first)
    for _ in repeats(5):
        made.data.fill_(float("nan"))
        graph.replay()
        assert torch.equal(made.data, first)
    a.normal_()
    graph.replay()
    assert torch.equal(made.data, sampled_matmul(a, b, pattern).data)


@pytest.mark.parametrize("side", [24, 64])
def test_streams(torch: Any, rng: np.random.Generator, side: int) -> None:
    pattern, a, b = make(torch, rng, side)
    left = [a, a.flip(0), a * 2, a + 1]
    check_streams(torch, lambda x: sampled_matmul(x, b, pattern).data, left)


@pytest.mark.parametrize("side", [24, 64])
def test_products_never_wait(torch: Any, rng: np.random.Generator, side: int) -> None:
    pattern, a, b = make(torch, rng, side)
    out = sampled_matmul(a, b, pattern)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    for _ in repeats(50):
        sampled_matmul(a, b, pattern, out=out)
    assert not torch.cuda.current_stream().query(), "the host waited"
    torch.cuda.synchronize()


def test_explicit_stream(torch: Any, rng: np.random.Generator) -> None:
    pattern, a, b = make(torch, rng, 64)
    expected = sampled_matmul(a, b, pattern).data
    stream, late = torch.cuda.Stream(), torch.zeros_like(a)
    out = sampled_matmul(late, b, pattern)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        late.copy_(a)
    assert sampled_matmul(late, b, pattern, out=out, stream=stream) is out
    assert not stream.query(), "the product waited for the stream"
    stream.synchronize()
    assert torch.equal(out.data, expected)


def test_pattern_on_the_host(torch: Any, rng: np.random.Generator) -> None:
    """Without beta the values of the pattern do not matter, nor where they are."""
    p = problem(rng, cases.uniform(0.5)(rng, 4, 5), (64, 64), 0, "float32")
    pattern = bsrgemm.bsr_array((p.data, p.indices, p.indptr), p.shape)
    a, b = torch.randn(256, 64, device="cuda").half(), torch.randn(64, 320, device="cuda").half()
    result = sampled_matmul(a, b, pattern)
    assert result.data.device.type == "cuda" and result.data.dtype == torch.float16
    with pytest.raises(TypeError, match=r"pattern\.data has dtype float32, but a has dtype"):
        sampled_matmul(a, b, pattern, beta=1.0)
    with pytest.raises(TypeError, match=r"pattern\.data is on cpu, but a is on cuda:0"):
        sampled_matmul(a.float(), b.float(), pattern, beta=1.0)


@pytest.mark.parametrize(
    ("blocksize", "k", "dtype", "reason"),
    [
        ((48, 64), 64, "float16", "block heights and widths that are multiples of 64, or of 32"),
        ((64, 64), 64, "float32", "float16 or bfloat16"),
        ((64, 64), 63, "float16", "needs a in row-major or column-major order"),
    ],
)
def test_what_hoppers_kernels_need(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    blocksize: tuple[int, int],
    k: int,
    dtype: str,
    reason: str,
) -> None:
    p = random_problem(torch, cases.uniform(0.9)(rng, 3, 3), blocksize, dtype)
    a, b = (
        torch.randn(shape, device="cuda").to(p.matrix.dtype)
        for shape in ((p.matrix.shape[0], k), (k, p.matrix.shape[1]))
    )
    with pytest.raises(ValueError, match=f"'sampled' cannot compute .*{reason}"):
        sampled(a, b, p.matrix, family="sampled")
    sampled_matmul(a, b, p.matrix)
