"""What PyTorch's users do with a module besides calling it: saving, moving, copying, sharding."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spaces import import_torch

torch = import_torch()

import bsrgemm  # noqa: E402
from bsrgemm.torch import BSRLinear, sparsify_  # noqa: E402 (skipped above where torch is missing)

BLOCK, OUT, IN = (4, 8), 16, 32


@pytest.fixture(autouse=True)
def _seeded(rng: np.random.Generator) -> None:
    torch.manual_seed(int(rng.integers(2**62)))


def make_layer(density: float = 0.5, activation: str | None = "relu") -> Any:
    dense = torch.nn.Linear(IN, OUT)
    return BSRLinear.from_linear(dense, blocksize=BLOCK, density=density, activation=activation)


def make_model(density: float, device: str = "cpu") -> Any:
    with torch.device(device):
        model = torch.nn.Sequential(
            torch.nn.Linear(IN, 2 * IN), torch.nn.ReLU(), torch.nn.Linear(2 * IN, OUT)
        )
    sparsify_(model, blocksize=BLOCK, density=density)
    return model


def saved_by_torch(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    torch.save(state, folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)


def saved_by_safetensors(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    files = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    files.save_file(state, folder / "state.safetensors")
    return files.load_file(folder / "state.safetensors")


@pytest.mark.parametrize("saved", [saved_by_torch, saved_by_safetensors])
@pytest.mark.parametrize("other", [0.0, 0.25, 0.5, 1.0])
def test_a_state_fits_modules_of_any_pattern(saved: Any, other: float, tmp_path: Path) -> None:
    model, into = make_model(0.5), make_model(other)
    into[2].values.requires_grad_(False)
    state = saved(model.state_dict(), tmp_path)
    assert set(map(type, state.values())) == {torch.Tensor}
    x = torch.randn(5, IN)
    before = into(x)
    kept = into[0].values
    into.load_state_dict(state)
    assert not torch.equal(before, model(x)) and torch.equal(into(x), model(x))
    assert into[0].density == 0.5 and (into[0].values is kept) == (other == 0.5)
    assert into[0].values.requires_grad and not into[2].values.requires_grad


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_fits_modules_on_the_meta_device(assign: bool) -> None:
    model, into = make_model(0.5), make_model(0.125, "meta")
    assert into[0].values.is_meta and into[0].indices.is_meta and into[0].density == 0.125
    assert into(torch.empty(5, IN, device="meta")).shape == (5, OUT)
    if not assign:
        into.to_empty(device="cpu")
    into.load_state_dict(model.state_dict(), assign=assign)
    x = torch.randn(5, IN)
    assert torch.equal(into(x), model(x))
    into(x).sum().backward()
    assert into[0].values.grad.isfinite().all()


def test_states_that_do_not_fit() -> None:
    layer = make_layer()
    before = {name: x.clone() for name, x in layer.state_dict().items()}
    other = BSRLinear.from_linear(torch.nn.Linear(IN, OUT), blocksize=(8, 8), density=0.5)
    with pytest.raises(RuntimeError, match="size mismatch for values"):
        layer.load_state_dict(other.state_dict())
    state = make_layer(0.25).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch for indices"):
        layer.load_state_dict(state | {"indices": state["indices"][:-1]})
    with pytest.raises(RuntimeError, match="Missing key.*values"):
        layer.load_state_dict({k: v for k, v in before.items() if k != "values"})
    with pytest.raises(ValueError, match="density is 2"):
        BSRLinear.from_linear(torch.nn.Linear(8, 8, device="meta"), blocksize=(4, 4), density=2)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    layer, x = make_layer(), torch.randn(5, IN)
    expected, state = layer(x), {k: t.clone() for k, t in layer.state_dict().items()}
    kept = layer.values
    taller, fewer = (
        BSRLinear.from_linear(torch.nn.Linear(IN, out), blocksize=BLOCK, density=share).state_dict()
        for out, share in ((2 * OUT, 0.25), (OUT, 0.25))
    )
    assert taller["values"].shape == state["values"].shape
    for other, names in (
        (taller, "indptr"),
        (fewer | {"indptr": taller["indptr"]}, "indptr"),
        (fewer | {"indices": state["indices"]}, "indices"),
        (fewer | {"values": fewer["values"][..., :-1]}, "values"),
        (fewer | {"values": torch.tensor(1.0)}, "values"),
    ):
        with pytest.raises(RuntimeError, match=names):
            layer.load_state_dict(other, strict=False)
        assert torch.equal(layer(x), expected) and layer.values is kept
        assert all(torch.equal(t, state[k]) for k, t in layer.state_dict().items())
    with pytest.raises(RuntimeError, match="indptr"):
        layer.load_state_dict(fewer | {"indptr": fewer["indptr"].tolist()})
    assert layer.values is kept and layer(x).isfinite().all()


def test_a_malformed_pattern_in_a_state_is_noticed() -> None:
    layer = make_layer()
    state = layer.state_dict()
    with pytest.raises(RuntimeError, match=r"block column 77; accepted: less than 4, for 32 in_f"):
        layer.load_state_dict(state | {"indices": torch.full((8,), 77)})
    wider = BSRLinear.from_linear(torch.nn.Linear(2 * IN, OUT), blocksize=(4, 8), density=0.5)
    with pytest.raises(RuntimeError, match="block column [4-7]; accepted: less than 4"):
        layer.load_state_dict(wider.state_dict())
    layer.load_state_dict(state | {"indices": torch.full((8,), 3)})
    with pytest.raises(ValueError, match="are both 3 in block row [0-3]"):
        layer(torch.randn(2, IN))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(dtype: str) -> None:
    layer, kind = make_layer(), getattr(torch, dtype)
    expected = layer.double()(x := torch.randn(5, IN, dtype=torch.float64))
    layer = layer.to(kind)
    assert layer.values.dtype is layer.bias.dtype is kind
    assert layer.indices.dtype is layer.indptr.dtype is torch.int32
    y = layer(x.to(kind))
    error = (y.double() - expected).norm() / expected.norm()
    assert y.dtype is kind and error < {"float16": 3e-3, "bfloat16": 2e-2, "float64": 1e-15}[dtype]


def test_copies_share_nothing() -> None:
    layer = make_layer()
    x = torch.randn(5, IN)
    expected = layer(x)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    pickled = pickle.loads(pickle.dumps(layer))
    twins = [copy.deepcopy(layer), pickled, torch.load(file, weights_only=False)]
    with torch.no_grad():
        layer.values.zero_()
        layer.bias.zero_()
    for twin in twins:
        assert torch.equal(twin(x), expected) and repr(twin) == repr(layer)
        assert twin.indices.data_ptr() != layer.indices.data_ptr()


class OfParameter(torch.nn.Module):
    """A matrix around a parameter, whose memory torch's modules exchange."""

    def __init__(self) -> None:
        super().__init__()
        weight = make_layer().weight
        self.values = torch.nn.Parameter(weight.data.detach().clone())
        self.matrix = bsrgemm.bsr_array((self.values, weight.indices, weight.indptr), weight.shape)


@pytest.mark.parametrize("transposed", [False, True])
def test_copies_of_modules_keep_what_belongs_together(transposed: bool) -> None:
    module = OfParameter()
    if transposed:
        module.matrix = module.matrix.T
    twin = copy.deepcopy(module)
    matrix = twin.matrix.T if transposed else twin.matrix
    assert matrix.data is twin.values is not module.values and matrix.data.requires_grad
    assert matrix.indices.data_ptr() != make_layer().weight.indices.data_ptr()


def test_a_matrix_follows_its_parameter(tmp_path: Path) -> None:
    module = OfParameter()
    x = torch.randn(IN, 3, dtype=torch.float64)
    module.double()
    with torch.no_grad():
        module.values += 1e-12
        assert module.matrix.dtype is torch.float64 and "float64" in repr(module.matrix)
        whole = module.matrix.todense()
        found = bsrgemm.matmul(module.matrix, x, bias=torch.ones(3, dtype=torch.float64))
        torch.testing.assert_close(found, whole @ x + 1)
        module.matrix.save(tmp_path / "matrix.npz")
        twice = module.matrix + module.matrix.copy()
    assert torch.equal(torch.from_numpy(bsrgemm.load(tmp_path / "matrix.npz").todense()), whole)
    assert torch.equal(twice.todense(), 2 * whole)
    module.values.data = module.values.data[:1]
    with torch.no_grad(), pytest.raises(ValueError, match="data has 1 blocks"):
        module.matrix.todense()


def test_repr_says_what_a_layer_is() -> None:
    assert repr(make_layer()) == (
        "BSRLinear(in_features=32, out_features=16, bias=True, blocksize=(4, 8), density=0.5, "
        "activation='relu')"
    )


def test_functional_calls() -> None:
    layer = make_layer(activation=None)
    x = torch.randn(5, IN)
    doubled = torch.func.functional_call(layer, {"values": 2 * layer.values}, (x,))
    torch.testing.assert_close(doubled, 2 * layer(x) - layer.bias)


def test_exported_programs_are_saved() -> None:
    layer = make_layer(activation="gelu")
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(layer, (torch.randn(5, IN),), dynamic_shapes=({0: batch},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    x = torch.randn(9, IN)
    torch.testing.assert_close(torch.export.load(file).module()(x), layer(x))


# What each of two processes does: not those of pytest, since torch.distributed starts threads.
DISTRIBUTED = """
import copy
import os
import sys
import torch
import torch.distributed as dist
from bsrgemm.torch import sparsify_
from torch.distributed.fsdp import fully_shard
import bsrgemm._torch_operators as operators

rank = int(sys.argv[1])
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2)


def make(seed):
    torch.manual_seed(seed)
    sizes = ((32, 64), (64, 16))
    model = torch.nn.Sequential(*(torch.nn.Linear(*size) for size in sizes))
    sparsify_(model, blocksize=(4, 8), density=0.5)
    return model


def step(model, x, wanted):
    torch.nn.functional.mse_loss(model(x), wanted).backward()


def check(found):
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


layers = make(seed=3)
x, wanted = torch.randn(2, 6, 32), torch.randn(2, 6, 16)
whole = copy.deepcopy(layers)
step(whole, x.flatten(0, 1), wanted.flatten(0, 1))
expected = {name: p.grad for name, p in whole.named_parameters()}

# Until DDP broadcasts the pattern of the first process, the second one uses another.
inner = copy.deepcopy(layers)
if rank == 1:
    inner = make(seed=4)
    assert not torch.equal(inner[0].indices, layers[0].indices)
inner(x[rank])
model = torch.nn.parallel.DistributedDataParallel(inner)
step(model, x[rank], wanted[rank])
check({name: p.grad for name, p in inner.named_parameters()})
planned = len(operators._structures)
step(model, x[rank], wanted[rank])
assert len(operators._structures) == planned, "patterns were planned again"

mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
for ignored in (False, True):
    model = copy.deepcopy(layers)
    values = {layer.values for layer in model}
    fully_shard(model, mesh=mesh, ignored_params=values if ignored else None)
    step(model, x[rank], wanted[rank])
    found = {}
    for name, p in model.named_parameters():
        if ignored and "values" in name:  # its gradient is this process's
            assert type(p) is torch.nn.Parameter
            dist.all_reduce(p.grad)
            found[name] = p.grad / 2
        else:
            found[name] = p.grad.full_tensor()
    check(found)
    torch.optim.Adam(model.parameters()).step()
    assert model(x[rank]).isfinite().all()
dist.barrier()
dist.destroy_process_group()
# A thread of torch's that asks for the interpreter once that has ended would abort the process.
os._exit(0)
"""


def test_two_processes(tmp_path: Path) -> None:
    """DDP and FSDP2: gradients are those of one process with both batches."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DISTRIBUTED, str(rank), str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
