"""Few queries under masks, by the decode kernels: against float64, streams and graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import Case, check, masked
from bsrgemm import BlockMask, attention
from device_cases import check_late, reduced, repeats, some
from spaces import Torch
from test_gpu_attention import DECODE
from topk_cases import expected_blocks

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16")
SPACE = Torch("cuda:0")
BLOCKS = [(16, 16), (64, 64), (128, 128), (32, 64), (16, 64), (1, 16), (7, 5), (24, 100)]


def lead_of(case: Case, kind: str) -> tuple[int, int]:
    heads = case.heads if kind in ("heads", "all") else 1
    return case.batch if kind in ("batch", "all") else 1, heads


def by_groups(case: Case) -> Case:
    """Masks for each head, of which those that share a head of k have one."""
    heads = np.arange(case.heads)
    group = case.heads // (case.kv_heads or case.heads)
    return case._replace(blocks=case.blocks[:, heads // group * group])


def with_scores(
    rng: np.random.Generator, case: Case, shape: tuple[int, int], k: int, lead: tuple[int, int]
) -> tuple[Case, BlockMask]:
    """``case`` and the mask of a GPU that keeps ``k`` blocks a row."""
    grid = -(-case.queries // shape[0]), -(-case.keys // shape[1])
    scores = rng.standard_normal((*lead, *grid)).astype(np.float32)
    made = BlockMask.topk(SPACE.array(scores), k, shape, queries=case.queries, keys=case.keys)
    return case._replace(block_shape=shape, blocks=expected_blocks(scores, k)), made


# ---- against float64 -----------------------------------------------------------------------------


@pytest.mark.parametrize("block_shape", BLOCKS, ids=str)
@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize("queries", [1, 3, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(
    queries: int,
    group: int,
    block_shape: tuple[int, int],
    dtype: str,
    torch: Any,
    rng: np.random.Generator,
) -> None:
    """Rows of all heads of a group and of single heads; lists of one part and of many."""
    sizes = some((64, 80, 128, 256))
    for i, kind in enumerate(("shared", "batch", "heads", "all", "groups")):
        case = Case(
            queries,
            (300, 1024, 1601)[i % 3],
            size=sizes[i % len(sizes)],
            batch=2 if kind in ("batch", "all") else 1,
            heads=2 * group,
            kv_heads=2,
            causal=i % 2 == 1,
            placed="bshd" if i == 2 else "plain",
        )
        lead = lead_of(case, "all" if kind == "groups" else kind)
        density = rng.choice((0.3, 0.04, 1.1))
        drawn = masked(rng, case, block_shape, density, lead, empty=density < 1)
        drawn = by_groups(drawn) if kind == "groups" else drawn
        check(SPACE, drawn, dtype, rng, backend="decode")


@pytest.mark.parametrize("block_shape", BLOCKS, ids=str)
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("queries", [1, 3, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_topk_masks(
    queries: int,
    group: int,
    block_shape: tuple[int, int],
    dtype: str,
    torch: Any,
    rng: np.random.Generator,
) -> None:
    sizes = some((64, 80, 128, 256))
    for i, kind in enumerate(("shared", "batch", "heads", "all")):
        keys = (300, 1024, 1601)[i % 3]
        case = Case(
            queries,
            keys,
            size=sizes[i % len(sizes)],
            batch=2 if kind in ("batch", "all") else 1,
            heads=2 * group,
            kv_heads=2,
            causal=i % 2 == 1,
        )
        cols = -(-keys // block_shape[1])
        k = int(rng.choice((cols // 8 + 1, 1, cols)))
        drawn, made = with_scores(rng, case, block_shape, k, lead_of(case, kind))
        check(SPACE, drawn, dtype, rng, mask=made, backend="decode")


OPTIONS = DECODE | {
    "64 queries of 8 heads": Case(64, 1500, heads=8, kv_heads=1),
    "20 queries": Case(20, 1500, size=64, window=(700, 3)),
    "window far back": Case(2, 9000, size=256, window=(4000, -1)),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_options(name: str, dtype: str, torch: Any, rng: np.random.Generator) -> None:
    case = OPTIONS[name]
    for block_shape, kind in (((16, 64), "shared"), ((64, 64), "heads"), ((3, 24), "all")):
        lead = lead_of(case, kind)
        check(SPACE, masked(rng, case, block_shape, lead=lead), dtype, rng, backend="decode")
        cols = -(-case.keys // block_shape[1])
        drawn, made = with_scores(rng, case, block_shape, cols // 3, lead)
        check(SPACE, drawn, dtype, rng, mask=made, backend="decode")
    check(SPACE, masked(rng, case, (512, 512), density=1.1, empty=False), dtype, rng)
    check(SPACE, masked(rng, case, (16, 16), density=0.0), dtype, rng, backend="decode")


@pytest.mark.parametrize("kind", ["host", "topk"])
@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("size", [64, 128, 256])
def test_long_lists(size: int, width: int, kind: str, torch: Any, rng: np.random.Generator) -> None:
    """More entries of a split than are fetched at a time: batches, which fill the GPU, share K."""
    batch, keys = 512, reduced(12_032)
    q = torch.randn(batch, 1, 1, size, device="cuda").bfloat16()
    k, v = (torch.randn(1, 1, keys, size, device="cuda").bfloat16() for _ in range(2))
    scores = torch.randn(1, 1, 1, keys // width, device="cuda")
    for count in some((keys // width, 33, keys // width // 2, 1)):
        blocks = expected_blocks(scores.cpu().numpy(), count)
        mask = BlockMask.topk(scores, count, (16, width), queries=1)
        if kind == "host":
            mask = BlockMask.from_dense(blocks, (16, width))
        out = torch.full_like(q, torch.nan)
        shared = (x.expand(batch, 1, keys, size) for x in (k, v))
        attention(q, *shared, block_mask=mask, out=out, backend="decode")
        seen = torch.from_numpy(blocks.repeat(width, axis=3)).cuda()
        products = q.double() @ k.double().mT / size**0.5
        expected = products.masked_fill(~seen, -torch.inf).softmax(dim=3) @ v.double()
        error = (out.double() - expected).norm() / expected.norm()
        assert error < 2 * 2.0**-8, (count, float(error))


def test_nothing_beyond_blocks_is_read(torch: Any) -> None:
    """NaN in K and V where no query of the call looks."""
    q = torch.randn(1, 4, 1, 128, device="cuda").half()
    k, v = (torch.randn(1, 2, 1000, 128, device="cuda").half() for _ in range(2))
    blocks = np.zeros((1, 125), bool)
    blocks[0, [0, 1, 9, 64, 124]] = True
    mask = BlockMask.from_dense(blocks, (16, 8))
    expected = attention(q, k, v, block_mask=mask, enable_gqa=True, backend="decode")
    hidden = torch.from_numpy(~blocks[0].repeat(8)).cuda()
    k[:, :, hidden] = torch.nan
    v[:, :, hidden] = torch.nan
    found = attention(q, k, v, block_mask=mask, enable_gqa=True, backend="decode")
    assert torch.equal(found, expected)


# ---- choice, streams, graphs ---------------------------------------------------------------------


def cache(torch: Any) -> list[Any]:
    """A query of 16 heads and a cache of 5000 keys of 4 heads, in several parts."""
    shapes = ((2, 16, 1, 128), (2, 4, 5000, 128), (2, 4, 5000, 128))
    return [torch.randn(shape, device="cuda").bfloat16() for shape in shapes]


@pytest.fixture(params=["host", "topk"])
def mask(request: pytest.FixtureRequest, torch: Any) -> BlockMask:
    scores = torch.randn(2, 16, 1, 79, device="cuda")
    scores = scores if request.param == "topk" else scores.cpu()
    return BlockMask.topk(scores, 20, (16, 64), queries=1, keys=5000)


def test_is_chosen(mask: BlockMask, torch: Any) -> None:
    arrays = cache(torch)
    options = {"block_mask": mask, "enable_gqa": True, "return_lse": True}
    expected = attention(*arrays, backend="decode", **options)
    found = attention(*arrays, **options)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_same_bits_every_time(mask: BlockMask, torch: Any) -> None:
    arrays = cache(torch)
    options = {"block_mask": mask, "enable_gqa": True, "return_lse": True, "backend": "decode"}
    expected = attention(*arrays, **options)
    for _ in repeats(50):
        found = attention(*arrays, **options)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_equal_masks_share_their_heads(torch: Any, rng: np.random.Generator) -> None:
    """Same bits, whether a mask is said once or for every head."""
    arrays = cache(torch)
    blocks = rng.random((1, 1, 1, 79)) < 0.4
    results = [
        attention(*arrays, block_mask=BlockMask.from_dense(x, (16, 64)), enable_gqa=True)
        for x in (blocks, blocks.repeat(16, axis=1), blocks.repeat(2, axis=0))
    ]
    assert all(torch.equal(result, results[0]) for result in results)


def test_nothing_waits(torch: Any) -> None:
    """Mask and attention are put behind scores."""
    arrays = cache(torch)

    def attend(scores: Any) -> Any:
        made = BlockMask.topk(scores, 20, (16, 64), queries=1, keys=5000)
        return attention(*arrays, block_mask=made, enable_gqa=True, backend="decode")

    check_late(torch, torch.randn(1, 16, 1, 79, device="cuda"), attend)


def test_topk_graph(torch: Any) -> None:
    """A mask from scores and attention with it, captured whole, on other scores at each replay."""
    q, k, v = cache(torch)
    scores = torch.randn(2, 16, 1, 79, device="cuda")
    options = {"enable_gqa": True, "backend": "decode"}
    made = BlockMask.topk(scores, 20, (16, 64), queries=1, keys=5000)
    attention(q, k, v, block_mask=made, **options)  # loads the kernels
    out = torch.full_like(q, torch.nan)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        made.update(scores)
        attention(q, k, v, block_mask=made, out=out, **options)
    for _ in range(4):
        scores.copy_(torch.randn_like(scores))
        q.copy_(torch.randn_like(q))
        out.fill_(torch.nan)
        graph.replay()
        other = BlockMask.topk(scores, 20, (16, 64), queries=1, keys=5000)
        assert torch.equal(out, attention(q, k, v, block_mask=other, **options))


def test_host_mask_graph(torch: Any, rng: np.random.Generator) -> None:
    """Captured with a mask that the GPU has not seen before, and replayed on other values."""
    q, k, v = cache(torch)
    options = {"enable_gqa": True, "backend": "decode"}
    before, made = (BlockMask.from_dense(rng.random((1, 79)) < d, (16, 64)) for d in (0.2, 0.5))
    attention(q, k, v, block_mask=before, **options)  # loads the kernels
    out = torch.full_like(q, torch.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, block_mask=made, out=out, **options)
    for _ in range(2):
        q.copy_(torch.randn_like(q))
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, attention(q, k, v, block_mask=made, **options))


def test_too_many_queries(torch: Any, rng: np.random.Generator) -> None:
    case = masked(rng, Case(65, 700), (16, 16))
    with pytest.raises(ValueError, match="needs at most 64 queries"):
        check(SPACE, case, "float16", rng, backend="decode")
    check(SPACE, case, "float16", rng)
