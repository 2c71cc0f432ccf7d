"""Attention of float8_e4m3fn on the GPU against the float64 reference."""

from __future__ import annotations

from typing import Any

import attention_cases as table
import numpy as np
import pytest
from attention_cases import Case, masked
from attention_fp8 import DTYPE, check
from bsrgemm import BlockMask, attention
from cases import normal
from device_cases import LONG, check_streams, reduced, repeats, some
from spaces import OwnDevice, Space, Torch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper", "torch")]

SPACE = Torch("cuda:0")

# Matrix instructions of 8 bits keep some 14 bits of a sum.
SUM_ERROR = 2.0**-13

# About 0.1 s on a GPU of 1 to 2 GHz.


def compute(
    case: Case, rng: np.random.Generator, how: str = "each", space: Space = SPACE, **options: Any
) -> None:
    check(space, case, rng, how, sum_error=SUM_ERROR, **options)


def possible(case: Case) -> bool:
    """Whether the table's case is one for 8 bits on a GPU."""
    sizes = (case.size, case.value_size or case.size)
    return (
        all(size <= 256 for size in sizes)
        and case.keys > 0
        and (case.scale is None or case.scale > 0)
        and (case.block_shape is None or all(side % 16 == 0 for side in case.block_shape))
    )


def test_the_usual_cases_are_possible(rng: np.random.Generator) -> None:
    cases = {**table.PLAIN, **table.masks(rng)}
    left_out = {name for name, case in cases.items() if not possible(case)}
    assert len(left_out) <= 10 and not left_out & {"square", "long", "causal", "bshd", "64", "128"}


@pytest.mark.parametrize("name", [name for name, case in table.PLAIN.items() if possible(case)])
def test_plain(name: str, rng: np.random.Generator) -> None:
    compute(table.PLAIN[name], rng)


def test_masks(rng: np.random.Generator) -> None:
    for case in table.masks(rng).values():
        if possible(case):
            compute(case, rng)


@pytest.mark.parametrize("size", range(16, 257, 16))
def test_sizes(size: int, rng: np.random.Generator) -> None:
    for value_size in (None, 16, 64, 128, 256):
        compute(Case(150, 470, size=size, value_size=value_size, causal=True), rng)


@pytest.mark.parametrize("size", [64, 128, 192, 256])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_lengths(softcap: float | None, size: int, rng: np.random.Generator) -> None:
    """Of one key tile and of several, at, just before and just after their edges; causal ones with
    first rows that see one key."""
    edges = (15, 16, 17, 63, 64, 127, 128, 129, 159, 160, 161, 223, 224, 225)
    for keys in some((1, 2, *edges, 449, 1000)):
        for queries in some((1, 64, 65, 129, 193, 385)):
            case = Case(queries, keys, size=size, softcap=softcap)
            compute(case, rng)
            compute(case._replace(causal=True), rng)
            compute(case._replace(causal=True, alignment="top_left"), rng)


@pytest.mark.parametrize("size", [64, 128])
def test_edges_of_windows(size: int, rng: np.random.Generator) -> None:
    for bound in (*range(61, 67), *range(125, 131), *range(158, 163), *range(222, 227)):
        compute(Case(300, 520, size=size, window=(bound, -1)), rng)
        compute(Case(300, 520, size=size, window=(-1, bound), alignment="top_left"), rng)
        compute(Case(300, 520, size=size, window=(bound, 0), causal=True), rng)


@pytest.mark.parametrize("how", ["none", "numbers", "shared", "each", "strided"])
def test_factors(how: str, rng: np.random.Generator) -> None:
    for size in (64, 128, 256):
        for softcap in (None, 3.0):
            case = Case(300, 500, size=size, batch=3, heads=8, kv_heads=4, softcap=softcap)
            compute(case, rng, how)
            compute(case._replace(causal=True, placed="bshd"), rng, how)


def test_factors_may_be_zero(torch: Any, rng: np.random.Generator) -> None:
    q, k, v = (SPACE.array(normal(rng, (1, 2, 300, 128), DTYPE)) for _ in range(3))
    zero = torch.zeros(1, 2, device="cuda")
    found = attention(q, k, v, q_descale=zero)
    mean = v.double().mean(dim=2, keepdim=True)
    assert (found.double() - mean).abs().max() <= 2.0**-6
    assert not attention(q, k, v, v_descale=zero).any()


@pytest.mark.parametrize("placed", ["bshd", "packed", "transposed", "odd"])
def test_strides(placed: str, rng: np.random.Generator) -> None:
    for size in (32, 40, 64, 77, 128, 192):
        for causal in (False, True):
            compute(Case(140, 350, size=size, batch=2, causal=causal, placed="bshd"), rng)
            compute(Case(150, 150, size=size, batch=2, causal=causal, placed=placed), rng)


def test_heads_that_are_the_same_memory(torch: Any, rng: np.random.Generator) -> None:
    q = SPACE.array(normal(rng, (2, 4, 200, 128), DTYPE))
    k, v = (SPACE.array(normal(rng, (1, 1, 300, 128), DTYPE)) for _ in range(2))
    expected = attention(q, *(x.repeat(2, 4, 1, 1) for x in (k, v)))
    assert torch.equal(attention(q, *(x.expand(2, 4, -1, -1) for x in (k, v))), expected)
    batches = attention(q, *(x.repeat(1, 4, 1, 1).expand(2, -1, -1, -1) for x in (k, v)))
    assert torch.equal(batches, expected)


@pytest.mark.parametrize("size", [64, 80, 128, 192, 256])
def test_blocks(size: int, rng: np.random.Generator) -> None:
    """Rows with few, many and no blocks, odd numbers of row blocks, lengths that cut blocks."""
    for density in (0.0, 0.05, 0.3, 0.7, 1.1):
        for case, blocks in (
            (Case(1024, 2048, size=size), (64, 64)),
            (Case(1000, 1500, size=size, heads=4, kv_heads=2), (64, 64)),
            (Case(700, 1100, size=size, causal=True, batch=2), (128, 128)),
            (Case(700, 1100, size=size, causal=True, batch=2), (64, 64)),
            (Case(700, 650, size=size, window=(100, 30)), (64, 128)),
            (Case(330, 900, size=size, softcap=3.0, spread=2.0), (128, 64)),
            (Case(330, 900, size=size, softcap=3.0, spread=2.0), (16, 32)),
            (Case(50, 3000, size=size), (192, 64)),
        ):
            compute(masked(rng, case, blocks, lead=(1, case.heads), density=density), rng)


@pytest.mark.parametrize("size", [64, 128, 256])
def test_large_scores(size: int, rng: np.random.Generator) -> None:
    """Scores of several hundred, of either sign: weights are all but one-hot."""
    for causal in (False, True):
        compute(Case(300, 700, size=size, spread=8.0, causal=causal), rng)


@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("at", [0, 63, 64, 127, 128, 160, 224, 499])
def test_one_hot(at: int, size: int, rng: np.random.Generator) -> None:
    """One key with a score of 1e4 among scores of -1e4: its value comes out, wherever it is."""
    q = np.ones((1, 1, 200, size), normal(rng, (1,), DTYPE).dtype)
    k = -q[:, :, :1].repeat(500, axis=2)
    k[:, :, at] = 1
    v = normal(rng, (1, 1, 500, size), DTYPE)
    out, lse = attention(*map(SPACE.array, (q, k, v)), scale=1e4 / size, return_lse=True)
    expected = v[:, :, at : at + 1].repeat(200, axis=2).astype(np.float32)
    assert np.array_equal(SPACE.host(out).astype(np.float32), expected)
    assert np.abs(SPACE.host(lse) - 1e4).max() <= 2e-3


@pytest.mark.parametrize("size", [64, 128, 256])
def test_growing_scores(size: int, rng: np.random.Generator) -> None:
    """The maximum of every row grows from key tile to key tile, by little and by much."""
    case = Case(200, 2000, size=size)
    q, k, v = table.operands(rng, case, DTYPE)
    for steepness in (0.05, 0.3, 3.0):
        growing = k.astype(np.float32) * np.linspace(0.0, steepness, 2000)[:, None]
        compute(case, rng, arrays=[q, growing.astype(k.dtype), v])


def test_own_arrays(rng: np.random.Generator) -> None:
    compute(Case(200, 260, batch=2, causal=True), rng, space=OwnDevice())
    q = OwnDevice().array(normal(rng, (1, 1, 64, 64), DTYPE))
    assert attention(q, q, q).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"size": 40}, "needs head sizes that are multiples of 16"),
        ({"size": 272}, "needs head sizes of at most 256"),
        ({"keys": 0}, "needs at least one key"),
        ({"scale": -0.3}, "needs a scale"),
        ({"placed": "transposed"}, "needs q, k, v and out with neighbouring elements"),
    ],
)
def test_says_what_it_needs(changes: dict[str, Any], text: str, rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match=text):
        compute(Case(20, 70)._replace(**changes), rng, backend="hopper")


def test_no_keys(rng: np.random.Generator) -> None:
    table.check_no_keys(SPACE, DTYPE, rng)


@pytest.mark.parametrize("backend", ["portable", "decode"])
def test_other_backends_say_who_computes_it(backend: str, rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="float8_e4m3fn is computed by 'hopper' and 'cpu'"):
        compute(Case(20, 70), rng, backend=backend)


def test_factors_of_another_device(torch: Any) -> None:
    x = torch.zeros(1, 1, 16, 64, device="cuda").to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match="k_descale is on cpu, but q is on cuda:0"):
        attention(x, x, x, k_descale=torch.ones(1, 1))


# ---- streams and graphs --------------------------------------------------------------------------


def usual(torch: Any) -> tuple[list[Any], dict[str, Any]]:
    arrays = [torch.randn(2, 4, 1000, 128, device="cuda").to(torch.float8_e4m3fn) for _ in "qkv"]
    names = ("q_descale", "k_descale", "v_descale")
    return arrays, {name: torch.rand(2, 4, device="cuda") + 0.5 for name in names}


def test_same_bits_every_time(torch: Any) -> None:
    arrays, factors = usual(torch)
    expected = attention(*arrays, **factors, is_causal=True, return_lse=True)
    for _ in repeats(50):
        found = attention(*arrays, **factors, is_causal=True, return_lse=True)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_several_streams(torch: Any) -> None:
    (_, k, v), factors = usual(torch)
    qs = [torch.randn(2, 4, 1000, 128, device="cuda").to(k.dtype) for _ in range(4)]
    check_streams(torch, lambda q: attention(q, k, v, **factors), qs)


def test_does_not_wait(torch: Any) -> None:
    """Nor for the factors, which have not been computed yet."""
    (q, k, v), factors = usual(torch)
    expected = attention(q, k, v, **factors)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = {name: torch.zeros_like(x) for name, x in factors.items()}
        torch.cuda._sleep(LONG)
        for name, x in factors.items():
            late[name].copy_(x)
        found = attention(q, k, v, **late)
        assert not stream.query(), "the call waited for the stream"
    stream.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("blocks", [None, (128, 128), (64, 64)])
def test_graph(blocks: tuple[int, int] | None, torch: Any, rng: np.random.Generator) -> None:
    """Replays read operands and factors anew."""
    (q, k, v), factors = usual(torch)
    options: dict[str, Any] = dict(factors)
    if blocks is not None:
        grid = rng.random((-(-1000 // blocks[0]), -(-1000 // blocks[1]))) < 0.5
        options["block_mask"] = BlockMask.from_dense(grid, blocks)
    attention(q, k, v, **options)  # loads the kernels and brings the lists
    out = torch.full(q.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, out=out, **options)
    for _ in range(3):
        for x in (q, k, v):
            x.copy_(torch.randn(x.shape, device="cuda").to(x.dtype))
        for x in factors.values():
            x.copy_(torch.rand_like(x) + 0.5)
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, attention(q, k, v, **options))


def test_long(torch: Any) -> None:
    """16384 keys, against attention of the dequantised operands in bfloat16."""
    q, k, v = (
        torch.randn(1, 2, reduced(16384), 128, device="cuda").to(torch.float8_e4m3fn) for _ in "qkv"
    )
    for causal in (False, True):
        found = attention(q, k, v, is_causal=causal)
        expected = attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=causal)
        error = (found.double() - expected.double()).norm() / expected.double().norm()
        print(f"causal {causal}: {error:.3e}")
        assert error <= 0.08
