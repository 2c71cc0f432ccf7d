"""Layers in eager PyTorch: when operators are passed by, whose structure and gradients count."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import bsrgemm
import numpy as np
import pytest
from spaces import import_torch

torch = import_torch()

import bsrgemm.torch  # noqa: E402 (skipped above where torch is missing)
from bsrgemm import (  # noqa: E402
    _torch_linear,
    _torch_operators,
    _torch_patterns,
    _torch_products,
)
from bsrgemm.torch import BSRLinear, linear  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

OUT, IN = 4, 6


def make_layer(activation: str | None = None, dtype: Any = torch.float64) -> BSRLinear:
    """Blocks of 2 x 3: (0, 1), (1, 0) and (1, 1)."""
    arrays = torch.randn(3, 2, 3).to(dtype), torch.tensor([1, 0, 1]), torch.tensor([0, 1, 3])
    weight = bsrgemm.bsr_array(arrays, (OUT, IN))
    return BSRLinear(weight, torch.randn(OUT).to(dtype), activation=activation)


def dense(layer: BSRLinear, x: Any) -> Any:
    arrays = layer.values.detach(), layer.indices.clone(), layer.indptr.clone()
    weight = bsrgemm.bsr_array(arrays, (OUT, IN)).todense().to(x.dtype)
    y = torch.nn.functional.linear(x, weight, None if layer.bias is None else layer.bias.detach())
    return y if layer.activation is None else getattr(torch, layer.activation)(y)


@pytest.fixture(autouse=True)
def _seeded(rng: Any) -> None:
    torch.manual_seed(int(rng.integers(2**62)))


@pytest.fixture
def no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise AssertionError("an operator was called")

    for module, name in (
        (_torch_linear, "matmul_operator"),
        (_torch_operators, "matmul_operator"),
        (_torch_operators, "sampled_operator"),
        (_torch_products, "matmul_operator"),
        (_torch_products, "sampled_operator"),
        (_torch_patterns, "pattern_operator"),
        (_torch_patterns, "product_operator"),
        (_torch_patterns, "sampled_operator"),
        (_torch_patterns, "gather_operator"),
        (bsrgemm.torch, "_operator"),
    ):
        monkeypatch.setattr(module, name, fail)


class Seen(TorchDispatchMode):
    """Which operators of bsrgemm have been called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.namespace == "bsrgemm":
            self.names.append(function._opname)
        return function(*args, **(kwargs or {}))


# ---- when operators are passed by ----------------------------------------------------------------


@pytest.mark.usefixtures("no_operator")
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("shape", [(IN,), (5, IN), (2, 3, IN), (0, IN)])
def test_plain_calls_need_no_operator(recorded: bool, shape: tuple[int, ...]) -> None:
    layer = make_layer("relu")
    x = torch.randn(shape, dtype=torch.float64, requires_grad=recorded)
    for inputs in (x, x.expand(2, *shape).transpose(0, -2) if len(shape) > 1 else x):
        with torch.set_grad_enabled(recorded):
            y = layer(inputs)
            again = linear(inputs, layer.weight, layer.bias, activation="relu")
        torch.testing.assert_close(y, dense(layer, inputs))
        assert torch.equal(y, again) and y.is_contiguous() and y.requires_grad == recorded


@pytest.mark.usefixtures("no_operator")
def test_plain_products_and_attention_need_no_operator() -> None:
    weight = make_layer().weight
    values, rows, cols = weight.data, *weight.shape
    a = bsrgemm.bsr_array((values.detach(), weight.indices, weight.indptr), weight.shape)
    whole = a.todense()
    x, y = (torch.randn(size, 5, dtype=torch.float64) for size in (cols, rows))
    for found, expected in (
        (bsrgemm.torch.matmul(a, x), whole @ x),
        (bsrgemm.torch.matmul(a.T, y), whole.T @ y),
        (bsrgemm.torch.matmul(y.T, a), y.T @ whole),
        (bsrgemm.torch.matmul(y[:, 0], a), y[:, 0] @ whole),
        (bsrgemm.torch.matmul(y.T.view(1, 5, rows), a), (y.T @ whole)[None]),
    ):
        torch.testing.assert_close(found, expected)
    for found in (torch.matmul(a, x), torch.matmul(y.T, a).T, (y.T @ a).T):
        assert found.shape[1] == 5
    torch.testing.assert_close(y.T @ a, y.T @ whole)
    with torch.no_grad():
        found = bsrgemm.torch.sampled_matmul(y.requires_grad_(), x.T, a)
    expected = a._with_values(found).todense()
    places = a._with_values(torch.ones_like(a.data)).todense()
    torch.testing.assert_close(expected, (y.detach() @ x.T) * places)
    q, k, v = (torch.randn(1, 2, 7, 16) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(bsrgemm.torch.attention(q, k, v), expected)


@pytest.mark.usefixtures("no_operator")
@pytest.mark.parametrize("recorded", [False, True])
def test_products_of_patterns_need_no_operator(recorded: bool) -> None:
    mask = torch.tensor([[True, False, True], [False, True, False]])
    pattern = bsrgemm.torch.BlockPattern.from_mask(mask, (2, 3), 5)
    assert bsrgemm.torch.BlockPattern.from_topk(mask.float(), 1, (2, 3)).counts[0] == 2
    stored = torch.kron(mask.double(), torch.ones(2, 3, dtype=torch.float64))
    whole, x, y = (torch.randn(shape, dtype=torch.float64) for shape in ((4, 9), (9, 5), (5, 4)))
    for operand in (whole, x, y):
        operand.requires_grad_(recorded)

    def results(a: Any, sampled: Any) -> list[Any]:
        found = [a @ x, a.T @ y.T, y @ a, sampled]
        if recorded:
            found += torch.autograd.grad([f.square().sum() for f in found], (whole, x, y))
        return found

    found = results(
        pattern.array(pattern.gather(whole)),
        pattern.array(bsrgemm.torch.sampled_matmul(y.T, x.T, pattern)).todense(),
    )
    for one, other in zip(found, results(whole * stored, (y.T @ x.T) * stored), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["fixed", "changing"])
def test_operands_whose_memory_holds_other_elements(kind: str) -> None:
    """Negative ones, as gradients of imaginary parts are, and zeros without memory."""
    mask = torch.tensor([[True, False, True], [False, True, False]])
    whole = torch.randn(4, 9) * torch.kron(mask.float(), torch.ones(2, 3))
    if kind == "fixed":
        fixed = bsrgemm.bsr_array(whole, blocksize=(2, 3))
        places, values, array = fixed, fixed.data, fixed._with_values
    else:
        places = bsrgemm.torch.BlockPattern.from_mask(mask, (2, 3), 3)
        values, array = places.gather(whole), places.array
    values.requires_grad_()
    x = torch.randn(9, 5, requires_grad=True)
    negative = torch.complex(torch.randn(9, 5), torch.randn(9, 5)).conj().imag
    assert negative.is_neg()
    zeros = torch._efficientzerotensor((9, 5))
    for operand in (negative, zeros):
        found = bsrgemm.torch.matmul(array(values.detach()), operand)
        torch.testing.assert_close(found, whole @ operand.clone())
        left = torch.ones(4, 5, requires_grad=True)
        found = bsrgemm.torch.sampled_matmul(left, operand.T, places)
        assert found.isfinite().all()
        given = torch._efficientzerotensor(found.shape)
        assert not torch.autograd.grad(found, left, given)[0].any()
    y = bsrgemm.torch.matmul(array(values), x)
    torch.complex(torch.zeros_like(y), y).conj().imag.sum().backward()
    torch.testing.assert_close(x.grad, -whole.sum(0)[:, None].expand(9, 5))


@pytest.mark.usefixtures("no_operator")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dense_left", [False, True])
def test_recorded_products_need_no_operator(transposed: bool, dense_left: bool) -> None:
    layer = make_layer()
    values, whole = layer.values, layer.weight.copy().todense().requires_grad_()
    a = bsrgemm.bsr_array((values, layer.indices, layer.indptr), (OUT, IN))
    matrix, expected = (a.T, whole.T) if transposed else (a, whole)
    inner = expected.shape[0 if dense_left else 1]
    x = torch.randn((2, 3, inner) if dense_left else (inner, 3), dtype=torch.float64)
    x.requires_grad_()
    y = bsrgemm.torch.matmul(*((x, matrix) if dense_left else (matrix, x)))
    right = x @ expected if dense_left else expected @ x
    torch.testing.assert_close(y, right)
    given = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, values), given)
    of_x, of_whole = torch.autograd.grad(right, (x, whole), given)
    torch.testing.assert_close(found[0], of_x)
    places = a._with_values(torch.ones_like(values.detach())).todense()
    torch.testing.assert_close(a._with_values(found[1]).todense(), of_whole * places)


@pytest.mark.usefixtures("no_operator")
def test_recorded_blocks_of_products_need_no_operator() -> None:
    pattern = bsrgemm.bsr_array(make_layer().weight.copy())
    places = pattern._with_values(torch.ones_like(pattern.data)).todense()
    a, b = (torch.randn(shape, dtype=torch.float64) for shape in ((OUT, 5), (5, IN)))
    a.requires_grad_(), b.requires_grad_()
    blocks = bsrgemm.torch.sampled_matmul(a, b, pattern)
    given = torch.randn_like(blocks)
    found = torch.autograd.grad(blocks, (a, b), given)
    dense_given = pattern._with_values(given).todense()
    expected = torch.autograd.grad((a @ b) * places, (a, b), dense_given)
    torch.testing.assert_close(found, expected)


def test_modes_see_the_operators() -> None:
    layer, x = make_layer(), torch.randn(5, IN, dtype=torch.float64)
    expected = layer(x)
    with Seen() as seen:
        assert torch.equal(layer(x), expected)
        linear(x, layer.weight, layer.bias).sum().backward()
    assert seen.names.count("matmul") == 2 and "sampled_matmul" in seen.names
    with Seen() as seen, torch.no_grad():
        assert torch.equal(layer(x), expected)
    assert seen.names == ["matmul"]
    y = layer(x)
    with Seen() as seen:
        y.sum().backward()
    assert seen.names == ["sampled_matmul"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_fake_tensors_and_traces() -> None:
    layer = make_layer().requires_grad_(False)
    x = torch.randn(5, IN, dtype=torch.float64)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(x)).shape == (5, OUT)
    with torch.no_grad():
        graph = make_fx(layer)(x)
    assert "bsrgemm.matmul" in graph.code
    traced = torch.jit.trace(layer, (x,))
    for _ in range(2):
        x = torch.randn(5, IN, dtype=torch.float64)
        torch.testing.assert_close(graph(x), dense(layer, x))
        torch.testing.assert_close(traced(x), dense(layer, x))


@pytest.mark.parametrize("recorded", [False, True])
def test_transforms_of_functions(recorded: bool) -> None:
    """functorch's wrappers are of the type Tensor."""
    layer, x = make_layer("relu"), torch.randn(5, IN, dtype=torch.float64)
    with torch.set_grad_enabled(recorded):
        found = torch.func.vmap(layer)(x)
    torch.testing.assert_close(found.detach(), dense(layer, x))


def test_subclasses_go_to_the_operator() -> None:
    class Own(torch.Tensor):
        pass

    layer, x = make_layer(), torch.randn(5, IN, dtype=torch.float64)
    torch.testing.assert_close(layer(x.as_subclass(Own)).as_subclass(torch.Tensor), dense(layer, x))


def test_autocast_between_calls() -> None:
    layer = make_layer(dtype=torch.float32)
    x = torch.randn(5, IN)
    for recorded in (False, True):
        with torch.set_grad_enabled(recorded):
            assert layer(x).dtype == torch.float32
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert layer(x).dtype == torch.bfloat16
                assert linear(x, layer.weight, layer.bias).dtype == torch.bfloat16
            assert layer(x).dtype == torch.float32


# ---- whose structure -----------------------------------------------------------------------------


def test_every_change_of_the_indices_is_seen() -> None:
    layer, x = make_layer(), torch.randn(5, IN, dtype=torch.float64)

    def in_place() -> None:
        layer.indices[0] = 0

    def by_data() -> None:
        layer.indices.data = torch.tensor([1, 0, 1], dtype=torch.int32)

    def by_data_of_indptr() -> None:
        layer.indptr.data = torch.tensor([0, 2, 3], dtype=torch.int32)
        layer.indices.data = torch.tensor([0, 1, 1], dtype=torch.int32)

    def by_copies_into_data() -> None:
        layer.indices.data.copy_(torch.tensor([0, 0, 1]))
        layer.indptr.data.copy_(torch.tensor([0, 1, 3]))

    def by_memory() -> None:
        layer.indices.numpy()[0] = 1

    def shared_memory() -> None:
        layer.share_memory()
        layer.indices.data[0] = 0

    def strided() -> None:
        layer.indices = torch.tensor([[1, 9], [0, 9], [1, 9]])[:, 0]

    def strided_by_data() -> None:
        layer.indices.data[0] = 0

    def new_tensors() -> None:
        layer.indices, layer.indptr = (
            torch.tensor(x, dtype=torch.int64) for x in ([1, 0, 1], [0, 1, 3])
        )

    def fewer() -> None:
        layer.prune_(0.5)

    def other_blocks() -> None:
        layer.values = torch.nn.Parameter(torch.randn(2, 4, 3, dtype=torch.float64))
        layer.indices, layer.indptr = torch.tensor([0, 1]), torch.tensor([0, 2])

    for change in (
        lambda: None,
        in_place,
        by_data,
        by_data_of_indptr,
        by_copies_into_data,
        by_memory,
        shared_memory,
        strided,
        strided_by_data,
        new_tensors,
        fewer,
        other_blocks,
    ):
        with torch.no_grad():
            change()
            torch.testing.assert_close(layer(x), dense(layer, x))
        torch.testing.assert_close(layer(x).detach(), dense(layer, x))


def test_values_are_read_at_each_call() -> None:
    layer, x = make_layer(), torch.randn(5, IN, dtype=torch.float64)
    for _ in range(3):
        with torch.no_grad():
            layer.values.normal_()
            torch.testing.assert_close(layer(x), dense(layer, x))
            layer.values.data = torch.randn(3, 2, 3, dtype=torch.float64)
            torch.testing.assert_close(layer(x), dense(layer, x))
        layer.values = torch.nn.Parameter(torch.randn(3, 2, 3, dtype=torch.float64))
        torch.testing.assert_close(layer(x).detach(), dense(layer, x))


def test_inference_tensors_have_no_versions() -> None:
    with torch.inference_mode():
        layer, x = make_layer(), torch.randn(5, IN, dtype=torch.float64)
        for _ in range(2):
            torch.testing.assert_close(layer(x), dense(layer, x))
    assert all(entry.indices is not layer.indices for entry in _torch_operators._recent.values())


@pytest.mark.parametrize("on_host", [True, False])
def test_loads_in_inference_mode(on_host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where contents of the host can be compared, and where, as on a GPU, they cannot."""
    if not on_host:
        monkeypatch.setattr(_torch_operators, "_contents", lambda *_: None)
    with torch.inference_mode():
        layer, other = make_layer(), make_layer()
        other.indices = torch.tensor([0, 0, 1], dtype=torch.int32)
        x = torch.randn(5, IN, dtype=torch.float64)
        torch.testing.assert_close(layer(x), dense(layer, x))
        layer.load_state_dict(other.state_dict())
        assert layer.indices.tolist() == [0, 0, 1]
        torch.testing.assert_close(layer(x), dense(other, x))
        if on_host:
            layer.indices[0] = 1
            torch.testing.assert_close(layer(x), dense(layer, x))


def test_unchanged_indices_keep_their_structure() -> None:
    layer, x = make_layer(), torch.randn(5, IN, dtype=torch.float64)
    for indices in (layer.indices, layer.indices.long(), torch.stack([layer.indices] * 2, 1)[:, 0]):
        layer.indices = indices
        layer(x)
        structure = layer.weight._structure
        layer(x).sum().backward()
        with Seen():
            layer(x)
        assert layer.weight._structure is structure


@pytest.mark.filterwarnings("ignore:Sparse BSR tensor support:UserWarning")
def test_torchs_default_device_is_none_of_a_matrix() -> None:
    """Where that is another, too, all that is made of tensors is on theirs."""
    layer, x = make_layer(), torch.randn(5, IN, dtype=torch.float64)
    uneven = torch.tensor([[0.0, 2.0, 3.0], [0.0, 0.0, 4.0]]).to_sparse()
    indices = torch.tensor([1, 0, 1])
    weight = bsrgemm.bsr_array((layer.values.detach(), indices, [0, 1, 3]), (OUT, IN))
    expected = linear(x, weight)
    indices[0] = 0  # which the matrix does not see, and so has to make index tensors of its own
    with torch.device("meta"):
        found = linear(x, weight), weight.to_torch(), bsrgemm.bsr_array(uneven, blocksize=(2, 2))
    assert torch.equal(found[0], expected)
    assert torch.equal(found[1].to_dense(), weight.todense())
    assert torch.equal(found[2].todense(), uneven.to_dense())


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_matrix_keeps_its_pattern(kind: str) -> None:
    """Also where operators are called, which are given its arrays."""
    layer, x = make_layer(), torch.randn(5, IN, dtype=torch.float64, requires_grad=True)
    indices = torch.tensor([1, 0, 1])
    given = indices if kind == "torch" else indices.numpy()
    weight = bsrgemm.bsr_array((layer.values, given, np.array([0, 1, 3])), (OUT, IN))
    expected = linear(x, weight)
    gradient = torch.autograd.grad(expected.sum(), x)[0]
    indices[0] = 0
    for _ in range(2):
        assert torch.equal(linear(x, weight), expected)
        with Seen() as seen:
            assert torch.equal(linear(x, weight), expected)
        assert seen.names == ["matmul"]
        recorded = torch.autograd.grad(linear(x, weight).sum(), x, create_graph=True)[0]
        torch.testing.assert_close(recorded, gradient)


def test_few_structures_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch_operators, "MAX_STRUCTURES", 3)
    x = torch.randn(5, IN, dtype=torch.float64)
    layers = [make_layer() for _ in range(8)]
    for layer in (*layers, *reversed(layers)):
        torch.testing.assert_close(layer(x).detach(), dense(layer, x))
        assert len(_torch_operators._recent) <= 3 and len(_torch_operators._structures) <= 3
    # Of few large ones, too.
    monkeypatch.setattr(_torch_operators, "MAX_STRUCTURES", 100)
    known = _torch_operators._structures
    monkeypatch.setattr(_torch_operators, "MAX_BLOCKS", 2 * layers[0].values.shape[0] + 30)
    for layer in (*layers, *reversed(layers)):
        torch.testing.assert_close(layer(x).detach(), dense(layer, x))
        held = sum(_torch_operators._size_of(entry) for entry in known.values())
        assert held == _torch_operators._blocks <= _torch_operators.MAX_BLOCKS


def test_a_pattern_that_has_changed_is_forgotten() -> None:
    layer, x = make_layer(), torch.randn(5, IN, dtype=torch.float64)
    layer(x)
    before = len(_torch_operators._structures), _torch_operators._blocks
    for first in (0, 1, 0):
        layer.indices[0] = first
        torch.testing.assert_close(layer(x).detach(), dense(layer, x))
    assert (len(_torch_operators._structures), _torch_operators._blocks) == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_matrix_of_host_indices_has_one_structure(read_only: bool) -> None:
    """Whose tensors are made at each call."""
    arrays = np.array([0, 1, 1]), np.array([0, 2, 3])
    for array in arrays:
        array.setflags(write=not read_only)
    a = bsrgemm.bsr_array((torch.randn(3, 4, 4), *arrays), (8, 8))
    x = torch.randn(8, 2, requires_grad=True)
    before = len(_torch_operators._structures), len(_torch_operators._recent)
    for _ in range(10):
        bsrgemm.torch.matmul(a, x).sum().backward()
    after = len(_torch_operators._structures), len(_torch_operators._recent)
    assert after[0] <= before[0] + 1 and after[1] <= before[1] + 2
    assert all(array.flags.writeable != read_only for array in arrays)


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("shape", [(IN,), (5, IN), (2, 3, IN)])
def test_gradients_and_theirs(activation: str | None, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)  # nothing lies where ReLU has no derivative
    layer = make_layer(activation)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def function(x: Any, values: Any, bias: Any) -> Any:
        arrays = values, layer.indices, layer.indptr
        return linear(x, bsrgemm.bsr_array(arrays, (OUT, IN)), bias, activation=activation)

    inputs = x, layer.values.detach().requires_grad_(), layer.bias.detach().requires_grad_()
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
def test_results_can_be_written_to(contiguous: bool, recorded: bool) -> None:
    layer = make_layer()
    x = torch.randn(2, IN, 3, dtype=torch.float64).transpose(1, 2)
    x = (x.contiguous() if contiguous else x).requires_grad_(recorded)
    layer.requires_grad_(recorded)
    expected = dense(layer, x.detach()).relu()
    y = layer(x)
    assert not y._is_view()
    y = torch.relu_(y)
    torch.testing.assert_close(y.detach(), expected)
    if recorded:
        y.sum().backward()
        torch.testing.assert_close(layer.bias.grad, (expected > 0).double().sum((0, 1)))


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (False, False)])
def test_only_gradients_that_are_wanted(wanted: tuple[bool, bool]) -> None:
    layer = make_layer("relu")
    layer.values.requires_grad_(wanted[0])
    x = torch.randn(5, IN, dtype=torch.float64, requires_grad=wanted[1])
    layer(x).sum().backward()
    assert (layer.values.grad is not None, x.grad is not None) == wanted
    expected = (dense(layer, x.detach()) > 0).double()
    torch.testing.assert_close(layer.bias.grad, expected.sum(0))


def test_relu_treats_numbers_as_torch_does() -> None:
    weight = bsrgemm.bsr_array((torch.eye(4)[None], [0], [0, 1]), (4, 4))
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[nan, -inf, inf, 0.0], [-0.0, -1.0, 1.0, nan]])
    bias = torch.zeros(4, requires_grad=True)
    y = linear(x, weight, bias, activation="relu")
    product = bsrgemm.matmul(x, weight.T)
    expected = torch.relu(product.requires_grad_())
    torch.testing.assert_close(y.detach(), expected.detach(), equal_nan=True)
    gradient = torch.randn(2, 4)
    y.backward(gradient)
    expected.backward(gradient)
    torch.testing.assert_close(bias.grad, product.grad.sum(0))


@pytest.mark.parametrize("name", ["values", "indices"])
def test_changes_between_forward_and_backward_are_refused(name: str) -> None:
    layer = make_layer()
    y = layer(torch.randn(5, IN, dtype=torch.float64, requires_grad=True))
    with torch.no_grad():
        getattr(layer, name).zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_checkpoints_and_strange_gradients() -> None:
    layer = make_layer("relu")
    x = torch.randn(2, 3, IN, dtype=torch.float64, requires_grad=True)
    wanted = torch.randn(OUT, 3, 2, dtype=torch.float64).permute(2, 1, 0)  # of other strides
    leaves = x, layer.values, layer.bias
    expected = torch.autograd.grad(layer(x), leaves, wanted)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(y, leaves, wanted), expected, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(
        torch.autograd.grad(layer(x).sum(), leaves),
        torch.autograd.grad(layer(x), leaves, torch.ones(2, 3, OUT, dtype=torch.float64)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("within", ["forward", "backward"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("shape", [(IN,), (5, IN), (2, 3, IN)])
def test_checkpoints_of_which_modes_see_half(
    shape: tuple[int, ...], activation: str | None, within: str
) -> None:
    """What is computed again saves what was saved at first, by the operator or without it."""
    layer = make_layer(activation)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    leaves = x, layer.values, layer.bias
    expected = torch.autograd.grad(layer(x).square().sum(), leaves)
    with FlopCounterMode(display=False) if within == "forward" else nullcontext():
        y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    with FlopCounterMode(display=False) if within == "backward" else nullcontext():
        y.square().sum().backward()
    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient)


def test_a_parametrized_bias() -> None:
    """It is no parameter of the layer any more, but a property."""
    layer, x = make_layer(), torch.randn(5, IN, dtype=torch.float64)

    class Double(torch.nn.Module):
        def forward(self, bias: Any) -> Any:
            return 2 * bias

    expected = dense(layer, x) + layer.bias.detach()
    layer.register_buffer("mask", torch.ones(3))  # of the user, beside those of the layer
    torch.nn.utils.parametrize.register_parametrization(layer, "bias", Double())
    torch.testing.assert_close(layer(x).detach(), expected)
    layer(x).sum().backward()
    wanted = torch.full((OUT,), 10.0, dtype=torch.float64)
    torch.testing.assert_close(layer.parametrizations.bias.original.grad, wanted)
