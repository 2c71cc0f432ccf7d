"""What a call costs the host: microseconds until it returns, beside PyTorch's own calls.

On a GPU operands are so small that it keeps up, and every few hundred calls the host waits for it,
untimed, so that no call waits for room in the driver's queue. On the CPU the product is part of the
call, so it is tiny and on one thread.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from bsrgemm import DeviceUnavailableError, _core, bsr_array, matmul

from . import records
from .arguments import (
    add_result_arguments,
    add_select_argument,
    are_any,
    positive,
    replaces_all,
    result_path,
)
from .cases import SEED, select
from .gpu import report_wrong, run_cases
from .patterns import Pattern, uniform
from .records import Results, Row, make_row
from .suite import ALLOWED, Guard, Outcome, describe, relative_error
from .timing import CHUNK

CALLS = 10_000
OURS = ("matmul_out", "matmul_new", "operator", "linear", "layer")
PEERS = ("torch_linear", "torch_bsr_linear", "torch_bsr_matmul")


@dataclass(frozen=True)
class HostCase:
    """Products of a square matrix with half of its blocks, and a layer of that weight."""

    dtype: str
    block: int
    order: int
    tokens: int

    @property
    def name(self) -> str:
        blocks = f"{self.block}x{self.block}"
        return f"host/{self.dtype}/{blocks}/{self.order}x{self.tokens}x{self.order}"

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "op": "host",
            "dtype": self.dtype,
            "block": [self.block, self.block],
            "M": self.order,
            "N": self.tokens,
            "K": self.order,
        }

    def make_pattern(self) -> Pattern:
        side = self.order // self.block
        return uniform(np.random.default_rng([SEED, self.block]), side, side, max(1, side // 2))


def host_cases(device: str) -> Iterator[HostCase]:
    if device == "cpu":
        yield HostCase("float32", 16, 32, 8)
        return
    for tokens in (16, 256):
        yield HostCase("bfloat16", 128, 512, tokens)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda:0", "cpu"), default="cuda:0")
    add_result_arguments(parser, "host")
    add_select_argument(parser)
    parser.add_argument(
        "--calls", type=positive, default=CALLS, help=f"of each kind (default {CALLS})"
    )


def run(args: argparse.Namespace) -> int:
    cases = select(host_cases(args.device), args.select)
    if not are_any(cases) or replaces_all(args):
        return 2
    try:
        gpu = None if args.device == "cpu" else _core.cuda_devices()[0]
    except DeviceUnavailableError as error:
        print(f"no GPU: {error}\n--device cpu measures without one", file=sys.stderr)
        return 2
    import torch

    torch.manual_seed(SEED)
    results = Results(result_path(args), records.facts(args.commit, gpu))
    wrong = run_cases(HostSuite(torch, args.device, args.calls), cases, results)
    results.say_where()
    return report_wrong(wrong)


class HostSuite(Guard):
    """Measures a case: each call so many times, by the median of runs that take turns, since a host
    changes its own speed."""

    leading = "matmul_out"

    def __init__(self, torch: Any, device: str, calls: int = CALLS) -> None:
        self.torch, self.device, self.calls = torch, device, calls

    def run(self, case: HostCase) -> Outcome:
        torch, outcome = self.torch, Outcome()
        threads = torch.get_num_threads(), _core.get_num_threads()
        if self.device == "cpu":
            torch.set_num_threads(1)
            _core.set_num_threads(1)
        try:
            with torch.no_grad():
                for row in self._rows(case):
                    who = row["who"]
                    outcome.rows.append(row)
                    outcome.notes.append(f"{who} {row['us'] or row['error']} us")
                    outcome.wrong |= who in OURS and ("error" in row or "wrong" in row)
        finally:
            torch.set_num_threads(threads[0])
            _core.set_num_threads(threads[1])
        return outcome

    def _calls(self, case: HostCase) -> dict[str, tuple[Callable[[], Any], Any]]:
        """By name, a call and what it should return."""
        torch, functional = self.torch, self.torch.nn.functional
        from bsrgemm.torch import BSRLinear, linear

        def normal(*shape: int) -> Any:
            return torch.randn(*shape, device=self.device).to(getattr(torch, case.dtype))

        made = case.make_pattern()
        values = normal(len(made.indices), case.block, case.block)
        a = bsr_array((values, made.indices, made.indptr), (case.order, case.order))
        dense, sparse = a.todense(), a.to_torch()
        x, rows, bias = (
            normal(*shape)
            for shape in ((case.order, case.tokens), (case.tokens, case.order), (case.order,))
        )
        out, layer = torch.empty_like(x), BSRLinear(a, bias)
        product = dense.double() @ x.double()
        layered = functional.linear(rows.double(), dense.double(), bias.double())
        return {
            "matmul_out": (lambda: matmul(a, x, out=out), product),
            "matmul_new": (lambda: matmul(a, x), product),
            "operator": (lambda: a @ x, product),
            "linear": (lambda: linear(rows, a, bias), layered),
            "layer": (lambda: layer(rows), layered),
            "torch_linear": (lambda: functional.linear(rows, dense, bias), layered),
            "torch_bsr_linear": (lambda: functional.linear(rows, sparse, bias), layered),
            "torch_bsr_matmul": (lambda: sparse @ x, product),
        }

    def _rows(self, case: HostCase) -> list[Row]:
        errors: dict[str, float | Exception] = {}
        calls = self._calls(case)
        for who, (call, expected) in calls.items():
            try:
                errors[who] = relative_error(self.torch, call(), expected)
            except Exception as failure:
                errors[who] = failure
        able = {who: calls[who][0] for who, error in errors.items() if isinstance(error, float)}
        seconds = self._seconds(able)
        return [self._row(case, who, error, seconds.get(who, [])) for who, error in errors.items()]

    def _row(self, case: HostCase, who: str, error: float | Exception, seconds: list[float]) -> Row:
        if isinstance(error, Exception):
            return make_row(case, who, None, None, 0.0, error=describe(error))
        # Of the unit roundoff, with room for the sums of float32.
        allowed = ALLOWED * self.torch.finfo(getattr(self.torch, case.dtype)).eps
        extra = {} if error <= allowed else {"wrong": True}
        mean = statistics.mean(seconds) * 1e6
        median = statistics.median(seconds)
        return make_row(case, who, "host", median, 0.0, mean_us=mean, calls=self.calls, **extra)

    def _seconds(self, calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Of a call, by the mean over each run of it between two waits for the GPU. The first run
        of each does not count."""
        found: dict[str, list[float]] = {who: [] for who in calls}
        count = min(CHUNK, self.calls)
        for timed in (False, *[True] * (self.calls // count)):
            for who, call in calls.items():
                self._synchronize()
                start = time.perf_counter()
                for _ in range(count):
                    call()
                if timed:
                    found[who].append((time.perf_counter() - start) / count)
        self._synchronize()
        return found

    def _synchronize(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.synchronize()
