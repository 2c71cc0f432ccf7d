"""The short way of products and layers on a GPU: streams, memory and graphs of each call."""

from __future__ import annotations

from typing import Any

import bsrgemm
import numpy as np
import pytest
from device_cases import random_problem, reduced, relative_error, repeats

pytestmark = pytest.mark.gpu

SIDE = 512


def problem(torch: Any, rng: np.random.Generator, dtype: str = "bfloat16") -> Any:
    """Blocks of 64 x 64, about a third of them."""
    mask = rng.random((SIDE // 64, SIDE // 64)) < 0.35
    mask[0, 0] = True
    return random_problem(torch, mask, (64, 64), dtype)


def close(torch: Any, found: Any, expected: Any) -> None:
    assert not found.isnan().any()
    assert relative_error(torch, found, expected) < 4e-3


@pytest.mark.usefixtures("short_only")
def test_calls_in_any_order(torch: Any, rng: np.random.Generator) -> None:
    """Each right after every other kind: shapes, strides, dtypes, patterns, values and memory."""
    problems = [problem(torch, rng), problem(torch, rng), problem(torch, rng, "float16")]
    calls = []
    for p in problems:
        kind = p.matrix.dtype
        for n in (1, 7, 64, 256):
            calls.append((p, torch.randn(SIDE, n, device="cuda").to(kind)))
        calls.append((p, torch.randn(64, SIDE, device="cuda").to(kind).T))
        calls.append((p, torch.randn(SIDE, 128, device="cuda").to(kind)[:, ::2]))
        calls.append((p, torch.randn(2, SIDE, 64, device="cuda").to(kind)))
        calls.append((p, torch.randn(SIDE, device="cuda").to(kind)))
    order = rng.permutation(np.repeat(np.arange(len(calls)), 2))
    for number in order[: reduced(len(order))]:
        p, x = calls[number]
        expected = p.dense @ x.double()
        out = torch.full(expected.shape, float("nan"), dtype=x.dtype, device="cuda")
        assert bsrgemm.matmul(p.matrix, x, out=out) is out
        close(torch, out, expected)
        close(torch, bsrgemm.matmul(p.matrix, x), expected)
        c = torch.randn(expected.shape, device="cuda").to(x.dtype)
        wanted = 0.5 * expected - 2 * c.double()
        close(torch, bsrgemm.matmul(p.matrix, x, c, alpha=0.5, beta=-2.0, out=c), wanted)


@pytest.mark.usefixtures("short_only")
def test_each_call_is_on_the_stream_of_its_time(torch: Any, rng: np.random.Generator) -> None:
    """Operands get their contents late, on one stream: a product on another would be too early."""
    from bsrgemm.torch import BSRLinear

    p = problem(torch, rng)
    layer = BSRLinear(p.matrix)
    streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(2))]
    with torch.no_grad():
        for turn in repeats(6):
            stream = streams[turn % len(streams)]
            contents = torch.randn(SIDE, SIDE, device="cuda").to(p.matrix.dtype)
            x = torch.full_like(contents, float("nan"))
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                x.copy_(contents)
                product, layered = bsrgemm.matmul(p.matrix, x), layer(x)
                sampled = bsrgemm.sampled_matmul(x, x, p.matrix)
                kept = product.clone(), layered.clone(), sampled.todense()
            stream.synchronize()
            wide = contents.double()
            close(torch, kept[0], p.dense @ wide)
            close(torch, kept[1], wide @ p.dense.T)
            close(torch, kept[2], wide @ wide * (p.dense != 0))


@pytest.mark.usefixtures("short_only")
def test_values_and_memory_that_change(torch: Any, rng: np.random.Generator) -> None:
    p = problem(torch, rng)
    x = torch.randn(SIDE, 64, device="cuda").to(p.matrix.dtype)
    out = torch.empty(SIDE, 64, dtype=x.dtype, device="cuda")
    for factor in (1, 2, -1):
        scaled = p.matrix * factor  # new values, the same structure
        out.fill_(float("nan"))
        close(torch, bsrgemm.matmul(scaled, x, out=out), factor * (p.dense @ x.double()))
        del scaled  # the next ones take its memory
    p.matrix.data.mul_(3)
    close(torch, bsrgemm.matmul(p.matrix, x, out=out), 3 * (p.dense @ x.double()))
    with pytest.raises(AssertionError, match="the general way"):
        bsrgemm.matmul(p.matrix, x, out=x)  # refused, so that way is asked for the message
    with pytest.raises(AssertionError, match="the general way"):
        bsrgemm.matmul(p.matrix, x.cpu())


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_a_graph_holds_layers(torch: Any, activation: str | None, rng: np.random.Generator) -> None:
    from bsrgemm.torch import BSRLinear

    p = problem(torch, rng)
    layer = BSRLinear(p.matrix, activation=activation)
    x = torch.randn(64, SIDE, device="cuda").to(p.matrix.dtype)
    function = {None: lambda y: y, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[activation]
    with torch.no_grad():
        layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        for _ in repeats(3):
            x.copy_(torch.randn(64, SIDE, device="cuda"))
            y.fill_(float("nan"))
            graph.replay()
            close(torch, y, function(x.double() @ p.dense.T))


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_gradients_on_a_side_stream(
    torch: Any, activation: str | None, rng: np.random.Generator
) -> None:
    """Forward and backward of eager layers against float64, on a stream of their own."""
    from bsrgemm.torch import BSRLinear

    p = problem(torch, rng)
    layer = BSRLinear(p.matrix, torch.randn(SIDE, device="cuda").to(p.matrix.dtype))
    layer.activation = activation
    function = {None: lambda y: y, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[activation]
    stream = torch.cuda.Stream()
    x = torch.randn(2, 128, SIDE, device="cuda").to(p.matrix.dtype).requires_grad_()
    wanted = torch.randn(2, 128, SIDE, device="cuda").to(x.dtype)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        y = layer(x)
        y.backward(wanted)
    torch.cuda.synchronize()
    x64 = x.detach().double().requires_grad_()
    dense, bias = p.dense.clone().requires_grad_(), layer.bias.detach().double().requires_grad_()
    exact = function(x64 @ dense.T + bias)
    if activation == "relu":  # of the same zeros
        wanted = wanted * (y > 0)
        exact = x64 @ dense.T + bias
    exact.backward(wanted.double())
    blocks = dense.grad.view(SIDE // 64, 64, SIDE // 64, 64).transpose(1, 2)
    rows = np.repeat(np.arange(SIDE // 64), np.diff(p.matrix._structure.indptr))
    blocks = blocks[torch.from_numpy(rows), layer.indices.cpu().long()]
    for found, expected in (
        (x.grad, x64.grad),
        (layer.values.grad, blocks),
        (layer.bias.grad, bias.grad),
    ):
        assert relative_error(torch, found, expected) < 1e-2
