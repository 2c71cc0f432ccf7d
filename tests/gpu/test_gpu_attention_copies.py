"""Attention of tensors that kernels cannot read by vectors, which are copied first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import varlen_cases
from attention_cases import Case, check, masked
from bsrgemm import BlockMask, attention
from device_cases import check_streams, some
from spaces import Torch
from varlen_cases import Packed

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "bfloat16")
SPACE = Torch("cuda:0")


@pytest.mark.parametrize("placed", ["plain", "bshd", "packed", "transposed", "odd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cases(placed: str, dtype: str, torch: Any, rng: np.random.Generator) -> None:
    """Head sizes that are whole vectors and others, few and many queries."""
    for size in some((1, 24, 33, 64, 100, 128, 250)):
        for case in (
            Case(1, 700, size=size, batch=2, heads=4, kv_heads=2),
            Case(300, 300, size=size, batch=2, causal=True),
            Case(150, 150, size=size, value_size=40 if size > 64 else 101, window=(90, 20)),
        ):
            if placed == "packed" and (case.value_size or case.queries != case.keys):
                continue
            check(SPACE, case._replace(placed=placed), dtype, rng)


@pytest.mark.parametrize("placed", ["plain", "transposed", "odd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(placed: str, dtype: str, torch: Any, rng: np.random.Generator) -> None:
    for size in (60, 128):
        for block in ((64, 64), (128, 128), (24, 40)):
            case = Case(300, 520, size=size, heads=4, kv_heads=2, placed=placed)
            check(SPACE, masked(rng, case, block, lead=(1, 4)), dtype, rng)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences(dtype: str, torch: Any, rng: np.random.Generator) -> None:
    """Rows of no sequence keep what they have."""
    for size in (33, 100, 128):
        lengths = (70, 0, 200, 5), (90, 3, 210, 0)
        options = {"size": size, "heads": 4, "kv_heads": 2, "causal": True}
        for strided in (False, True):
            case = Packed(*lengths, options, before=9, rest=(50, 20), strided=strided)
            varlen_cases.check(SPACE, case, dtype, rng)


def misplaced(x: Any) -> Any:
    """The same elements, each row one element from where vectors begin."""
    memory = x.new_full((*x.shape[:-1], x.shape[-1] + 1), float("nan"))
    memory[..., 1:] = x
    return memory[..., 1:]


@pytest.mark.parametrize("queries", [1, 40, 500])
def test_same_bits_as_tensors_in_place(queries: int, torch: Any, rng: np.random.Generator) -> None:
    """The copies are computed by the same kernels; each of the tensors may need one."""
    q = torch.randn(2, 4, queries, 128, device="cuda").half()
    k, v = (torch.randn(2, 2, 600, 128, device="cuda").half() for _ in range(2))
    expected = attention(q, k, v, enable_gqa=True)
    for i in range(4):
        tensors = [misplaced(x) if i in (j, 3) else x for j, x in enumerate((q, k, v))]
        assert torch.equal(attention(*tensors, enable_gqa=True), expected)
    out = misplaced(torch.zeros_like(expected))
    assert attention(q, k, v, enable_gqa=True, out=out) is out
    assert torch.equal(out, expected)


def test_heads_that_are_the_same_memory(torch: Any, rng: np.random.Generator) -> None:
    q = torch.randn(3, 4, 200, 72, device="cuda").half()
    for shape in ((1, 1), (3, 1), (1, 4)):
        k, v = (torch.randn(*shape, 300, 72, device="cuda").half() for _ in range(2))
        expected = attention(q, *(x.expand(3, 4, -1, -1).contiguous() for x in (k, v)))
        found = attention(q, *(misplaced(x).expand(3, 4, -1, -1) for x in (k, v)))
        assert torch.equal(found, expected)


def test_choices_of_the_gpu(torch: Any, rng: np.random.Generator) -> None:
    q, k, v = (torch.randn(1, 2, 512, 100, device="cuda").half() for _ in range(3))
    scores = torch.randn(1, 2, 4, 4, device="cuda")
    mask = BlockMask.topk(scores, 2, (128, 128))
    whole = [torch.nn.functional.pad(x, (0, 4)) for x in (q, k, v)]
    expected = attention(*whole, block_mask=mask, scale=0.1)[..., :100]
    assert torch.equal(attention(q, k, v, block_mask=mask, scale=0.1), expected)


def test_streams_and_graphs(torch: Any, rng: np.random.Generator) -> None:
    """Copies and their memory are in the order of the stream, and are captured."""
    k, v = (torch.randn(1, 4, 400, 100, device="cuda").half() for _ in range(2))
    qs = [torch.randn(1, 4, 300, 100, device="cuda").half() for _ in range(4)]
    check_streams(torch, lambda q: attention(q, k, v), qs)
    q, out = torch.empty_like(qs[0]), torch.empty_like(qs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(q, k, v, out=out)
    for given in qs:
        q.copy_(given)
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, attention(given, k, v))
