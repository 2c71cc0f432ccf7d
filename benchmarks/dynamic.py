"""Patterns that change on the GPU: what a new one takes, and products with it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from bsrgemm import DynamicPattern, bsr_array, matmul, sampled_matmul

from .arguments import are_any
from .cases import Case, select
from .gpu import add_measure_arguments, measure
from .records import Results, Row, make_row
from .suite import Guard, Outcome, is_right, relative_error
from .timing import DeviceTimer, graph_of

ORDER = 8192
# What a pattern has room for, against what it holds.
ROOM = 1.25
# Of the sampled products, as in the group of these.
SAMPLED_K = 2048
# Of products, in the Frobenius norm: three times what rounding to float16 is.
ALLOWED = 1e-3


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


class Work(NamedTuple):
    """A call, and what its result is compared with."""

    call: Callable[[], Any]
    found: Callable[[], Any]
    expected: Callable[[], Any]
    into: Any = None  # what the call writes


class DynamicSuite(Guard):
    """Measures a case: new patterns, their values, and products beside those of a fixed pattern."""

    leading = "update"

    def __init__(self, torch: Any, timer: Any, device: str = "cuda:0") -> None:
        self.torch, self.timer, self.device = torch, timer, device

    def run(self, case: DynamicCase) -> Outcome:
        outcome = Outcome()
        for who, work in self._works(case).items():
            if not self.broken:
                self._attempt(case, who, outcome, partial(self._measure, case, who, work))
        outcome.wrong = not is_right(outcome.rows)
        return outcome

    def _works(self, case: DynamicCase) -> dict[str, Work]:
        torch, device = self.torch, self.device
        made = case.make_pattern()
        (rows, cols), (height, width) = case.grid, case.block
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

        def blocks(full: Any) -> Any:
            """Those of the pattern, and zeros in the places behind them."""
            found = full.new_zeros(case.capacity, height, width)
            tiles = full.view(rows, height, cols, width).transpose(1, 2)
            found[: case.nnzb] = tiles[given]
            return found

        def whole() -> Any:
            kept = given.repeat_interleave(height, 0).repeat_interleave(width, 1)
            return torch.where(kept, dense, 0.0).double()

        def highest() -> Any:
            order = scores.sort(dim=1, descending=True, stable=True).indices
            return torch.zeros_like(scores).scatter_(1, order[:, : case.count], 1.0).double()

        def stored_places() -> Any:
            return torch.as_tensor(pattern.to_mask(), device=device)

        def pair(
            form: str, call: Callable[[Any], Any], expected: Callable[[], Any], into: Any
        ) -> dict[str, Work]:
            """A product of the pattern, and the same of the fixed one."""
            expected = cache(expected)
            return {
                form: Work(lambda: call(a), lambda: into, expected, into),
                f"fixed_{form}": Work(lambda: call(fixed), lambda: into, expected, into),
            }

        @cache
        def full() -> Any:
            return left.double() @ right.double()

        def sampled(where: Any, result: Any) -> Work:
            return Work(
                lambda: sampled_matmul(left, right, where, out=result),
                lambda: result.data,
                lambda: blocks(full())[: len(result.data)],
                result.data,
            )

        return {
            "update": Work(lambda: pattern.update(given), stored_places, given.double),
            "gather": Work(
                lambda: pattern.gather(dense, out=values),
                lambda: values,
                lambda: blocks(dense.double()),
                values,
            ),
            **pair("product", lambda a: matmul(a, x, out=out), lambda: whole() @ x.double(), out),
            **pair(
                "transposed_product",
                lambda a: matmul(a.T, z, out=turned),
                lambda: whole().T @ z.double(),
                turned,
            ),
            **pair(
                "left_product",
                lambda a: matmul(rows_of_x, a.T, out=rows_of_y),
                lambda: rows_of_x.double() @ whole().T,
                rows_of_y,
            ),
            "sampled_product": sampled(pattern, stored[0]),
            "fixed_sampled_product": sampled(fixed, stored[1]),
            # Last, since it leaves another pattern.
            "update_topk": Work(
                lambda: pattern.update_topk(scores, case.count), stored_places, highest
            ),
        }

    def _measure(self, case: DynamicCase, who: str, work: Work) -> tuple[list[Row], str]:
        """As part of a graph where the host would take longer than the GPU."""
        if work.into is not None:
            work.into.fill_(math.nan)
        work.call()
        error = relative_error(self.torch, work.found(), work.expected())
        prepared, estimate = self.timer.prepare(work.call)
        seconds = self.timer.sustained(prepared, estimate).seconds
        flops = case.useful_flops if "product" in who else 0.0
        flops *= SAMPLED_K / case.n if "sampled" in who else 1.0
        # What is only moved is the same to the last bit.
        allowed = ALLOWED if "product" in who else 0.0
        extra: dict[str, Any] = {} if error <= allowed else {"wrong": True}
        extra |= {"rel_err": error, **graph_of(prepared)}
        row = make_row(case, who, "sustained", seconds, flops, **extra)
        return [row], f"{seconds * 1e6:.4g} us"
