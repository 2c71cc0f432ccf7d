"""Derivatives of forward mode, which results would silently lack: every call refuses them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import bsrgemm
import numpy as np
import pytest
from spaces import import_torch

torch = import_torch()

import bsrgemm.torch  # noqa: E402 (skipped above where torch is missing)
from bsrgemm.torch import (  # noqa: E402
    BlockPattern,
    BSRLinear,
    linear,
    matmul,
    sampled_matmul,
)

forward_ad = torch.autograd.forward_ad

# torch's own code of forward mode uses what torch has deprecated.
pytestmark = [
    pytest.mark.usefixtures("seeded_torch"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


def weight(kind: str = "torch") -> Any:
    data = torch.randn(3, 2, 2)
    arrays = data if kind == "torch" else data.numpy(), [1, 0, 1], [0, 1, 3]
    return bsrgemm.bsr_array(arrays, (4, 4))


def layer() -> Any:
    return BSRLinear(weight(), torch.randn(4)).requires_grad_(False)


def around(values: Any) -> Any:
    return bsrgemm.bsr_array((values, [1, 0, 1], [0, 1, 3]), (4, 4))


def operator(values: Any = None, dense: Any = None, bias: Any = None) -> Any:
    arrays = torch.ones(3, 2, 2) if values is None else values, torch.tensor([1, 0, 1])
    dense = torch.ones(5, 4) if dense is None else dense
    options = [4, 4], True, True, None
    return torch.ops.bsrgemm.matmul(*arrays, torch.tensor([0, 1, 3]), dense, bias, *options)


def assigned(values: Any) -> Any:
    made = layer()
    made.values = torch.nn.Parameter(made.values)
    del made.values
    made.values = values
    return made(torch.ones(2, 4))


Q = (1, 2, 8, 16)

# Of one tensor of a shape, and what messages call it.
CALLS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any], str]] = {
    "x @ A": ((5, 4), lambda x: x @ weight(), "a"),
    "A @ x": ((4, 5), lambda x: weight() @ x, "b"),
    "x @ A of NumPy": ((5, 4), lambda x: x @ weight("numpy"), "a"),
    "A.data": ((3, 2, 2), lambda x: around(x) @ torch.ones(4, 2), "a.data"),
    "bias": ((5,), lambda x: bsrgemm.matmul(weight(), torch.ones(4, 5), bias=x), "bias"),
    "sampled": ((4, 3), lambda x: bsrgemm.sampled_matmul(x, torch.ones(3, 4), weight()), "a"),
    "scaled": ((3, 2, 2), lambda x: 2 * around(x), "a.data"),
    "softmax": ((3, 2, 2), lambda x: bsrgemm.softmax(around(x)), "a.data"),
    "dense": ((3, 2, 2), lambda x: around(x).todense(), "A.data"),
    "dtype": ((3, 2, 2), lambda x: around(x).astype("float64"), "A.data"),
    "of dense": ((4, 4), lambda x: bsrgemm.bsr_array(x, blocksize=(2, 2)), "arg"),
    "linear": ((5, 4), lambda x: linear(x, weight()), "input"),
    "linear of values": ((3, 2, 2), lambda x: linear(torch.ones(5, 4), around(x)), "weight.data"),
    "linear with bias": ((4,), lambda x: linear(torch.ones(5, 4), weight(), x), "bias"),
    "layer": ((5, 4), lambda x: layer()(x), "input"),
    "recorded layer": ((5, 4), lambda x: layer().requires_grad_()(x), "input"),
    "values of a layer": ((3, 2, 2), assigned, "values"),
    "attention": (Q, lambda q: bsrgemm.attention(torch.ones(Q), q, torch.ones(Q)), "k"),
    "torch's attention": (
        Q,
        lambda q: bsrgemm.torch.attention(torch.ones(Q), torch.ones(Q), q),
        "value",
    ),
    "operator": ((5, 4), lambda x: operator(dense=x), "dense"),
    "operator of values": ((3, 2, 2), lambda x: operator(values=x), "values"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("grad_mode", [torch.enable_grad, torch.no_grad])
def test_tangents_are_refused(name: str, grad_mode: Any) -> None:
    shape, function, argument = CALLS[name]
    x = torch.randn(shape)
    with grad_mode(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(TypeError, match=f"^{argument} has a tangent.*{argument}.detach"):
            function(dual)
        function(dual.detach())
        function(x)


@pytest.mark.parametrize("name", ["x @ A", "linear", "layer", "attention"])
def test_transforms_of_forward_mode(name: str) -> None:
    a, made, q = weight(), layer(), torch.randn(Q)
    function, argument, x = {
        "x @ A": (lambda x: x @ a, "a", torch.randn(5, 4)),
        "linear": (lambda x: linear(x, a), "input", torch.randn(5, 4)),
        "layer": (made, "input", torch.randn(5, 4)),
        "attention": (lambda q: bsrgemm.torch.attention(q, q, q), "query", q),
    }[name]
    for transformed in (
        lambda: torch.func.jvp(function, (x,), (x,)),
        lambda: torch.func.jvp(torch.vmap(function), (x[None],), (x[None],)),
        lambda: torch.func.jacfwd(function)(x),
    ):
        with pytest.raises(TypeError, match=f"^{argument} has a tangent"):
            transformed()


# Made outside of transformations: of one tensor of a shape, and what messages call it.
FUNCTIONS: dict[str, Callable[[], tuple[tuple[int, ...], Callable[[Any], Any], str]]] = {
    "x @ A": lambda: ((5, 4), weight().__rmatmul__, "a"),
    "matmul": lambda: ((5, 4), partial(flipped, matmul, weight()), "a"),
    "matmul of a pattern": lambda: ((5, 4), partial(flipped, matmul, changing()), "a"),
    "sampled": lambda: ((4, 4), partial(flipped, sampled_matmul, torch.ones(4, 4), weight()), "a"),
    "linear": lambda: ((5, 4), partial(flipped, linear, weight()), "input"),
    "layer": lambda: ((5, 4), layer(), "input"),
    "gather": lambda: ((4, 4), changing().pattern.gather, "dense"),
    "attention": lambda: (Q, lambda q: bsrgemm.attention(q, q, q), "q"),
    "torch's attention": lambda: (Q, lambda q: bsrgemm.torch.attention(q, q, q), "query"),
}
INNER = {
    "grad": lambda f, s: torch.func.grad(f)(s),
    "grad without gradients": lambda f, s: torch.func.grad(lambda s: s * unrecorded(f, s))(s),
    "vmap": lambda f, s: torch.vmap(f)(s[None]).sum(),
    "vmap in grad": lambda f, s: torch.func.grad(lambda s: torch.vmap(f)(s[None]).sum())(s),
    "grad in vmap": lambda f, s: torch.vmap(torch.func.grad(f))(s[None]).sum(),
    "jvp": lambda f, s: torch.func.jvp(f, (s,), (s,))[1],
    "functionalize": lambda f, s: torch.func.functionalize(f)(s),
}


def changing() -> Any:
    pattern = BlockPattern.from_mask(torch.ones(2, 2, dtype=torch.bool), (2, 2))
    return pattern.array(torch.randn(4, 2, 2))


def flipped(function: Any, *others: Any) -> Any:
    """Its first argument comes last."""
    *others, x = others
    return function(x, *others)


def unrecorded(function: Any, s: Any) -> Any:
    with torch.no_grad():
        return function(s)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tangents_of_outer_transforms(name: str, inner: str) -> None:
    """The innermost one knows nothing of them."""
    shape, function, argument = FUNCTIONS[name]()
    x, s = torch.randn(shape), torch.tensor(2.0)
    changed = INNER[inner]

    def of(x: Any) -> Any:
        return changed(lambda s: (s * function(x)).sum(), s)

    def in_level(x: Any) -> Any:
        with forward_ad.dual_level():
            return of(forward_ad.make_dual(x, torch.ones_like(x)))

    transformed = [
        lambda: torch.func.jvp(of, (x,), (x,)),
        lambda: torch.vmap(lambda x: torch.func.jvp(of, (x,), (x,))[1])(x[None]),
    ]
    if inner != "jvp":  # which torch does not have there
        transformed.append(lambda: in_level(x))
    for call in transformed:
        with pytest.raises(TypeError, match=f"^{argument} has a tangent"):
            call()


@pytest.mark.parametrize("name", ["sampled", "layer", "matmul"])
def test_derivatives_of_gradients(name: str) -> None:
    shape, function, _ = FUNCTIONS[name]()
    x, s = torch.randn(shape), torch.tensor(2.0)
    with pytest.raises(TypeError, match="has a tangent"):
        torch.func.hessian(lambda x: function(x).square().sum())(x)
    gradient = torch.func.grad(lambda x, s: (s * function(x)).sum())
    with pytest.raises(TypeError, match="^gradient has a tangent"):
        torch.func.jvp(lambda s: gradient(x, s), (s,), (s,))
    product = function(x).sum()
    of_factor = torch.func.grad(lambda s: s.square() * function(x).sum())
    found = torch.func.jvp(of_factor, (s,), (s,))
    torch.testing.assert_close(found, (2 * s * product, 2 * s * product))


def test_levels_without_tangents() -> None:
    """Gradients are as outside of them; those with tangents are refused."""
    made, x = layer().requires_grad_(), torch.randn(5, 4, requires_grad=True)
    expected = torch.autograd.grad(made(x).sum(), (x, made.values))
    y = made(x)
    with forward_ad.dual_level():
        found = torch.autograd.grad(made(x).sum(), (x, made.values))
        torch.testing.assert_close(torch.vmap(made)(x).detach(), y.detach())
        gradient = forward_ad.make_dual(torch.ones_like(y), torch.ones_like(y))
        with pytest.raises(TypeError, match="gradient has a tangent"):
            torch.autograd.grad(y, x, gradient)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_in_a_level(backend: str) -> None:
    made, x = layer(), torch.randn(5, 4)
    compiled = torch.compile(made, fullgraph=True, backend=backend)
    expected = compiled(x)
    with forward_ad.dual_level():
        assert torch.equal(compiled(x), expected)
        with torch.inference_mode():
            assert torch.equal(compiled(x.clone()), expected)
            assert torch.equal(made(x.clone()), expected)


def test_numpy_in_a_level(rng: np.random.Generator) -> None:
    a, x = weight("numpy"), rng.random((4, 3), np.float32)
    expected = a @ x
    with forward_ad.dual_level():
        assert np.array_equal(a @ x, expected)
