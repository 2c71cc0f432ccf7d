"""Attention on the GPU against the float64 reference, by each backend."""

from __future__ import annotations

import threading
from typing import Any

import attention_cases as table
import bsrgemm
import numpy as np
import pytest
from attention_cases import Case, check, masked
from bsrgemm import BlockMask, attention
from cases import normal
from device_cases import LONG, check_late, one_behind_the_other, reduced, repeats
from spaces import GPU_SPACES, Space, Torch

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16")
BACKENDS = ("hopper", "decode", "portable")
SPACE = Torch("cuda:0")

# About 0.1 s on a GPU of 1 to 2 GHz.


def compute(
    backend: str, case: Case, dtype: str, rng: np.random.Generator, space: Space = SPACE
) -> bool:
    """Checks the case, or returns False where the backend says that it cannot compute it."""
    try:
        check(space, case, dtype, rng, backend=backend)
    except ValueError as error:
        if backend != "portable" and f"with family '{backend}'" in str(error):
            print(f"{case._replace(blocks=None)}: {error}")
            return False
        raise
    return True


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, gpu: dict[str, Any]) -> str:
    if request.param == "hopper" and gpu["sm_arch"] != 90:
        pytest.skip(f"needs a Hopper GPU (sm_90), this one is sm_{gpu['sm_arch']}")
    return request.param


@pytest.fixture
def general(backend: str) -> str:
    """A backend for any number of queries, with masks."""
    if backend == "decode":
        pytest.skip("few queries, see the decode tests")
    return backend


@pytest.mark.parametrize("name", table.PLAIN)
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain(name: str, dtype: str, backend: str, torch: Any, rng: np.random.Generator) -> None:
    if not compute(backend, table.PLAIN[name], dtype, rng):
        pytest.skip("not computed by this backend")


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(dtype: str, general: str, torch: Any, rng: np.random.Generator) -> None:
    done = [compute(general, case, dtype, rng) for case in table.masks(rng).values()]
    if not any(done):
        pytest.skip("no mask is computed by this backend")


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(dtype: str, general: str, torch: Any, rng: np.random.Generator) -> None:
    done = []
    for size in table.SIZES:
        for value_size in (None, 33, 64, 256):
            case = Case(150, 170, size=size, value_size=value_size, causal=True)
            done.append(compute(general, case, dtype, rng))
    assert any(done)


@pytest.mark.parametrize("placed", ["bshd", "packed", "transposed", "odd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides(
    placed: str, dtype: str, general: str, torch: Any, rng: np.random.Generator
) -> None:
    done = [
        compute(
            general, Case(140, 150, size=size, batch=2, causal=causal, placed=placed), dtype, rng
        )
        for size in (24, 33, 64, 128)
        for causal in (False, True)
    ]
    if not any(done):
        pytest.skip("not computed by this backend")


@pytest.mark.parametrize("dtype", DTYPES)
def test_edges_of_windows(dtype: str, general: str, torch: Any, rng: np.random.Generator) -> None:
    for case in table.EDGES:
        compute(general, case, dtype, rng)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_usual_calls_are_computed(
    size: int, dtype: str, general: str, torch: Any, rng: np.random.Generator
) -> None:
    """Whatever else a backend leaves to others."""
    for case in (
        Case(1024, 1024, size=size, heads=4),
        Case(1024, 1024, size=size, heads=4, causal=True),
        Case(1024, 1024, size=size, heads=8, kv_heads=2, causal=True, placed="bshd"),
        Case(300, 1100, size=size, causal=True),
        masked(rng, Case(1024, 1024, size=size, heads=2), (128, 128), lead=(1, 2)),
        masked(rng, Case(1000, 1100, size=size, causal=True), (128, 64)),
        masked(rng, Case(1024, 1024, size=size), (64, 64)),
    ):
        assert compute(general, case, dtype, rng)


@pytest.mark.parametrize("size", [64, 80, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_64(
    size: int, dtype: str, general: str, torch: Any, rng: np.random.Generator
) -> None:
    """Rows with few, many and no blocks, odd numbers of row blocks, lengths that cut blocks."""
    for density in (0.0, 0.05, 0.3, 0.7, 1.1):
        for case, blocks in (
            (Case(1024, 2048, size=size), (64, 64)),
            (Case(1000, 1500, size=size, heads=4, kv_heads=2), (64, 64)),
            (Case(700, 1100, size=size, causal=True, batch=2), (64, 64)),
            (Case(700, 650, size=size, window=(100, 30)), (64, 128)),
            (Case(330, 900, size=size, softcap=3.0, spread=2.0), (128, 64)),
            (Case(50, 3000, size=size), (192, 64)),
        ):
            lead = (1, case.heads)
            assert compute(
                general, masked(rng, case, blocks, lead=lead, density=density), dtype, rng
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores(dtype: str, general: str, torch: Any, rng: np.random.Generator) -> None:
    """Scores of up to about 1e4, of either sign: weights are all but one-hot."""
    for causal in (False, True):
        for size in (64, 128):
            case = Case(300, 400, size=size, spread=48.0 if size == 64 else 40.0, causal=causal)
            compute(general, case, dtype, rng)


@pytest.mark.parametrize("at", [0, 63, 64, 127, 128, 499])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_hot(at: int, dtype: str, general: str, torch: Any, rng: np.random.Generator) -> None:
    """One key with a score of 1e4 among scores of -1e4: its value comes out, wherever it is."""
    q = np.ones((1, 1, 200, 64), normal(rng, (1,), dtype).dtype)
    k = -q[:, :, :1].repeat(500, axis=2)
    k[:, :, at] = 1
    v = normal(rng, (1, 1, 500, 64), dtype)
    out, lse = attention(
        *map(SPACE.array, (q, k, v)), scale=1e4 / 64, return_lse=True, backend=general
    )
    expected = v[:, :, at : at + 1].repeat(200, axis=2)
    assert np.array_equal(SPACE.host(out), expected)
    assert np.abs(SPACE.host(lse) - 1e4).max() <= 2e-3


@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_libraries(dtype: str, space: Space, rng: np.random.Generator) -> None:
    space.check()
    case = masked(rng, Case(200, 260, batch=2, causal=True), (64, 64), lead=(2, 2))
    check(space, case, dtype, rng)
    check(space, case._replace(placed="bshd"), dtype, rng)
    arrays = [space.array(x) for x in table.operands(rng, Case(50, 60), dtype)]
    found = attention(*arrays)
    assert type(found) is type(arrays[0]) and found.dtype == arrays[0].dtype


@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_without_keys(dtype: str, space: Space, backend: str) -> None:
    space.check()
    table.check_queries_without_keys(space, dtype, backend)


@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_scales(dtype: str) -> None:
    GPU_SPACES[0].check()
    table.check_largest_scales(GPU_SPACES[0], dtype, "portable")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_dtypes_say_what_is_supported(dtype: str, torch: Any) -> None:
    x = torch.zeros(1, 1, 8, 8, dtype=getattr(torch, dtype), device="cuda")
    refused = "q has dtype float.., but attention on a GPU needs float16, bfloat16 or, on Hopper"
    with pytest.raises(TypeError, match=refused):
        attention(x, x, x)


def test_sizes_above_256_say_what_is_supported(torch: Any) -> None:
    x = torch.zeros(1, 1, 8, 264, dtype=torch.float16, device="cuda")
    with pytest.raises(ValueError, match="needs head sizes of at most 256"):
        attention(x, x, x)


def test_backend_of_the_other_device(torch: Any) -> None:
    x = torch.zeros(1, 1, 8, 8, dtype=torch.float16, device="cuda")
    with pytest.raises(ValueError, match="backend is 'cpu', but the operands are on cuda:0"):
        attention(x, x, x, backend="cpu")


# ---- streams, graphs, lifetimes ------------------------------------------------------------------


def usual(torch: Any, rng: np.random.Generator) -> tuple[list[Any], BlockMask]:
    q, k, v = (torch.randn(1, 4, 512, 64, device="cuda").half() for _ in range(3))
    return [q, k, v], BlockMask.from_dense(rng.random((4, 4)) < 0.6, (128, 128))


def test_current_stream_of_torch(general: str, torch: Any, rng: np.random.Generator) -> None:
    (q, k, v), mask = usual(torch, rng)
    expected = attention(q, k, v, block_mask=mask, backend=general)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(q)
        torch.cuda._sleep(LONG)
        late.copy_(q)
        found = attention(late, k, v, block_mask=mask, backend=general)
        assert not stream.query(), "the call waited for the stream"
    stream.synchronize()
    assert torch.equal(found, expected)


def test_graph(general: str, torch: Any, rng: np.random.Generator) -> None:
    """Captured with a mask that the GPU has not seen before, and replayed on other values."""
    (q, k, v), mask = usual(torch, rng)
    seen_before = BlockMask.from_dense(np.eye(4) > 0, (128, 128))
    attention(q, k, v, block_mask=seen_before, is_causal=True, backend=general)  # loads the kernel
    out = torch.full_like(q, float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, block_mask=mask, is_causal=True, out=out, backend=general)
    for _ in range(2):
        q.copy_(torch.randn_like(q))
        out.fill_(float("nan"))
        graph.replay()
        expected = attention(q, k, v, block_mask=mask, is_causal=True, backend=general)
        assert torch.equal(out, expected)


def test_same_bits_every_time(general: str, torch: Any, rng: np.random.Generator) -> None:
    (q, k, v), mask = usual(torch, rng)
    expected = attention(q, k, v, block_mask=mask, backend=general, return_lse=True)
    for _ in repeats(20):
        found = attention(q, k, v, block_mask=mask, backend=general, return_lse=True)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 5])  # of keys
@pytest.mark.parametrize("size", [64, 128])
def test_short_lists(
    size: int, tiles: int, general: str, torch: Any, rng: np.random.Generator
) -> None:
    """Many query tiles an SM, all with the same few key tiles, calls one right behind the other."""
    q = torch.randn(1, 4, 16384, size, device="cuda").half()
    k, v = (torch.randn(1, 4, 2048, size, device="cuda").half() for _ in range(2))
    blocks = rng.random((128, 16)).argsort(axis=1) < tiles
    chosen = BlockMask.from_dense(blocks, (128, 128))
    keys = 128 * tiles
    seen = torch.from_numpy(blocks.repeat(128, axis=0).repeat(128, axis=1)).cuda()
    for mask in (None, chosen):
        operands = (q, k, v) if mask is not None else (q, k[:, :, :keys], v[:, :, :keys])

        def launch(out: Any, operands: Any = operands, mask: Any = mask) -> None:
            attention(*operands, block_mask=mask, backend=general, out=out)

        found = one_behind_the_other(torch, launch, q.shape, q.dtype, 50)
        scores = operands[0].double() @ operands[1].double().transpose(2, 3) / size**0.5
        if mask is not None:
            scores.masked_fill_(~seen, float("-inf"))
        expected = scores.softmax(dim=3) @ operands[2].double()
        assert (found.double() - expected).abs().max() < 5e-3


def test_masks_come_and_go(general: str, torch: Any, rng: np.random.Generator) -> None:
    """A mask at the address of one that is gone is not taken for it."""
    q, k, v = (torch.randn(1, 1, 256, 64, device="cuda").half() for _ in range(3))
    for _ in repeats(50):
        blocks = rng.random((4, 4)) < 0.5
        found = attention(
            q, k, v, block_mask=BlockMask.from_dense(blocks, (64, 64)), backend=general
        )
        seen = torch.from_numpy(blocks.repeat(64, axis=0).repeat(64, axis=1)).cuda()
        scores = (q.double() @ k.double().transpose(2, 3) / 8).masked_fill(~seen, float("-inf"))
        expected = torch.nan_to_num(scores.softmax(dim=3)) @ v.double()
        assert (found.double() - expected).abs().max() < 5e-3


def test_one_mask_for_several_lengths(general: str, torch: Any) -> None:
    """A mask of one block that is larger than all of them."""
    mask = BlockMask.from_dense([[True]], (512, 512))
    for queries, keys in ((40, 300), (300, 40), (512, 512), (1, 1)):
        q, k, v = (torch.randn(1, 1, n, 64, device="cuda").half() for n in (queries, keys, keys))
        found = attention(q, k, v, block_mask=mask, backend=general)
        expected = attention(q.float().cpu(), k.float().cpu(), v.float().cpu())
        assert (found.float().cpu() - expected).abs().max() < 5e-3


def test_python_threads(general: str, torch: Any, rng: np.random.Generator) -> None:
    """Threads that share a mask none of which has used it before."""
    (q, k, v), mask = usual(torch, rng)
    found: list[Any] = [None] * 8

    def run(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found[i] = attention(q, k, v, block_mask=mask, backend=general)
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = attention(q, k, v, block_mask=mask, backend=general)
    assert all(torch.equal(one, expected) for one in found)


def test_bsr_array_that_is_multiplied_too(torch: Any, rng: np.random.Generator) -> None:
    """Plans of products and of attention are kept with one structure."""
    dense = torch.from_numpy(np.kron(rng.random((4, 4)) < 0.5, np.ones((64, 64)))).half().cuda()
    a = bsrgemm.bsr_array(dense, blocksize=(64, 64))
    q, k, v = (torch.randn(1, 2, 256, 64, device="cuda").half() for _ in range(3))
    mask = BlockMask.from_bsr(a)
    expected = attention(q, k, v, block_mask=BlockMask.from_dense(mask.to_dense(), (64, 64)))
    x = torch.randn(256, 256, device="cuda").half()
    product = dense.double() @ x.double()
    for _ in range(2):
        assert ((a @ x).double() - product).norm() <= 2e-3 * product.norm()
        assert torch.equal(attention(q, k, v, block_mask=a), expected)


# ---- decode --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [1, 2, 63, 64, 65, 255, 511, 512, 513, 1000, 4097, 20000])
@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize("queries", [1, 3, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode(
    queries: int, group: int, keys: int, dtype: str, torch: Any, rng: np.random.Generator
) -> None:
    """One part of the keys and many; 16 queries of 8 heads are more rows than it takes."""
    # The reference repeats heads in float64, so long caches have one.
    shapes = ((64, 1, 1), (128, 2, 2), (256, 1, 3)) if keys <= 1000 else ((128, 1, 1), (256, 1, 1))
    for size, batch, kv_heads in shapes:
        for causal, placed in ((False, "plain"), (True, "bshd")):
            case = Case(
                queries,
                keys,
                size=size,
                batch=batch,
                heads=group * kv_heads,
                kv_heads=kv_heads,
                causal=causal,
                placed=placed,
            )
            assert compute("decode", case, dtype, rng) == (queries * group <= 64)


DECODE = {
    "two heads of queries": Case(1, 3000, heads=2, kv_heads=1),
    "five heads of queries": Case(3, 3000, heads=10, kv_heads=2, causal=True),
    "64 heads of queries": Case(1, 3000, heads=64, kv_heads=1, size=128),
    "64 queries": Case(64, 3000, size=128, causal=True),
    "33 queries": Case(33, 1500, size=256, causal=True),
    "fills the GPU": Case(1, 700, size=128, batch=20, heads=32, kv_heads=16),
    "top left": Case(16, 3000, causal=True, alignment="top_left"),
    "fewer keys than queries": Case(40, 7, causal=True),
    "fewer keys than queries, top left": Case(40, 7, causal=True, alignment="top_left"),
    "window": Case(8, 5000, heads=4, kv_heads=2, window=(1000, 0)),
    "window, top left": Case(8, 5000, window=(20, 700), alignment="top_left"),
    "window of one": Case(8, 600, window=(0, 0)),
    "window of nothing": Case(60, 20, window=(3, 3)),
    "softcap": Case(4, 3000, size=128, softcap=2.0, spread=2.0),
    "negative scale": Case(4, 3000, scale=-0.3),
    "zero scale": Case(4, 3000, scale=0.0),
    "size 8": Case(4, 3000, size=8),
    "size 80": Case(4, 3000, size=80, heads=8, kv_heads=2),
    "size 192": Case(4, 3000, size=192, value_size=128),
    "value size above": Case(4, 3000, size=64, value_size=256, heads=8, kv_heads=1),
    "value size below": Case(4, 3000, size=256, value_size=8),
    "packed": Case(4, 3000, size=64, batch=2, placed="packed"),
    "no keys": Case(4, 0),
    "large scores": Case(4, 3000, spread=40.0),
}


@pytest.mark.parametrize("name", DECODE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_options(name: str, dtype: str, torch: Any, rng: np.random.Generator) -> None:
    assert compute("decode", DECODE[name], dtype, rng)
    check(SPACE, DECODE[name], dtype, rng)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"queries": 65}, "needs at most 64 rows"),
        ({"size": 36}, "needs head sizes that are multiples of 8"),
        ({"placed": "transposed"}, "needs q, k, v and out with neighbouring elements"),
    ],
)
def test_decode_says_what_it_needs(
    changes: dict[str, Any], text: str, torch: Any, rng: np.random.Generator
) -> None:
    case = Case(2, 700)._replace(**changes)
    with pytest.raises(ValueError, match=text):
        check(SPACE, case, "float16", rng, backend="decode")
    check(SPACE, case, "float16", rng)


def cache(torch: Any) -> list[Any]:
    """A query of 16 heads and a cache of 5000 keys of 4 heads, in many parts."""
    shapes = ((2, 16, 1, 128), (2, 4, 5000, 128), (2, 4, 5000, 128))
    return [torch.randn(shape, device="cuda").bfloat16() for shape in shapes]


def test_decode_is_chosen(torch: Any) -> None:
    arrays = cache(torch)
    expected = attention(*arrays, enable_gqa=True, backend="decode", return_lse=True)
    found = attention(*arrays, enable_gqa=True, return_lse=True)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_decode_same_bits_every_time(torch: Any) -> None:
    arrays = cache(torch)
    expected = attention(*arrays, enable_gqa=True, backend="decode", return_lse=True)
    for _ in repeats(50):
        found = attention(*arrays, enable_gqa=True, backend="decode", return_lse=True)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_decode_on_the_current_stream(torch: Any) -> None:
    q, k, v = cache(torch)
    check_late(torch, q, lambda q: attention(q, k, v, enable_gqa=True, backend="decode"))


def test_decode_graph(torch: Any) -> None:
    q, k, v = cache(torch)
    attention(q, k, v, enable_gqa=True, backend="decode")  # loads the kernels
    out = torch.full_like(q, float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, enable_gqa=True, out=out, backend="decode")
    for _ in range(3):
        q.copy_(torch.randn_like(q))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, attention(q, k, v, enable_gqa=True, backend="decode"))


def test_random(backend: str, torch: Any) -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    from hypothesis import given
    from strategies import GPU_EXAMPLES, attention_calls, profile

    @profile(reduced(GPU_EXAMPLES))
    @given(attention_calls(DTYPES, 500))
    def run(drawn: tuple) -> None:
        case, dtype, seed = drawn
        compute(backend, case, dtype, np.random.default_rng(seed))

    run()
