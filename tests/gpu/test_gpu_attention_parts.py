"""Attention whose query tiles are cut along the keys: long lists, few tiles, the last of many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import Case, check
from attention_fp8 import check as check_8
from bsrgemm import BlockMask, attention
from device_cases import check_streams, repeats, some
from spaces import Torch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper", "torch")]

DTYPES = ("float16", "bfloat16")
SPACE = Torch("cuda:0")
SUM_ERROR_8 = 2.0**-13


def with_rows(rng: np.random.Generator, case: Case, lengths: tuple[int, ...], side: int) -> Case:
    """``case`` with so many random blocks in its block rows; each head has them further down."""
    rows, cols = -(-case.queries // side), -(-case.keys // side)
    assert len(lengths) == rows and max(lengths) <= cols
    blocks = np.zeros((case.batch, case.heads, rows, cols), bool)
    for head, pattern in enumerate(blocks.reshape(-1, rows, cols)):
        for row, length in enumerate(np.roll(lengths, head)):
            pattern[row, rng.permutation(cols)[:length]] = True
    return case._replace(blocks=blocks, block_shape=(side, side))


def cut_cases(rng: np.random.Generator, size: int) -> list[Case]:
    """Far fewer tiles than any GPU has SMs, so that lists of many key tiles are cut."""
    one, few = Case(128, 4000, size=size, heads=1), Case(450, 2000, size=size, batch=2)
    rows = (15, 3, 0, 9)
    return [
        with_rows(rng, one, (31,), 128),
        with_rows(rng, one._replace(queries=1), (32,), 128),
        with_rows(rng, one._replace(queries=250), (32, 30), 128),
        with_rows(rng, few, rows, 128),
        with_rows(rng, few._replace(causal=True), rows, 128),
        with_rows(
            rng, few._replace(queries=900, keys=1700, causal=True), (2, 9, 3, 8) * 7 + (9,), 32
        ),
        with_rows(rng, few._replace(window=(900, 90)), rows, 128),
        with_rows(rng, few._replace(softcap=3.0, spread=2.0), rows, 128),
        with_rows(rng, few._replace(heads=4, kv_heads=2, placed="bshd"), rows, 128),
        with_rows(rng, few._replace(value_size=size - 16, placed="bshd"), rows, 128),
        with_rows(rng, few._replace(queries=60), (99, 20, 70, 0), 16),
        with_rows(rng, few._replace(spread=12.0), rows, 128),
    ]


@pytest.mark.parametrize("size", [64, 80, 128, 192, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_parts(size: int, dtype: str, rng: np.random.Generator) -> None:
    for case in some(cut_cases(rng, size)):
        check(SPACE, case, dtype, rng, backend="hopper")


@pytest.mark.parametrize("size", [64, 80, 128, 192, 256])
def test_parts_of_8_bits(size: int, rng: np.random.Generator) -> None:
    for case in some(cut_cases(rng, size)):
        if case.spread <= 2.0:
            check_8(SPACE, case, rng, sum_error=SUM_ERROR_8)


def tail_cases() -> list[Case]:
    """Without masks and bounds: fewer query tiles than SMs, or some more than a round of them."""
    one, many = Case(100, 4000, size=128, heads=1), Case(1100, 3000, size=128, heads=16)
    return [
        one,
        one._replace(heads=4, kv_heads=2, batch=2, placed="bshd"),
        one._replace(queries=1100, keys=2049, heads=8),
        many,
        many._replace(softcap=3.0, spread=2.0),
        many._replace(size=72, value_size=128),
        many._replace(queries=1025, keys=5000, window=(9000, 9000)),
        many._replace(heads=15, spread=12.0),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tails(dtype: str, rng: np.random.Generator) -> None:
    for case in some(tail_cases()):
        check(SPACE, case, dtype, rng, backend="hopper")


def arrays(torch: Any, heads: int, queries: int, keys: int, size: int = 128) -> list[Any]:
    return [torch.randn(1, heads, n, size, device="cuda").half() for n in (queries, keys, keys)]


def agree(torch: Any, found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    (out, lse), (expected_out, expected_lse) = found, expected
    assert not out.isnan().any()
    assert (out.double() - expected_out.double()).abs().max() < 4e-3
    seen = expected_lse > -torch.inf
    assert torch.equal(lse > -torch.inf, seen)
    assert (lse.double() - expected_lse.double())[seen].abs().max() < 1e-4


@pytest.mark.parametrize(("heads", "block_rows"), [(1, 2), (16, 128)])
def test_parts_and_whole_tiles(heads: int, block_rows: int, torch: Any) -> None:
    """Masks made on the GPU are never cut: the same result, in other bits. The second problem is
    15.5 tiles for each of 132 SMs, of which the last are cut."""
    q, k, v = arrays(torch, heads, 128 * block_rows, 128 * 128)
    scores = torch.rand(1, 1, block_rows, 128, device="cuda")
    made = BlockMask.topk(scores, 64, (128, 128))
    host = BlockMask.topk(scores.cpu(), 64, (128, 128))
    found = attention(q, k, v, block_mask=host, return_lse=True)
    expected = attention(q, k, v, block_mask=made, return_lse=True)
    agree(torch, found, expected)
    if block_rows == 2:
        assert not torch.equal(found[1], expected[1]), "lists of 64 key tiles were not cut"


def skewed(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Rows with half of all blocks, or as many as 1 / rank of them, down to none."""
    chance = np.concatenate([0.5 / np.arange(1, rows - 1), np.zeros(2)])
    return rng.random((rows, cols)) < rng.permutation(chance)[:, None]


def test_skewed(torch: Any, rng: np.random.Generator) -> None:
    """Long rows among many short ones, which come whole."""
    for heads, rows, cols in some(((2, 16, 64), (8, 16, 32), (30, 8, 24))):
        blocks = skewed(rng, rows, cols)
        q, k, v = arrays(torch, heads, 128 * rows, 128 * cols)
        found = attention(
            q, k, v, block_mask=BlockMask.from_dense(blocks, (128, 128)), return_lse=True
        )
        seen = torch.from_numpy(blocks.repeat(128, axis=0).repeat(128, axis=1)).cuda()
        for head in range(heads):
            scores = q[0, head].double() @ k[0, head].double().T / 128**0.5
            scores.masked_fill_(~seen, -torch.inf)
            lse = scores.logsumexp(dim=1)
            weights = torch.nan_to_num(scores.softmax(dim=1))
            agree(
                torch, (found[0][0, head], found[1][0, head]), (weights @ v[0, head].double(), lse)
            )


# ---- streams and graphs --------------------------------------------------------------------------


def usual(torch: Any, rng: np.random.Generator) -> tuple[list[Any], BlockMask]:
    return arrays(torch, 4, 1024, 4096), BlockMask.from_dense(skewed(rng, 8, 32), (128, 128))


def test_same_bits_every_time(torch: Any, rng: np.random.Generator) -> None:
    (q, k, v), mask = usual(torch, rng)
    expected = attention(q, k, v, block_mask=mask, return_lse=True)
    for _ in repeats(50):
        found = attention(q, k, v, block_mask=mask, return_lse=True)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_same_bits_of_tails(torch: Any) -> None:
    """Drawn tiles and, in graphs, dealt ones: parts are the same, whoever computes them."""
    q, k, v = arrays(torch, 15, 1280, 4096)  # 150 query tiles
    expected = attention(q, k, v, return_lse=True)
    reference = torch.nn.functional.scaled_dot_product_attention(q.cpu(), k.cpu(), v.cpu())
    assert (expected[0].cpu().float() - reference.float()).abs().max() < 4e-3
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = attention(q, k, v, return_lse=True)
    for _ in repeats(20):
        graph.replay()
        again = attention(q, k, v, return_lse=True)
        for results in (found, again):
            assert all(torch.equal(x, y) for x, y in zip(results, expected, strict=True))


@pytest.mark.parametrize("how", ["causal", "window", 64, 128])
def test_same_bits_in_graphs(how: str | int, torch: Any, rng: np.random.Generator) -> None:
    """Query tiles of very different lengths, several for each SM, which a graph draws from a
    counter of its own: by bounds and by lists."""
    q, k, v = arrays(torch, 24, 2000, 2300)
    k, v = (x[:, ::4].contiguous() for x in (k, v))
    options: dict[str, Any] = {"enable_gqa": True}
    if isinstance(how, int):
        blocks = rng.random((1, 24, -(-2000 // how), -(-2300 // how)))
        options["block_mask"] = BlockMask.from_dense(blocks < blocks[..., :1], (how, how))
    elif how == "causal":
        options["is_causal"] = True
    else:
        options["window"] = (700, 0)
    expected = attention(q, k, v, return_lse=True, **options)
    found = [torch.full_like(x, float("nan")) for x in expected]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for to, result in zip(found, attention(q, k, v, return_lse=True, **options), strict=True):
            to.copy_(result)
    for _ in repeats(5):
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_streams_share_a_mask(torch: Any, rng: np.random.Generator) -> None:
    """Each call has memory of its own for its parts."""
    (q, k, v), mask = usual(torch, rng)
    queries = [torch.randn_like(q) for _ in range(4)]
    check_streams(torch, lambda x: attention(x, k, v, block_mask=mask), queries)


def test_graph(torch: Any, rng: np.random.Generator) -> None:
    """Captured with a mask that the GPU has not seen before, and replayed on other values."""
    (q, k, v), mask = usual(torch, rng)
    attention(q, k, v, block_mask=BlockMask.from_dense(skewed(rng, 8, 32), (128, 128)))
    out = torch.full_like(q, float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, block_mask=mask, out=out)
    for _ in range(3):
        q.copy_(torch.randn_like(q))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, attention(q, k, v, block_mask=mask))
