"""Softmax over stored elements on cuda:0, beside torch's softmax of a dense matrix of as many
elements. Rates count what has to move: every element read and written once."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from bsrgemm import bsr_array, softmax

from .arguments import are_any
from .cases import SEED, select
from .gpu import add_measure_arguments, measure
from .patterns import Pattern, uniform
from .records import Results, Row, make_row
from .suite import Guard, Outcome, is_right
from .timing import DeviceTimer, graph_of

DTYPES = ("float16", "bfloat16", "float32")
# In units of the dtype's roundoff, in the Frobenius norm.
ALLOWED = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-20}


@dataclass(frozen=True)
class SoftmaxCase:
    """A square matrix with ``count`` blocks a row; or its transposed view."""

    dtype: str
    block: int
    count: int
    view: bool
    order: int = 8192

    @property
    def density(self) -> float:
        return self.count * self.block / self.order

    @property
    def name(self) -> str:
        form = "softmax_view" if self.view else "softmax"
        blocks, shape = f"{self.block}x{self.block}", f"{self.order}x{self.order}"
        return f"{form}/{self.dtype}/{blocks}/d{self.density:.3g}/{shape}"

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "op": "softmax(bsr.T)" if self.view else "softmax(bsr)",
            "dtype": self.dtype,
            "block": [self.block, self.block],
            "density": self.density,
            "M": self.order,
            "K": self.order,
        }

    def make_pattern(self) -> Pattern:
        side = self.order // self.block
        return uniform(
            np.random.default_rng([SEED, self.block, self.count]), side, side, self.count
        )


def softmax_cases(dtypes: Iterable[str] = DTYPES) -> Iterator[SoftmaxCase]:
    for dtype in dtypes:
        for block in (128, 64, 32, 16):
            for density in (0.125, 0.5):
                for view in (False, True):
                    yield SoftmaxCase(dtype, block, round(density * 8192 / block), view)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rivals = ("torch",)
    add_measure_arguments(parser, "softmax", rivals, select="", groups="softmax and softmax_view")


def run(args: argparse.Namespace) -> int:
    cases = select(softmax_cases(), args.select)
    if not are_any(cases):
        return 2
    if args.dry_run:
        print(*(case.name for case in cases), sep="\n")
        return 0

    def make_suite(torch: Any, gpu: dict[str, Any], results: Results) -> SoftmaxSuite:
        return SoftmaxSuite(torch, "cuda:0", DeviceTimer(torch), args.peers)

    return measure(args, cases, make_suite)


class SoftmaxSuite(Guard):
    """Checks and times one case after the other. ``timer`` has prepare and sustained."""

    def __init__(self, torch: Any, device: str, timer: Any, peers: Iterable[str]) -> None:
        self.torch, self.device, self.timer, self.peers = torch, device, timer, tuple(peers)

    def run(self, case: SoftmaxCase) -> Outcome:
        torch, outcome = self.torch, Outcome()
        pattern = case.make_pattern()
        blocks = (len(pattern.indices), case.block, case.block)
        data = torch.randn(blocks, device=self.device).to(getattr(torch, case.dtype))
        self._attempt(case, "bsrgemm", outcome, partial(self._ours, case, pattern, data))
        outcome.wrong = not is_right(outcome.rows)
        if "torch" in self.peers and not self.broken:
            dense = data.view(case.order, -1)
            measure = partial(self._time, case, "torch_dense", lambda: dense.softmax(1), data)
            self._attempt(case, "torch_dense", outcome, measure)
        return outcome

    def _ours(self, case: SoftmaxCase, pattern: Pattern, data: Any) -> tuple[list[Row], str]:
        torch = self.torch
        matrix = bsr_array((data, pattern.indices, pattern.indptr), (case.order, case.order))
        a = matrix.T if case.view else matrix
        found = softmax(a).todense().double()
        seen = bsr_array((torch.ones_like(data), pattern.indices, pattern.indptr), matrix.shape)
        hidden = (seen.T if case.view else seen).todense() == 0
        expected = a.todense().double().masked_fill_(hidden, -torch.inf).softmax(1).nan_to_num_()
        error = (torch.linalg.norm(found - expected) / torch.linalg.norm(expected)).item()
        extra = {} if error <= ALLOWED[case.dtype] else {"wrong": True}
        del found, expected, hidden, seen
        return self._time(case, "bsrgemm", lambda: softmax(a), data, rel_err=error, **extra)

    def _time(
        self, case: SoftmaxCase, who: str, call: Any, data: Any, **extra: Any
    ) -> tuple[list[Row], str]:
        call, estimate = self.timer.prepare(call)
        seconds = self.timer.sustained(call, estimate).seconds
        rate = 2 * data.numel() * data.element_size() / seconds / 1e12
        extra |= {"tb_s": rate, **graph_of(call)}
        row = make_row(case, who, "sustained", seconds, 0.0, **extra)
        return [row], f"{seconds * 1e6:.1f} us, {rate:.2f} TB/s"
