"""A mixture of experts without dropped tokens: routing becomes a block pattern, on the GPU alone.

    python examples/moe.py [--device cuda] [--tokens 16384] [--out moe.json]

Each token goes to the experts that the router likes best. Tokens of one expert lie one behind the
other, filled up to whole blocks of rows, and the hidden layers of all experts lie side by side. So
the hidden activations are a block-sparse matrix: a row of blocks has those of its expert. The first
layer is a sampled product, dense x dense at these blocks, the second one block-sparse x dense, and
their gradients are products of the same kinds. (T. Gale et al., MegaBlocks, 2022.)

How many tokens an expert has is known to the GPU alone. A ``BlockPattern`` has room for what there
may be at most, so the host asks for no number, a CUDA graph can hold the layer with its gradients,
and torch.compile makes one graph of it for all numbers of tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import bsrgemm
import torch
from bsrgemm.torch import BlockPattern, matmul, sampled_matmul
from torch import nn
from torch.nn import functional as F


class Routing(NamedTuple):
    """Where the chosen tokens go. Rows: of the matrix in which experts' tokens lie together."""

    weight: torch.Tensor  # [tokens, top]
    row: torch.Tensor  # [tokens, top]
    ends: torch.Tensor  # [experts]: behind each expert's rows, in blocks


class Take(torch.autograd.Function):
    """``x[index]``. ``back`` says which rows of that each row of x has become, one or several: so
    the gradient takes rows, too, where autograd's own would add to rows in memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(back)
        return x[index]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (back,) = ctx.saved_tensors
        of_x = gradients[0][back]
        return of_x if back.ndim == 1 else of_x.sum(1), None, None


class MixtureOfExperts(nn.Module):
    """Of so many experts with two layers each, ``top`` for every token."""

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        top: int = 1,
        block: int = 128,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.experts, self.top, self.block = experts, top, block
        self.router = nn.Linear(width, experts, bias=False, device=device, dtype=dtype)
        made = {"device": device, "dtype": dtype}
        self.up = nn.Parameter(torch.randn(width, experts * hidden, **made) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts * hidden, width, **made) / hidden**0.5)

    def route(self, x: torch.Tensor) -> Routing:
        scores = self.router(x).softmax(-1, dtype=torch.float32)
        weight, chosen = scores.topk(self.top, -1)
        expert, order = chosen.flatten().sort(stable=True)
        counts = torch.zeros(self.experts, dtype=torch.int64, device=x.device)
        counts.scatter_add_(0, expert, torch.ones_like(expert))
        blocks = (counts + self.block - 1) // self.block
        ends = blocks.cumsum(0)
        # Where a token lies among those of its expert, behind the blocks of the experts before.
        within = torch.arange(len(order), device=x.device) - (counts.cumsum(0) - counts)[expert]
        row = (ends - blocks)[expert] * self.block + within
        row = torch.empty_like(row).scatter(0, order, row)
        return Routing(weight.to(x.dtype), row.view(chosen.shape), ends)

    def pattern(self, routing: Routing, rows: int) -> BlockPattern:
        """Which blocks there are: of each row of blocks those of its expert."""
        of_row = torch.arange(rows // self.block, device=routing.ends.device)
        expert = torch.searchsorted(routing.ends, of_row, right=True)
        across = self.up.shape[1] // self.block
        each = across // self.experts
        mask = expert[:, None] == torch.arange(across, device=expert.device) // each
        return BlockPattern.from_mask(mask, (self.block, self.block), len(of_row) * each)

    def rows(self, tokens: int) -> int:
        """At most: every expert may fill up a block."""
        chosen = tokens * self.top
        return (-(-chosen // self.block) + min(self.experts, chosen)) * self.block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens of shape (tokens, width)."""
        rows = self.rows(len(x))
        routing = self.route(x)
        pattern = self.pattern(routing, rows)
        row = routing.row.flatten()
        # What lies in each row: which choice, of which token. Rows that are nobody's are zeros, so
        # that whatever gradient they get counts for nothing.
        choice = torch.zeros(rows, dtype=torch.int64, device=x.device)
        choice = choice.scatter(0, row, torch.arange(len(row), device=x.device))
        token = torch.full_like(choice, len(x)).scatter(0, row, choice[row] // self.top)
        with_zeros, back = F.pad(x, (0, 0, 0, 1)), F.pad(routing.row, (0, 0, 0, 1))
        gathered = Take.apply(with_zeros, token, back)
        values = F.gelu(sampled_matmul(gathered, self.up, pattern))
        y = matmul(pattern.array(values), self.down)
        chosen = Take.apply(y, row, choice).view(*routing.row.shape, -1)
        return (chosen * routing.weight[..., None]).sum(1)


def one_by_one(layer: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    """The same with a dense product for each expert, whose tokens the host has to count."""
    routing, y = layer.route(x), torch.zeros_like(x)
    ends = [0, *(routing.ends * layer.block).tolist()]
    up = layer.up.view(x.shape[1], layer.experts, -1)
    down = layer.down.view(layer.experts, -1, x.shape[1])
    for expert in range(layer.experts):
        mine = (routing.row >= ends[expert]) & (routing.row < ends[expert + 1])
        token, choice = mine.nonzero(as_tuple=True)
        of_expert = F.gelu(x[token] @ up[:, expert]) @ down[expert]
        y = y.index_add(0, token, of_expert * routing.weight[token, choice, None])
    return y


def take_turns(calls: list[Callable[[], Any]], cuda: bool, least: float) -> list[float]:
    """Median time in ms of calls that are waited for, in ``least`` seconds or four calls each."""
    times: list[list[float]] = [[] for _ in calls]
    begin = time.perf_counter()
    while time.perf_counter() < begin + least or len(times[0]) < 4:
        for call, its_times in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if cuda:
                torch.cuda.synchronize()
            its_times.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(x[1:]) for x in times]


def gradients(y: torch.Tensor, layer: nn.Module) -> Any:
    """Of a training step with these results."""
    return torch.autograd.grad(y.square().mean(), list(layer.parameters()))


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """A step as one CUDA graph, which reads what its operands hold at the time."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--tokens", type=int, default=16384 if cuda else 512)
    parser.add_argument("--width", type=int, default=2048 if cuda else 128)
    parser.add_argument("--hidden", type=int, default=4096 if cuda else 256, help="of an expert")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top", type=int, default=2, help="experts of a token")
    parser.add_argument("--block", type=int, default=128 if cuda else 32)
    parser.add_argument("--seconds", type=float, default=1.0, help="for which calls are timed")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    given = parser.parse_args(argv)
    if min(given.tokens, given.width, given.hidden, given.block) < 1:
        parser.error("--tokens, --width, --hidden and --block must be 1 or more")
    if given.width % given.block or given.hidden % given.block:
        parser.error(f"--width and --hidden must be multiples of --block, {given.block}")
    if not 1 <= given.top <= given.experts:
        parser.error(f"--top is {given.top}; accepted: from 1 to --experts, {given.experts}")

    torch.manual_seed(0)
    on_gpu = torch.device(given.device).type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    sizes = (given.width, given.hidden, given.experts, given.top, given.block)
    layer = MixtureOfExperts(*sizes, device=given.device, dtype=dtype)
    x = torch.randn(given.tokens, given.width, device=given.device, dtype=dtype)
    with torch.no_grad():
        error = (layer(x) - (expected := one_by_one(layer, x))).norm() / expected.norm()
        pattern = layer.pattern(layer.route(x), layer.rows(given.tokens))
    rows, cols = (n // given.block for n in pattern.shape)
    print(f"{int(pattern.counts[0])} of {rows * cols} blocks, {pattern!r}")
    print(f"differs from experts one by one by {error:.1e}")

    calls = [lambda: layer(x), lambda: one_by_one(layer, x)]
    steps = [lambda call=call: gradients(call(), layer) for call in calls]
    with torch.no_grad():
        if on_gpu:
            calls.append(captured(calls[0]))
        forward = take_turns(calls, on_gpu, given.seconds)
    if on_gpu:
        steps.append(captured(steps[0]))
    backward = take_turns(steps, on_gpu, given.seconds)
    settings = {k: v for k, v in vars(given).items() if k not in ("device", "out")}
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name(x.device) if on_gpu else "cpu",
        "threads": bsrgemm.get_num_threads(),
        "torch": torch.__version__,
        "bsrgemm": bsrgemm.__version__,
        "settings": settings,
        "error": float(error),
    }
    for name, times in (("forward", forward), ("forward and backward", backward)):
        flops = 4.0 * given.tokens * given.top * given.width * given.hidden
        flops *= 3 if name != "forward" else 1
        rates = [flops / time / 1e9 for time in times]
        record[name] = {"ms": times, "tflops": rates}  # layer, one by one, layer as a graph
        names = ("as calls", "experts one by one", "as a CUDA graph")[: len(times)]
        shown = (
            f"{n} {t:.2f} ms ({r:.3g} TF/s)" for n, t, r in zip(names, times, rates, strict=True)
        )
        print(f"{name}: {', '.join(shown)}")
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
