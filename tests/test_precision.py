"""Products of tf32 and of 8-bit floats on the CPU, their plans, and what they refuse."""

from __future__ import annotations

import io
from typing import Any

import bsrgemm
import cases
import numpy as np
import precision_cases
import pytest
from bsrgemm import bsr_array, matmul
from precision_cases import EIGHT, RESULTS, check
from spaces import CPU_SPACES, Space

PATTERNS = {
    "uniform": cases.uniform(0.4),
    "empty rows": cases.empty_rows,
    "one block": cases.one_block,
    "full": lambda rng, rows, cols: np.ones((rows, cols), bool),
    "none": lambda rng, rows, cols: np.zeros((rows, cols), bool),
}


@pytest.fixture(params=CPU_SPACES, ids=repr)
def space(request: pytest.FixtureRequest) -> Space:
    request.param.check()
    return request.param


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("how", ["none", "numbers", "one", "blocks"])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_products(
    space: Space, rng: np.random.Generator, dtype: str, how: str, right: bool, transposed: bool
) -> None:
    form = {"right": right, "transposed": transposed}
    for out_dtype in RESULTS:
        for blocksize in ((7, 5), (16, 32), (64, 32)):
            mask = cases.uniform(0.4)(rng, 5, 7)
            for n in (1, 9, 70):
                check(space, rng, mask, blocksize, n, dtype, out_dtype=out_dtype, how=how, **form)
            options = {"columns": True, "out_columns": True, "beta": 0.75}
            check(
                space,
                rng,
                mask,
                blocksize,
                33,
                dtype,
                out_dtype=out_dtype,
                how=how,
                **options,
                **form,
            )


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(rng: np.random.Generator, dtype: str, pattern: str) -> None:
    mask = PATTERNS[pattern](rng, 6, 5)
    for out_dtype in RESULTS:
        for beta in (0.0, 2.0):
            check(
                Space(), rng, mask, (16, 8), 20, dtype, out_dtype=out_dtype, how="blocks", beta=beta
            )


@pytest.mark.parametrize("dtype", EIGHT)
def test_every_value(dtype: str) -> None:
    """Each times 1, infinities and NaN included; to float32, which holds them all."""
    values = precision_cases.widened(dtype)
    a = bsr_array((values.reshape(256, 1, 1), np.arange(256), np.arange(257)), (256, 256))
    found = matmul(a, np.ones((256, 1), values.dtype), out_dtype="float32")
    # Products with other rows' zeros are not part of it.
    assert np.array_equal(found[:, 0], values.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("dtype", EIGHT)
def test_results_and_other_forms(space: Space, rng: np.random.Generator, dtype: str) -> None:
    p = cases.problem(rng, cases.uniform(0.5)(rng, 4, 3), (8, 4), 5, dtype)
    a = bsr_array((space.array(p.data), p.indices, p.indptr), p.shape)
    x = space.array(cases.normal(rng, (12, 5), dtype))
    assert "bfloat16" in str((a @ x).dtype) and "float16" in str(
        matmul(a, x, out_dtype="float16").dtype
    )
    assert np.array_equal(space.host(a.todense()).astype(np.float64), p.dense)
    assert np.array_equal(space.host(a.T.copy().todense()).astype(np.float64), p.dense.T)
    assert np.array_equal(space.host(a.astype("float32").todense()), p.dense)
    again = bsr_array(a.todense(), blocksize=(8, 4))
    assert np.array_equal(space.host(again.todense()).astype(np.float64), p.dense)
    assert a.nbytes == a.nnzb * 32 + 4 * (a.nnzb + 5)
    file = io.BytesIO()
    a.save(file)
    file.seek(0)
    loaded = bsrgemm.load(file)
    assert loaded.data.dtype.name == dtype and np.array_equal(
        loaded.data.view(np.uint8), p.data.view(np.uint8)
    )


def test_tf32_on_the_cpu_is_ieee(rng: np.random.Generator) -> None:
    p = cases.problem(rng, cases.uniform(0.5)(rng, 4, 3), (64, 32), 40, "float32")
    a = bsr_array((p.data, p.indices, p.indptr), p.shape)
    x = cases.normal(rng, (96, 40), "float32")
    assert np.array_equal(matmul(a, x, precision="tf32"), a @ x)


def matrix(blocksize: tuple[int, int], dtype: str, blocks: int = 64) -> bsr_array:
    rng = np.random.default_rng(0)
    p = cases.problem(rng, cases.uniform(0.125)(rng, blocks, blocks), blocksize, 1, dtype)
    return bsr_array((p.data, p.indices, p.indptr), p.shape)


@pytest.mark.parametrize("dtype", EIGHT)
def test_plan_of_8_bits(dtype: str) -> None:
    plan = matrix((128, 128), dtype).plan(8192)
    assert plan.choice == "kmajor"
    chosen = next(c for c in plan.candidates if c["family"] == "kmajor")
    # Row-major, the dense operand is copied, and that is counted: read and written once each.
    assert "K-major copy of the dense operand" in plan.explain()
    a = matrix((128, 128), dtype)
    k = a.shape[1]
    assert chosen["hbm_bytes"] == a.nnzb * 128 * 128 + 3 * k * 8192 + 2 * a.shape[0] * 8192
    for family in ("tall", "narrow"):
        assert not next(c for c in plan.candidates if c["family"] == family)["supported"]
    assert "both operands" in matrix((128, 128), dtype).T.plan(8192).explain()


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("blocksize", [(16, 16), (32, 32), (64, 16)])
def test_plan_of_low_blocks_of_8_bits(blocksize: tuple[int, int], dtype: str) -> None:
    """By streams of 16-bit floats where columns are so many that the copies are worth it."""
    a = matrix(blocksize, dtype, 128)
    plan = a.plan(8192)
    assert plan.choice == "widen"
    chosen = next(c for c in plan.candidates if c["family"] == "widen")
    assert "as stream on copies of bfloat16" in chosen["reason"]
    (stream,) = (
        c
        for c in matrix(blocksize, "bfloat16", 128).plan(8192).candidates
        if c["family"] == "stream"
    )
    assert chosen["seconds"] > stream["seconds"]
    stored = a.nnzb * blocksize[0] * blocksize[1]
    copied = 3 * (stored + a.shape[1] * 8192)
    assert abs(chosen["hbm_bytes"] - stream["hbm_bytes"] - copied) <= 3 * 64
    assert a.plan(64).choice != "widen"


def test_plan_of_tf32() -> None:
    a = matrix((128, 128), "float32", 32)
    assert a.plan(4096).choice == "portable" and a.plan(4096, precision="tf32").choice == "kmajor"
    assert "precision 'tf32'" in a.plan(4096).explain()
    for blocksize, chip in (((12, 16), None), ((64, 12), None), ((64, 64), {"sm_arch": 80})):
        plan = matrix(blocksize, "float32", 16).plan(512, chip=chip, precision="tf32")
        assert plan.choice == "portable"


@pytest.mark.parametrize("blocksize", [(16, 16), (32, 32), (96, 64)])
def test_plan_of_low_blocks_of_tf32(blocksize: tuple[int, int]) -> None:
    """As many bytes move as of 16-bit floats in blocks that are twice as wide."""
    a = matrix(blocksize, "float32", 128)
    plan = a.plan(8192, precision="tf32")
    assert plan.choice == "kstream"
    chosen = next(c for c in plan.candidates if c["family"] == "kstream")
    assert "K-major copy of the dense operand" in chosen["reason"]
    height, width = blocksize
    (stream,) = (
        c
        for c in matrix((height, 2 * width), "float16", 128).plan(8192).candidates
        if c["family"] == "stream"
    )
    assert chosen["mma_flops"] == stream["mma_flops"] / 2
    assert chosen["l2_bytes"] == stream["l2_bytes"]
    assert "both operands" in a.T.plan(8192, precision="tf32").explain()


@pytest.mark.parametrize(
    ("blocksize", "chip", "needs"),
    [
        ((96, 64), None, "block height that is a multiple of 64"),
        ((64, 48), None, "block width that is a multiple of 32"),
        ((64, 64), {"sm_arch": 80}, "Hopper"),
    ],
)
def test_plans_of_8_bits_elsewhere(blocksize: tuple[int, int], chip: Any, needs: str) -> None:
    plan = matrix(blocksize, "float8_e4m3fn", 8).plan(512, chip=chip)
    assert plan.choice == "portable"
    candidates = {c["family"]: c for c in plan.candidates}
    assert "after a copy of the dense operand" in candidates["portable"]["reason"]
    assert not candidates["kmajor"]["supported"] and needs in candidates["kmajor"]["reason"]


@pytest.mark.parametrize(
    ("blocksize", "n", "reason"),
    [
        ((32, 32), 200, "after a copy of the dense operand"),
        ((16, 48), 512, "after a copy of the dense operand"),
        ((1, 1), 8, "a few columns at a time"),  # a chunk would be zeros but for one of 16
    ],
)
def test_tiles_of_8_bits(blocksize: tuple[int, int], n: int, reason: str) -> None:
    plan = matrix(blocksize, "float8_e5m2").plan(n, chip={"sm_arch": 80})
    assert plan.choice == "portable"
    assert reason in next(c["reason"] for c in plan.candidates if c["family"] == plan.choice)


def test_products_that_no_kernel_computes() -> None:
    """The error says what the kernels that take most blocks need."""
    rows, tall = 3 * 2**30, 2**30
    empty = precision_cases.numpy_dtype("float8_e4m3fn")
    a = bsrgemm.bsr_array((np.zeros((0, tall, 16), empty), [], [0, 0, 0, 0]), (rows, 16))
    for chip, needs in ((None, "'portable' needs fewer than 2.31 rows"), ({"sm_arch": 75}, "75")):
        with pytest.raises(ValueError, match=needs):
            a.plan(8, chip=chip)


def refused(error: type[Exception], text: str, a: Any, x: Any, **options: Any) -> None:
    with pytest.raises(error, match=text):
        matmul(a, x, **options)


def test_refusals_of_8_bits() -> None:
    a = matrix((8, 8), "float8_e4m3fn", 8)
    x = np.zeros((64, 4), a.dtype)
    nnzb = a.nnzb
    ones = np.ones(nnzb, np.float32)
    refused(
        TypeError,
        "b has dtype float8_e5m2, but a.data has",
        a,
        x.astype(precision_cases.numpy_dtype("float8_e5m2")),
    )
    refused(TypeError, "b has dtype float16", a, x.astype(np.float16))
    refused(TypeError, "out_dtype is float64; accepted: float16,", a, x, out_dtype="float64")
    out = np.zeros((64, 4))
    refused(TypeError, "out has dtype float64, but must have dtype float16", a, x, out=out)
    refused(
        TypeError,
        "out has dtype float64, but out_dtype is float16",
        a,
        x,
        out=out,
        out_dtype="float16",
    )
    wide = np.zeros((64, 4), np.float32)
    refused(
        TypeError,
        "c has dtype float32, but out has dtype float16",
        a,
        x,
        c=wide,
        out=wide.astype(np.float16),
    )
    refused(TypeError, "precision is 'tf32', but a.data has dtype float8", a, x, precision="tf32")
    refused(
        ValueError,
        f"a_scale has {nnzb + 1} elements, but a stores {nnzb}",
        a,
        x,
        a_scale=np.ones(nnzb + 1, np.float32),
    )
    refused(ValueError, r"^a_scale is 1e\+39; accepted: numbers from", a, x, a_scale=1e39)
    refused(ValueError, "b_scale is an int beyond what float64 holds", a, x, b_scale=10**400)
    refused(
        ValueError,
        r"^alpha \* a_scale \* b_scale = 2.0 \* 1e\+30 \* 1e\+20 is 2e\+50; accepted",
        a,
        x,
        alpha=2,
        a_scale=1e30,
        b_scale=1e20,
    )
    refused(TypeError, "a_scale has dtype float64", a, x, a_scale=np.ones(nnzb))
    refused(ValueError, "a_scale has 0 elements, but a.data stores", a, x, a_scale=ones[:0])
    refused(
        ValueError, "a_scale has .* C-contiguous", a, x, a_scale=np.ones(2 * nnzb, np.float32)[::2]
    )
    refused(
        ValueError, "a_scale has .* one dimension", a, x, a_scale=np.ones((1, nnzb), np.float32)
    )
    refused(ValueError, "b_scale has shape .* must have one element", a, x, b_scale=ones)
    refused(ValueError, "b_scale has .* elements, but b stores", x.T, a, b_scale=ones[1:])
    refused(ValueError, "a_scale has shape .* must have one element", x.T, a, a_scale=ones)
    memory = np.ones((64, 4), np.float32)
    refused(
        ValueError,
        "out overlaps a_scale in memory",
        a,
        x,
        out=memory,
        a_scale=memory.reshape(-1)[:nnzb],
    )


def test_refusals_of_other_dtypes() -> None:
    a = matrix((8, 8), "float32", 8)
    x = np.zeros((64, 4), np.float32)
    refused(ValueError, "precision is 'tf33', but must be 'ieee' or 'tf32'", a, x, precision="tf33")
    refused(TypeError, "precision is 1, but must be", a, x, precision=1)
    refused(
        TypeError,
        "out_dtype is float16, but the operands have dtype float32",
        a,
        x,
        out_dtype="float16",
    )
    refused(TypeError, "a_scale is given, but the operands have dtype float32", a, x, a_scale=2.0)
    refused(TypeError, "b_scale is given", a, x, b_scale=np.ones(1, np.float32))
    half = a.astype("float16")
    refused(
        TypeError,
        "precision is 'tf32', but a.data has dtype float16",
        half,
        x.astype(np.float16),
        precision="tf32",
    )
