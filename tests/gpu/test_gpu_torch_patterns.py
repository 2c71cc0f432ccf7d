"""Patterns in tensors on the GPU: products and gradients, compiled code, CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
from device_cases import captured, need_graph_trees, relative_error

pytestmark = [
    pytest.mark.gpu,
    # Inductor's own modules use what torch has deprecated.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

GRID = (5, 7)
BLOCKS = [(128, 128), (64, 64), (64, 128), (192, 64), (32, 32), (16, 64), (8, 24)]


@pytest.fixture(autouse=True)
def filled_memory(torch: Any) -> Any:
    """New tensors hold NaN and the largest integers until something is written to them."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def make_mask(torch: Any, share: float = 0.5) -> Any:
    mask = torch.rand(GRID, device="cuda") < share
    mask[2], mask[0, 0] = False, True
    return mask


def layer(torch: Any, x: Any, up: Any, down: Any, mask: Any, block: Any, capacity: Any) -> Any:
    """Hidden activations at the blocks of a mask, and products of all kinds with them."""
    from bsrgemm.torch import BlockPattern, matmul, sampled_matmul

    pattern = BlockPattern.from_mask(mask, block, capacity)
    hidden = pattern.array(torch.tanh(sampled_matmul(x, up, pattern)))
    return matmul(hidden, down), matmul(x.T, hidden)


def dense_layer(torch: Any, x: Any, up: Any, down: Any, mask: Any, block: Any) -> Any:
    stored = mask.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    hidden = torch.tanh(x @ up) * stored
    return hidden @ down, x.T @ hidden


def make_inputs(torch: Any, block: tuple[int, int], dtype: Any) -> list[Any]:
    rows, cols = GRID[0] * block[0], GRID[1] * block[1]
    sizes = ((rows, 72), (72, cols), (cols, 40))
    inputs = [torch.randn(*s, device="cuda").to(dtype) / s[0] ** 0.25 for s in sizes]
    return [x.requires_grad_() for x in inputs]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("room", ["enough", "all", "too little"])
def test_products_and_gradients(torch: Any, block: tuple[int, int], dtype: str, room: str) -> None:
    """Each within twice what dense products of the same precision lose."""
    torch.manual_seed(block[0] + block[1])
    mask, inputs = make_mask(torch), make_inputs(torch, block, getattr(torch, dtype))
    count = int(mask.sum())
    capacity = {"enough": count + 3, "all": None, "too little": count - 2}[room]
    left = mask & (mask.flatten().cumsum(0).view(GRID) <= (capacity or count))
    found = layer(torch, *inputs, mask, block, capacity)
    wanted = [torch.randn_like(y) for y in found]
    found = (*found, *torch.autograd.grad(found, inputs, wanted))

    def exact(kind: Any) -> tuple[Any, ...]:
        given = [x.detach().to(kind).requires_grad_() for x in inputs]
        results = dense_layer(torch, *given, left, block)
        return *results, *torch.autograd.grad(results, given, [w.to(kind) for w in wanted])

    expected, same = exact(torch.float64), exact(getattr(torch, dtype))
    for a, b, c in zip(found, expected, same, strict=True):
        lost = relative_error(torch, c, b)
        assert relative_error(torch, a, b) <= max(2 * lost, 5e-7 if dtype == "float32" else 1e-14)


def test_patterns_are_kept_for_their_gradients(torch: Any) -> None:
    """Of many steps before the first gradient, whose memory would otherwise be used again."""
    block, steps = (64, 64), []
    for _ in range(20):
        mask, inputs = make_mask(torch), make_inputs(torch, block, torch.float64)
        steps.append((mask, inputs, layer(torch, *inputs, mask, block, None)))
    for mask, inputs, found in steps:
        expected = dense_layer(torch, *inputs, mask, block)
        for y, other in zip(found, expected, strict=True):
            torch.testing.assert_close(y, other)
        sums = (sum(y.sum() for y in results) for results in (found, expected))
        gradients = (torch.autograd.grad(s, inputs) for s in sums)
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_of_scores(torch: Any, k: int) -> None:
    from bsrgemm.torch import BlockPattern

    scores = torch.randn(GRID, device="cuda", requires_grad=True)
    pattern = BlockPattern.from_topk(scores, k, (16, 32))
    best = torch.zeros(GRID, dtype=torch.bool, device="cuda")
    best.scatter_(1, scores.topk(k, 1).indices, True)
    assert pattern.counts.tolist() == [GRID[0] * k, 0]
    assert pattern.indptr.tolist() == [i * k for i in range(GRID[0] + 1)]
    assert pattern.indices.tolist() == best.nonzero()[:, 1].tolist()
    dense = torch.randn(GRID[0] * 16, GRID[1] * 32, device="cuda", requires_grad=True)
    stored = best.repeat_interleave(16, 0).repeat_interleave(32, 1)
    back = pattern.array(pattern.gather(dense)).todense()
    assert torch.equal(back, dense * stored)
    weight = torch.randn_like(dense)
    assert torch.equal(torch.autograd.grad((back * weight).sum(), dense)[0], weight * stored)


# Steps of two streams share the inputs' nodes.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_graph_with_gradients(torch: Any, dtype: str) -> None:
    """A graph of pattern, products and gradients makes them of what it finds when replayed."""
    block = (64, 128)
    inputs, mask = make_inputs(torch, block, getattr(torch, dtype)), make_mask(torch)

    def step() -> list[Any]:
        results = layer(torch, *inputs, mask, block, 20)
        return [*results, *torch.autograd.grad(sum(y.sum() for y in results), inputs)]

    graph, found = captured(torch, step)
    for share in (0.4, 0.0, 1.0, 0.2):
        with torch.no_grad():
            mask.copy_(make_mask(torch, share))
            for x, new in zip(inputs, make_inputs(torch, block, inputs[0].dtype), strict=True):
                x.copy_(new)
        graph.replay()
        for a, b in zip(found, step(), strict=True):
            assert torch.equal(a, b)


# torch captures a graph of nothing to hold memory.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_equals_eager(torch: Any, mode: str) -> None:
    """The second mode captures CUDA graphs."""
    if mode == "reduce-overhead":
        need_graph_trees()
    torch._dynamo.reset()
    block = (64, 64)

    def step(x: Any, up: Any, down: Any, mask: Any) -> Any:
        return layer(torch, x, up, down, mask, block, 18)

    compiled = torch.compile(step, fullgraph=True, mode=mode)
    for _ in range(4):
        inputs, mask = make_inputs(torch, block, torch.bfloat16), make_mask(torch)
        wanted = None
        both = []
        for call in (compiled, step):
            results = call(*inputs, mask)
            wanted = wanted or [torch.randn_like(y) for y in results]
            gradients = torch.autograd.grad(results, inputs, wanted)
            both.append([x.clone() for x in (*results, *gradients)])
        for a, b in zip(*both, strict=True):
            assert relative_error(torch, a, b.double()) < 1e-2
