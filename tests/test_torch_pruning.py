"""Layers that are pruned: which blocks stay, and what optimizers, gradients and compilers see."""

from __future__ import annotations

from typing import Any

import bsrgemm
import numpy as np
import pytest
from spaces import import_torch

torch = import_torch()

import bsrgemm.torch  # noqa: E402 (skipped above where torch is missing)
from bsrgemm.torch import BSRLinear  # noqa: E402

pytestmark = pytest.mark.usefixtures("seeded_torch")


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_prune_keeps_the_largest_blocks_and_their_moments(with_optimizer: bool) -> None:
    dense = torch.nn.Linear(64, 32)
    layer = BSRLinear.from_linear(dense, blocksize=(8, 16), density=1.0)
    optimizer = torch.optim.Adam(layer.parameters()) if with_optimizer else None
    x = torch.randn(5, 64)
    if optimizer:
        layer(x).square().sum().backward()
        optimizer.step()
        moments = optimizer.state[layer.values]["exp_avg"].clone()
    before = layer.weight.copy()
    layer.prune_(0.25, optimizer)
    norms = before.data.square().sum((1, 2))
    kept = norms.sort(descending=True).indices[:4].sort().values
    assert layer.density == 0.25 and torch.equal(layer.values.detach(), before.data[kept])
    expected = torch.zeros(4, 8, 4, 16)
    expected[kept // 4, :, kept % 4] = before.data[kept]
    assert torch.equal(layer.weight.copy().todense(), expected.view(32, 64))
    layer.prune_(0.5, optimizer)
    assert layer.density == 0.25
    if optimizer:
        assert torch.equal(optimizer.state[layer.values]["exp_avg"], moments[kept])
        layer(x).square().sum().backward()
        optimizer.step()
        assert not torch.equal(layer.values.detach(), before.data[kept])
        # Its state has sums of the blocks' rows and columns.
        optimizer = torch.optim.Adafactor(layer.parameters())
        for density in (0.2, 0.2):
            layer(x).square().sum().backward()
            optimizer.step()
            layer.prune_(density, optimizer)
    with pytest.raises(ValueError, match="density is 1.5; accepted: 0 to 1"):
        layer.prune_(1.5)
    with pytest.raises(ValueError, match="optimizer has no group"):
        layer.prune_(0.125, torch.optim.SGD(dense.parameters()))
    assert layer.density == (0.1875 if with_optimizer else 0.25)


def test_pruning_refuses_an_optimizer_of_one_state() -> None:
    layer = BSRLinear.from_linear(torch.nn.Linear(64, 32), blocksize=(8, 16), density=1.0)
    optimizer = torch.optim.LBFGS(layer.parameters())

    def closure() -> Any:
        optimizer.zero_grad()
        loss = layer(torch.ones(2, 64)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.raises(ValueError, match="optimizer is an LBFGS, whose state is of all parameters"):
        layer.prune_(0.5, optimizer)
    assert layer.density == 1
    optimizer.step(closure)
    layer.prune_(0.5)
    optimizer = torch.optim.LBFGS(layer.parameters())
    optimizer.step(closure)
    assert layer.density == 0.5


def test_pruning_keeps_gradients_and_takes_layers_of_any_kind() -> None:
    layer = BSRLinear.from_linear(torch.nn.Linear(64, 32), blocksize=(8, 16), density=1.0)
    layer(torch.ones(2, 64)).square().sum().backward()
    gradients = {tuple(g.flatten().tolist()) for g in layer.values.grad}
    layer.prune_(0.5)
    assert layer.values.grad.shape == layer.values.shape
    assert {tuple(g.flatten().tolist()) for g in layer.values.grad} <= gradients

    meta = BSRLinear.from_linear(torch.nn.Linear(64, 32), blocksize=(8, 16), density=1.0).to("meta")
    meta.prune_(0.25)
    assert meta.density == 0.25 and meta.indptr.shape == (5,)

    eight = BSRLinear.from_linear(torch.nn.Linear(64, 32), blocksize=(8, 16), density=1.0)
    eight.to(torch.float8_e4m3fn).prune_(0.25)
    assert eight.density == 0.25 and eight.values.dtype == torch.float8_e4m3fn


def test_pruning_refuses_what_is_made_for_each_call() -> None:
    from torch.nn.utils import prune

    layer = BSRLinear.from_linear(torch.nn.Linear(64, 32), blocksize=(8, 16), density=1.0)
    prune.l1_unstructured(layer, "values", 0.3)
    with pytest.raises(ValueError, match="values is no parameter of this layer"):
        layer.prune_(0.5)
    prune.remove(layer, "values")
    layer.prune_(0.5)
    assert layer.density == 0.5


@pytest.mark.parametrize(
    "blocks",
    [
        (1e190, 1e200, 1e180),
        (1e-180, 1e-170, 0.0),
        (5e-324, 1.5e-323, 0.0),
        (1.2e308, 1.7e308, 1e-300),
        (1.0, np.inf, np.nan),
        (1.0, np.nan, np.inf),
        (2.0, 2.0, -2.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_prune_keeps_what_the_function_does(blocks: tuple[float, ...], dtype: Any) -> None:
    """Of norms whose squares leave the range of float64, of those that are not finite, of ties."""
    dense = torch.tensor(blocks, dtype=torch.float64).repeat_interleave(4).expand(4, 12).to(dtype)
    everything = np.ones((1, 3), bool)
    for density in (1 / 3, 2 / 3):
        layer = BSRLinear(bsrgemm.bsr_array.from_block_mask(dense, everything, (4, 4)))
        layer.prune_(density)
        assert layer.indices.tolist() == bsrgemm.prune(dense, (4, 4), density).indices.tolist()


def test_a_compiled_layer_is_pruned_often() -> None:
    """As the guide says: torch counts compilations from 0 again."""
    layer = BSRLinear.from_linear(torch.nn.Linear(64, 64), blocksize=(4, 4), density=1.0)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = torch.randn(2, 64)
    for i in range(torch._dynamo.config.recompile_limit + 2):
        torch.testing.assert_close(compiled(x), layer(x))
        layer.prune_(0.9 - 0.05 * i)
        torch.compiler.reset()
