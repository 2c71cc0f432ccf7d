"""The short way of products and layers: taken where it may be, and never for an earlier call's
arguments."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import bsrgemm
import numpy as np
import pytest
from bsrgemm import _core, _matmul, _sampled
from spaces import import_torch

torch = import_torch()

import bsrgemm.torch  # noqa: E402 (skipped above where torch is missing)

M, K, BLOCK = 12, 16, (4, 8)


def make(rng: np.random.Generator, dtype: str = "float64", library: str = "torch") -> Any:
    """A matrix of a random pattern, of tensors or NumPy arrays."""
    mask = rng.random((M // BLOCK[0], K // BLOCK[1])) < 0.6
    mask[0, 0] = True
    indptr = np.concatenate([[0], mask.sum(1).cumsum()]).astype(np.int32)
    indices = np.nonzero(mask)[1].astype(np.int32)
    data = rng.standard_normal((len(indices), *BLOCK)).astype(dtype)
    arrays = data, indices, indptr
    if library == "torch":
        arrays = tuple(map(torch.from_numpy, arrays))
    return bsrgemm.bsr_array(arrays, (M, K))


def normal(rng: np.random.Generator, shape: Any, like: Any) -> Any:
    x = rng.standard_normal(shape).astype(str(like.dtype).removeprefix("torch."))
    return x if isinstance(like, np.ndarray) else torch.from_numpy(x)


def host(x: Any) -> np.ndarray:
    x = x.todense() if isinstance(x, bsrgemm.bsr_array) else x
    return np.array(x.detach().numpy() if isinstance(x, torch.Tensor) else x, np.float64)


def close(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(host(found), expected, rtol=1e-5, atol=1e-5)


# ---- it is taken ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_only")
@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("batch", [None, (), (3,), (2, 3)])
def test_usual_products(
    library: str, right: bool, turned: bool, batch: Any, rng: np.random.Generator
) -> None:
    a = make(rng, library=library)
    matrix = a.T if turned else a
    inner = matrix.shape[0] if right else matrix.shape[1]
    shape = (inner,) if batch is None else (*batch, 5, inner) if right else (*batch, inner, 5)
    x = normal(rng, shape, a.data)
    dense = host(a).T if turned else host(a)
    expected = host(x) @ dense if right else dense @ host(x)
    operands = (x, matrix) if right else (matrix, x)
    found = bsrgemm.matmul(*operands)
    assert type(found) is type(x) and found.dtype == x.dtype
    close(found, expected)
    close(operands[0] @ operands[1], expected)
    c, out = normal(rng, expected.shape, a.data), normal(rng, expected.shape, a.data)
    kept = host(c)
    assert bsrgemm.matmul(*operands, c, alpha=2, beta=-0.5, out=out) is out
    close(out, 2 * expected - 0.5 * kept)
    assert bsrgemm.matmul(*operands, c, out=c) is c
    close(c, expected + kept)


@pytest.mark.usefixtures("short_only")
@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("right", [False, True])
def test_usual_vectors(library: str, right: bool, rng: np.random.Generator) -> None:
    a = make(rng, library=library)
    x = normal(rng, (2, 5, M) if right else (2, K, 5), a.data)
    operands = (x, a) if right else (a, x)
    plain = host(x) @ host(a) if right else host(a) @ host(x)
    m, n = plain.shape[-2:]
    for shape in ((n,), (1, n), (m, 1)):
        bias = normal(rng, shape, a.data)
        expected = np.maximum(plain + host(bias), 0)
        close(bsrgemm.matmul(*operands, bias=bias, activation="relu"), expected)
    for rows, cols in itertools.product(((m,), (m, 1)), ((n,), (1, n))):
        row, col = normal(rng, rows, a.data), normal(rng, cols, a.data)
        expected = host(row).reshape(m, 1) * host(col).reshape(1, n) * plain
        close(bsrgemm.matmul(*operands, row_scale=row, col_scale=col), expected)


# ---- never for an earlier call's arguments -------------------------------------------------------


def variants(rng: np.random.Generator) -> list[tuple[Any, ...]]:
    """Calls that differ in one thing each: matrix, operand, and options that make new ones."""
    a = make(rng)
    other = make(rng)
    same_structure = a * 3
    x = normal(rng, (K, 6), a.data)
    single, numpy = a.astype("float32"), make(rng, library="numpy")
    calls: list[tuple[Any, ...]] = [
        (a, x),
        (a, normal(rng, (K, 6), a.data)),
        (a, normal(rng, (K, 7), a.data)),
        (a, normal(rng, (K, 1), a.data)),
        (a, normal(rng, (K, 0), a.data)),
        (a, normal(rng, K, a.data)),
        (a, normal(rng, (2, K, 6), a.data)),
        (a, normal(rng, (6, K), a.data).T),
        (a, normal(rng, (2 * K, 6), a.data)[::2]),
        (a, normal(rng, (K, 12), a.data)[:, ::2]),
        (a, x[:1].expand(K, 6)),
        (same_structure, x),
        (other, x),
        (single, x.float()),
        (numpy, normal(rng, (K, 6), numpy.data)),
        (numpy, normal(rng, (K, 6), numpy.data)[::-1, ::-1]),
        (numpy, x),
        (a, normal(rng, (K, 6), numpy.data)),
        (a.T, normal(rng, (M, 6), a.data)),
    ]
    return calls


def sampled_operands(a: Any, shape: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    return normal(rng, (shape[0], 5), a.data), normal(rng, (5, shape[1]), a.data)


@pytest.mark.usefixtures("short_only")
@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("turned", [False, True])
def test_usual_sampled_products(library: str, turned: bool, rng: np.random.Generator) -> None:
    a = make(rng, library=library)
    pattern = a.T if turned else a
    x, y = sampled_operands(a, pattern.shape, rng)
    expected = (host(x) @ host(y)) * (host(pattern) != 0)
    found = bsrgemm.sampled_matmul(x, y, pattern)
    assert type(found) is bsrgemm.bsr_array
    assert type((found.T if turned else found).data) is type(x)
    assert found.dtype == a.dtype and found.shape == pattern.shape
    close(found, expected)
    close(found.T, expected.T)
    close(
        bsrgemm.sampled_matmul(x, y, pattern, alpha=-2, beta=0.5),
        -2 * expected + 0.5 * host(pattern),
    )
    filled = bsrgemm.sampled_matmul(x, y, pattern * float("nan"))  # which is not read
    close(filled, expected)


def test_sampled_products_that_are_not_usual(rng: np.random.Generator) -> None:
    """The general way takes them, or says what is wrong."""
    a = make(rng)
    x, y = sampled_operands(a, a.shape, rng)
    expected = (host(x) @ host(y)) * (host(a) != 0)
    other_dtype = bsrgemm.bsr_array((a.data.float(), a.indices, a.indptr), a.shape)
    found = bsrgemm.sampled_matmul(x, y, other_dtype)
    assert found.dtype == x.dtype
    close(found, expected)
    batch = bsrgemm.sampled_matmul(torch.stack([x, -x]), y, a)
    assert batch.shape == (2, *a.shape)
    close(batch.data[1], -host(found.data))
    wanted = x.clone().requires_grad_()
    wrong: list[tuple[Any, Any, Any, dict[str, Any]]] = [
        (x[1:], y, a, {}),
        (x, y[1:], a, {}),
        (x, y.float(), a, {}),
        (wanted, y, a, {}),
        (x, wanted[:, :5].T, a, {}),
        (x[0], y, a, {}),
        (x, y, a, {"alpha": "1"}),
        (x.float(), y.float(), a, {"beta": 1.0}),
        (x, y.to("meta"), a, {}),
        (x, y, x, {}),
        (x, None, a, {}),
    ]
    for left, right, pattern, options in wrong:
        close(bsrgemm.sampled_matmul(x, y, a), expected)
        call = (left, right, pattern)
        error = outcome(lambda c=call, o=options: _sampled.sampled(*c, **o))
        assert error is not None, (left, right, options)
        assert outcome(lambda c=call, o=options: bsrgemm.sampled_matmul(*c, **o)) == error
    with torch.no_grad():
        close(bsrgemm.sampled_matmul(wanted, y, a), expected)


def test_calls_in_any_order(rng: np.random.Generator) -> None:
    """Each right after every other kind, with all kinds of options."""
    calls = variants(rng)
    for number in rng.permutation(np.repeat(np.arange(len(calls)), 12)):
        a, x = calls[number]
        expected = host(a) @ host(x)
        alpha, with_c, with_out = rng.choice([1.0, 0.5, -2]), *(rng.random(2) < 0.5)
        c = normal(rng, expected.shape, x) if with_c else None
        beta = rng.choice([0.0, 1.0, 0.25]) if with_c else None
        out = normal(rng, expected.shape, x) if with_out else None
        found = bsrgemm.matmul(a, x, c, alpha=float(alpha), beta=beta, out=out)
        assert (out is None or found is out) and type(found) is type(x)
        close(found, alpha * expected + (0 if c is None else beta * host(c)))


def test_changes_in_place_are_seen(rng: np.random.Generator) -> None:
    a = make(rng)
    x, out = normal(rng, (K, 6), a.data), normal(rng, (M, 6), a.data)
    for change in (a.data.neg_, x.neg_, lambda: a.data[0].zero_(), lambda: x[:, 2].fill_(7)):
        change()
        close(bsrgemm.matmul(a, x, out=out), host(a) @ host(x))


def test_memory_that_is_used_again(rng: np.random.Generator) -> None:
    """New arrays at the addresses of freed ones, with other shapes, dtypes and patterns."""
    for i in range(60):
        a = make(rng, "float32" if i % 3 else "float64", "numpy" if i % 2 else "torch")
        x = normal(rng, (K, 1 + i % 5), a.data)
        close(bsrgemm.matmul(a, x), host(a) @ host(x))
        del a, x
        if i % 10 == 0:
            gc.collect()


def outcome(call: Callable[[], Any]) -> tuple[type, str] | None:
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    return None


def test_errors_are_those_of_the_general_way(rng: np.random.Generator) -> None:
    """Right behind a call that was accepted, and nothing is written."""
    a = make(rng)
    batch = bsrgemm.bsr_array((torch.stack([a.data, a.data]), a.indices, a.indptr), a.shape)
    x, out = normal(rng, (K, 6), a.data), normal(rng, (M, 6), a.data)
    wanted = x.clone().requires_grad_()
    readonly = normal(rng, (M, 6), np.empty(0))
    readonly.flags.writeable = False
    memory = normal(rng, (M + K, 6), a.data)
    wrong: list[tuple[Any, Any, dict[str, Any]]] = [
        (a, x[1:], {}),
        (a, x.float(), {}),
        (a, x, {"out": out[1:]}),
        (a, x, {"out": out[None]}),
        (a, x[None], {"out": out}),
        (a, x[None], {"out": out[None, None]}),
        (a, x[:, 0], {"out": out[:, :1]}),
        (a, x[:, 0], {"out": out[None, :, 0]}),
        (batch, x, {"out": out}),
        (batch, x, {"out": out.expand(3, M, 6).clone()}),
        (batch, x, {"out": out.expand(1, 2, M, 6).clone()}),
        (batch, x[None], {"out": out.expand(1, 2, M, 6).clone()}),
        (batch, x[:, 0], {"out": out.expand(2, M, 6).clone()}),
        (batch, x[:, 0], {"out": out[:2].T.expand(1, 6, 2).clone()}),
        (a, x, {"c": out[None]}),
        (batch, x, {"c": out.expand(1, 2, M, 6).clone()}),
        (a, x, {"out": out.float()}),
        (a, x, {"out": x[:M]}),
        (a, memory[:K], {"out": memory[K - 1 : K - 1 + M]}),
        (a, x, {"out": out[:1].expand(M, 6)}),
        (a, x, {"out": readonly}),
        (a, x, {"beta": 1.0}),
        (a, x, {"c": out[:, 1:]}),
        (a, x, {"c": out, "alpha": "1"}),
        (a, x, {"c": out.flatten()[1:], "beta": 0.0}),
        (a, x, {"bias": out[0, 1:]}),
        (a, x, {"bias": out[:, 0]}),
        (a, x, {"activation": "tanh"}),
        (a, x, {"precision": "tf32"}),
        (a, x, {"precision": "fast"}),
        (a, x, {"row_scale": out[0]}),
        (a, x[:, 0], {"col_scale": out[0]}),
        (a, x[:, 0], {"bias": out[0]}),
        (a, wanted, {}),
        (a, x, {"out": out.clone().requires_grad_()}),
        (a, x, {"bias": out[0].clone().requires_grad_()}),
        (a, x.to_sparse(), {}),
        (a, x.to("meta"), {}),
        (a, np.ma.array(host(x)), {}),
        (a, a, {}),
        (a, None, {}),
        (x, x, {}),
        (a, x[0, 0], {}),
    ]
    kept = out.clone()
    for left, right, options in wrong:
        bsrgemm.matmul(a, x)
        filled = {"c": None, "alpha": 1.0, "beta": None, "out": None, "stream": None} | options
        expected = outcome(
            lambda left=left, right=right, f=filled: _matmul.product(left, right, **f)
        )
        assert expected is not None, (right, options)
        assert outcome(lambda: bsrgemm.matmul(left, right, **options)) == expected  # noqa: B023
    assert torch.equal(out, kept)


def test_gradients_are_asked_for_at_each_call(rng: np.random.Generator) -> None:
    a = make(rng)
    x = normal(rng, (K, 6), a.data)
    expected = host(a) @ host(x)
    close(bsrgemm.matmul(a, x), expected)
    x.requires_grad_()
    with pytest.raises(TypeError, match="b requires grad"):
        bsrgemm.matmul(a, x)
    with torch.no_grad():
        close(bsrgemm.matmul(a, x), expected)
    x.requires_grad_(False)
    close(bsrgemm.matmul(a, x), expected)
    a.data.requires_grad_()
    with pytest.raises(TypeError, match=r"a\.data requires grad"):
        bsrgemm.matmul(a, x)


def test_tensors_that_are_not_their_memory(rng: np.random.Generator) -> None:
    """Sparse layouts, lazy negation and subclasses."""
    a = make(rng, "float32")
    x = torch.randn(K, 8)
    for layout in ("coo", "csr", "csc"):
        turned = getattr(x, "to_sparse" if layout == "coo" else f"to_sparse_{layout}")()
        with pytest.raises(TypeError, match="layout"):
            bsrgemm.matmul(a, turned)
    negated = torch.complex(x, x).conj().imag
    assert negated.is_neg()
    with pytest.raises(TypeError, match="negative bit"):
        bsrgemm.matmul(a, negated)

    class Own(torch.Tensor):
        pass

    own = x.as_subclass(Own)
    close(bsrgemm.matmul(a, own), host(a) @ host(x))


def negated(kind: str) -> Any:
    """(K, 8), with neighbouring elements."""
    if kind == "set strides":
        return torch.randn(3, K * 8, dtype=torch.cfloat).conj().imag.as_strided((K, 8), (8, 1))
    return torch._neg_view(torch.randn(K, 8, dtype=getattr(torch, kind)))


@pytest.mark.parametrize("kind", ["set strides", "float32", "bfloat16"])
@pytest.mark.parametrize("grad", [False, True])
def test_negated_tensors_with_neighbouring_elements(
    kind: str, grad: bool, rng: np.random.Generator
) -> None:
    """Strides do not give them away."""
    n = negated(kind)
    assert n.is_neg() and n.stride() == (8, 1)
    x = n.resolve_neg()
    a = make(rng, "float32").astype(str(n.dtype).removeprefix("torch."))
    calls: dict[str, Callable[[], Any]] = {
        "b": lambda: bsrgemm.matmul(a, n),
        "a": lambda: bsrgemm.matmul(n.T, a.T),
        "c": lambda: bsrgemm.matmul(a, x, n[:M]),
        "out": lambda: bsrgemm.matmul(a, x, out=n[:M]),
        "bias": lambda: bsrgemm.matmul(a, x, bias=n[0]),
        "q": lambda: bsrgemm.attention(*[n[None, None]] * 3),
        "sampled": lambda: bsrgemm.sampled_matmul(n[:M], x.T, a),
        "data": lambda: bsrgemm.bsr_array((n[None], [0], [0, 1]), (K, 8)),
    }
    with torch.set_grad_enabled(grad):
        for name, call in calls.items():
            with pytest.raises(TypeError, match="negative bit"):
                print(name, call())
    # Operators of torch see to it.
    layer = bsrgemm.torch.BSRLinear(bsrgemm.bsr_array((x[None], [0], [0, 1]), (K, 8)))
    layer.bias = None
    with torch.set_grad_enabled(grad):
        for values, operand in ((x, n.T[:, :8]), (n, x[:5]), (n, n[:5])):
            layer.values = torch.nn.Parameter(values[None])
            assert layer.values.is_neg() == values.is_neg()
            expected = operand.resolve_neg().float() @ x.float().T
            close = {"rtol": 2e-2, "atol": 1e-1} if kind == "bfloat16" else {}
            torch.testing.assert_close(layer(operand).float(), expected, **close)


def test_more_types_with_exchange_tables_than_are_remembered(rng: np.random.Generator) -> None:
    x = torch.arange(6.0).view(2, 3)
    types = [type(f"Own{i}", (torch.Tensor,), {}) for i in range(7)]
    for kind in (*types, *reversed(types), torch.Tensor):
        info = _core.describe(x.as_subclass(kind))
        assert info.pointer == x.data_ptr() and info.shape == (2, 3)
    del types, kind
    gc.collect()
    later = type("Later", (torch.Tensor,), {})
    assert _core.describe(x.as_subclass(later)).shape == (2, 3)


def test_which_arrays_are_usual() -> None:
    """Nothing but their memory, and no gradient of them is recorded."""
    x = torch.ones(2, 3)
    wanted = x.clone().requires_grad_()
    assert _core.are_usual() and _core.are_usual(x, x.numpy(), x.T, torch.nn.Parameter(x, False))
    others = (
        wanted,
        x.to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj().imag,  # negated
        x.as_subclass(type("Own", (torch.Tensor,), {})),
        np.ma.array(x.numpy()),
        [1.0],
        None,
    )
    for other in others:
        assert not _core.are_usual(other) and not _core.are_usual(x, other)
    with torch.no_grad():
        assert _core.are_usual(wanted)


def test_arguments_of_the_extension() -> None:
    for function in (_core.try_matmul, _core.try_linear, _core.try_sampled):
        with pytest.raises(TypeError, match="arguments"):
            function(1, 2)
    assert _core.try_matmul(*[None] * 13) is NotImplemented
    assert _core.try_linear(*[None] * 5) is NotImplemented
    assert _core.try_sampled(*[None] * 8) is NotImplemented


def test_torch_without_an_exchange_table() -> None:
    """As before 2.10. Nothing else tells its current stream, so tensors go the general way."""
    script = """
import torch
del torch.Tensor.__dlpack_c_exchange_api__
import bsrgemm.torch
from bsrgemm import _core
a = bsrgemm.bsr_array((torch.ones(1, 2, 2), [0], [0, 1]), (2, 2))
x = torch.ones(3, 2)
arguments = a._structure, a._data, x
assert _core.try_linear(*arguments, None, None) is NotImplemented
assert _core.try_matmul(*arguments, True, *[None] * 9) is NotImplemented
options = None, 1.0, None, None, None, None, None, None, "ieee"
assert _core.try_matmul(*arguments, True, *options) is NotImplemented
of_pattern = a._data, 1.0, 0.0, "float32", "cpu"
assert _core.try_sampled(a._structure, x, x.T, *of_pattern) is NotImplemented
layer = bsrgemm.torch.BSRLinear(a, torch.zeros(2), activation="relu")
x.requires_grad_()
layer(x).sum().backward()
assert layer(x).tolist() == [[2.0, 2.0]] * 3 == x.grad.tolist()
assert layer.values.grad.tolist() == [[[3.0, 3.0], [3.0, 3.0]]]
with torch.no_grad():
    assert bsrgemm.matmul(x, a).tolist() == layer(x).tolist() == [[2.0, 2.0]] * 3
"""
    subprocess.run([sys.executable, "-c", script], check=True)
