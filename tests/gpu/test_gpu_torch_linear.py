"""Block-sparse linear layers on the GPU: gradients, compiled code, CUDA graphs, autocast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_cases import captured, need_graph_trees, random_problem, relative_error, some
from precision_cases import TF32_ERROR

pytestmark = [
    pytest.mark.gpu,
    # Inductor's own modules use what torch has deprecated.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


def make_layer(torch: Any, rng: np.random.Generator, block: int, dtype: str, **options: Any) -> Any:
    from bsrgemm.torch import BSRLinear

    mask = rng.random((640 // block, 512 // block)) < 0.4
    mask[0] = False
    p = random_problem(torch, mask, (block, block), dtype)
    bias = torch.randn(640, device="cuda").to(getattr(torch, dtype))
    return BSRLinear(p.matrix, bias, **options), p.dense


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("block", [128, 64, 32, 16])
def test_gradients_equal_those_of_the_dense_layer(
    torch: Any, rng: np.random.Generator, block: int, dtype: str
) -> None:
    """Within twice what autograd of the dense layer loses in the same precision."""
    layer, dense = make_layer(torch, rng, block, dtype)
    rows, cols = (torch.as_tensor(i) for i in np.nonzero(dense_mask(dense, block)))
    for tokens in some((1, 7, 64, 1000)):
        x = torch.randn(tokens, 512, device="cuda").to(layer.values.dtype).requires_grad_()
        wanted = torch.randn(tokens, 640, device="cuda").to(layer.values.dtype)
        y = layer(x)
        found = (y, *torch.autograd.grad(y, (x, layer.bias, layer.values), wanted))

        def exact(kind: Any, x: Any = x, wanted: Any = wanted) -> tuple[Any, ...]:
            parts = (x, dense.to(x.dtype), layer.bias)
            a, w, b = (part.detach().to(kind).requires_grad_() for part in parts)
            y = torch.nn.functional.linear(a, w, b)
            *of_x_and_bias, of_w = torch.autograd.grad(y, (a, b, w), wanted.to(kind))
            tiles = of_w.view(640 // block, block, 512 // block, block)
            return y, *of_x_and_bias, tiles[rows, :, cols, :]

        expected, same = exact(torch.float64), exact(torch.float32)
        names = ("y", "x", "bias", "values")
        for name, a, b, c in zip(names, found, expected, same, strict=True):
            lost = relative_error(torch, c.to(a.dtype), b)
            allowed = max(2.0 * lost, 12 * ROUNDING[dtype] if dtype == "float32" else 0.0)
            error = relative_error(torch, a, b)
            assert error <= allowed, f"{name}, {tokens} tokens: {error:.2e}, allowed {allowed:.2e}"


def dense_mask(dense: Any, block: int) -> np.ndarray:
    tiles = dense.view(dense.shape[0] // block, block, dense.shape[1] // block, block)
    return (tiles != 0).any(dim=3).any(dim=1).cpu().numpy()


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("block", [16, 32, 64])
def test_float32_follows_torch(torch: Any, rng: np.random.Generator, block: int) -> None:
    """With TensorFloat-32 where torch's own products have it, eager, compiled and backwards."""
    layer, dense = make_layer(torch, rng, block, "float32", activation="relu")
    x = torch.randn(640, 512, device="cuda").requires_grad_()
    expected = torch.relu(x.double() @ dense.T + layer.bias.double())
    wanted = torch.randn(640, 640, device="cuda")
    setting = torch.backends.cuda.matmul
    torch._dynamo.reset()
    compiled = torch.compile(layer)

    def errors() -> tuple[float, ...]:
        y = layer(x)
        (gradient,) = torch.autograd.grad(y, x, wanted)
        with torch.no_grad():
            found = (layer(x), compiled(x), y)
        of_x = (wanted.double() * (y > 0)) @ dense  # by its own signs: some sums are all but zero
        found_errors = [relative_error(torch, z, expected) for z in found]
        return *found_errors, relative_error(torch, gradient, of_x)

    assert max(errors()) < 1e-5
    saved = setting.allow_tf32
    setting.allow_tf32 = True
    try:
        assert all(2.0**-16 < error <= TF32_ERROR for error in errors())
    finally:
        setting.allow_tf32 = saved
    assert max(errors()) < 1e-5


# Eager steps on another stream than the capture are what the test compares with.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_graph_equals_eager(torch: Any, rng: np.random.Generator, activation: str | None) -> None:
    """A captured training step replays with other tokens in the same memory."""
    layer, _ = make_layer(torch, rng, 64, "bfloat16", activation=activation)
    x = torch.randn(256, 512, device="cuda").bfloat16().requires_grad_()
    wanted = torch.randn(256, 640, device="cuda").bfloat16()

    def step() -> tuple[Any, ...]:
        y = layer(x)
        return y, *torch.autograd.grad(y, (x, layer.values, layer.bias), wanted)

    graph, made = captured(torch, step)
    for _ in range(3):
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        graph.replay()
        for a, b in zip(made, step(), strict=True):
            assert torch.equal(a, b)


# torch captures a graph of nothing to hold memory.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_equals_eager(torch: Any, rng: np.random.Generator, mode: str) -> None:
    if mode == "reduce-overhead":
        need_graph_trees()
    torch._dynamo.reset()
    layer, _ = make_layer(torch, rng, 64, "float16", activation="relu")
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    with torch.no_grad():
        for tokens in (64, 65, 200, 200):
            x = torch.randn(tokens, 512, device="cuda").half()
            assert torch.equal(compiled(x).clone(), layer(x))


def test_autocast(torch: Any, rng: np.random.Generator) -> None:
    layer, dense = make_layer(torch, rng, 64, "float32")
    x = torch.randn(100, 512, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype is torch.bfloat16
    expected = torch.nn.functional.linear(x.double(), dense, layer.bias.double())
    assert relative_error(torch, y, expected) < 4 * ROUNDING["bfloat16"]
    y.sum().backward()
    assert layer.values.grad.dtype is torch.float32 and layer.values.grad.isfinite().all()


def test_pruning_and_moves(torch: Any, rng: np.random.Generator) -> None:
    layer, _ = make_layer(torch, rng, 64, "float32")
    optimizer = torch.optim.Adam(layer.parameters())
    x = torch.randn(100, 512, device="cuda")
    layer(x).square().mean().backward()
    optimizer.step()
    layer.prune_(0.2, optimizer)
    assert abs(layer.density - 0.2) < 0.01
    expected = torch.nn.functional.linear(x, layer.weight.copy().todense(), layer.bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
    on_host = layer.to("cpu")
    torch.testing.assert_close(on_host(x.cpu()), expected.cpu(), rtol=1e-4, atol=1e-4)
