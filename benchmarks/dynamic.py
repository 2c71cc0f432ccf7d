"""Patterns that change on the GPU: what a new one takes, and products with it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from bsrgemm import DynamicPattern, bsr_array, matmul, sampled_matmul

from .arguments import are_any
from .cases import Case, select
from .gpu import add_measure_arguments, measure
from .records import Results, Row, make_row
from .suite import Outcome, relative_error
from .timing import DeviceTimer

ORDER = 8192
# What a pattern has room for, against what it holds.
ROOM = 1.25
# Of the sampled products, as in the group of these.
SAMPLED_K = 2048


@dataclass(frozen=True)
class DynamicCase(Case):
    """A product of the group whose pattern is made anew by the GPU."""

    @property
    def capacity(self) -> int:
        rows, cols = self.grid
        return min(math.ceil(ROOM * self.nnzb), rows * cols)

    @property
    def fields(self) -> dict[str, Any]:
        return {**super().fields, "capacity": self.capacity}


def dynamic_cases() -> Iterator[DynamicCase]:
    for block, pattern in ((64, "uniform"), (64, "zipf_rows"), (128, "uniform"), (32, "uniform")):
        count = round(0.125 * ORDER / block)
        yield DynamicCase("dynamic", "float16", (block, block), count, *[ORDER] * 3, pattern)
    yield DynamicCase("dynamic", "float16", (16, 16), 64, *[ORDER] * 3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_measure_arguments(parser, "dynamic", (), select="", groups="dynamic")


def run(args: argparse.Namespace) -> int:
    cases = select(dynamic_cases(), args.select)
    if not are_any(cases):
        return 2
    if args.dry_run:
        print("\n".join(case.name for case in cases))
        return 0

    def make_suite(torch: Any, gpu: dict[str, Any], results: Results) -> DynamicSuite:
        return DynamicSuite(torch, DeviceTimer(torch))

    return measure(args, cases, make_suite)


class DynamicSuite:
    """Measures a case: new patterns, their values, and products beside those of a fixed pattern."""

    broken: Exception | None = None

    def __init__(self, torch: Any, timer: Any, device: str = "cuda:0") -> None:
        self.torch, self.timer, self.device = torch, timer, device

    def run(self, case: DynamicCase) -> Outcome:
        torch, device = self.torch, self.device
        made = case.make_pattern()
        rows, cols = case.grid
        mask = np.zeros((rows, cols), bool)
        mask[made.rows, made.indices] = True
        given = torch.as_tensor(mask, device=device)
        scores = torch.rand(rows, cols, device=device)
        kind = getattr(torch, case.dtype)

        def normal(*shape: int) -> Any:
            return torch.randn(*shape, device=device).to(kind)

        dense, x, z = normal(case.m, case.k), normal(case.k, case.n), normal(case.m, case.n)
        left, right = normal(case.m, SAMPLED_K), normal(SAMPLED_K, case.k)
        out, turned = torch.empty_like(z), torch.empty_like(x)
        # As in a linear layer, whose inputs are rows.
        rows_of_x, rows_of_y = normal(case.n, case.k), normal(case.n, case.m)
        pattern = DynamicPattern((case.m, case.k), case.block, case.capacity, device)
        pattern.update(given)
        values = pattern.gather(dense)
        a = pattern.array(values)
        fixed = bsr_array((values[: case.nnzb], made.indices, made.indptr), a.shape)
        stored = (pattern.array(torch.empty_like(values)), fixed.copy())
        calls: dict[str, Callable[[], Any]] = {
            "update": lambda: pattern.update(given),
            "gather": lambda: pattern.gather(dense, out=values),
            "product": lambda: matmul(a, x, out=out),
            "fixed_product": lambda: matmul(fixed, x, out=out),
            "transposed_product": lambda: matmul(a.T, z, out=turned),
            "fixed_transposed_product": lambda: matmul(fixed.T, z, out=turned),
            "left_product": lambda: matmul(rows_of_x, a.T, out=rows_of_y),
            "fixed_left_product": lambda: matmul(rows_of_x, fixed.T, out=rows_of_y),
            "sampled_product": lambda: sampled_matmul(left, right, pattern, out=stored[0]),
            "fixed_sampled_product": lambda: sampled_matmul(left, right, fixed, out=stored[1]),
        }
        outcome = Outcome()
        matmul(fixed, x, out=out)
        expected = out.double()
        out.fill_(math.nan)
        error = relative_error(torch, matmul(a, x, out=out), expected)
        outcome.wrong = not error <= 1e-3
        stored[0].data.fill_(math.nan)
        found, same = calls["sampled_product"]().data, calls["fixed_sampled_product"]().data
        error = relative_error(torch, found[: case.nnzb], same.double())
        outcome.wrong |= not error <= 1e-3 or bool(found[case.nnzb :].any())
        for name, call in calls.items():
            outcome.rows.append(self._row(case, name, call, outcome.wrong))
        # Last, since it leaves another pattern.
        topk = self._row(
            case, "update_topk", lambda: pattern.update_topk(scores, case.count), False
        )
        outcome.rows.append(topk)
        outcome.notes = [f"{row['who']} {row['us']:.4g} us" for row in outcome.rows]
        return outcome

    def _row(self, case: DynamicCase, who: str, call: Callable[[], Any], wrong: bool) -> Row:
        """As part of a graph where the host would take longer than the GPU."""
        prepared, estimate = self.timer.prepare(call)
        seconds = self.timer.sustained(prepared, estimate).seconds
        flops = case.useful_flops if "product" in who else 0.0
        flops *= SAMPLED_K / case.n if "sampled" in who else 1.0
        extra = {"wrong": True} if wrong and "product" in who else {}
        return make_row(case, who, "sustained", seconds, flops, **extra)
