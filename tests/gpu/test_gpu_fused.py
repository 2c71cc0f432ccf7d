"""Fused output of products on the GPU: every family in turn, against float64."""

from __future__ import annotations

import math
from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm._matmul import product
from cases import ROUNDOFF, cancellation, least_error
from device_cases import (
    GUARD,
    DeviceProblem,
    extent,
    random_problem,
    relative_error,
    repeats,
    some,
)
from precision_cases import EIGHT, RESULTS, SUM_ERROR, TF32_ERROR

pytestmark = pytest.mark.gpu

HALVES = ("float16", "bfloat16")
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu")


def apply(torch: Any, activation: str | None, x: Any) -> Any:
    """In float64."""
    if activation == "relu":
        return x.clamp(min=0)
    if activation == "gelu":
        return x * 0.5 * torch.special.erfc(-x / math.sqrt(2))
    if activation == "gelu_tanh":  # x (1 + tanh(z)) / 2 without its cancellation
        return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
    return x * torch.sigmoid(x) if activation == "silu" else x


def vector(
    torch: Any, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, plain: bool = False
) -> Any:
    """Of the result's dtype, its elements adjacent, if plain; otherwise for 16-bit results perhaps
    float32, perhaps strided or unaligned."""
    if plain:
        return torch.randn(shape, device="cuda").to(dtype)
    kind = torch.float32 if dtype.itemsize == 2 and rng.integers(2) else dtype
    size = math.prod(shape)
    whole = torch.randn(3 * size + 1, device="cuda").to(kind)
    choice = rng.integers(3)
    part = (whole, whole[1:], whole[1::3])[choice][:size]
    return part.unflatten(0, shape)


def check(
    torch: Any,
    rng: np.random.Generator,
    p: DeviceProblem,
    n: int,
    family: str = "auto",
    *,
    transposed: bool = False,
    right: bool = False,
    by_columns: bool = False,
    activation: str | None = None,
    bias: str | None = "column",
    plain_bias: bool = False,
    scaled: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    in_place: bool = False,
    out_dtype: str | None = None,
    precision: str = "ieee",
    product_error: float = 0.0,
) -> None:
    """Into poisoned memory; the whole result against float64, and nothing around it changes."""
    a, dense = (p.matrix.T, p.dense.T) if transposed else (p.matrix, p.dense)
    x = torch.randn((n, dense.shape[0]) if right else (dense.shape[1], n), device="cuda").to(
        a.dtype
    )
    dtype = a.dtype if out_dtype is None else getattr(torch, out_dtype)
    name = str(dtype).removeprefix("torch.")
    shape = (n, dense.shape[1]) if right else (dense.shape[0], n)
    keywords: dict[str, Any] = {"activation": activation, "precision": precision}
    if bias is not None:
        of = (shape[0], 1) if bias == "row" else (shape[1],)
        keywords["bias"] = vector(torch, rng, of, dtype, plain_bias)
    if scaled:
        keywords["row_scale"] = vector(torch, rng, (shape[0],), dtype)
        keywords["col_scale"] = vector(torch, rng, (1, shape[1]), dtype)
    guard = 8 * GUARD
    lines = shape[::-1] if by_columns else shape
    memory = torch.full((lines[0] + 2 * guard, lines[1]), float("nan"), device="cuda", dtype=dtype)
    out = memory[guard : lines[0] + guard]
    out = out.T if by_columns else out
    if by_columns:
        x = x.T.contiguous().T
    c = None
    if beta:
        c = out if in_place else torch.empty_like(out)
        c.copy_(torch.randn(shape, device="cuda"))
    given = None if c is None else c.clone()
    operands = (x, a) if right else (a, x)
    product(*operands, c, alpha, beta, out, None, family, **keywords)

    def scaled_product(kind: Any, part: Any = lambda value: value) -> Any:
        """Of a part of each value, such as its size."""

        def of(array: Any) -> Any:
            return part(array.to(kind))

        left, other = (of(x), of(dense))[:: 1 if right else -1]
        found = part(alpha) * torch.mm(left, other)
        if scaled:
            found = found * of(keywords["row_scale"])[:, None] * of(keywords["col_scale"])
        return found

    def sums(kind: Any, part: Any = lambda value: value) -> Any:
        """Before the activation."""

        def of(array: Any) -> Any:
            return part(array.to(kind))

        found = scaled_product(kind, part)
        if bias is not None:
            found = found + of(keywords["bias"])
        if given is not None:
            found = found + part(beta) * of(given)
        return found

    def exact(kind: Any) -> Any:
        return apply(torch, activation, sums(kind))

    expected = exact(torch.float64)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    lost = relative_error(torch, exact(wide).to(dtype), expected)
    slack = 1.0 if dtype.itemsize == 2 else 2.0
    count = dense.shape[0 if right else 1] + 2
    # Where ReLU leaves nothing, nothing is lost.
    cancelled = cancellation(expected, sums(torch.float64, abs) * (expected != 0), count)
    allowed = slack * max(2.0 * lost, least_error(name, count, cancelled))
    if product_error:
        allowed += product_error * relative_error(
            torch, scaled_product(torch.float64) + expected, expected
        )
    what = (
        f"{a!r} n={n} right={right} by_columns={by_columns} {activation} bias={bias} "
        f"plain_bias={plain_bias} scaled={scaled} alpha={alpha} beta={beta} in_place={in_place} "
        f"family={family}"
    )
    outside = torch.cat([memory[:guard], memory[lines[0] + guard :]])
    assert outside.isnan().all(), f"{what}: something outside out was written to"
    assert not out.isnan().any(), f"{what}: not all of out was written, {extent(out.isnan())}"
    error = relative_error(torch, out, expected)
    assert error <= allowed, f"{what}: relative error {error:.3e}, allowed {allowed:.3e}"


def check_ways(
    torch: Any, rng: np.random.Generator, p: DeviceProblem, n: int, family: str, **form: Any
) -> None:
    """Each activation and each part of the output by itself, and all of them together."""
    for activation in ACTIVATIONS:
        check(torch, rng, p, n, family, activation=activation, **form)
    check(torch, rng, p, n, family, bias="row", **form)
    check(torch, rng, p, n, family, bias="row", plain_bias=True, **form)
    check(torch, rng, p, n, family, activation="relu", beta=-0.5, plain_bias=True, **form)
    check(torch, rng, p, n, family, bias=None, scaled=True, **form)
    check(torch, rng, p, n, family, bias=None, activation="silu", alpha=-0.5, **form)
    everything = {"bias": "row", "scaled": True, "alpha": 1.5, **form}
    check(torch, rng, p, n, family, activation="gelu", beta=-0.5, **everything)
    check(torch, rng, p, n, family, activation="relu", beta=1.0, in_place=True, **everything)


def some_blocks(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Half of the blocks, none in the first row, the last one among them."""
    mask = rng.random((rows, cols)) < 0.5
    mask[0] = False
    mask[-1, -1] = True
    return mask


TALL = ((64, 64), (128, 128), (128, 32), (64, 16), (192, 80), (256, 48))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", TALL, ids=str)
def test_tall(
    torch: Any, rng: np.random.Generator, hopper: None, block: tuple[int, int], dtype: str
) -> None:
    p = random_problem(torch, some_blocks(rng, 5, 6), block, dtype)
    for n in some((8, 200, 256, 520)):
        check_ways(torch, rng, p, n, "tall")


@pytest.mark.parametrize("dtype", HALVES)
def test_tall_pairs_of_rows(torch: Any, rng: np.random.Generator, hopper: None, dtype: str) -> None:
    for block in ((256, 64), (256, 32)):
        p = random_problem(torch, some_blocks(rng, 40, 6), block, dtype)
        check_ways(torch, rng, p, 256, "tall")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", [(64, 64), (128, 128), (128, 32)], ids=str)
@pytest.mark.parametrize("transposed, right", [(True, False), (False, True), (True, True)])
def test_tall_forms(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    transposed: bool,
    right: bool,
    block: tuple[int, int],
    dtype: str,
) -> None:
    mask = some_blocks(rng, 5, 6)
    if transposed != right:
        mask, block = np.ascontiguousarray(mask.T), block[::-1]
    p = random_problem(torch, mask, block, dtype)
    form = {"transposed": transposed, "right": right}
    for n in some((8, 250, 512)) if right else some((8, 256, 520)):
        check_ways(torch, rng, p, n, "tall", **form)
    check_ways(torch, rng, p, 264, "tall", by_columns=True, **form)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("right", [False, True])
def test_tall_parts(
    torch: Any, rng: np.random.Generator, hopper: None, right: bool, dtype: str
) -> None:
    """Tiles that are cut along K are finished in the second pass, empty rows in the first."""
    mask = np.zeros((9, 128), bool)
    mask[[2, 7]] = True
    mask[4, :3] = True
    for block in ((64, 64), (128, 64)):
        p = random_problem(
            torch,
            np.ascontiguousarray(mask.T) if right else mask,
            block[:: -1 if right else 1],
            dtype,
        )
        read = p.matrix.T if right else p.matrix
        tall = next(c for c in read.plan(256).candidates if c["family"] == "tall")
        assert " row tiles in " in tall["reason"]
        for n in some((8, 256, 520)):
            check_ways(torch, rng, p, n, "tall", right=right)


@pytest.mark.parametrize("out_dtype", RESULTS)
@pytest.mark.parametrize("dtype", EIGHT)
def test_eight_bits(
    torch: Any, rng: np.random.Generator, hopper: None, dtype: str, out_dtype: str
) -> None:
    form = {"out_dtype": out_dtype, "product_error": SUM_ERROR}
    long_row = np.zeros((5, 64), bool)
    long_row[[1, 3]] = True
    for family, block, mask, n in (
        ("kmajor", (64, 64), some_blocks(rng, 5, 6), 200),
        ("kmajor", (128, 96), some_blocks(rng, 5, 6), 520),
        ("narrow", (64, 32), some_blocks(rng, 5, 6), 24),
        ("narrow", (24, 64), some_blocks(rng, 9, 6), 61),
        ("narrow", (64, 128), long_row, 40),
        ("portable", (16, 16), some_blocks(rng, 9, 6), 8),
        ("portable", (7, 9), some_blocks(rng, 9, 6), 33),
        ("portable", (16, 16), some_blocks(rng, 40, 40), 520),
        ("portable", (48, 20), some_blocks(rng, 9, 6), 300),
    ):
        p = random_problem(torch, mask, block, dtype)
        check_ways(torch, rng, p, n, family, **form)
        check(torch, rng, p, n, family, by_columns=True, activation="relu", scaled=True, **form)
    p = random_problem(torch, some_blocks(rng, 6, 5), (64, 128), dtype)
    check_ways(torch, rng, p, 72, "kmajor", transposed=True, right=True, **form)


def test_tf32(torch: Any, rng: np.random.Generator, hopper: None) -> None:
    form = {"precision": "tf32", "product_error": TF32_ERROR}
    for block in ((16, 16), (20, 12), (64, 64)):
        p = random_problem(torch, some_blocks(rng, 7, 9), block, "float32")
        for n in some((72, 256, 333)):
            check_ways(torch, rng, p, n, "portable", **form)
    for block in ((64, 64), (128, 40), (64, 8)):
        p = random_problem(torch, some_blocks(rng, 5, 6), block, "float32")
        for n in some((8, 256, 520)):
            check_ways(torch, rng, p, n, "kmajor", **form)
        check(torch, rng, p, 77, "kmajor", by_columns=True, activation="gelu", scaled=True, **form)
    for block in ((8, 8), (16, 24), (32, 32), (56, 16), (96, 8), (112, 16)):
        p = random_problem(torch, some_blocks(rng, 9, 11), block, "float32")
        for n in some((8, 256, 333)):
            check_ways(torch, rng, p, n, "kstream", **form)
        check(torch, rng, p, 77, "kstream", by_columns=True, activation="gelu", scaled=True, **form)


STREAM = (
    (8, 16),
    (8, 32),
    (16, 8),
    (16, 16),
    (16, 32),
    (24, 8),
    (24, 16),
    (32, 32),
    (40, 32),
    (48, 16),
    (56, 64),
    (96, 16),
    (112, 32),
)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", (*STREAM, (64, 32), (64, 16), (128, 32)), ids=str)
def test_stream(
    torch: Any, rng: np.random.Generator, hopper: None, block: tuple[int, int], dtype: str
) -> None:
    p = random_problem(torch, some_blocks(rng, 21, 13), block, dtype)
    for n in some((8, 128, 200)):
        check_ways(torch, rng, p, n, "stream")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", (*STREAM, (64, 32), (64, 16), (128, 32)), ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_stream_right(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    transposed: bool,
    block: tuple[int, int],
    dtype: str,
) -> None:
    """X and Y by columns, for which one kernel has all of the output, and by rows."""
    mask = some_blocks(rng, 21, 13)
    if not transposed:
        mask, block = np.ascontiguousarray(mask.T), block[::-1]
    p = random_problem(torch, mask, block, dtype)
    form = {"transposed": transposed, "right": True}
    for n in some((7, 128, 201)):
        check_ways(torch, rng, p, n, "stream", **form)
    check_ways(torch, rng, p, 72, "stream", by_columns=True, **form)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", [(3, 5), (16, 8), (20, 24), (48, 48), (7, 130)], ids=str)
def test_regroup(
    torch: Any, rng: np.random.Generator, hopper: None, block: tuple[int, int], dtype: str
) -> None:
    p = random_problem(torch, some_blocks(rng, 23, 11), block, dtype)
    for n in some((8, 264)):
        check_ways(torch, rng, p, n, "regroup")
    p = random_problem(torch, some_blocks(rng, 24, 16), block, dtype)
    for n in some((7, 201)):
        check_ways(torch, rng, p, n, "regroup", transposed=True, right=True)


@pytest.mark.parametrize("block", [(32, 32), (64, 16), (16, 16), (48, 80)], ids=str)
def test_regroup_in_place(
    torch: Any, rng: np.random.Generator, hopper: None, block: tuple[int, int]
) -> None:
    mask = rng.random((600 // block[0], 500 // block[1])) < 0.9
    mask[-1, -1] = True
    p = random_problem(torch, mask, block, "bfloat16")
    (found,) = [c for c in p.matrix.plan(264).candidates if c["family"] == "regroup"]
    assert " in place, " in found["reason"]
    for n in some((264, 520)):
        check_ways(torch, rng, p, n, "regroup")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", [(128, 128), (64, 64), (32, 32), (12, 20)], ids=str)
def test_align(
    torch: Any, rng: np.random.Generator, hopper: None, block: tuple[int, int], dtype: str
) -> None:
    """Copies have more columns than the bias."""
    p = random_problem(torch, some_blocks(rng, 6, 7), block, dtype)
    for n in some((65, 333)):
        check_ways(torch, rng, p, n, "align")
        check(torch, rng, p, n, "align", by_columns=True, activation="gelu", scaled=True)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", [(16, 16), (13, 24), (64, 64), (40, 8)], ids=str)
def test_narrow(torch: Any, rng: np.random.Generator, block: tuple[int, int], dtype: str) -> None:
    """Whole strips, and with the second mask pieces of long rows."""
    long = np.zeros((3, 600), bool)
    long[1] = True
    for mask in (some_blocks(rng, 9, 11), long):
        p = random_problem(torch, mask, block, dtype)
        for n in some((1, 8, 13, 16, 32, 63, 64)):
            check_ways(torch, rng, p, n, "narrow")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", [(32, 32), (64, 64), (128, 48)], ids=str)
def test_narrow_of_many_columns(
    torch: Any, rng: np.random.Generator, block: tuple[int, int], dtype: str
) -> None:
    """Several panels of columns and tiles of them, and pieces of long rows."""
    long = np.zeros((3, 600), bool)
    long[1] = True
    for mask in (some_blocks(rng, 9, 11), long):
        p = random_problem(torch, mask, block, dtype)
        for n in some((72, 128, 200, 256, 384, 512)):
            check(torch, rng, p, n, "narrow", activation="gelu", scaled=True)
            check(torch, rng, p, n, "narrow", bias="row", beta=0.5, by_columns=True)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "block", [(3, 5), (16, 16), (32, 32), (48, 16), (64, 64), (128, 24)], ids=str
)
def test_portable(
    torch: Any, rng: np.random.Generator, block: tuple[int, int], transposed: bool, dtype: str
) -> None:
    p = random_problem(torch, some_blocks(rng, 5, 6), block, dtype)
    for n in some((5, 64, 264)):
        check_ways(torch, rng, p, n, "portable", transposed=transposed)
    check_ways(torch, rng, p, 33, "portable", right=True, transposed=transposed)
    check_ways(torch, rng, p, 40, "portable", by_columns=True, transposed=transposed)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_no_blocks(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Rows without blocks are activation(bias + beta * c)."""
    p = random_problem(torch, np.zeros((3, 4), bool), (64, 16), dtype)
    check_ways(torch, rng, p, 72, "auto")
    check_ways(torch, rng, p, 1, "auto")


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infinities(torch: Any, activation: str | None, dtype: str) -> None:
    """Infinite, undefined and far sums become what torch makes of them, in every family."""
    kind = getattr(torch, dtype)
    largest = {"float16": 6e4, "bfloat16": 1e38, "float32": 1e38, "float64": 1e300}[dtype]
    values = [math.inf, -math.inf, math.nan, largest, -largest, 100.0, -100.0, 30.0, -30.0, 0.0]
    values += [float(i) for i in range(-8, 54)]
    bias = torch.tensor(values, device="cuda", dtype=torch.float64).to(kind)
    n = len(bias)  # 72
    data = torch.zeros(1, 64, 64, device="cuda", dtype=kind)
    a = bsrgemm.bsr_array((data, np.array([0]), np.array([0, 1])), (64, 64))
    x = torch.zeros(64, n, device="cuda", dtype=kind)
    expected = apply(torch, activation, bias.double())
    if activation is not None:
        expected[4] = 0.0  # the reference overflows on its way there
    families = ["portable"]
    if torch.cuda.get_device_capability() == (9, 0) and kind.itemsize == 2:
        families += ["tall", "stream"]
    for family in families:
        found = product(a, x, None, 1.0, None, None, None, family, bias=bias, activation=activation)
        assert torch.equal(found[0].view(torch.uint8), found[-1].view(torch.uint8))
        torch.testing.assert_close(
            found[0].double(),
            expected,
            rtol=4 * ROUNDOFF[dtype],
            atol=1e-6,
            equal_nan=True,
            msg=lambda text, family=family: f"{family}: {text}",
        )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("right", [False, True])
def test_each_bias(torch: Any, hopper: None, right: bool, axis: int, dtype: str) -> None:
    """Sums of tall products that are 0 become the bias, any that there is: WGMMA adds it."""
    kind = getattr(torch, dtype)
    bias = torch.arange(-(2**15), 2**15, device="cuda").to(torch.int16).view(kind)
    shape = (len(bias), 192) if axis == 0 else (192, len(bias))
    m, n = shape[::-1] if right else shape
    blocks = torch.zeros(m // 64, 64, 64, device="cuda", dtype=kind)
    a = bsrgemm.bsr_array((blocks, np.zeros(m // 64, int), np.arange(m // 64 + 1)), (m, 64))
    x = torch.zeros((n, 64) if right else (64, n), device="cuda", dtype=kind)
    bias = bias.unsqueeze(1 - axis)
    operands = (x, a.T) if right else (a, x)
    found = product(*operands, None, 1.0, None, None, None, "tall", bias=bias)
    torch.testing.assert_close(found, bias.expand(shape), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
@pytest.mark.parametrize("family", ["tall", "stream", "portable", "narrow"])
def test_each_element(torch: Any, hopper: None, family: str, activation: str, dtype: str) -> None:
    """Every element is right, and not only the norm, out to where activations vanish."""
    kind = getattr(torch, dtype)
    n = 64 if family == "narrow" else 2048
    bias = torch.linspace(-12, 12, n, device="cuda").to(kind)
    data = torch.zeros(1, 64, 64, device="cuda", dtype=kind)
    a = bsrgemm.bsr_array((data, np.array([0]), np.array([0, 1])), (64, 64))
    x = torch.zeros(64, n, device="cuda", dtype=kind)
    found = product(a, x, None, 1.0, None, None, None, family, bias=bias, activation=activation)
    expected = apply(torch, activation, bias.double())
    torch.testing.assert_close(found[5].double(), expected, rtol=2.5 * ROUNDOFF[dtype], atol=1.5e-7)


@pytest.mark.parametrize("family", ["tall", "stream", "regroup", "align", "narrow", "portable"])
def test_same_bits_every_time(
    torch: Any, rng: np.random.Generator, hopper: None, family: str
) -> None:
    block = (64, 32) if family == "tall" else (16, 16)
    n = {"narrow": 24, "align": 333}.get(family, 264)
    p = random_problem(torch, some_blocks(rng, 40, 30), block, "float16")
    x = torch.randn(p.matrix.shape[1], n, device="cuda").half()
    fused = {
        "bias": torch.randn(n, device="cuda"),
        "row_scale": torch.randn(p.matrix.shape[0], device="cuda"),
        "activation": "gelu",
    }
    first = product(p.matrix, x, None, 0.5, None, None, None, family, **fused)
    for _ in repeats(20):
        again = product(p.matrix, x, None, 0.5, None, None, None, family, **fused)
        assert torch.equal(again, first)


def test_graph(torch: Any, rng: np.random.Generator, hopper: None) -> None:
    """A captured product replays with the bias and scales that there are then."""
    for block in ((128, 128), (16, 16)):
        p = random_problem(torch, some_blocks(rng, 8, 8), block, "bfloat16")
        m, k = p.matrix.shape
        x = torch.randn(k, 256, device="cuda").bfloat16()
        fused = {"bias": torch.randn(256, device="cuda"), "row_scale": torch.rand(m, device="cuda")}
        out = torch.empty(m, 256, device="cuda").bfloat16()
        bsrgemm.matmul(p.matrix, x, out=out, activation="silu", **fused)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            bsrgemm.matmul(p.matrix, x, out=out, activation="silu", **fused)
        for _ in range(3):
            x.normal_()
            fused["bias"].normal_()
            out.fill_(float("nan"))
            graph.replay()
            assert torch.equal(out, bsrgemm.matmul(p.matrix, x, activation="silu", **fused))
