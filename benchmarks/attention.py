"""Attention on a GPU: bsrgemm and its peers on one case after the other."""

from __future__ import annotations

import argparse
from typing import Any

from .arguments import add_list_argument, are_any
from .attention_cases import AttentionCase, gpu_attention_cases
from .attention_peers import RIVALS, wanted
from .attention_suite import AttentionSuite
from .cases import select
from .gpu import add_measure_arguments, add_sustained_argument, measure
from .records import Results
from .suite import TURNS
from .timing import BURST_IDLE, COLD_LAUNCHES, SUSTAINED_MEASURED, SUSTAINED_WARM, DeviceTimer

BACKENDS = ("auto", "hopper", "decode", "portable")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_measure_arguments(
        parser,
        "attention",
        RIVALS,
        select="",
        groups="dense, fp8, varlen, decode, masks, topk, sparse_decode (default: all)",
    )
    add_sustained_argument(parser)
    add_list_argument(parser, "--backends", BACKENDS, ["auto"], "backends to force, of")


def run(args: argparse.Namespace) -> int:
    cases = select(gpu_attention_cases(), args.select)
    if not are_any(cases):
        return 2
    if args.dry_run:
        dry_run(cases, args.peers)
        return 0

    def make_suite(torch: Any, gpu: dict[str, Any], results: Results) -> AttentionSuite:
        results.facts["software"]["cudnn"] = _dotted(torch.backends.cudnn.version())
        return AttentionSuite(
            torch,
            "cuda:0",
            DeviceTimer(torch, *args.sustained),
            peers=args.peers,
            families=args.backends,
            l2_bytes=torch.cuda.get_device_properties(0).L2_cache_size,
            turns=TURNS,
        )

    return measure(args, cases, make_suite)


def dry_run(cases: list[AttentionCase], peers: list[str]) -> None:
    """What would run, and about how long at the rates that an H200 sustains: needs no GPU."""
    total = 0.0
    for case in cases:
        rivals = [name for name in wanted(case) if name in peers]
        print(f"{case.name}: {case.useful_flops / 1e9:.0f} GF; {' '.join(rivals)}")
        total += (1 + len(rivals)) * _seconds(case) + 0.3
    print(f"{len(cases)} cases, about {total:.0f} s and the compilation of FlexAttention")


def _seconds(case: AttentionCase) -> float:
    """About what one of those measured takes, if it reads all keys where they are cold."""
    if "cold" in case.timings:
        return COLD_LAUNCHES * case.cache_bytes / 2.4e12
    idle = BURST_IDLE + SUSTAINED_WARM + SUSTAINED_MEASURED
    return idle + 40 * case.useful_flops / 400e12


def _dotted(version: int | None) -> str:
    """9.12.0 for 91200."""
    if version is None:
        return "none"
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
