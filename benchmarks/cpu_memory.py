"""Peak memory of one product on the CPU over its inputs and output, in a process of its own."""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys
from pathlib import Path

from bsrgemm import bsr_array
from bsrgemm._dtypes import ACCEPTED_DTYPES

from .arguments import positive
from .cases import cpu_cases
from .cpu import make_problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", choices=ACCEPTED_DTYPES, default="float32")
    parser.add_argument("--block", type=int, choices=(16, 32, 64, 128), default=64)
    parser.add_argument("--order", type=positive, default=4096)


def run(args: argparse.Namespace) -> int:
    if args.order % (8 * args.block):  # one block in eight is stored
        accepted = f"a multiple of {8 * args.block}, eight blocks"
        print(f"--order is {args.order}; accepted: {accepted}", file=sys.stderr)
        return 2
    cases = cpu_cases([args.dtype], args.order)
    p = make_problem(next(case for case in cases if case.block[0] == args.block))
    a = bsr_array((p.values, p.pattern.indices, p.pattern.indptr), (p.case.m, p.case.k))
    p.dense = None  # is only a peer's input
    ctypes.CDLL(None).malloc_trim(0)  # or the product would reuse what making the input has freed
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    y = a @ p.x
    peak = _status("VmHWM")
    operands = a.nbytes + p.x.nbytes + y.nbytes
    extra = peak - before - y.nbytes
    print(json.dumps({"extra_bytes": extra, "peak_memory": round(1 + extra / operands, 4)}))
    return 0


def _status(key: str) -> int:
    """A size of this process in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{key}:\s*(\d+) kB$", text, re.MULTILINE)[1]) * 1024
