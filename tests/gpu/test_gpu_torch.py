"""bsrgemm.torch on the GPU: compiled code, CUDA graphs, streams."""

from __future__ import annotations

from typing import Any

import bsrgemm
import numpy as np
import pytest
from bsrgemm import BlockMask
from device_cases import LONG, need_graph_trees

pytestmark = [
    pytest.mark.gpu,
    # Inductor's own modules use what torch has deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TensorFloat32:UserWarning"),
]


@pytest.fixture
def attention(torch: Any) -> Any:
    import bsrgemm.torch

    torch._dynamo.reset()
    return bsrgemm.torch.attention


def usual(torch: Any, rng: np.random.Generator) -> tuple[list[Any], BlockMask]:
    q, k, v = (
        torch.randn(2, heads, 512, 64, device="cuda", dtype=torch.bfloat16) for heads in (4, 2, 2)
    )
    return [q, k, v], BlockMask.from_dense(rng.random((4, 4)) < 0.6, (128, 128))


def test_equals_the_function(attention: Any, torch: Any, rng: np.random.Generator) -> None:
    (q, k, v), mask = usual(torch, rng)
    options = {"is_causal": True, "enable_gqa": True, "block_mask": mask, "return_lse": True}
    found, expected = attention(q, k, v, **options), bsrgemm.attention(q, k, v, **options)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_opcheck(attention: Any, torch: Any, rng: np.random.Generator) -> None:
    (q, k, v), mask = usual(torch, rng)
    options = {"mask": mask._serial, "enable_gqa": True, "return_lse": True}
    torch.library.opcheck(torch.ops.bsrgemm.attention.default, (q, k, v), options)


# torch captures a graph of nothing to hold memory.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_equals_eager(
    mode: str, attention: Any, torch: Any, rng: np.random.Generator
) -> None:
    """The second mode captures CUDA graphs, from the second call with the same function on."""
    if mode == "reduce-overhead":
        need_graph_trees()
    (q, k, v), mask = usual(torch, rng)

    def function(q: Any, k: Any, v: Any) -> Any:
        x = attention(q, k, v, block_mask=mask, is_causal=True, enable_gqa=True)
        return attention(x, k, v, window=(100, 0), enable_gqa=True)

    compiled = torch.compile(function, fullgraph=True, mode=mode)
    with torch.no_grad():
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(q, k, v).clone()
            assert torch.equal(found, function(q, k, v))
            q = torch.randn_like(q)


def test_graph(attention: Any, torch: Any, rng: np.random.Generator) -> None:
    (q, k, v), mask = usual(torch, rng)
    attention(q, k, v, block_mask=mask, enable_gqa=True)  # loads the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)
    for _ in range(2):
        q.copy_(torch.randn_like(q))
        graph.replay()
        expected = attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)
        assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])


def test_current_stream(attention: Any, torch: Any, rng: np.random.Generator) -> None:
    (q, k, v), mask = usual(torch, rng)
    expected = attention(q, k, v, block_mask=mask, enable_gqa=True)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(q)
        torch.cuda._sleep(LONG)
        late.copy_(q)
        found = attention(late, k, v, block_mask=mask, enable_gqa=True)
        assert not stream.query(), "the call waited for the stream"
    stream.synchronize()
    assert torch.equal(found, expected)
