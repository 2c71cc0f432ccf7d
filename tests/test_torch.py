"""bsrgemm.torch on CPU tensors: the operator, compiled code against eager code, masks in graphs."""

from __future__ import annotations

import gc
from typing import Any

import bsrgemm
import numpy as np
import pytest
from bsrgemm import BlockMask
from spaces import import_torch

torch = import_torch()

import bsrgemm.torch  # noqa: E402 (skipped above where torch is missing)

attention = bsrgemm.torch.attention

# Inductor's own modules use what torch has deprecated.
pytestmark = [
    pytest.mark.usefixtures("seeded_torch"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


def operands(size: int = 16, queries: int = 100, keys: int = 120, heads: int = 4) -> list[Any]:
    return [torch.randn(2, h, n, size) for h, n in ((heads, queries), (2, keys), (2, keys))]


def mask(rng: np.random.Generator) -> BlockMask:
    return BlockMask.from_dense(rng.random((1, 4, 4, 4)) < 0.6, (32, 32))


def same(found: Any, expected: Any) -> bool:
    if isinstance(found, torch.Tensor):
        return torch.equal(found, expected)
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "lse": {"return_lse": True, "causal_alignment": "top_left", "is_causal": True},
    "window": {"window": (20, 5), "softcap": 3.0},
    "scale": {"scale": 0.25, "backend": "cpu"},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_function(name: str, masked: bool, rng: np.random.Generator) -> None:
    q, k, v = operands()
    options = {"block_mask": mask(rng) if masked else None, "enable_gqa": True, **OPTIONS[name]}
    assert same(attention(q, k, v, **options), bsrgemm.attention(q, k, v, **options))


def test_masks_of_heads_of_k(rng: np.random.Generator) -> None:
    q, k, v = operands()
    blocks = rng.random((2, 2, 4, 4)) < 0.6
    found, expected = (
        attention(q, k, v, block_mask=BlockMask.from_dense(x, (32, 32)), enable_gqa=True)
        for x in (blocks, blocks.repeat(2, axis=1))
    )
    assert torch.equal(found, expected)


def test_names_of_scaled_dot_product_attention() -> None:
    q, k, v = operands(queries=120)
    options = {"is_causal": True, "scale": 0.2, "enable_gqa": True}
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
    assert torch.allclose(attention(query=q, key=k, value=v, **options), expected, atol=1e-5)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_opcheck(layout: str, return_lse: bool, dtype: str, rng: np.random.Generator) -> None:
    q, k, v = (x.to(getattr(torch, dtype)) for x in operands(queries=30, keys=40))
    if layout == "bshd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    chosen = BlockMask.from_dense(rng.random((2, 2)) < 0.6, (16, 32))
    options = {
        "mask": chosen._serial,
        "is_causal": True,
        "enable_gqa": True,
        "layout": layout,
        "return_lse": return_lse,
        "softcap": 5.0,
    }
    torch.library.opcheck(torch.ops.bsrgemm.attention.default, (q, k, v), options)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_8_bit_operands(backend: str) -> None:
    """The result is bfloat16; factors are tensors or numbers."""
    q, k, v = (x.to(torch.float8_e4m3fn) for x in operands(queries=30, keys=40))
    factors = {"q_descale": torch.rand(2, 2) + 0.5, "v_descale": torch.tensor(2.0)}
    options = {"enable_gqa": True, "return_lse": True}
    expected = bsrgemm.attention(q, k, v, k_descale=0.5, **factors, **options)
    assert expected[0].dtype == torch.bfloat16
    assert same(attention(q, k, v, k_descale=0.5, **factors, **options), expected)
    compiled = torch.compile(attention, fullgraph=True, backend=backend)
    assert same(compiled(q, k, v, k_descale=0.5, **factors, **options), expected)
    torch.library.opcheck(
        torch.ops.bsrgemm.attention.default,
        (q, k, v),
        {**factors, **options},
        test_utils="test_faketensor",  # torch's test of schemas cannot compare 8-bit tensors
    )


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_equals_eager(name: str, backend: str, rng: np.random.Generator) -> None:
    """With masks made outside: one that the compiled function gets, and one that it closes over."""
    q, k, v = operands()
    outer = mask(rng)

    def function(q: Any, k: Any, v: Any, given: BlockMask | None) -> Any:
        options = {"enable_gqa": True, **OPTIONS[name]}
        return attention(q, k, v, block_mask=outer, **options), attention(
            q, k, v, block_mask=given, **options
        )

    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for given in (None, mask(rng), mask(rng)):
        found, expected = compiled(q, k, v, given), function(q, k, v, given)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_one_graph_serves_many_masks(rng: np.random.Generator) -> None:
    """Masks that come and go, each at the address of the one before it."""
    graphs = 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    compiled = torch.compile(attention, fullgraph=True, backend=backend)
    q, k, v = operands(heads=2)
    for _ in range(20):
        blocks = rng.random((4, 4)) < 0.6
        found = compiled(q, k, v, block_mask=BlockMask.from_dense(blocks, (32, 32)))
        expected = attention(q, k, v, block_mask=BlockMask.from_dense(blocks, (32, 32)))
        assert torch.equal(found, expected)
    assert graphs <= 2


def test_other_lengths(rng: np.random.Generator) -> None:
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for queries, keys in ((100, 120), (37, 64), (1, 500)):
        q, k, v = operands(queries=queries, keys=keys, heads=2)
        found = compiled(q, k, v, is_causal=True, return_lse=True)
        assert same(found, attention(q, k, v, is_causal=True, return_lse=True))


def test_packed_sequences() -> None:
    """One graph for batches of different lengths, as serving has them."""
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for lengths in ((30, 0, 70), (100, 1, 25), (5, 5, 5)):
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        q, k, v = (torch.randn(sum(lengths), heads, 16) for heads in (4, 2, 2))
        options = {
            "cu_seqlens_q": ends,
            "cu_seqlens_k": ends,
            "max_seqlen_q": max(lengths),
            "max_seqlen_k": max(lengths),
            "is_causal": True,
            "enable_gqa": True,
            "return_lse": True,
        }
        expected = attention(q, k, v, **options)
        assert same(expected, bsrgemm.attention(q, k, v, **options))
        assert same(compiled(q, k, v, **options), expected)
        torch.library.opcheck(torch.ops.bsrgemm.attention.default, (q, k, v), options)


def test_masks_are_not_kept_alive(rng: np.random.Generator) -> None:
    gone = mask(rng)
    serial = gone._serial
    q, k, v = operands()
    attention(q, k, v, block_mask=gone, enable_gqa=True)
    del gone
    gc.collect()
    with pytest.raises(ValueError, match="accepted: the number of a BlockMask that is alive"):
        torch.ops.bsrgemm.attention(q, k, v, mask=serial, enable_gqa=True)


def test_gradients_are_refused() -> None:
    q, k, v = operands(heads=2)
    k.requires_grad_()
    with pytest.raises(TypeError, match="key requires grad, and autograd is not supported"):
        attention(q, k, v)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        torch.ops.bsrgemm.attention(q, k, v)[0].sum().backward()
    with torch.no_grad():
        expected = attention(q, k, v)
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(q, k, v), expected)


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
def test_gradients_of_factors_are_refused(name: str) -> None:
    q = torch.randn(1, 2, 4, 16).to(torch.float8_e4m3fn)
    compiled = torch.compile(attention, backend="aot_eager")

    def total(factor: Any, function: Any = attention) -> Any:
        return function(q, q, q, **{name: factor}).float().sum()

    factor = torch.ones(1, 2)
    for call in (
        lambda: total(factor.requires_grad_()),
        lambda: total(factor.requires_grad_(), compiled),
        lambda: torch.func.grad(total)(factor.detach()),
    ):
        with pytest.raises(TypeError, match=f"{name} requires grad, and autograd is not supp"):
            call()
    with pytest.raises(TypeError, match=f"{name} has a tangent"):
        torch.func.jvp(total, (factor.detach(),), (factor.detach(),))
    with torch.no_grad():
        assert total(factor, compiled) == total(factor)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"block_mask": 3}, TypeError, "block_mask is an int; accepted: a bsrgemm.BlockMask"),
        ({"window": 3}, TypeError, "window is 3; accepted: a pair"),
        ({"layout": "sd"}, ValueError, "layout is 'sd'"),
        ({"backend": "hopper"}, ValueError, "operands are on cpu"),
        ({"q_descale": 2.0}, TypeError, "q_descale is given, but q has dtype float32"),
    ],
)
def test_malformed(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attention(*operands(heads=2), **options)
