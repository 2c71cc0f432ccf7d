"""Packed sequences on the GPU against the float64 reference of each, by each backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import varlen_cases as table
from bsrgemm import BlockMask, attention
from device_cases import LONG, need_graph_trees, reduced, repeats
from spaces import GPU_SPACES, Space, Torch
from varlen_cases import Packed, check

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16")
SPACE = Torch("cuda:0")


@pytest.mark.parametrize("name", table.CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cases(name: str, dtype: str, backend: str, torch: Any, rng: np.random.Generator) -> None:
    try:
        check(SPACE, table.CASES[name], dtype, rng, backend=backend)
    except ValueError as error:
        if "needs at least one key" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("size", [8, 64, 80, 128, 160, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths(size: int, dtype: str, backend: str, torch: Any, rng: np.random.Generator) -> None:
    """Random lengths, with keys and values of other lengths than queries."""
    for _ in repeats(4):
        count = int(rng.integers(1, 30))
        queries, keys = (
            tuple(int(n) for n in rng.integers(0, 400, count) * (rng.random(count) < 0.8))
            for _ in range(2)
        )
        options = {
            "size": size,
            "heads": 4,
            "kv_heads": int(rng.choice([1, 2, 4])),
            "causal": bool(rng.integers(2)),
            "softcap": [None, 5.0][int(rng.integers(2))],
            "window": [None, (int(rng.integers(-1, 200)), int(rng.integers(-1, 200)))][
                int(rng.integers(2))
            ],
        }
        queries, keys = (*queries, 5), (*keys, 7)
        before, *rest = (int(n) for n in rng.integers(0, 200, 3))
        case = Packed(queries, keys, options, before=before, rest=(rest[0], rest[1]))
        check(SPACE, case, dtype, rng, backend=backend)


@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
def test_libraries(space: Space, rng: np.random.Generator) -> None:
    space.check()
    check(space, table.CASES["causal"], "float16", rng)
    check(space, table.CASES["int64"], "float16", rng)


def test_sequences_do_not_see_one_another(
    backend: str, torch: Any, rng: np.random.Generator
) -> None:
    """NaN in one of them stays there, in the tile that its neighbour ends in, too."""
    case = Packed((70, 50, 3, 80), (70, 60, 3, 90), {"causal": True})
    arrays = [SPACE.array(x) for x in table.make(rng, case, "float16").packed]
    expected = table.call(SPACE, case, arrays, backend=backend)
    for x, end in zip(arrays, (120, 130, 130), strict=True):
        x[70:end] = float("nan")
    found = table.call(SPACE, case, arrays, backend=backend)
    assert found[70:120].isnan().all()
    assert torch.equal(found[:70], expected[:70]) and torch.equal(found[120:], expected[120:])


def test_same_bits_every_time(backend: str, torch: Any, rng: np.random.Generator) -> None:
    case = table.CASES["grouped"]
    arrays = [SPACE.array(x) for x in table.make(rng, case, "bfloat16").packed]
    expected = table.call(SPACE, case, arrays, backend=backend, return_lse=True)
    for _ in repeats(20):
        found = table.call(SPACE, case, arrays, backend=backend, return_lse=True)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_many_tiles(backend: str, torch: Any) -> None:
    """More than the GPU has SMs, and long ones: as each sequence alone."""
    lengths = [reduced(5000), 1, 1000, 0, reduced(3000), 129, 64]
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    q, k, v = (
        torch.randn(sum(lengths), heads, 128, device="cuda", dtype=torch.bfloat16)
        for heads in (8, 2, 2)
    )
    found = attention(
        q,
        k,
        v,
        cu_seqlens_q=ends,
        cu_seqlens_k=ends,
        is_causal=True,
        enable_gqa=True,
        backend=backend,
    )
    first = 0
    for n in lengths:
        rows = slice(first, first + n)
        alone = [x[None, rows] for x in (q, k, v)]
        expected = attention(
            *alone, is_causal=True, enable_gqa=True, layout="bshd", backend="portable"
        )[0].float()
        assert (found[rows].float() - expected).norm() <= 5e-3 * expected.norm()
        first += n


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_malformed_lengths_stay_within_the_arrays(
    kind: str, backend: str, torch: Any, rng: np.random.Generator
) -> None:
    """Results mean nothing then; compute-sanitizer says whether memory was respected."""
    for _ in repeats(20):
        q, k, v = (torch.zeros(300, 2, 64, device="cuda").half() for _ in range(3))
        lengths = rng.integers(-1000, 1000, 9)
        if kind == "int64":
            lengths = lengths * 2**40
        ends = torch.from_numpy(lengths.astype(kind)).cuda()
        out = attention(
            q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, is_causal=True, backend=backend
        )
        torch.cuda.synchronize()
        assert out.shape == q.shape


def test_graph(backend: str, torch: Any, rng: np.random.Generator) -> None:
    """Captured once and replayed on other lengths, in memory for the longest batch."""
    q, k, v = (torch.randn(700, 2, 64, device="cuda").half() for _ in range(3))
    ends = torch.tensor([0, 300, 500], device="cuda", dtype=torch.int32)
    options = {"is_causal": True, "backend": backend, "return_lse": True}
    attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, **options)  # loads the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, **options)
    for lengths in ([0, 300, 500], [0, 1, 700], [0, 0, 64], [0, 650, 650]):
        ends.copy_(torch.tensor(lengths))
        q.copy_(torch.randn_like(q))
        graph.replay()
        expected = attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, **options)
        rows = lengths[-1]
        assert torch.equal(out[:rows], expected[0][:rows])
        assert torch.equal(lse[:, :rows], expected[1][:, :rows])


def test_lengths_are_not_waited_for(backend: str, torch: Any) -> None:
    """Offsets may still be under way in the stream when the call is made."""
    q, k, v = (torch.randn(500, 2, 64, device="cuda").half() for _ in range(3))
    ends = torch.tensor([0, 100, 500], device="cuda", dtype=torch.int32)
    expected = attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, backend=backend)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(ends)
        torch.cuda._sleep(LONG)
        late.copy_(ends)
        found = attention(q, k, v, cu_seqlens_q=late, cu_seqlens_k=late, backend=backend)
        assert not stream.query(), "the call waited for the stream"
    stream.synchronize()
    assert torch.equal(found, expected)


# Inductor's own modules use what torch has deprecated; a graph of nothing holds torch's memory.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*TensorFloat32:UserWarning")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode: str, torch: Any, rng: np.random.Generator) -> None:
    import bsrgemm.torch

    if mode == "reduce-overhead":
        need_graph_trees()
    torch._dynamo.reset()
    compiled = torch.compile(bsrgemm.torch.attention, fullgraph=True, mode=mode)
    with torch.no_grad():
        for lengths in ([30, 0, 170], [100, 1, 99], [5, 5, 190]):
            ends = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
            q, k, v = (torch.randn(200, 2, 64, device="cuda").half() for _ in range(3))
            given = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "is_causal": True}
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(q, k, v, **given).clone()
            assert torch.equal(found, bsrgemm.attention(q, k, v, **given))


def test_nothing_to_compute(torch: Any) -> None:
    options = {"device": "cuda", "dtype": torch.float16}
    for rows, ends in ((0, [0]), (0, [0, 0]), (9, [0]), (9, [4, 4])):
        q, k = torch.ones(rows, 2, 64, **options), torch.ones(0, 2, 64, **options)
        out = torch.full_like(q, torch.nan)
        cu_q = torch.tensor(ends, device="cuda")
        found = attention(q, k, k, cu_seqlens_q=cu_q, cu_seqlens_k=torch.zeros_like(cu_q), out=out)
        assert found is out and out.isnan().all()


def test_decode_says_what_is_supported(torch: Any) -> None:
    x = torch.zeros(8, 1, 64, dtype=torch.float16, device="cuda")
    ends = torch.tensor([0, 8], device="cuda")
    with pytest.raises(ValueError, match="needs a call without cu_seqlens_q"):
        attention(x, x, x, cu_seqlens_q=ends, cu_seqlens_k=ends, backend="decode")


def test_eight_bits_say_where_they_are_supported(gpu: dict[str, Any], torch: Any) -> None:
    x = torch.zeros(8, 1, 64, device="cuda").to(torch.float8_e4m3fn)
    ends = torch.tensor([0, 8], device="cuda")
    for backend in (None, "hopper") if gpu["sm_arch"] == 90 else ():
        with pytest.raises(ValueError, match="needs a call without cu_seqlens_q for float8_e4m3fn"):
            attention(x, x, x, cu_seqlens_q=ends, cu_seqlens_k=ends, backend=backend)
    for backend in ("decode", "portable"):
        with pytest.raises(ValueError, match="needs float16 or bfloat16; float8_e4m3fn is"):
            attention(x, x, x, cu_seqlens_q=ends, cu_seqlens_k=ends, backend=backend)


def test_masks_are_refused(torch: Any) -> None:
    x = torch.zeros(32, 1, 64, dtype=torch.float16, device="cuda")
    ends = torch.tensor([0, 32], device="cuda")
    host = BlockMask.from_dense(np.ones((2, 2), bool), (16, 16))
    for mask in (host, BlockMask.topk(torch.randn(2, 2, device="cuda"), 1, (16, 16))):
        with pytest.raises(ValueError, match="block_mask and cu_seqlens_q are both given"):
            attention(x, x, x, cu_seqlens_q=ends, cu_seqlens_k=ends, block_mask=mask)


def test_lengths_on_the_host(torch: Any) -> None:
    x = torch.zeros(8, 1, 64, dtype=torch.float16, device="cuda")
    ends = torch.tensor([0, 8])
    with pytest.raises(TypeError, match="cu_seqlens_q is on cpu, but q is on cuda:0"):
        attention(x, x, x, cu_seqlens_q=ends, cu_seqlens_k=ends)
