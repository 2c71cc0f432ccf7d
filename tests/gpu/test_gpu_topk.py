"""Top-k masks on a GPU: which blocks, the bits of attention, streams without waits, graphs."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from bsrgemm import BlockMask, attention
from cases import numpy_dtype
from device_cases import check_late, reduced, repeats, some
from spaces import GPU_SPACES, Space, Torch
from topk_cases import COUNTS, KINDS, expected_blocks, make_scores

pytestmark = pytest.mark.gpu

SPACE = Torch("cuda:0")
# About 0.1 s on a GPU of 1 to 2 GHz.


# ---- which blocks --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_kept(kind: str, dtype: str, torch: Any, rng: np.random.Generator) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    for shape in ((1, 1, 5, 9), (2, 3, 4, 130), (1, 2, 3, 1), (1, 1, 2, 4096), (1, 1, 1, 20000)):
        scores = make_scores(rng, kind, shape).astype(numpy_dtype(dtype))
        for k in (*COUNTS, shape[3] // 2, shape[3] - 1, shape[3]):
            made = BlockMask.topk(SPACE.array(scores), k, (16, 32))
            assert made.shape == shape and made.nnzb == int(np.prod(shape[:3])) * min(k, shape[3])
            assert np.array_equal(made.to_dense(), expected_blocks(scores, k)), (shape, k)


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
@pytest.mark.parametrize("block_shape", [(64, 64), (32, 16), (7, 12)])
def test_causal(
    block_shape: tuple[int, int], alignment: str, torch: Any, rng: np.random.Generator
) -> None:
    for queries, keys in ((1, 1), (500, 500), (100, 700), (700, 100)):
        shape = [-(-n // side) for n, side in zip((queries, keys), block_shape, strict=True)]
        scores = rng.standard_normal((2, 1, *shape), np.float32)
        options = {"is_causal": True, "alignment": alignment, "queries": queries, "keys": keys}
        for k in (0, 1, 3, 1000):
            host = BlockMask.topk(scores, k, block_shape, **options)
            made = BlockMask.topk(SPACE.array(scores), k, block_shape, **options)
            assert np.array_equal(made.to_dense(), host.to_dense())
            assert made.nnzb == host.nnzb and made.density == host.density


@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
def test_libraries(space: Space, rng: np.random.Generator) -> None:
    space.check()
    scores = rng.standard_normal((2, 2, 4, 6)).astype(np.float16)
    q, k, v = (rng.standard_normal((2, 2, n, 64)).astype(np.float16) for n in (256, 384, 384))
    made = BlockMask.topk(space.array(scores), 2, (64, 64))
    assert np.array_equal(made.to_dense(), expected_blocks(scores, 2))
    other = rng.standard_normal(scores.shape).astype(np.float32)
    made.update(space.array(other))
    assert np.array_equal(made.to_dense(), expected_blocks(other, 2))
    found = attention(*map(space.array, (q, k, v)), block_mask=made)
    host = BlockMask.from_dense(expected_blocks(other, 2), (64, 64))
    expected = attention(*(x.astype(np.float32) for x in (q, k, v)), block_mask=host)
    assert np.abs(space.host(found).astype(np.float32) - expected).max() < 5e-3
    copied = copy.deepcopy(made)
    assert type(copied) is BlockMask and np.array_equal(copied.to_dense(), made.to_dense())


def test_views(torch: Any) -> None:
    scores = torch.randn(2, 3, 9, 21, device="cuda")
    for view in (scores[:, :, ::2, ::3], scores.mT, scores[0, 1], scores[:1, 1:2]):
        made = BlockMask.topk(view, 4, (16, 16))
        assert np.array_equal(made.to_dense(), expected_blocks(view.cpu().numpy(), 4))
    shared = scores[:, :1].expand(2, 5, 9, 21)
    made = BlockMask.topk(shared, 4, (16, 16))
    assert np.array_equal(made.to_dense(), expected_blocks(shared.cpu().numpy(), 4))


# ---- attention -----------------------------------------------------------------------------------


# The host's plan may cut longer lists of key tiles along the keys, which the GPU's never does.
LEAST_CUT = 8


def most_key_tiles(keys: int, size: int, block_shape: tuple[int, int], k: int) -> int:
    """That a tile of 128 queries can meet, for float16."""
    height, width = block_shape
    tile = 128 if size <= 128 else 64
    rows = 1 if height % 128 == 0 else 128 // height + 2
    of_block = 1 if tile % width == 0 else width // tile + (2 if width % tile else 0)
    return min(-(-keys // tile), rows * k * of_block)


def compare(
    torch: Any,
    backend: str,
    lengths: tuple[int, int],
    size: int,
    block_shape: tuple[int, int],
    k: int,
    *,
    lead: tuple[int, int] = (1, 1),
    exact: bool | None = None,
    chosen: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """The mask of a GPU against the same one of the host, into poisoned memory."""
    queries, keys = lengths
    q, key, value = (
        torch.randn(2, heads, n, size, device="cuda").half()
        for heads, n in ((4, queries), (2, keys), (2, keys))
    )
    shape = [-(-n // side) for n, side in zip(lengths, block_shape, strict=True)]
    scores = torch.randn(*lead, *shape, device="cuda")
    rule = {"queries": queries, "keys": keys} | (chosen or {})
    made = BlockMask.topk(scores, k, block_shape, **rule)
    host = BlockMask.topk(scores.cpu(), k, block_shape, **rule)
    results = []
    for mask in (host, made):
        out = torch.full_like(q, float("nan"))
        _, lse = attention(
            *(q, key, value),
            block_mask=mask,
            enable_gqa=True,
            backend=backend,
            out=out,
            return_lse=True,
            **options,
        )
        results.append((out, lse))
    (expected, expected_lse), (found, found_lse) = results
    what = f"{backend} {lengths} {size} {block_shape} k={k} {lead} {rule} {options}"
    if exact is None:
        exact = backend == "portable" or most_key_tiles(keys, size, block_shape, k) < LEAST_CUT
    assert not found.isnan().any(), what
    assert torch.equal(found_lse == -torch.inf, expected_lse == -torch.inf), what
    if exact:
        assert torch.equal(found, expected) and torch.equal(found_lse, expected_lse), what
    else:
        assert (found.float() - expected.float()).abs().max() < 4e-3, what
        seen = expected_lse > -torch.inf
        assert (found_lse - expected_lse)[seen].abs().max() < 1e-4 if seen.any() else True, what


CALLS: list[dict[str, Any]] = [
    {},
    {"is_causal": True},
    {"chosen": {"is_causal": True}, "is_causal": True},
    {"window": (300, 40)},
    {"softcap": 5.0},
    {"lead": (2, 4)},
    {"lead": (2, 1)},
    {"lead": (1, 4), "is_causal": True, "causal_alignment": "top_left"},
]


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("size", [64, 128, 192, 256])
def test_bits_of_the_host_mask(call: dict[str, Any], size: int, backend: str, torch: Any) -> None:
    calls = (((1024, 1024), 3), ((1000, 1100), 1), ((130, 700), 100), ((700, 90), 0))
    for lengths, k in some(calls):
        compare(torch, backend, lengths, size, (128, 128), k, **call)


@pytest.mark.parametrize(
    "block_shape", [(16, 16), (32, 64), (48, 80), (256, 256), (128, 16), (144, 272), (4096, 4096)]
)
def test_bits_with_other_blocks(block_shape: tuple[int, int], backend: str, torch: Any) -> None:
    for k in (1, 4, 1000):
        compare(torch, backend, (600, 700), 128, block_shape, k, lead=(1, 4))
        compare(torch, backend, (333, 1500), 64, block_shape, k, is_causal=True)


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("block_shape", [(64, 64), (64, 128), (128, 64), (192, 64)])
def test_blocks_of_64(
    block_shape: tuple[int, int], size: int, call: dict[str, Any], backend: str, torch: Any
) -> None:
    """The Hopper kernel meets neighbouring rows of blocks here, and the host looks for the best
    partners: so sums have another order."""
    calls = (((1024, 1024), 5), ((1000, 1500), 1), ((50, 3000), 9), ((700, 600), 100))
    for lengths, k in some(calls):
        exact = backend == "portable"
        compare(torch, backend, lengths, size, block_shape, k, exact=exact, **call)


@pytest.mark.parametrize("block_shape", [(7, 5), (1, 1), (24, 100)])
def test_odd_blocks(block_shape: tuple[int, int], torch: Any) -> None:
    for k in (1, 20):
        compare(torch, "portable", (150, 190), 40, block_shape, k, lead=(2, 4))


def test_long_rows(backend: str, torch: Any) -> None:
    """More key tiles than a CTA holds at a time."""
    lengths = (200, reduced(300_000))
    compare(torch, backend, lengths, 64, (64, 64), 700, exact=backend == "portable")
    compare(torch, backend, lengths, 64, (128, 128), 400)


@pytest.mark.parametrize("block", [64, 128])
def test_same_bits_every_time(block: int, backend: str, torch: Any) -> None:
    q, k, v = (torch.randn(1, 4, 2048, 128, device="cuda").half() for _ in range(3))
    scores = torch.randn(1, 4, 2048 // block, 2048 // block, device="cuda")
    expected = None
    for _ in repeats(20):
        mask = BlockMask.topk(scores, 5, (block, block))
        found = attention(q, k, v, block_mask=mask, backend=backend)
        expected = found if expected is None else expected
        assert torch.equal(found, expected)


# ---- streams and graphs --------------------------------------------------------------------------


def usual(torch: Any, block: int) -> tuple[list[Any], Any]:
    arrays = [torch.randn(1, 4, 1024, 128, device="cuda").half() for _ in range(3)]
    return arrays, torch.randn(1, 4, 1024 // block, 1024 // block, device="cuda")


@pytest.mark.parametrize("block", [64, 128])
def test_nothing_waits(block: int, backend: str, torch: Any) -> None:
    """Mask and attention are put behind scores."""
    arrays, scores = usual(torch, block)

    def attend(scores: Any) -> Any:
        mask = BlockMask.topk(scores, 3, (block, block))
        return attention(*arrays, block_mask=mask, backend=backend)

    check_late(torch, scores, attend)


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("how", ["topk", "update"])
def test_graph(how: str, block: int, backend: str, torch: Any) -> None:
    """A mask from scores and attention with it, captured whole, on other scores at each replay."""
    (q, k, v), scores = usual(torch, block)
    warm = BlockMask.topk(scores, 3, (block, block), is_causal=True)
    attention(q, k, v, block_mask=warm, is_causal=True, backend=backend)  # loads the kernels
    out = torch.full_like(q, float("nan"))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        mask = warm
        if how == "topk":
            mask = BlockMask.topk(scores, 3, (block, block), is_causal=True)
        else:
            mask.update(scores)
        attention(q, k, v, block_mask=mask, is_causal=True, out=out, backend=backend)
    if how == "topk":
        del mask  # the graph's memory pool has its columns
    for _ in range(4):
        scores.copy_(torch.randn_like(scores))
        out.fill_(float("nan"))
        graph.replay()
        other = BlockMask.topk(scores, 3, (block, block), is_causal=True)
        expected = attention(q, k, v, block_mask=other, is_causal=True, backend=backend)
        assert torch.equal(out, expected)


def test_update_is_seen_in_order(backend: str, torch: Any) -> None:
    """One mask, new scores between calls, nothing waited for."""
    (q, k, v), _ = usual(torch, 128)
    rounds = [torch.randn(1, 4, 8, 8, device="cuda") for _ in range(10)]
    mask = BlockMask.topk(rounds[0], 3, (128, 128))
    found = []
    for scores in rounds:
        mask.update(scores)
        found.append(attention(q, k, v, block_mask=mask, backend=backend))
    for scores, result in zip(rounds, found, strict=True):
        host = BlockMask.topk(scores.cpu(), 3, (128, 128))
        assert torch.equal(result, attention(q, k, v, block_mask=host, backend=backend))


def test_one_mask_on_two_streams(backend: str, torch: Any) -> None:
    (q, k, v), scores = usual(torch, 128)
    mask = BlockMask.topk(scores, 3, (128, 128))
    expected = attention(q, k, v, block_mask=mask, backend=backend)
    torch.cuda.synchronize()
    found = []
    for _ in range(4):
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(attention(q, k, v, block_mask=mask, backend=backend))
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in found)


# ---- refusals ------------------------------------------------------------------------------------


def test_malformed(torch: Any) -> None:
    scores = torch.randn(4, 4, device="cuda")
    mask = BlockMask.topk(scores, 2, (16, 16))
    with pytest.raises(ValueError, match=r"scores has shape \(4, 5\); accepted: \(1, 1, 4, 4\)"):
        mask.update(torch.randn(4, 5, device="cuda"))
    with pytest.raises(TypeError, match="scores is on cpu; accepted: the mask's, cuda:0"):
        mask.update(torch.randn(4, 4))
    with pytest.raises(TypeError, match="scores has dtype float64; accepted"):
        mask.update(scores.double())
    x = torch.zeros(1, 1, 64, 64, dtype=torch.float16)
    with pytest.raises(TypeError, match="block_mask is on cuda:0, but q is on cpu"):
        attention(x, x, x, block_mask=mask)
    x = x.cuda()
    with pytest.raises(ValueError, match=r"block_mask has \(4, 4\) blocks of \(16, 16\), but 64 q"):
        attention(x, x[:, :, :16], x[:, :, :16], block_mask=mask)
    with pytest.raises(ValueError, match=r"leading dimensions \(2, 1\)"):
        attention(x, x, x, block_mask=BlockMask.topk(scores.expand(2, 1, 4, 4), 2, (16, 16)))
    odd = BlockMask.topk(scores, 2, (17, 17))
    x = torch.zeros(1, 1, 68, 64, dtype=torch.float16, device="cuda")
    with pytest.raises(ValueError, match="sides that are multiples of 16"):
        attention(x, x, x, block_mask=odd, backend="hopper")
    with pytest.raises(ValueError, match="needs at most 64 queries"):
        attention(x, x, x, block_mask=odd, backend="decode")
