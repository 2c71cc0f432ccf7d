"""Attention on the CPU against the float64 reference, over libraries, dtypes and masks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import attention_cases as table
import bsrgemm
import numpy as np
import pytest
from attention_cases import Case, check, masked, reference
from cases import DTYPES, ROUNDOFF, normal
from spaces import CPU_SPACES, Space


@pytest.mark.parametrize("name", table.PLAIN)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_plain(name: str, dtype: str, space: Space, rng: np.random.Generator) -> None:
    space.check()
    check(space, table.PLAIN[name], dtype, rng)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_masks(dtype: str, space: Space, rng: np.random.Generator) -> None:
    space.check()
    for name, case in table.masks(rng).items():
        print(f"mask {name!r}")
        check(space, case, dtype, rng)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(dtype: str, rng: np.random.Generator) -> None:
    for size in (*table.SIZES, 300):
        check(CPU_SPACES[0], Case(50, 70, size=size, causal=True), dtype, rng)


@pytest.mark.parametrize("size", [128, 200, 256])
def test_scores_of_long_heads(size: int, rng: np.random.Generator) -> None:
    """Sums of many elements lose hardly more than torch's do, where few keys leave little else."""
    pytest.importorskip("torch", reason="torch is not installed")
    lost = []
    for _ in range(20):
        case = Case(142, 2, size=size, spread=4.0)
        arrays = table.operands(rng, case, "float32")
        expected = reference(case, *arrays)
        plain = [CPU_SPACES[1].array(x) for x in arrays]
        same = table.torch_result(case, CPU_SPACES[1], plain)
        ours = CPU_SPACES[1].host(bsrgemm.attention(*plain))
        of_ours, of_theirs = (table.relative_error(x, expected) for x in (ours, same))
        lost.append(of_ours / of_theirs)  # of the same operands, as these differ by more
    assert np.median(lost) <= 1.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_query_of_heads_that_share_keys(dtype: str, rng: np.random.Generator) -> None:
    """With windows that begin and end anywhere, and masks for all heads, each head of k or of q."""
    for heads, kv_heads in ((8, 2), (6, 3), (40, 2), (5, 1)):
        case = Case(1, 150, size=24, batch=2, heads=heads, kv_heads=kv_heads)
        check(CPU_SPACES[0], case, dtype, rng)
        check(CPU_SPACES[1], case._replace(causal=True, placed="bshd"), dtype, rng)
        for window in ((30, 0), (10, 20), (200, 3)):
            for alignment in ("top_left", "bottom_right"):
                check(CPU_SPACES[0], case._replace(window=window, alignment=alignment), dtype, rng)
        for masks in (1, kv_heads, heads):
            for block_shape in ((1, 16), (3, 8), (64, 32)):
                few = masked(rng, case, block_shape, lead=(2, masks), empty=False)
                check(CPU_SPACES[0], few, dtype, rng)
                check(CPU_SPACES[0], few._replace(window=(40, 0)), dtype, rng)


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_queries(dtype: str, rng: np.random.Generator) -> None:
    for case in table.few(rng):
        check(CPU_SPACES[0], case, dtype, rng)


@pytest.mark.parametrize("size", [20, 24, 40])
def test_largest_scales_of_few_queries(size: int) -> None:
    """The largest scores have all of the weight, as with more queries."""
    k = np.repeat(np.float32([-1, -1, -1, -1, 1, 1, 1, 1]), size).reshape(1, 1, 8, size)
    v = np.arange(8 * size, dtype=np.float32).reshape(1, 1, 8, size)
    for queries in (1, 4, 5):
        q = np.ones((1, 1, queries, size), np.float32)
        found = bsrgemm.attention(q, k, v, scale=3.4e38, softcap=100.0)
        assert np.array_equal(found[0, 0], np.broadcast_to(v[0, 0, 4:].mean(0), (queries, size)))


def test_few_queries_of_which_some_see_no_key(rng: np.random.Generator) -> None:
    blocks = np.array([[0, 1], [0, 0], [1, 0]], bool)[None, None]
    case = Case(3, 40, size=24, block_shape=(1, 20), blocks=blocks)
    arrays = table.operands(rng, case, "float32")
    check(CPU_SPACES[0], case, "float32", rng, arrays)
    mask = bsrgemm.BlockMask.from_dense(blocks, case.block_shape)
    assert (bsrgemm.attention(*arrays, block_mask=mask)[..., 1, :] == 0).all()


def test_edges_of_windows(rng: np.random.Generator) -> None:
    for case in table.EDGES:
        check(CPU_SPACES[0], case, "float32", rng)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_large_scores(dtype: str, space: Space, rng: np.random.Generator) -> None:
    """Scores of up to about 1e4, of either sign: weights are all but one-hot."""
    space.check()
    check(space, Case(100, 200, spread=48.0), dtype, rng)
    check(space, Case(100, 200, spread=48.0, causal=True), dtype, rng)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", [0, 63, 64, 499])
def test_one_hot(dtype: str, at: int, rng: np.random.Generator) -> None:
    """One key with a score of 1e4 among scores of -1e4: its value comes out, wherever it is."""
    q = np.ones((1, 1, 70, 64), normal(rng, (1,), dtype).dtype)
    k = -q[:, :, :1].repeat(500, axis=2)
    k[:, :, at] = 1
    v = normal(rng, (1, 1, 500, 64), dtype)
    out, lse = bsrgemm.attention(q, k, v, scale=1e4 / 64, return_lse=True)
    assert np.array_equal(out, v[:, :, at : at + 1].repeat(70, axis=2))
    assert np.array_equal(lse, np.full((1, 1, 70), 1e4, np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_scores(dtype: str, rng: np.random.Generator) -> None:
    """Every weight is 1 / keys, whatever the common score."""
    for score in (0.0, 1e4, -1e4):
        q = np.ones((1, 1, 3, 1), normal(rng, (1,), dtype).dtype)
        v = normal(rng, (1, 1, 130, 5), dtype)
        k = np.ones((1, 1, 130, 1), q.dtype)
        found = bsrgemm.attention(q, k, v, scale=score).astype(np.float64)
        expected = v.astype(np.float64).mean(axis=2, keepdims=True).repeat(3, axis=2)
        bound = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-14}[dtype]
        assert np.abs(found - expected).max() <= bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softcaps(dtype: str, rng: np.random.Generator) -> None:
    """Of every size, with scores up to about 25, of which large caps change nothing."""
    bound = {"float32": 2e-5, "float64": 4e-14}[dtype]
    largest = 3e38 if dtype == "float32" else 1e308
    for softcap in (1e-40, 1e-30, 1e-3, 0.7, 5.0, 50.0, 1e3, 1e4, 1e6, 1e8, 1e12, 1e30, largest):
        case = Case(40, 130, size=32, softcap=softcap, spread=2.0)
        arrays = table.operands(rng, case, dtype)
        expected = reference(case, *arrays)
        out, lse = table.call(case, arrays, return_lse=True)
        assert np.abs(out - expected.out).max() <= bound, softcap
        assert np.abs(lse - expected.lse).max() <= 2e-5, softcap


def test_masked_keys_are_not_read(rng: np.random.Generator) -> None:
    """NaN in keys and values of blocks that no query sees does not matter."""
    blocks = np.array([[1, 0, 1, 0], [1, 0, 1, 0]], bool)
    mask = bsrgemm.BlockMask.from_dense(blocks, (64, 64))
    q, k, v = (rng.standard_normal((1, 2, n, 32)) for n in (128, 256, 256))
    expected = bsrgemm.attention(q, k, v, block_mask=mask)
    for x in (k, v):
        x[:, :, 64:128] = x[:, :, 192:] = np.nan
    assert np.array_equal(bsrgemm.attention(q, k, v, block_mask=mask), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_without_keys(dtype: str) -> None:
    table.check_queries_without_keys(CPU_SPACES[0], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_keys(dtype: str, rng: np.random.Generator) -> None:
    table.check_no_keys(CPU_SPACES[0], dtype, rng)


@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_scales(dtype: str) -> None:
    table.check_largest_scales(CPU_SPACES[0], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_far_scores(dtype: str, rng: np.random.Generator) -> None:
    case = Case(60, 300, size=32, scale=2.0**40)
    for each in (case, case._replace(causal=True), masked(rng, case, (16, 16), density=0.9)):
        table.check_far_scores(CPU_SPACES[0], each, dtype, rng)


def test_nan_stays(rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((1, 1, 40, 8)).astype(np.float32) for _ in range(3))
    q[0, 0, 7, 3] = np.nan
    out, lse = bsrgemm.attention(q, k, v, return_lse=True)
    assert np.isnan(out[0, 0, 7]).all() and np.isnan(lse[0, 0, 7])
    assert np.isfinite(np.delete(out, 7, axis=2)).all()


def test_result_is_new_and_of_the_library(rng: np.random.Generator) -> None:
    for space in CPU_SPACES:
        space.check()
        case = Case(20, 30, size=8, value_size=5, batch=2)
        arrays = table.operands(rng, case, "float32")
        given = [space.array(x) for x in arrays]
        found = space.host(table.call(case, given))
        assert found.shape == case.out_shape and found.dtype == np.float32
        assert table.relative_error(found, reference(case, *arrays)) < 1e-6


def test_one_mask_for_several_lengths(rng: np.random.Generator) -> None:
    """A mask of one block that is larger than all of them."""
    mask = bsrgemm.BlockMask.from_dense([[True]], (512, 512))
    for queries, keys in ((40, 300), (300, 40), (512, 512), (1, 1)):
        q, k, v = (rng.standard_normal((1, 1, n, 16)) for n in (queries, keys, keys))
        found = bsrgemm.attention(q, k, v, block_mask=mask)
        assert np.allclose(found, bsrgemm.attention(q, k, v), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("group", [2, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_of_heads_of_k(group: int, dtype: str, rng: np.random.Generator) -> None:
    """As the same masks said for each head of q; but one query's heads that share keys may be
    summed together where each alone is summed in another order."""
    for queries, batch, top in ((1, 1, 0), (16, 2, 0), (300, 2, 1)):
        q, k, v = (
            normal(rng, (2, heads, n, 16), dtype)
            for heads, n in ((2 * group, queries), (2, 200), (2, 200))
        )
        grid = -(-queries // 16), -(-200 // 24)
        if top:
            scores = rng.standard_normal((batch, 2, *grid)).astype(np.float32)
            mask = bsrgemm.BlockMask.topk(scores, 3, (16, 24), queries=queries, keys=200)
        else:
            mask = bsrgemm.BlockMask.from_dense(rng.random((batch, 2, *grid)) < 0.4, (16, 24))
        each = bsrgemm.BlockMask.from_dense(mask.to_dense().repeat(group, axis=1), (16, 24))
        options = {"enable_gqa": True, "is_causal": True, "return_lse": True}
        found, expected = (
            bsrgemm.attention(q, k, v, block_mask=m, softcap=5.0, **options) for m in (mask, each)
        )
        if queries == 1:
            for x, y in zip(found, expected, strict=True):
                near = 8 * ROUNDOFF[str(x.dtype)]
                assert np.allclose(*(z.astype(np.float64) for z in (x, y)), rtol=near, atol=near)
        else:
            assert all(np.array_equal(x, y) for x, y in zip(found, expected, strict=True))


def test_bsr_array_as_mask(rng: np.random.Generator) -> None:
    blocks = rng.random((5, 4)) < 0.5
    dense = np.kron(blocks, np.ones((16, 16)))
    a = bsrgemm.bsr_array(dense, blocksize=(16, 16))
    q, k, v = (rng.standard_normal((2, 3, n, 16)) for n in (75, 64, 64))
    mask = bsrgemm.BlockMask.from_dense(blocks, (16, 16))
    found = bsrgemm.attention(q, k, v, block_mask=a)
    assert np.array_equal(found, bsrgemm.attention(q, k, v, block_mask=mask))
    same = bsrgemm.attention(q, k, v, block_mask=bsrgemm.BlockMask.from_bsr(a))
    assert np.array_equal(found, same)


@pytest.mark.parametrize("shape", [(0, 2, 5, 4), (2, 0, 5, 4), (2, 2, 0, 4)])
def test_nothing_to_do(shape: tuple[int, ...]) -> None:
    q = np.ones(shape, np.float32)
    k = np.ones((*shape[:2], 7, 4), np.float32)
    out, lse = bsrgemm.attention(q, k, k, return_lse=True)
    assert out.shape == shape and lse.shape == shape[:3]


def test_same_bits_with_any_number_of_threads(rng: np.random.Generator) -> None:
    case = masked(rng, Case(500, 600, heads=3, causal=True), (32, 32))
    arrays = table.operands(rng, case, "float32")
    before = bsrgemm.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            bsrgemm.set_num_threads(threads)
            results.append(table.call(case, arrays))
    finally:
        bsrgemm.set_num_threads(before)
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


@pytest.mark.parametrize("isa", ["generic", "avx2"])
def test_lower_instruction_sets(isa: str) -> None:
    """Each instruction set computes the table, in a process of its own."""
    script = f"""
        import numpy as np
        import attention_cases as table
        from bsrgemm import _core
        from cases import DTYPES
        from spaces import CPU_SPACES

        if _core.cpu_isa() != {isa!r}:
            raise SystemExit(77)
        rng = np.random.default_rng(1)
        for dtype in ("float16", "float32", "float64"):
            for case in [*table.PLAIN.values(), *table.masks(rng).values(), *table.few(rng)]:
                table.check(CPU_SPACES[0], case, dtype, rng)
    """
    environment = {
        **os.environ,
        "BSRGEMM_ISA": isa,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), str(Path(bsrgemm.__file__).parent.parent)]
        ),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"this processor has no {isa}")
    assert done.returncode == 0, done.stderr


def test_random() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    from hypothesis import given
    from strategies import attention_calls, profile

    @profile(250)
    @given(attention_calls())
    def run(drawn: tuple) -> None:
        case, dtype, seed = drawn
        check(CPU_SPACES[0], case, dtype, np.random.default_rng(seed))

    run()
