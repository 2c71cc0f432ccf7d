"""Trains a small vision transformer on handwritten digits twice: dense, and with the weights of its
feed-forward layers pruned to blocks along the way.

    pip install . torch scikit-learn
    python examples/train_pruned.py [--device cuda --full] [--out curves.json]

Both trainings see the same batches. With ``--out`` their losses are written side by side, one for
every ``prune_every`` steps, with the density that the sparse one had then.

The digits, 1797 images of 8 x 8 pixels, come with scikit-learn. Pruning follows the cubic schedule
of Zhu and Gupta, "To prune, or not to prune" (2017), block by block.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bsrgemm
import numpy as np
import torch
from bsrgemm.torch import BSRLinear, sparsify_
from torch import nn

PATCH, SIDE, CLASSES = 2, 8, 10
TEST_IMAGES = 360  # the last ones, by other writers than the first


@dataclass(frozen=True)
class Settings:
    width: int
    layers: int
    block: int
    density: float
    steps: int
    batch: int
    dtype: str = "float32"
    rate: float = 1e-3
    prune_every: int = 20


SMALL = Settings(width=64, layers=2, block=16, density=0.25, steps=1000, batch=64, rate=3e-3)
FULL = Settings(
    width=1024,
    layers=6,
    block=128,
    density=0.125,
    steps=2000,
    batch=1024,
    dtype="bfloat16",
    rate=3e-4,
)


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images, [count, 8, 8] from 0 to 1, and what they show."""
    package = importlib.metadata.distribution("scikit-learn")
    path = Path(str(package.locate_file("sklearn/datasets/data/digits.csv.gz")))
    with gzip.open(path) as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1]).view(-1, SIDE, SIDE) / 16
    return images, torch.from_numpy(table[:, -1]).long()


class Layer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.project(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Classifier(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.embed = nn.Linear(PATCH * PATCH, width)
        self.position = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, width))
        heads = width // 32
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(settings.layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        side = SIDE // PATCH
        patches = images.view(-1, side, PATCH, side, PATCH).transpose(2, 3)
        x = self.embed(patches.reshape(-1, side * side, PATCH * PATCH)) + self.position
        return self.head(self.norm(self.layers(x)).mean(dim=1))


def density_at(step: int, settings: Settings) -> float:
    """1 for the first fifth of the training, the final one for the last two fifths."""
    first, last = 0.2 * settings.steps, 0.6 * settings.steps
    done = min(max((step - first) / (last - first), 0.0), 1.0)
    return settings.density + (1 - settings.density) * (1 - done) ** 3


def train(settings: Settings, device: str, sparse: bool, seed: int) -> dict[str, Any]:
    """Losses, each the mean of as many steps as lie between two prunings, and the accuracy.

    The time of a step is that of the last two fifths, after the pruning.
    """
    torch.manual_seed(seed)
    images, labels = (x.to(device) for x in load_digits())
    train_count = len(images) - TEST_IMAGES
    model = Classifier(settings).to(device)
    if sparse:
        block = (settings.block, settings.block)
        feed_forward = ("up", "down")
        sparsify_(
            model,
            blocksize=block,
            density=1.0,
            filter=lambda name, _: name.rsplit(".", 1)[-1] in feed_forward,
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / settings.steps))
    )
    kind = torch.device(device).type
    half = settings.dtype != "float32"
    losses, densities, ends, since = [], [], [], []
    generator = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    for step in range(settings.steps):
        chosen = torch.randint(train_count, (settings.batch,), generator=generator).to(device)
        with torch.autocast(kind, getattr(torch, settings.dtype), enabled=half):
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        since.append(loss.detach())
        if (step + 1) % settings.prune_every == 0:
            for layer in model.modules():
                if isinstance(layer, BSRLinear):
                    layer.prune_(density_at(step, settings), optimizer)
            densities.append(density_at(step, settings) if sparse else 1.0)
            losses.append(round(float(torch.stack(since).mean()), 4))  # waits for the device
            ends.append(time.perf_counter())
            since.clear()
    late = len(ends) * 3 // 5
    step_ms = 1e3 * (ends[-1] - ends[late]) / (len(ends) - 1 - late) / settings.prune_every
    model.eval()
    with torch.no_grad(), torch.autocast(kind, getattr(torch, settings.dtype), enabled=half):
        found = model(images[train_count:]).argmax(dim=1)
    accuracy = float((found == labels[train_count:]).double().mean())
    return {
        "loss": losses,
        "density": [round(d, 4) for d in densities],
        "accuracy": round(accuracy, 4),
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(ends[-1] - start, 2),
        "step_ms": round(step_ms, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--full", action="store_true", help="the large model, for a GPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the curves to this JSON file")
    args = parser.parse_args()
    settings = FULL if args.full else SMALL
    bsrgemm.set_num_threads(torch.get_num_threads())
    curves = {}
    for name, sparse in (("dense", False), ("sparse", True)):
        curve = curves[name] = train(settings, args.device, sparse, args.seed)
        print(
            f"{name}: loss {curve['loss'][0]:.3f} -> {curve['loss'][-1]:.4f}, accuracy on "
            f"{TEST_IMAGES} other images {curve['accuracy']:.3f}, "
            f"{curve['parameters']} parameters, "
            f"{curve['seconds']:.1f} s, {curve['step_ms']:.2f} ms a step at the end",
            flush=True,
        )
    if args.out:
        record = {
            "device": torch.cuda.get_device_name() if args.device != "cpu" else "cpu",
            "threads": bsrgemm.get_num_threads(),
            "torch": torch.__version__,
            "bsrgemm": bsrgemm.__version__,
            "settings": asdict(settings),
            "seed": args.seed,
            **curves,
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
