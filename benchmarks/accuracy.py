"""How good the planner's predictions and choices are, by the committed measurements. Needs no GPU.

Every measured product is predicted anew with the present models, and compared with the newest time
of its family; ``--recorded`` takes what was predicted when it was measured. A choice is judged
where one run has every family on a case.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bsrgemm import _core
from bsrgemm._planning import CHIP

from .arguments import add_select_argument
from .cases import READ_ROWS, Case, PairsCase, gpu_cases, select
from .precision import precision_cases, precision_of
from .records import ROOT, Row
from .report import GPU_SLUG, RESULTS, load
from .report_cells import Run
from .sampled import SampledCase, gpu_sampled_cases

# What counts as a good prediction, and as a choice as good as the best one.
GOOD, BEST = 1.25, 1.05
# Of a row's timings, those that a prediction is of: not bursts of a chip that has rested.
TIMINGS = ("sustained", "short", "cold")
DTYPES = ("float16", "bfloat16", "float32")


class Measured(NamedTuple):
    case: str
    family: str
    us: float
    predicted_us: float
    chosen: bool  # by the present models

    @property
    def ratio(self) -> float:
        return self.predicted_us / self.us

    @property
    def good(self) -> bool:
        return 1 / GOOD <= self.ratio <= GOOD


class Choice(NamedTuple):
    case: str
    chosen: str
    best: str
    ratio: float  # time of the chosen family over that of the best one

    @property
    def good(self) -> bool:
        return self.ratio <= BEST


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, default=ROOT / RESULTS / GPU_SLUG, help="a folder of result files"
    )
    add_select_argument(parser)
    parser.add_argument(
        "--recorded", action="store_true", help="judge what was predicted when it was measured"
    )


def run(args: argparse.Namespace) -> int:
    known = {case.name: case for case in select(all_cases(), args.select)}
    found, choices = judge_all(load(args.results), known, args.recorded)
    if not found:
        print(f"no measured case in {args.results} fits {args.select!r}", file=sys.stderr)
        return 2
    print(*describe(found, choices), sep="\n")
    return 0


# ---- prediction ----------------------------------------------------------------------------------


def all_cases() -> Iterator[Case]:
    yield from gpu_cases(DTYPES)
    yield from gpu_sampled_cases()
    yield from precision_cases()


def predict(case: Case, chip: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the planner says of a case, with operands as its suite lays them out."""
    if isinstance(case, PairsCase):
        right = case.make_b_pattern()
        b = _core.Structure(right.indices, right.indptr, (case.k, case.n), _b_block(case), True)
        return _structure(case).explain_sparse(b, case.dtype, chip)
    if isinstance(case, SampledCase):
        return _structure(case).explain_sampled(case.k, case.dtype, chip)
    structure = _structure(case)
    read = structure if case.op in READ_ROWS else structure.transposed()
    precision = precision_of(case) if _is_precise(case) else "ieee"
    return read.explain(case.n, case.dtype, chip, precision, _by_columns(case))


def _is_precise(case: Case) -> bool:
    """Whether a case is one of the suite precision."""
    return case.group.startswith(("tf32", "fp8", "float64"))


def _by_columns(case: Case) -> bool:
    """Whether the dense operand is column-major as the kernels see it."""
    if _is_precise(case):
        return not case.group.endswith("_rows")
    return case.op.startswith("dense") and not isinstance(case, SampledCase)


def _b_block(case: PairsCase) -> tuple[int, int]:
    return case.block[1], case.b_width


def _structure(case: Case) -> _core.Structure:
    pattern = case.make_pattern()
    shape = (case.m, case.n if isinstance(case, SampledCase) else case.k)
    return _core.Structure(pattern.indices, pattern.indptr, shape, case.block, True)


def judge_all(
    runs: Iterable[Run], known: dict[str, Case], recorded: bool
) -> tuple[list[Measured], list[Choice]]:
    """What a family took for a case is judged by the newest run that measured it: kernels change.
    Choices are those of each run, whose times belong together."""
    newest: dict[tuple[str, str], list[Measured]] = {}
    choices: list[Choice] = []
    for run in sorted(runs, key=lambda run: run.facts["date"]):
        rows = list(judge(run, known, recorded))
        choices += choices_of(rows)
        of_run: dict[tuple[str, str], list[Measured]] = {}
        for row in rows:
            of_run.setdefault((row.case, row.family), []).append(row)
        newest |= of_run
    return [row for rows in newest.values() for row in rows], choices


def judge(run: Run, known: dict[str, Case], recorded: bool) -> Iterator[Measured]:
    """The measured products of a run that there are predictions of."""
    machine = run.facts["machine"]
    # Older results do not have the rate of the memory.
    chip = {key: machine[key] for key in CHIP if machine.get(key) is not None}
    chip["name"] = run.facts["gpu"]
    plans = cache(lambda name: predict(known[name], chip))
    for row in run.rows:
        if not _is_judged(row) or row["case"] not in known:
            continue
        if recorded and "predicted_us" not in row:
            continue
        plan = plans(row["case"])
        # Suites write down the family of row-major operands: of others it is what is chosen today.
        stated = None if _by_columns(known[row["case"]]) else row.get("family")
        family = stated or plan["chosen"]
        if not stated and family in ("cover", "spread"):  # rows without one are older than these
            continue
        candidate = next(c for c in plan["candidates"] if c["family"] == family)
        predicted = row["predicted_us"] if recorded else candidate["seconds"] * 1e6
        chosen = row.get("chosen", True) if recorded else family == plan["chosen"]
        yield Measured(row["case"], family, row["us"], predicted, chosen)


def _is_judged(row: Row) -> bool:
    """Ours, without what a product is fused with, and right."""
    ours = row["who"] == "bsrgemm" or (row["who"].startswith("bsrgemm:") and "chosen" in row)
    return ours and row["timing"] in TIMINGS and row["us"] is not None and not row.get("wrong")


def choices_of(rows: Iterable[Measured]) -> Iterator[Choice]:
    """Of one run: for each case that several families were measured on."""
    by_case: dict[str, list[Measured]] = {}
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    for case, found in by_case.items():
        chosen = next((row for row in found if row.chosen), None)
        if chosen is None or len({row.family for row in found}) < 2:
            continue
        best = min(found, key=lambda row: row.us)
        yield Choice(case, chosen.family, best.family, chosen.us / best.us)


# ---- text ----------------------------------------------------------------------------------------


def describe(found: list[Measured], choices: list[Choice]) -> Iterator[str]:
    by_family: dict[str, list[Measured]] = {}
    for row in found:
        by_family.setdefault(row.family, []).append(row)
    yield f"{'family':<10}{'products':>10}{'within 25%':>12}{'predicted / measured':>24}"
    for family, rows in sorted(by_family.items()):
        ratios = sorted(row.ratio for row in rows)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {ratios[len(ratios) // 2]:.2f}"
        yield f"{family:<10}{len(rows):>10}{sum(row.good for row in rows):>12}{spread:>34}"
    good = sum(row.good for row in found)
    yield (
        f"\npredictions within {GOOD - 1:.0%}: {good} of {len(found)} ({good / len(found):.0%}); "
        "the others, predicted / measured:"
    )
    bad = sorted((row for row in found if not row.good), key=lambda row: row.ratio)
    for row in bad:
        yield (
            f"  {row.ratio:5.2f}  {row.predicted_us:8.1f} / {row.us:8.1f} us  "
            f"{row.family:<9} {row.case}"
        )
    if not choices:
        return
    best = sum(choice.good for choice in choices)
    yield (
        f"\nchoices within {BEST - 1:.0%} of the best family: {best} of {len(choices)} "
        f"({best / len(choices):.0%}); the others:"
    )
    for choice in sorted((c for c in choices if not c.good), key=lambda c: -c.ratio):
        yield (f"  {choice.ratio:5.2f}  {choice.chosen} where {choice.best} is best  {choice.case}")
