"""Layers and products under transformations of ``torch.func``, beside dense ones."""

from __future__ import annotations

from typing import Any

import bsrgemm
import numpy as np
import pytest
from spaces import import_torch

torch = import_torch()

import bsrgemm.torch  # noqa: E402 (skipped above where torch is missing)
from bsrgemm.torch import BSRLinear, linear, matmul, sampled_matmul  # noqa: E402
from torch.func import functional_call, grad, jacrev, vmap  # noqa: E402

OUT, IN = 9, 20


@pytest.fixture(autouse=True)
def _seeded(rng: np.random.Generator) -> None:
    torch.manual_seed(int(rng.integers(2**62)))


def randn(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64)


class Dense(torch.nn.Module):
    """The same as a layer, of the same parameters."""

    def __init__(self, layer: BSRLinear) -> None:
        super().__init__()
        self.values, self.bias, self.activation = layer.values, layer.bias, layer.activation
        height, width = layer.blocksize
        rows = torch.repeat_interleave(torch.arange(len(layer.indptr) - 1), layer.indptr.diff())
        places = torch.stack([rows, layer.indices.long()])
        self.grid, self.places = (-(-OUT // height), -(-IN // width)), places

    def forward(self, x: Any) -> Any:
        rows, cols = self.places
        height, width = self.values.shape[1:]
        at = torch.zeros(len(rows), *self.grid, dtype=torch.float64)
        at[torch.arange(len(rows)), rows, cols] = 1
        tiles = torch.einsum("nrc,nhw->rhcw", at, self.values)
        weight = tiles.reshape(self.grid[0] * height, self.grid[1] * width)[:OUT, :IN]
        y = torch.nn.functional.linear(x, weight, self.bias)
        return y if self.activation is None else getattr(torch.nn.functional, self.activation)(y)


def make(activation: str | None = None) -> tuple[BSRLinear, Dense, dict[str, Any]]:
    plain = torch.nn.Linear(IN, OUT, dtype=torch.float64)
    layer = BSRLinear.from_linear(plain, blocksize=(3, 8), density=0.5, activation=activation)
    return layer, Dense(layer), {k: p.detach() for k, p in layer.named_parameters()}


def loss_of(module: Any) -> Any:
    return lambda parameters, x: functional_call(module, parameters, (x,)).sin().square().sum()


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_gradients_of_each_sample(activation: str | None) -> None:
    layer, dense, parameters = make(activation)
    for x in (randn(6, IN), randn(6, 4, IN), randn(0, IN)):
        found, expected = (
            vmap(grad(loss_of(module)), (None, 0))(parameters, x) for module in (layer, dense)
        )
        for name in parameters:
            torch.testing.assert_close(found[name], expected[name])


def test_models_at_once() -> None:
    layer, dense, parameters = make("silu")
    several = {name: torch.stack([p, 2 * p, -p]) for name, p in parameters.items()}
    x = randn(6, IN)
    found, expected = (
        vmap(lambda p, m=module: functional_call(m, p, (x,)))(several) for module in (layer, dense)
    )
    torch.testing.assert_close(found, expected)
    found, expected = (vmap(grad(loss_of(m)), (0, None))(several, x) for m in (layer, dense))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_values_that_are_batched_along_other_dimensions(dim: int) -> None:
    layer, dense, parameters = make()
    several = torch.stack([parameters["values"], 2 * parameters["values"]], dim)
    x = randn(6, IN)
    found, expected = (
        vmap(grad(lambda v, m=m: loss_of(m)({"values": v}, x)), dim)(several)
        for m in (layer, dense)
    )
    torch.testing.assert_close(found, expected)


def test_models_of_one_pattern_stacked() -> None:
    first, *others = (make()[0] for _ in range(3))
    for layer in others:
        layer.load_state_dict({name: getattr(first, name) for name in ("indices", "indptr")}, False)
    x = randn(6, IN)
    parameters, buffers = torch.func.stack_module_state([first, *others])
    found = vmap(lambda p: functional_call(first, p, (x,)))(parameters)
    torch.testing.assert_close(found, torch.stack([layer(x) for layer in (first, *others)]))
    with pytest.raises(TypeError, match="indices or indptr are batched by vmap"):
        vmap(lambda p, b: functional_call(first, (p, b), (x,)))(parameters, buffers)


def test_derivatives_of_derivatives() -> None:
    layer, dense, parameters = make("silu")
    x = randn(IN)
    torch.testing.assert_close(jacrev(layer)(x), jacrev(dense)(x))
    found, expected = (
        jacrev(jacrev(lambda x, m=module: loss_of(m)(parameters, x)))(x)
        for module in (layer, dense)
    )
    torch.testing.assert_close(found, expected)
    # A step of gradient descent within what is differentiated.
    found, expected = (
        grad(lambda p, m=module: loss_of(m)(stepped(m, p, x), x))(parameters)
        for module in (layer, dense)
    )
    torch.testing.assert_close(found, expected)


def stepped(module: Any, parameters: dict[str, Any], x: Any) -> dict[str, Any]:
    gradients = grad(loss_of(module))(parameters, x)
    return {name: p - 0.1 * gradients[name] for name, p in parameters.items()}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("host_indices", [False, True])
def test_products(transposed: bool, host_indices: bool) -> None:
    layer, _, _ = make()
    arrays = layer.weight.copy().data, layer.indices, layer.indptr
    if host_indices:
        arrays = arrays[0], arrays[1].numpy(), arrays[2].numpy()
    a = bsrgemm.bsr_array(arrays, (OUT, IN))
    whole = a.todense()
    matrix, dense = (a.T, whole.T) if transposed else (a, whole)
    rows, cols = dense.shape
    for function, other, x in (
        (lambda x: matmul(matrix, x), lambda x: dense @ x, randn(3, cols, 5)),
        (lambda x: matmul(x, matrix), lambda x: x @ dense, randn(3, 4, rows)),
    ):
        torch.testing.assert_close(vmap(function)(x), vmap(other)(x))
        for dim in (1, 2):  # of x and of the result
            found, expected = (vmap(f, dim, dim)(x.movedim(0, dim)) for f in (function, other))
            torch.testing.assert_close(found, expected)
        found, expected = (
            vmap(grad(lambda x, f=f: f(x).sin().sum()))(x) for f in (function, other)
        )
        torch.testing.assert_close(found, expected)
    left, right = randn(3, OUT, 6), randn(6, IN)
    found = vmap(grad(lambda x: sampled_matmul(x, right, a).sin().sum()))(left)
    stored = a._with_values(torch.ones_like(a.data)).todense()
    expected = vmap(grad(lambda x: ((x @ right) * stored).sin().sum()))(left)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        vmap(lambda x: linear(x, a))(left.mT @ whole), left.mT @ whole @ whole.T
    )
