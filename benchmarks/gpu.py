"""The suite on a GPU: bsrgemm, its predictions and its peers on one case after the other."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from bsrgemm import DeviceUnavailableError, _core
from bsrgemm._planning import chip_of

from . import records
from .arguments import (
    add_list_argument,
    add_peers_argument,
    add_result_arguments,
    add_select_argument,
    are_any,
    replaces_all,
    result_path,
    sustained_seconds,
)
from .cases import FORMS, READ_ROWS, SEED, Case, PairsCase, gpu_cases, select
from .pairs import PairsSuite
from .peers import RIVALS, wanted
from .records import Results
from .suite import TURNS, Guard, Suite, is_new
from .timing import BURST_IDLE, SUSTAINED_MEASURED, SUSTAINED_WARM, DeviceTimer

FAMILIES = ("auto", "tall", "stream", "regroup", "align", "narrow", "portable", "pairs", "spread")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_measure_arguments(
        parser,
        "gpu",
        RIVALS,
        select="^(blocks|patterns)/",
        groups=f"blocks, patterns, columns, {', '.join(FORMS)}, fused, crossover, sizes and "
        "bsr_bsr (default: the first two)",
    )
    add_sustained_argument(parser)
    dtypes = ("float16", "bfloat16", "float32")
    add_list_argument(parser, "--dtypes", (*dtypes, "float64"), dtypes, "some of")
    add_list_argument(parser, "--families", FAMILIES, ["auto"], "kernel families to force, of")


def add_measure_arguments(
    parser: argparse.ArgumentParser, name: str, rivals: Iterable[str], *, select: str, groups: str
) -> None:
    """What ``measure`` and the choice of cases and peers need."""
    add_result_arguments(parser, name)
    add_select_argument(parser, select, groups)
    add_peers_argument(parser, rivals)
    parser.add_argument("--dry-run", action="store_true", help="list cases, predicted times, peers")


def add_sustained_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sustained",
        type=sustained_seconds,
        default=(SUSTAINED_WARM, SUSTAINED_MEASURED),
        metavar="WARM,MEASURED",
        help="seconds of the same call before it is measured, and while it is, where sustained "
        f"(default {SUSTAINED_WARM},{SUSTAINED_MEASURED}). What limits a GPU's power looks back "
        "half a second: shares of other calls' rates want .3,.3 or more",
    )


def run(args: argparse.Namespace) -> int:
    cases = select(gpu_cases(args.dtypes), args.select)
    if not are_any(cases):
        return 2
    if args.dry_run:
        dry_run(cases, args.peers)
        return 0

    def make_suite(torch: Any, gpu: dict[str, Any], results: Results) -> Suite:
        # PyTorch has no settings for this GPU; the peer is tried with several.
        warnings.filterwarnings("ignore", message="bsr_dense_addmm uses non-optimal")
        return PairsSuite(
            torch,
            "cuda:0",
            DeviceTimer(torch, *args.sustained),
            chip=chip_of(gpu),
            peers=args.peers,
            families=args.families,
            l2_bytes=torch.cuda.get_device_properties(0).L2_cache_size,
            turns=TURNS,
        )

    return measure(args, cases, make_suite)


def measure(
    args: argparse.Namespace,
    cases: list[Any],
    make_suite: Callable[[Any, dict[str, Any], Results], Guard],
) -> int:
    """Runs the cases on the first GPU and writes ``args.out``; the exit status."""
    if replaces_all(args):
        return 2
    try:
        gpu = _core.cuda_devices()[0]
    except DeviceUnavailableError as error:
        print(f"no GPU: {error}\n--dry-run lists the cases without one", file=sys.stderr)
        return 2
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(SEED)
    results = Results(result_path(args), records.facts(args.commit, gpu))
    if "sustained" in args:
        warm, measured = args.sustained
        results.facts["sustained"] = {"warm_s": warm, "measured_s": measured}
    suite = make_suite(torch, gpu, results)
    start = time.perf_counter()
    with torch.no_grad():
        wrong = run_cases(suite, cases, results)
    print(f"{len(cases)} cases in {time.perf_counter() - start:.0f} s")
    results.say_where()
    return report_wrong(wrong)


def run_cases(suite: Guard, cases: list[Any], results: Results) -> list[str]:
    """Prints a line a case as it is done; the names of those whose result is wrong."""
    wrong = []
    for case in cases:
        outcome = suite.run_guarded(case)
        results.add(outcome.rows)
        print(f"{case.name}: {'; '.join(outcome.notes)}", flush=True)
        if outcome.wrong:
            wrong.append(case.name)
        if suite.broken:
            print(f"stopped: the device does not work any more: {suite.broken}", file=sys.stderr)
            return [*wrong, f"{case.name} and all after it"]
    return wrong


def report_wrong(wrong: list[str]) -> int:
    for name in wrong:
        print(f"WRONG: {name}", file=sys.stderr)
    return 1 if wrong else 0


def dry_run(cases: list[Case], peers: list[str]) -> None:
    """What would run, and about how long: needs no GPU."""
    total = 0.0
    seen: set[Any] = set()
    for case in cases:
        if isinstance(case, PairsCase):
            print(f"{case.name}: {case.pairs} pairs; {' '.join(wanted(case))}")
            continue
        pattern = case.make_pattern()
        structure = _core.Structure(
            pattern.indices, pattern.indptr, (case.m, case.k), case.block, True
        )
        read = structure if case.op in READ_ROWS else structure.transposed()
        info = read.explain(case.n, case.dtype)
        chosen = next(c for c in info["candidates"] if c["family"] == info["chosen"])
        rivals = [name for name in wanted(case) if name in peers and is_new(seen, case, name)]
        rate = case.useful_flops / chosen["seconds"] / 1e12
        print(
            f"{case.name}: predicted {chosen['seconds'] * 1e6:.0f} us, {rate:.0f} TF/s, "
            f"{chosen['family']}; {' '.join(rivals)}"
        )
        idle = BURST_IDLE + SUSTAINED_WARM + SUSTAINED_MEASURED
        total += (1 + len(rivals)) * (idle + 60 * chosen["seconds"]) + 0.15
    print(f"{len(cases)} cases, about {total:.0f} s and the compilation of Triton kernels")
