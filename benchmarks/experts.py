"""Both layers of a mixture of experts on cuda:0, block-sparse, beside torch's grouped_mm.

Tokens of an expert lie one behind the other, here filled up to whole blocks. Rates count the tokens
that there are. examples/moe.py is the whole layer.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bsrgemm import DynamicPattern, matmul, sampled_matmul

from .arguments import are_any
from .cases import select
from .gpu import add_measure_arguments, measure
from .records import Results, Row, make_row
from .suite import Guard, Outcome, is_right, relative_error
from .timing import DeviceTimer, graph_of

RIVAL = "grouped_mm"
# Of a layer's result or that of both, in the Frobenius norm.
ALLOWED = {"bfloat16": 1e-2, "float32": 1e-5}


@dataclass(frozen=True)
class ExpertsCase:
    """``experts`` of width x hidden, ``top`` for each token, chosen at random."""

    width: int
    hidden: int
    experts: int
    top: int
    tokens: int
    block: int
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        experts = f"{self.experts}x{self.width}x{self.hidden}/top{self.top}"
        return f"experts/{self.dtype}/{self.block}x{self.block}/{experts}/{self.tokens}"

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "op": "experts",
            "dtype": self.dtype,
            "block": [self.block, self.block],
            "width": self.width,
            "hidden": self.hidden,
            "experts": self.experts,
            "top": self.top,
            "tokens": self.tokens,
        }

    @property
    def useful_flops(self) -> float:
        """Of one layer."""
        return 2.0 * self.tokens * self.top * self.width * self.hidden


def experts_cases() -> Iterator[ExpertsCase]:
    """Sizes of published models: Mixtral 8x7B, Qwen3 30B, a quarter of DeepSeek-V3's experts."""
    for sizes in ((4096, 14336, 8, 2), (2048, 768, 128, 8), (7168, 2048, 64, 8)):
        for tokens, block in ((16, 64), (256, 64), (1024, 64), (4096, 128), (16384, 128)):
            yield ExpertsCase(*sizes, tokens, block)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_measure_arguments(parser, "experts", (RIVAL,), select="", groups="experts")


def run(args: argparse.Namespace) -> int:
    cases = select(experts_cases(), args.select)
    if not are_any(cases):
        return 2
    if args.dry_run:
        print(*(case.name for case in cases), sep="\n")
        return 0

    def make_suite(torch: Any, gpu: dict[str, Any], results: Results) -> ExpertsSuite:
        return ExpertsSuite(torch, DeviceTimer(torch), args.peers)

    return measure(args, cases, make_suite)


class ExpertsSuite(Guard):
    """Checks and times one case after the other. ``timer`` has prepare and sustained."""

    leading = "up"

    def __init__(
        self, torch: Any, timer: Any, peers: Iterable[str], device: str = "cuda:0"
    ) -> None:
        self.torch, self.timer, self.peers, self.device = torch, timer, tuple(peers), device

    def run(self, case: ExpertsCase) -> Outcome:
        torch, outcome = self.torch, Outcome()
        width, hidden, experts, block = case.width, case.hidden, case.experts, case.block
        kind = getattr(torch, case.dtype)

        def normal(*shape: int) -> Any:
            return torch.randn(*shape, device=self.device).to(kind)

        scores = torch.rand(case.tokens, experts, device=self.device)
        counts = torch.bincount(scores.topk(case.top, 1).indices.flatten(), minlength=experts)
        real, mask = self._place(case, counts)
        x = normal(case.tokens * case.top, width)
        padded = x.new_zeros(len(real), width)
        padded[real] = x
        up = normal(width, experts * hidden) / width**0.5
        down = normal(experts * hidden, width) / hidden**0.5
        up_each = up.view(width, experts, hidden).permute(1, 0, 2).contiguous()
        down_each = down.view(experts, hidden, width)
        of_expert = zip(x.split(counts.tolist()), up_each, down_each, strict=True)
        between, expected = (
            torch.cat(layer)
            for layer in zip(*(_exact(*operands) for operands in of_expert), strict=True)
        )

        across = hidden // block
        blocks = len(mask) * across
        shape = len(real), experts * hidden
        pattern = DynamicPattern(shape, (block, block), blocks, self.device)
        pattern.update(mask)
        values = pattern.array(x.new_full((blocks, block, block), math.nan))
        y = x.new_full((len(real), width), math.nan)

        def rows_of_values() -> Any:
            """Block rows of an expert have all columns of it, one behind the other."""
            tiles = values.data.view(len(mask), across, block, block)
            return tiles.transpose(1, 2).reshape(len(real), hidden)[real]

        def measure(
            who: str,
            call: Callable[[], Any],
            found: Callable[[], Any],
            expected: Any,
            flops: float = case.useful_flops,
        ) -> None:
            if not self.broken:
                what = partial(self._measure, case, who, call, found, expected, flops)
                self._attempt(case, who, outcome, what)

        measure(
            "pattern",
            lambda: pattern.update(mask),
            lambda: torch.as_tensor(pattern.to_mask(), device=self.device),
            mask.double(),
            0.0,
        )
        call = partial(sampled_matmul, padded, up, pattern, out=values)
        measure("up", call, rows_of_values, between)
        measure("down", lambda: matmul(values, down, out=y), lambda: y[real], expected)
        outcome.wrong = not is_right(outcome.rows)
        if RIVAL in self.peers:
            ends, given = counts.cumsum(0).int(), between.to(kind)
            for who, left, right, result in (
                ("grouped_up", x, up_each, between),
                ("grouped_down", given, down_each, expected),
            ):
                call = partial(self._grouped, left, right, ends)
                measure(who, call, call, result)
        return outcome

    def _grouped(self, left: Any, right: Any, ends: Any) -> Any:
        return self.torch.nn.functional.grouped_mm(left, right, offs=ends)

    def _place(self, case: ExpertsCase, counts: Any) -> tuple[Any, Any]:
        """Which rows of the padded tokens there are, and which blocks they have, with room for
        whatever else might have been chosen."""
        torch, block, experts = self.torch, case.block, case.experts
        chosen = case.tokens * case.top
        rows = -(-chosen // block) + min(experts, chosen)
        blocks = (counts + block - 1) // block
        ends = blocks.cumsum(0)
        row = torch.arange(rows, device=self.device)
        expert = torch.searchsorted(ends, row, right=True)
        across = case.hidden // block
        mask = expert[:, None] == torch.arange(experts * across, device=self.device) // across
        # Tokens that are left for a row of blocks, by experts; there is none behind the last.
        last = expert.clamp(max=experts - 1)
        left = (counts - (row[:, None] - (ends - blocks)) * block).gather(1, last[:, None])
        left = torch.where(expert < experts, left[:, 0], 0)
        real = torch.arange(block, device=self.device) < left[:, None]
        return real.flatten(), mask

    def _measure(
        self,
        case: ExpertsCase,
        who: str,
        call: Callable[[], Any],
        found: Callable[[], Any],
        expected: Any,
        flops: float,
    ) -> tuple[list[Row], str]:
        call()
        error = relative_error(self.torch, found(), expected)
        prepared, estimate = self.timer.prepare(call)
        seconds = self.timer.sustained(prepared, estimate).seconds
        allowed = 0.0 if who == "pattern" else ALLOWED[case.dtype]
        extra: dict[str, Any] = {} if error <= allowed else {"wrong": True}
        extra |= {"rel_err": error, **graph_of(prepared)}
        row = make_row(case, who, "sustained", seconds, flops, **extra)
        return [row], f"{seconds * 1e6:.4g} us"


def _exact(x: Any, up: Any, down: Any) -> tuple[Any, Any]:
    """What both layers of an expert give, in float64."""
    between = x.double() @ up.double()
    return between, between @ down.double()
