"""Every kernel family on every case: how often the planner's choice is the best, and how good its
predictions are. Short timings: some 60 s on a GPU."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from typing import Any

from bsrgemm._planning import chip_of

from .arguments import are_any
from .cases import FORMS, gpu_cases, select
from .gpu import add_measure_arguments, measure
from .records import Results, Row
from .suite import Outcome, Suite, our_name, relative_error
from .timing import DeviceTimer

WARM = MEASURED = 15e-3
# Families that are predicted to take this many times the best one's time are left out.
WORTH_A_LOOK = 5.0
# Between the results of two families, in the Frobenius norm of 16-bit products.
ALLOWED = 1e-2
# What counts as the best choice and as a good prediction.
BEST, GOOD = 1.03, 1.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_measure_arguments(
        parser,
        "families",
        [],
        select="",
        groups="blocks, patterns, columns, crossover and sizes (default: all)",
    )
    dtypes = ("float16", "bfloat16", "float32", "float64")
    parser.add_argument("--dtype", choices=dtypes, default="float16", help="default: float16")


def run(args: argparse.Namespace) -> int:
    cases = [
        c
        for c in select(gpu_cases([args.dtype]), args.select)
        if c.group not in (*FORMS, "bsr_bsr", "fused")
    ]
    if not are_any(cases):
        return 2
    if args.dry_run:
        print(*(case.name for case in cases), sep="\n")
        return 0
    kept: list[Results] = []

    def make_suite(torch: Any, gpu: dict[str, Any], results: Results) -> FamilySuite:
        kept.append(results)
        return FamilySuite(
            torch,
            "cuda:0",
            DeviceTimer(torch, WARM, MEASURED),
            chip=chip_of(gpu),
            peers=[],
            l2_bytes=torch.cuda.get_device_properties(0).L2_cache_size,
        )

    status = measure(args, cases, make_suite)
    for results in kept:
        print(*describe(results.rows), sep="\n")
    return status


class FamilySuite(Suite):
    """A row for each family that takes a case. No float64 reference: families check one another."""

    def run(self, case: Any) -> Outcome:
        outcome = Outcome()
        p = self._problem(case)
        plan = self._matrix(p).plan(case.n, chip=self.chip)
        supported = [c for c in plan.candidates if c["supported"]]
        limit = WORTH_A_LOOK * min(c["seconds"] for c in supported)
        first = None
        for candidate in supported:
            if candidate["seconds"] > limit or self.broken:
                continue
            family = candidate["family"]
            extra = {
                "family": family,
                "predicted_us": candidate["seconds"] * 1e6,
                "chosen": family == plan.choice,
            }

            def timed(family: str = family, extra: dict[str, Any] = extra) -> Any:
                ours = self._our_product(p, family)
                ours.call()
                rows = self._time(
                    p, our_name(family), ours, extra, False, lambda q: self._our_product(q, family)
                )
                return rows, f"{rows[0]['us']:.1f} us" + " *" * extra["chosen"]

            p.out.fill_(math.nan)
            self._attempt(case, family, outcome, timed)
            if self.broken or "error" in outcome.rows[-1]:
                outcome.wrong = True
            elif first is None:
                first = p.out.clone()
            elif not relative_error(self.torch, p.out, first.double()) <= ALLOWED:
                outcome.wrong = outcome.rows[-1]["wrong"] = True
        return outcome

    def _measure(self, call: Any, estimate: float) -> dict[str, Any]:
        return {"short": self.timer.sustained(call, estimate)}


# ---- summary -------------------------------------------------------------------------------------


def tally(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """For each group of cases: how many there are, in how many the choice is the best, the worst
    choice and its case, how many predictions there are, and how many of them are good."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        if row["us"] is not None and not row.get("wrong") and "chosen" in row:
            by_case.setdefault(row["case"], []).append(row)
    groups: dict[str, dict[str, Any]] = {}
    for case, found in by_case.items():
        chosen = next((row for row in found if row["chosen"]), None)
        if chosen is None:  # it failed
            continue
        empty = {"cases": 0, "best": 0, "worst": 1.0, "worst_case": "-", "rows": 0, "good": 0}
        group = groups.setdefault(case.split("/")[0], empty)
        ratio = chosen["us"] / min(row["us"] for row in found)
        group["cases"] += 1
        group["best"] += ratio <= BEST
        if ratio > group["worst"]:
            group["worst"], group["worst_case"] = ratio, case
        group["rows"] += len(found)
        group["good"] += sum(1 / GOOD <= row["predicted_us"] / row["us"] <= GOOD for row in found)
    return groups


def describe(rows: Iterable[Row]) -> list[str]:
    return [
        f"{name}: choice within {BEST - 1:.0%} of the best in {g['best']} of {g['cases']} cases, "
        f"at worst {g['worst']:.2f} times ({g['worst_case']}); {g['good']} of {g['rows']} "
        f"predictions within {GOOD - 1:.0%}"
        for name, g in tally(rows).items()
    ]
