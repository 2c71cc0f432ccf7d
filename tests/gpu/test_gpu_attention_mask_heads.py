"""Masks for each head of k, beside the same ones said for each head of q: bits, and float64."""

from __future__ import annotations

from typing import Any

import attention_fp8
import numpy as np
import pytest
from attention_cases import Case, call, check, masked, operands
from bsrgemm import BlockMask, attention
from cases import normal
from device_cases import check_late, some
from spaces import Torch
from topk_cases import expected_blocks

pytestmark = pytest.mark.gpu

SPACE = Torch("cuda:0")
BACKENDS = ("hopper", "portable", "decode")
BLOCKS = [(16, 16), (64, 64), (128, 128), (64, 128), (32, 64)]
KINDS = ("dense", "topk")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, gpu: dict[str, Any]) -> str:
    if request.param == "hopper" and gpu["sm_arch"] != 90:
        pytest.skip(f"needs a Hopper GPU (sm_90), this one is sm_{gpu['sm_arch']}")
    return request.param


def two_masks(
    rng: np.random.Generator, case: Case, block_shape: tuple[int, int], kind: str, batch: int
) -> tuple[Case, BlockMask, BlockMask]:
    """``case`` with masks for each head of k, and these as objects for heads of k and of q."""
    group = case.heads // case.kv_heads
    lead = (batch, case.kv_heads)
    if kind == "dense":
        case = masked(rng, case, block_shape, lead=lead)
        blocks = case.blocks
        made = (BlockMask.from_dense(x, block_shape) for x in (blocks, blocks.repeat(group, 1)))
        return case, *made
    grid = -(-case.queries // block_shape[0]), -(-case.keys // block_shape[1])
    scores = rng.standard_normal((*lead, *grid)).astype(np.float32)
    count = int(rng.choice((1, grid[1] // 4 + 1, grid[1])))
    rule = {"queries": case.queries, "keys": case.keys}
    made = (
        BlockMask.topk(SPACE.array(x), count, block_shape, **rule)
        for x in (scores, scores.repeat(group, axis=1))
    )
    case = case._replace(block_shape=block_shape, blocks=expected_blocks(scores, count))
    return case, *made


def same_kernel(case: Case, kind: str, backend: str) -> bool:
    """Whether heads of q are computed alike in both ways. Of a top-k mask for each of them nobody
    knows that they are equal, so ``decode`` takes a group for one only where a mask says so."""
    rows = case.queries * case.heads // case.kv_heads
    return backend != "decode" or kind == "dense" or rows > 64


def compare(
    torch: Any, case: Case, arrays: list[Any], masks: tuple[BlockMask, BlockMask], exact: bool,
    **options: Any,
) -> None:  # fmt: skip
    given = [SPACE.array(x) for x in arrays]
    results = [call(case, given, mask=mask, return_lse=True, **options) for mask in masks]
    for found, expected in zip(*results, strict=True):
        assert not found.isnan().any()
        if exact:
            assert torch.equal(found, expected), (case._replace(blocks=None), options)
        else:
            assert torch.equal(found.isinf(), expected.isinf())
            far = (found.double() - expected.double()).nan_to_num(0).abs().max()
            assert far < 3e-2, (case._replace(blocks=None), options, float(far))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [2, 4, 8])
@pytest.mark.parametrize("queries", [1, 16, 300])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_heads_of_k(
    dtype: str,
    queries: int,
    group: int,
    kind: str,
    backend: str,
    torch: Any,
    rng: np.random.Generator,
) -> None:
    """All bands and both caps, masks for each batch and shared ones, three heads of k and two."""
    if backend == "decode" and queries > 64:
        pytest.skip("decode takes at most 64 queries")
    sizes = (64, 128, 80, 256, 192)
    for i, block_shape in enumerate(some(BLOCKS)):
        kv_heads = 2 + i % 2
        case = Case(
            queries,
            (700, 1024, 333)[i % 3],
            size=sizes[i % 5],
            batch=2,
            heads=kv_heads * group,
            kv_heads=kv_heads,
            causal=i % 2 == 1,
            window=(400, 100) if i == 2 else None,
            softcap=5.0 if i == 3 else None,
            placed="bshd" if i == 4 else "plain",
        )
        drawn, *masks = two_masks(rng, case, block_shape, kind, 1 + i % 2)
        arrays = operands(rng, drawn, dtype)
        check(SPACE, drawn, dtype, rng, arrays, mask=masks[0], backend=backend)
        exact = same_kernel(case, kind, backend)
        plain = drawn._replace(placed="plain")
        compare(torch, plain, arrays, tuple(masks), exact, backend=backend)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [2, 4, 8])
@pytest.mark.parametrize("queries", [1, 16, 300])
@pytest.mark.usefixtures("hopper")
def test_8_bits(queries: int, group: int, kind: str, torch: Any, rng: np.random.Generator) -> None:
    for i, block_shape in enumerate(some(BLOCKS)):
        case = Case(
            queries, 700, size=(64, 128)[i % 2], batch=2, heads=2 * group, kv_heads=2,
            causal=i % 2 == 1,
        )  # fmt: skip
        drawn, *masks = two_masks(rng, case, block_shape, kind, 1 + i % 2)
        arrays = operands(rng, drawn, attention_fp8.DTYPE)
        options = {"arrays": arrays, "sum_error": 2.0**-13, "mask": masks[0]}
        attention_fp8.check(SPACE, drawn, rng, **options)
        compare(torch, drawn, arrays, tuple(masks), True, backend="hopper")


@pytest.mark.parametrize("kind", KINDS)
def test_odd_blocks(kind: str, torch: Any, rng: np.random.Generator) -> None:
    """Of shapes that ``hopper`` does not take."""
    for backend in ("portable", "decode"):
        for block_shape in ((7, 5), (24, 100), (1, 16)):
            case = Case(20, 500, heads=6, kv_heads=2, batch=2, causal=True)
            drawn, *masks = two_masks(rng, case, block_shape, kind, 2)
            arrays = operands(rng, drawn, "float16")
            check(SPACE, drawn, "float16", rng, arrays, mask=masks[0], backend=backend)
            exact = same_kernel(case, kind, backend)
            compare(torch, drawn, arrays, tuple(masks), exact, backend=backend)


@pytest.mark.parametrize("kind", KINDS)
def test_long_cache(kind: str, torch: Any, rng: np.random.Generator) -> None:
    """Several parts of a group's list, and groups of more than 64 rows, whose heads walk alone."""
    for queries, group in ((1, 8), (4, 16), (16, 8), (64, 4)):
        case = Case(queries, 6000, size=128, heads=2 * group, kv_heads=2, causal=True)
        drawn, *masks = two_masks(rng, case, (16, 64), kind, 1)
        arrays = operands(rng, drawn, "bfloat16")
        check(SPACE, drawn, "bfloat16", rng, arrays, mask=masks[0], backend="decode")
        exact = same_kernel(case, kind, "decode")
        compare(torch, drawn, arrays, tuple(masks), exact, backend="decode")


def test_lists_that_are_cut(torch: Any, rng: np.random.Generator) -> None:
    """Long rows of few heads, whose tiles the host's plan for Hopper cuts in parts."""
    case = Case(256, 16_384, size=128, heads=4, kv_heads=2)
    for block_shape in ((128, 128), (64, 64)):
        drawn, *masks = two_masks(rng, case, block_shape, "dense", 1)
        arrays = operands(rng, drawn, "bfloat16")
        compare(torch, drawn, arrays, tuple(masks), True)


# ---- streams and graphs --------------------------------------------------------------------------


def grouped(torch: Any, queries: int) -> tuple[list[Any], Any]:
    """Two batches of 8 heads of q and 2 of k, and scores for each of the latter."""
    q = torch.randn(2, 8, queries, 128, device="cuda").half()
    k, v = (torch.randn(2, 2, 2048, 128, device="cuda").half() for _ in range(2))
    return [q, k, v], torch.randn(2, 2, -(-queries // 64), 32, device="cuda")


@pytest.mark.parametrize("queries", [1, 300])
def test_graph(queries: int, backend: str, torch: Any) -> None:
    """A mask from scores and attention with it, captured whole, on other scores at each replay."""
    if backend == "decode" and queries > 64:
        pytest.skip("decode takes at most 64 queries")
    arrays, scores = grouped(torch, queries)
    rule = {"queries": queries, "keys": 2048}
    options = {"enable_gqa": True, "backend": backend}
    mask = BlockMask.topk(scores, 5, (64, 64), **rule)
    attention(*arrays, block_mask=mask, **options)  # loads the kernels
    out = torch.full_like(arrays[0], torch.nan)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        mask.update(scores)
        attention(*arrays, block_mask=mask, out=out, **options)
    for _ in range(4):
        scores.copy_(torch.randn_like(scores))
        out.fill_(torch.nan)
        graph.replay()
        other = BlockMask.topk(scores, 5, (64, 64), **rule)
        assert torch.equal(out, attention(*arrays, block_mask=other, **options))
        each = BlockMask.topk(scores.repeat_interleave(4, dim=1), 5, (64, 64), **rule)
        expected = attention(*arrays, block_mask=each, **options)
        far = (out.float() - expected.float()).abs().max()
        assert far < 4e-3 if backend == "decode" else far == 0


@pytest.mark.parametrize("queries", [1, 300])
def test_nothing_waits(queries: int, backend: str, torch: Any) -> None:
    """Mask and attention are put behind scores."""
    if backend == "decode" and queries > 64:
        pytest.skip("decode takes at most 64 queries")
    arrays, scores = grouped(torch, queries)

    def attend(scores: Any) -> Any:
        made = BlockMask.topk(scores, 5, (64, 64), queries=queries, keys=2048)
        return attention(*arrays, block_mask=made, enable_gqa=True, backend=backend)

    check_late(torch, scores, attend)


def test_refused(torch: Any, rng: np.random.Generator) -> None:
    """Numbers of heads between those of k and q, of either kind of mask."""
    q = SPACE.array(normal(rng, (1, 8, 64, 64), "float16"))
    k = SPACE.array(normal(rng, (1, 2, 64, 64), "float16"))
    scores = torch.randn(1, 4, 1, 1, device="cuda")
    for mask in (BlockMask.topk(scores, 1, (64, 64)), BlockMask.topk(scores.cpu(), 1, (64, 64))):
        with pytest.raises(ValueError, match=r"\(1, 4\), but must have \(1, 1 or 2 or 8\)"):
            attention(q, k, k, block_mask=mask, enable_gqa=True)
