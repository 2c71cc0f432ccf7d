"""What autograd, autocast and compilers of torch ask of calls: versions, dtypes, many gradients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import bsrgemm
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import bsrgemm.torch as bt  # noqa: E402


def make_matrix(dtype: Any = torch.float32) -> bsrgemm.bsr_array:
    values = torch.randn(3, 8, 8).to(dtype)
    return bsrgemm.bsr_array((values, torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3])), (16, 16))


def make_layer(activation: str | None = None) -> bt.BSRLinear:
    dense = torch.nn.Linear(64, 32)
    return bt.BSRLinear.from_linear(dense, blocksize=(16, 16), density=0.5, activation=activation)


def product_into(out: Any) -> None:
    bsrgemm.matmul(make_matrix(), torch.ones(16, 16), out=out)


def product_by_the_long_way_into(out: Any) -> None:
    bsrgemm.matmul(make_matrix(), torch.ones(16, 16), out=out, stream=0)


def product_of_two_into(out: Any) -> None:
    bsrgemm.matmul(make_matrix(), make_matrix(), out=out)


def blocks_into(out: Any) -> None:
    pattern = make_matrix()
    into = pattern._with_values(out.view(-1)[:192].view(3, 8, 8))
    bsrgemm.sampled_matmul(torch.ones(16, 4), torch.ones(4, 16), pattern, out=into)


def attention_into(out: Any) -> None:
    q = torch.ones(1, 1, 16, 16)
    bsrgemm.attention(q, q, q, out=out.view(1, 1, 16, 16))


def gathered_into(out: Any) -> None:
    pattern = bsrgemm.DynamicPattern((16, 16), (8, 8), 4, "cpu")
    pattern.gather(torch.ones(16, 16), out=out.view(4, 8, 8))


@pytest.mark.parametrize(
    "write",
    [
        product_into,
        product_by_the_long_way_into,
        product_of_two_into,
        blocks_into,
        attention_into,
        gathered_into,
    ],
)
def test_what_is_written_to_has_another_version(write: Callable[[Any], None]) -> None:
    """So that a gradient that would need what was there before is refused, and not wrong."""
    weight, memory = torch.ones(16, 16, requires_grad=True), torch.ones(16, 16)
    loss = (weight * memory).sum()
    write(memory)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_refused_has_not_been_written_to() -> None:
    weight, memory = torch.ones(16, 16, requires_grad=True), torch.ones(16, 16)
    loss = (weight * memory).sum()
    with pytest.raises(ValueError, match="activation"):
        bsrgemm.matmul(make_matrix(), torch.ones(16, 16), out=memory, activation="other")
    with pytest.raises(ValueError, match="overlaps"):
        bsrgemm.matmul(make_matrix(), memory, out=memory)
    loss.backward()
    assert torch.equal(weight.grad, memory)


def test_importing_takes_no_compiler() -> None:
    """Which takes a second."""
    script = "import sys, torch, bsrgemm.torch; print('torch._dynamo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_memory_of_inference_mode_can_be_written() -> None:
    with torch.inference_mode():
        out = torch.empty(16, 16)
        product_into(out)
    assert out.isfinite().all()


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_several_gradients_at_once(activation: str | None, shape: tuple[int, ...]) -> None:
    layer, x = make_layer(activation), torch.randn(*shape, 64, requires_grad=True)
    inputs = (x, layer.values, layer.bias)
    gradients = torch.randn(3, *shape, 32)
    together = torch.autograd.grad(layer(x), inputs, gradients, is_grads_batched=True)
    for i, gradient in enumerate(gradients):
        alone = torch.autograd.grad(layer(x), inputs, gradient)
        for found, expected in zip(together, alone, strict=True):
            assert torch.allclose(found[i], expected, atol=1e-5)


def test_jacobians_of_several_rows_at_once() -> None:
    layer, x = make_layer(), torch.randn(2, 64)
    found = torch.autograd.functional.jacobian(layer, x, vectorize=True)
    expected = torch.zeros(2, 32, 2, 64)
    for i in range(2):
        expected[i, :, i] = layer.weight.copy().todense()
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_gradients_of_eager_layers() -> None:
    layer, values = make_layer("relu"), torch.randn(5, 64)
    x, y = (values.clone().requires_grad_() for _ in range(2))
    layer(y).square().sum().backward()
    loss = layer(x).square().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
    assert torch.allclose(x.grad, y.grad, atol=1e-5)


# Code that makes a view is left to Python, with a warning.
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("dense_left", [True, False])
def test_transposed_views_in_compiled_code(dense_left: bool, outside: bool) -> None:
    a = make_matrix()
    view = a.T

    def function(x: Any) -> Any:
        turned = view if outside else a.T
        return bt.matmul(x, turned) if dense_left else bt.matmul(turned, x)

    torch.compiler.reset()
    x = torch.randn(16, 16)
    compiled = torch.compile(function, backend="eager", fullgraph=outside)
    assert torch.equal(compiled(x), function(x))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_results_in_compiled_code(dtype: str) -> None:
    kind = getattr(torch, dtype)
    a, x = make_matrix(kind), torch.randn(16, 4).to(kind)
    mask = torch.tensor([[True, True], [False, True]])
    pattern = bt.BlockPattern.from_mask(mask, (8, 8))
    chosen = pattern.array(torch.randn(4, 8, 8).to(kind))
    for matrix in (a, chosen):

        def function(x: Any, matrix: Any = matrix) -> Any:
            return bt.matmul(matrix, x).float()

        torch.compiler.reset()
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), function(x))


def test_autocast_leaves_float64() -> None:
    layer = make_layer().double()
    x = torch.randn(3, 64, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
    assert torch.equal(found, layer(x))


def test_autocast_of_attention() -> None:
    q, k, v = (torch.randn(1, 2, 24, 16) for _ in range(3))
    low = [x.bfloat16() for x in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16):
        found = bt.attention(q, low[1], v)
    assert torch.equal(found, bt.attention(*low))


def test_nothing_to_multiply() -> None:
    none = torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    a = bsrgemm.bsr_array((torch.zeros(0, 4, 4), *none), (0, 8))
    assert bt.matmul(torch.zeros(2, 5, 0), a).shape == (2, 5, 8)
    x = torch.zeros(2, 5, 8, requires_grad=True)
    assert bt.matmul(x, a.T).shape == (2, 5, 0)
    y = bt.linear(x, a)
    y.sum().backward()
    assert y.shape == (2, 5, 0) and torch.equal(x.grad, torch.zeros(2, 5, 8))


def test_batches_are_refused() -> None:
    batch = make_matrix()._with_values(torch.randn(2, 3, 8, 8))
    with pytest.raises(ValueError, match="a has shape .*, a batch of matrices"):
        bt.matmul(batch, torch.ones(16, 2))
    with pytest.raises(ValueError, match="pattern has shape .*, a batch of matrices"):
        bt.sampled_matmul(torch.ones(16, 2), torch.ones(2, 16), batch)


def test_layers_do_not_write_to_read_only_memory() -> None:
    values = np.ones((3, 8, 8), np.float32)
    values.setflags(write=False)
    a = bsrgemm.bsr_array((values, np.array([0, 1, 1]), np.array([0, 2, 3])), (16, 16))
    layer = bt.BSRLinear(a)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    layer(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    assert (values == 1).all() and (layer.values < 1).all()


def test_a_chosen_pattern_becomes_a_fixed_one() -> None:
    pattern = bt.BlockPattern.from_mask(torch.tensor([[True, False], [True, True]]), (4, 8))
    a = pattern.array(torch.randn(4, 4, 8))
    for matrix in (a, a.T):
        fixed = matrix.to_bsr()
        assert fixed.nnzb == 3 and torch.equal(fixed.todense(), matrix.todense())
    for call in (
        lambda: bsrgemm.matmul(a, torch.ones(16, 2)),
        lambda: bsrgemm.sampled_matmul(torch.ones(8, 2), torch.ones(2, 16), a),
    ):
        with pytest.raises(TypeError, match=r"a BlockTensor is given; accepted: .*to_bsr\(\)"):
            call()
    with pytest.raises(TypeError, match="a is an ndarray and b a BlockTensor; accepted"):
        np.ones((2, 8), np.float32) @ a
