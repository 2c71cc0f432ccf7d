"""Block-sparse linear layers and the operators under them: against dense torch, with gradients."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from typing import Any

import bsrgemm
import numpy as np
import pytest
from spaces import count_compilations, import_torch

torch = import_torch()

import bsrgemm.torch  # noqa: E402 (skipped above where torch is missing)
from bsrgemm.torch import BSRLinear, linear, sparsify_  # noqa: E402

# Inductor's own modules use what torch has deprecated.
pytestmark = [
    pytest.mark.usefixtures("seeded_torch"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

ACTIVATIONS = {
    None: lambda y: y,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
BLOCK, OUT, IN = (4, 8), 12, 32


def make_weight(dtype: Any = torch.float64, empty_row: bool = True) -> Any:
    """A bsr_array around torch tensors; its middle block row may be empty."""
    mask = torch.rand(OUT // BLOCK[0], IN // BLOCK[1]) < 0.6
    mask[0, 1] = True
    if empty_row:
        mask[1] = False
    indptr = torch.zeros(len(mask) + 1, dtype=torch.int32)
    indptr[1:] = mask.sum(1).cumsum(0)
    indices = mask.nonzero()[:, 1].int()
    values = torch.randn(len(indices), *BLOCK, dtype=torch.float64).to(dtype)
    return bsrgemm.bsr_array((values, indices, indptr), (OUT, IN))


def dense_of(weight: Any) -> Any:
    """The dense weight as a function of ``weight.data``, for torch's own gradients."""
    bh, bw = weight.blocksize
    rows = np.repeat(np.arange(len(weight.indptr) - 1), np.diff(weight.indptr))
    tiles = torch.zeros(OUT // bh, IN // bw, bh, bw, dtype=weight.data.dtype)
    places = torch.as_tensor(rows), torch.as_tensor(weight.indices).long()
    return tiles.index_put(places, weight.data).transpose(1, 2).reshape(OUT, IN)


def operands(weight: Any) -> tuple[Any, ...]:
    """The arguments of the operator that are the matrix."""
    return weight.data, weight.indices, weight.indptr


def test_a_layer_has_the_pattern_as_it_was_given() -> None:
    weight = make_weight()
    expected = dense_of(weight)
    weight.indices.zero_()
    layer, x = BSRLinear(weight), torch.randn(5, IN, dtype=torch.float64)
    assert layer.indices.dtype == torch.int32
    torch.testing.assert_close(layer(x), x @ expected.T)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", [(IN,), (5, IN), (2, 3, IN), (0, IN)])
@pytest.mark.parametrize("recorded", [False, True])
def test_linear_equals_the_dense_layer(
    activation: str | None, with_bias: bool, shape: tuple[int, ...], recorded: bool
) -> None:
    weight = make_weight()
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=recorded)
    bias = torch.randn(OUT, dtype=torch.float64) if with_bias else None
    y = linear(x, weight, bias, activation=activation)
    expected = ACTIVATIONS[activation](torch.nn.functional.linear(x, dense_of(weight), bias))
    assert y.shape == expected.shape and y.is_contiguous()
    torch.testing.assert_close(y, expected)
    assert y.requires_grad == recorded


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_equal_those_of_the_dense_layer(activation: str | None) -> None:
    weight = make_weight()
    weight.data.requires_grad_()
    bias = torch.randn(OUT, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 7, IN, dtype=torch.float64, requires_grad=True)
    wanted = torch.randn(2, 7, OUT, dtype=torch.float64)
    found = torch.autograd.grad(
        linear(x, weight, bias, activation=activation), (x, weight.data, bias), wanted
    )
    dense = ACTIVATIONS[activation](torch.nn.functional.linear(x, dense_of(weight), bias))
    expected = torch.autograd.grad(dense, (x, weight.data, bias), wanted)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dense_left", [False, True])
def test_gradcheck_of_the_product(transposed: bool, dense_left: bool) -> None:
    weight = make_weight()
    values, indices, indptr = operands(weight)
    rows, cols = (IN, OUT) if transposed else (OUT, IN)
    shape, outer = ((3, rows), cols) if dense_left else ((cols, 3), rows)
    dense = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(outer, dtype=torch.float64, requires_grad=True)

    def product(values: Any, dense: Any, bias: Any) -> Any:
        return torch.ops.bsrgemm.matmul(
            values, indices, indptr, dense, bias, [OUT, IN], transposed, dense_left, None
        )

    inputs = (values.requires_grad_(), dense, bias)
    assert torch.autograd.gradcheck(product, inputs)
    assert torch.autograd.gradgradcheck(product, inputs)


def test_gradcheck_of_the_sampled_product() -> None:
    _, indices, indptr = operands(make_weight())
    a = torch.randn(OUT, 5, dtype=torch.float64, requires_grad=True)
    b = torch.randn(5, IN, dtype=torch.float64, requires_grad=True)

    def product(a: Any, b: Any) -> Any:
        return torch.ops.bsrgemm.sampled_matmul(a, b, indices, indptr, list(BLOCK))

    assert torch.autograd.gradcheck(product, (a, b))
    assert torch.autograd.gradgradcheck(product, (a, b))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("recorded", [False, True])
def test_opcheck(dtype: str, recorded: bool) -> None:
    weight = make_weight(getattr(torch, dtype))
    values, indices, indptr = operands(weight)
    dense = torch.randn(5, IN).to(values.dtype)
    bias = torch.randn(OUT).to(values.dtype)
    for x in (values, dense, bias):
        x.requires_grad_(recorded)
    options = ([OUT, IN], True, True, None if recorded else "gelu")
    torch.library.opcheck(
        torch.ops.bsrgemm.matmul.default, (values, indices, indptr, dense, bias, *options)
    )
    a = torch.randn(OUT, 5).to(values.dtype).requires_grad_(recorded)
    b = torch.randn(5, IN).to(values.dtype).requires_grad_(recorded)
    torch.library.opcheck(
        torch.ops.bsrgemm.sampled_matmul.default, (a, b, indices, indptr, list(BLOCK))
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_equals_eager_with_one_recompilation(backend: str) -> None:
    layer = BSRLinear(make_weight(torch.float32), torch.randn(OUT), activation="silu")
    frames = count_compilations(backend)
    compiled = torch.compile(layer, fullgraph=True, backend=frames)
    for tokens in (5, 9, 17, 33):
        x = torch.randn(tokens, IN, requires_grad=True)
        wanted = torch.randn(tokens, OUT)
        leaves = (x, layer.values, layer.bias)
        found = torch.autograd.grad(compiled(x), leaves, wanted)
        for a, b in zip(found, torch.autograd.grad(layer(x), leaves, wanted), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert frames.frame_count <= 2
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_the_function_compiled(kind: str, backend: str) -> None:
    """With a weight that it closes over, whose indices are of either library, and with others."""

    def made() -> Any:
        weight = make_weight(torch.float32)
        indices, indptr = weight.indices, weight.indptr
        if kind == "numpy":
            indices, indptr = indices.numpy(), indptr.numpy()
        return bsrgemm.bsr_array((weight.data.requires_grad_(), indices, indptr), (OUT, IN))

    outer, bias = made(), torch.randn(OUT, requires_grad=True)

    def function(x: Any, given: Any) -> Any:
        return linear(x, outer, bias, activation="gelu"), linear(x, given)

    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for tokens in (5, 9, 5):
        x, given = torch.randn(tokens, IN, requires_grad=True), made()
        leaves = x, outer.data, given.data, bias
        found, expected = compiled(x, given), function(x, given)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        wanted = [torch.randn(tokens, OUT) for _ in expected]
        for a, b in zip(
            torch.autograd.grad(found, leaves, wanted),
            torch.autograd.grad(expected, leaves, wanted),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, given)[1], linear(x, given))


@pytest.mark.filterwarnings("ignore:Sparse BSR tensor support:UserWarning")
@torch.no_grad()
def test_a_weight_of_a_sparse_tensor_goes_into_compiled_code() -> None:
    sparse = torch.randn(OUT, IN).to_sparse_bsr(BLOCK)
    weight, x = bsrgemm.bsr_array(sparse), torch.randn(5, IN)
    compiled = torch.compile(linear, fullgraph=True, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x, weight), linear(x, weight))
        sparse.values().mul_(2)  # which shares its memory
    assert weight.data.data_ptr() == sparse.values().data_ptr()


# Code that makes and reads matrices is left to Python, with a warning.
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.filterwarnings("ignore:Sparse BSR tensor support:UserWarning")
@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.todense(),
        lambda a: a.copy().data,
        lambda a: a.T.copy().data,
        lambda a: a.to_torch().to_dense(),
        lambda a: torch.as_tensor(a.block_mask()),
        lambda a: (a * a).data,
        lambda a: bsrgemm.bsr_array(a.data[0][:3, :7], blocksize=(2, 2)).data,
        lambda a: BSRLinear(a).values,
    ],
)
@torch.no_grad()
def test_what_reads_patterns_in_compiled_code(function: Any) -> None:
    weight = make_weight()
    torch.compiler.reset()
    found = torch.compile(function, backend="eager")(weight)
    assert torch.equal(found, function(weight))


def test_export() -> None:
    layer = BSRLinear(make_weight(torch.float32), torch.randn(OUT), activation="gelu").eval()
    layer.requires_grad_(False)
    tokens = torch.export.Dim("tokens", min=2, max=64)
    exported = torch.export.export(layer, (torch.randn(5, IN),), dynamic_shapes=({0: tokens},))
    x = torch.randn(23, IN)
    torch.testing.assert_close(exported.module()(x), layer(x))


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_exported_without_gradients_runs_where_they_are_recorded(strict: bool) -> None:
    layer = BSRLinear(make_weight(), activation="gelu")
    x = torch.randn(5, IN, dtype=torch.float64)
    with torch.no_grad():
        exported = torch.export.export(layer, (x,), strict=strict)
    y = exported.module()(x)
    torch.testing.assert_close(y, layer(x))
    with pytest.raises(RuntimeError, match="activation is applied by the operator"):
        y.sum().backward()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit")
@pytest.mark.parametrize("recorded", [True, False])
def test_traces_have_gradients(recorded: bool) -> None:
    layer = BSRLinear(make_weight(), activation="gelu")
    x = torch.randn(2, 7, IN, dtype=torch.float64, requires_grad=True)
    with torch.set_grad_enabled(recorded):
        traced = torch.jit.trace(layer, (x.detach(),))
    leaves, wanted = (x, layer.values), torch.randn(2, 7, OUT, dtype=torch.float64)
    found = torch.autograd.grad(traced(x), leaves, wanted)
    for a, b in zip(found, torch.autograd.grad(layer(x), leaves, wanted), strict=True):
        torch.testing.assert_close(a, b)


def test_autocast() -> None:
    layer = BSRLinear(make_weight(torch.float32), torch.randn(OUT))
    x = torch.randn(5, IN)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert layer.values.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_autocast_casts_floating_point_only(dtype: Any) -> None:
    layer = BSRLinear(make_weight(torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(TypeError, match="input is"):
        layer(torch.ones(5, IN, dtype=dtype))


def test_from_linear_keeps_the_largest_blocks() -> None:
    dense = torch.nn.Linear(64, 32, dtype=torch.float64)
    whole = BSRLinear.from_linear(dense, blocksize=(8, 16), density=1.0)
    x = torch.randn(3, 64, dtype=torch.float64)
    torch.testing.assert_close(whole(x), dense(x))
    layer = BSRLinear.from_linear(dense, blocksize=(8, 16), density=0.25)
    assert layer.density == 0.25 and layer.values.shape == (4, 8, 16)
    norms = dense.weight.detach().view(4, 8, 4, 16).square().sum((1, 3)).flatten()
    kept = layer.values.detach().square().sum((1, 2))
    assert kept.min() >= norms.sort().values[-4] * (1 - 1e-12)
    assert layer.weight.data is layer.values


@pytest.mark.parametrize("trained", [False, True])
def test_from_linear_of_parametrized_layers(trained: bool) -> None:
    """Whose weight is computed, and requires grad or not whatever the mode it is read in."""
    dense = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(IN, OUT))
    dense.requires_grad_(trained)
    with torch.no_grad():
        layer = BSRLinear.from_linear(dense, blocksize=BLOCK, density=1.0)
    assert layer.values.requires_grad == layer.bias.requires_grad == trained
    x = torch.randn(5, IN)
    torch.testing.assert_close(layer(x), dense(x), rtol=1e-5, atol=1e-5)


def test_state_copies_and_moves() -> None:
    layer = BSRLinear(make_weight(torch.float32), torch.randn(OUT), activation="relu")
    x = torch.randn(5, IN)
    expected = layer(x)
    assert set(layer.state_dict()) == {"values", "indices", "indptr", "bias"}
    assert all(v.is_contiguous() for v in layer.state_dict().values())
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.values.zero_()
    other.load_state_dict(torch.load(file))
    for twin in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), expected)
    assert layer.half()(x.half()).dtype == torch.float16
    assert "blocksize=(4, 8)" in repr(layer) and "activation='relu'" in repr(layer)


def test_another_pattern_of_the_same_size_is_seen() -> None:
    """A state of another pattern is copied into the same index tensors."""
    layer = BSRLinear(bsrgemm.bsr_array((torch.ones(1, 2, 2), [0], [0, 1, 1]), (4, 4)))
    x = torch.tensor([[1.0, 1.0, 5.0, 5.0]])
    assert layer(x).tolist() == [[2, 2, 0, 0]]
    state = layer.state_dict() | {"indices": torch.tensor([1]), "indptr": torch.tensor([0, 0, 1])}
    layer.load_state_dict(state)
    assert layer(x).tolist() == [[0, 0, 10, 10]]


def test_sparsify_replaces_what_it_can() -> None:
    class Odd(torch.nn.Linear):
        pass

    shared = torch.nn.Linear(32, 32)
    model = torch.nn.ModuleDict(
        {
            "inner": torch.nn.Sequential(shared, torch.nn.ReLU(), shared),
            "head": torch.nn.Linear(32, 10),
            "odd": Odd(32, 32),
            "skipped": torch.nn.Linear(32, 32),
        }
    )
    report = sparsify_(
        model, blocksize=(16, 16), density=0.5, filter=lambda name, _: name != "skipped"
    )
    said = {r.name: (r.density, r.reason) for r in report}
    assert said["inner.0"] == said["inner.2"] == (0.5, None)
    assert isinstance(model["inner"][0], BSRLinear) and model["inner"][0] is model["inner"][2]
    assert [said[name][0] for name in ("head", "odd", "skipped")] == [None] * 3
    assert "(10, 32)" in said["head"][1] and "Odd" in said["odd"][1]
    assert "filter" in said["skipped"][1]
    assert type(model["head"]) is type(model["skipped"]) is torch.nn.Linear
    with pytest.raises(TypeError, match="module is a Linear"):
        sparsify_(shared, blocksize=(16, 16), density=0.5)


def test_new_layers_train_what_the_dense_one_does() -> None:
    for frozen_weight, frozen_bias, training, device in itertools.product(
        (True, False), (True, False), (True, False), ("cpu", "meta")
    ):
        dense = torch.nn.Linear(8, 12, device=device).train(training)
        dense.weight.requires_grad_(not frozen_weight)
        dense.bias.requires_grad_(not frozen_bias)
        model = torch.nn.Sequential(dense)
        sparsify_(model, blocksize=(4, 4), density=0.5)
        for layer in (model[0], BSRLinear.from_linear(dense, blocksize=(4, 4), density=0.5)):
            assert isinstance(layer, BSRLinear) and layer.training is training
            assert layer.values.requires_grad is not frozen_weight
            assert layer.bias.requires_grad is not frozen_bias
    plain = torch.nn.Linear(8, 12, bias=False).requires_grad_(False)
    layer = BSRLinear.from_linear(plain, blocksize=(4, 4), density=0.5)
    assert layer.bias is None and not any(p.requires_grad for p in layer.parameters())


def test_a_bias_stays_the_parameter_that_it_is() -> None:
    """So that ties and optimizers go on with it."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].bias = bias = model[0].bias
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert all(r.reason is None for r in sparsify_(model, blocksize=(4, 4), density=1.0))
    assert model[0].bias is bias and model[1].bias is bias
    assert [name for name, _ in model.named_parameters()] == ["0.values", "0.bias", "1.values"]
    before = bias.detach().clone()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].bias, before)
    dense = torch.nn.Linear(8, 8)
    alone = BSRLinear.from_linear(dense, blocksize=(4, 4), density=0.5)
    assert alone.bias.data_ptr() == dense.bias.data_ptr()
    assert alone.double().bias.dtype == torch.float64 and dense.bias.dtype == torch.float32
    weight = bsrgemm.bsr_array(torch.ones(8, 8), blocksize=(4, 4))
    assert BSRLinear(weight, dense.bias).bias is dense.bias
    plain = torch.zeros(8)
    layer = BSRLinear(bsrgemm.bsr_array(torch.ones(8, 8), blocksize=(4, 4)), plain)
    assert isinstance(layer.bias, torch.nn.Parameter) and layer.bias.requires_grad
    assert layer.bias.data_ptr() == plain.data_ptr()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("padded", [False, True])
def test_encoders_of_torch(padded: bool) -> None:
    """Which otherwise take weights past forward where nothing is recorded."""
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 5, 32), None
    if padded:
        padding = torch.arange(5) >= torch.tensor([[5], [3]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        sparsify_(model, blocksize=(16, 16), density=1.0)
        assert isinstance(model.layers[1].linear2, BSRLinear)
        found = model(x, src_key_padding_mask=padding)
        of_layer = model.layers[0](x)
    kept = slice(None) if padding is None else ~padding
    torch.testing.assert_close(found[kept], expected[kept])
    assert of_layer.shape == x.shape


def test_a_weight_of_two_modules_is_left() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.Linear(16, 8, bias=False))
    model[1].weight = model[0].weight
    (report,) = sparsify_(model, blocksize=(4, 4), density=0.5)
    assert report.reason == "its weight is 0.weight, too" and model[1].weight is model[0].weight


@torch.no_grad()
def test_layers_that_are_compiled_already_are_left() -> None:
    """What torch.compile returns calls the dense layer, whatever takes its place."""
    dense, inner = torch.nn.Linear(8, 8), torch.nn.Sequential(torch.nn.Linear(8, 8))
    alone, around = (torch.compile(x, backend="eager") for x in (dense, inner))
    x = torch.randn(3, 8)
    for model in (alone, torch.nn.Sequential(alone), torch.nn.Sequential(dense, alone)):
        expected = model(x)
        for report in sparsify_(model, blocksize=(4, 4), density=0.5):
            assert report.density is None and "torch.compile has wrapped it" in report.reason
        assert torch.equal(model(x), expected)
    around(x)
    (report,) = sparsify_(around, blocksize=(4, 4), density=0.5)
    assert report.density == 0.5
    torch.testing.assert_close(around(x), inner(x))
    assert isinstance(inner[0], BSRLinear)


def ignore(*_: Any) -> None:
    """A hook."""


def make_complex(linear: Any) -> None:
    linear.weight = torch.nn.Parameter(linear.weight.detach().to(torch.complex64))


def replace_forward(linear: Any) -> None:
    linear.forward = lambda x: 2 * x


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x.register_forward_hook(ignore), "forward hooks"),
        (lambda x: x.register_forward_pre_hook(ignore), "forward pre hooks"),
        (lambda x: x.register_full_backward_hook(ignore), "backward hooks"),
        (lambda x: x.register_full_backward_pre_hook(ignore), "backward pre hooks"),
        (lambda x: x.register_state_dict_post_hook(ignore), "state dict hooks"),
        (lambda x: x.register_state_dict_pre_hook(ignore), "state dict pre hooks"),
        (lambda x: x.register_load_state_dict_pre_hook(ignore), "load state dict pre hooks"),
        (lambda x: x.register_load_state_dict_post_hook(ignore), "load state dict post hooks"),
        (torch.nn.utils.weight_norm, "forward pre hooks"),
        (torch.nn.utils.spectral_norm, "forward pre hooks"),
        (torch.nn.utils.parametrizations.weight_norm, "it is a ParametrizedLinear"),
        (replace_forward, "its forward has been replaced"),
        (make_complex, "its weight is complex64"),
    ],
)
def test_sparsify_leaves_what_would_change(change: Any, reason: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    change(model[1])
    left = model[1]
    report = sparsify_(model, blocksize=(4, 4), density=0.5)
    assert isinstance(model[0], BSRLinear) and report[0].reason is None
    assert model[1] is left and report[1].density is None and reason in report[1].reason


def test_sparsify_replaces_all_or_nothing() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight = torch.nn.Parameter(model[1].weight.detach().to_sparse())
    before = list(model)
    with pytest.raises(TypeError, match="dense is a torch tensor of layout"):
        sparsify_(model, blocksize=(4, 4), density=0.5)
    assert all(a is b for a, b in zip(model, before, strict=True))


def test_training_lowers_the_loss() -> None:
    torch.manual_seed(0)  # of one in a thousand it takes longer
    target = BSRLinear(make_weight(torch.float32), torch.randn(OUT))
    layer = BSRLinear(target.weight.copy(), torch.zeros(OUT))
    with torch.no_grad():
        layer.values.normal_()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    x = torch.randn(256, IN)
    wanted = target(x).detach()
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(layer(x), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 1e-3 * losses[0]


def test_frozen_layers_keep_nothing_of_their_input() -> None:
    layer = BSRLinear.from_linear(torch.nn.Linear(64, 32), blocksize=(8, 16), density=0.5)
    layer.values.requires_grad_(False)
    kept: list[Any] = []

    def pack(tensor: Any) -> Any:
        kept.append(tensor.shape)
        return tensor

    for x in (torch.randn(5, 64), torch.randn(2, 64, 5).transpose(1, 2)):
        for call in (layer, torch.compile(layer, backend="aot_eager"), torch.vmap(layer)):
            kept.clear()
            x = x.detach().requires_grad_()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                y = call(x)
            assert x.shape not in kept and (x.numel() // 64, 64) not in kept
            y.sum().backward()
            expected = layer.weight.todense().sum(0).expand_as(x)
            assert torch.allclose(x.grad, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"weight": torch.eye(4)}, TypeError, "weight is a Tensor"),
        ({"input": torch.randn(2, IN + 1)}, ValueError, rf"accepted: \(\.\.\., {IN}\)"),
        ({"bias": torch.randn(OUT + 1)}, ValueError, rf"accepted: \({OUT},\)"),
        ({"activation": "tanh"}, ValueError, "activation is 'tanh'; accepted: None, 'relu'"),
        ({"input": torch.randn(2, IN).double()}, TypeError, "float64"),
    ],
)
def test_malformed_arguments(change: dict[str, Any], error: type, text: str) -> None:
    arguments = {"input": torch.randn(2, IN), "weight": make_weight(torch.float32)}
    with pytest.raises(error, match=text):
        linear(**(arguments | change))


def test_views_are_refused() -> None:
    with pytest.raises(TypeError, match="weight is a transposed view"):
        linear(torch.randn(2, OUT).double(), make_weight().T)
    with pytest.raises(TypeError, match="no transposed view"):
        BSRLinear(make_weight().T)
    with pytest.raises(TypeError, match="linear is a ReLU"):
        BSRLinear.from_linear(torch.nn.ReLU(), blocksize=(4, 4), density=0.5)
