"""Both layers of a mixture of experts on cuda:0, block-sparse, beside torch's grouped_mm.

Tokens of an expert lie one behind the other, here filled up to whole blocks. Rates count the tokens
that there are. examples/moe.py is the whole layer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bsrgemm import DynamicPattern, matmul, sampled_matmul

from .arguments import are_any
from .cases import select
from .gpu import add_measure_arguments, measure
from .records import Results, make_row
from .suite import Outcome, relative_error
from .timing import DeviceTimer

RIVAL = "grouped_mm"


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

    return measure(args, cases, make_suite)  # type: ignore[arg-type]


class ExpertsSuite:
    """Checks and times one case after the other. ``timer`` has prepare and sustained."""

    broken: Exception | None = None

    def __init__(
        self, torch: Any, timer: Any, peers: Iterable[str], device: str = "cuda:0"
    ) -> None:
        self.torch, self.timer, self.peers, self.device = torch, timer, tuple(peers), device

    def run(self, case: ExpertsCase) -> Outcome:
        torch, outcome = self.torch, Outcome()
        width, hidden, experts = case.width, case.hidden, case.experts
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
        blocks = len(mask) * (hidden // case.block)
        shape = len(real), experts * hidden
        pattern = DynamicPattern(shape, (case.block, case.block), blocks, self.device)
        pattern.update(mask)
        values = sampled_matmul(padded, up, pattern)
        y = matmul(values, down)

        up_each = up.view(width, experts, hidden).permute(1, 0, 2).contiguous()
        down_each = down.view(experts, hidden, width)
        of_expert = zip(x.split(counts.tolist()), up_each, down_each, strict=True)
        expected = torch.cat([x.float() @ w.float() @ v.float() for x, w, v in of_expert])
        error = relative_error(torch, y[real], expected.double())
        outcome.wrong = not error <= (1e-5 if case.dtype == "float32" else 1e-2)
        del expected

        self._time(outcome, case, "pattern", lambda: pattern.update(mask), 0.0)
        self._time(outcome, case, "up", lambda: sampled_matmul(padded, up, pattern, out=values))
        self._time(outcome, case, "down", lambda: matmul(values, down, out=y))
        if RIVAL in self.peers:
            grouped, ends = torch.nn.functional.grouped_mm, counts.cumsum(0).int()
            between = grouped(x, up_each, offs=ends)
            self._time(outcome, case, "grouped_up", lambda: grouped(x, up_each, offs=ends))
            self._time(
                outcome, case, "grouped_down", lambda: grouped(between, down_each, offs=ends)
            )
        return outcome

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

    def _time(
        self,
        outcome: Outcome,
        case: ExpertsCase,
        who: str,
        call: Callable[[], Any],
        flops: float | None = None,
    ) -> None:
        call, estimate = self.timer.prepare(call)
        seconds = self.timer.sustained(call, estimate).seconds
        flops = case.useful_flops if flops is None else flops
        extra = {"wrong": True} if outcome.wrong else {}
        outcome.rows.append(make_row(case, who, "sustained", seconds, flops, **extra))
        outcome.notes.append(f"{who} {seconds * 1e6:.4g} us")
