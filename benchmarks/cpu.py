"""The suite on the CPU: bsrgemm beside NumPy's dense product, SciPy and torch, in turn.

Products, and one case of attention, for which torch has to be installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from bsrgemm import bsr_array, matmul
from bsrgemm._dtypes import numpy_dtype

from . import cpu_attention, cpu_peers, records
from .arguments import (
    add_list_argument,
    add_peers_argument,
    add_result_arguments,
    add_select_argument,
    are_any,
    order,
    positive,
    replaces_all,
    result_path,
)
from .attention_cases import AttentionCase, cpu_attention_cases
from .cases import SEED, Case, cpu_cases, select
from .cpu_peers import RIVALS, Problem
from .records import Results, Row, make_row
from .timing import rounds

PEERS = (*RIVALS, *cpu_attention.RIVALS)
DTYPES = ("float32", "float16", "bfloat16", "float64")
# Ours may lose as much as twice what the dense product of the same precision does, or a few
# roundings where the reference has that precision itself.
ALLOWED, ROUNDINGS = 2.0, 8.0
# A rival is marked from ten times on: then it is wrong, and not only rounded.
RIVAL_ALLOWED = 10.0
# A rival whose first call takes longer is not called again.
SLOW = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_result_arguments(parser, "cpu")
    add_select_argument(parser)
    add_list_argument(parser, "--dtypes", DTYPES, DTYPES, "some of")
    add_peers_argument(parser, PEERS)
    parser.add_argument(
        "--order", type=order, default=4096, help="M = N = K of products (default 4096)"
    )
    parser.add_argument(
        "--rounds", type=positive, default=5, help="calls of each in turn (default 5)"
    )


def run(args: argparse.Namespace) -> int:
    cases = [*cpu_cases(args.dtypes, args.order), *cpu_attention_cases(args.dtypes)]
    cases = select(cases, args.select)
    if not are_any(cases) or replaces_all(args):
        return 2
    results = Results(result_path(args), records.facts(args.commit, None))
    wrong = []
    for case in cases:
        if not isinstance(case, AttentionCase):
            rows, notes = measure(case, args.peers, args.rounds)
        elif importlib.util.find_spec("torch") is not None:
            rows = cpu_attention.measure(case, args.peers, args.rounds)
            notes = [_note(row) for row in rows]
        else:
            print(f"{case.name}: left out, torch is not installed")
            continue
        results.add(rows)
        print(f"{case.name}: {'; '.join(notes)}", flush=True)
        if rows[0].get("wrong"):
            wrong.append(case.name)
    results.say_where()
    for name in wrong:
        print(f"WRONG: {name}", file=sys.stderr)
    return 1 if wrong else 0


@dataclass
class Contender:
    who: str
    call: Callable[[], Any]
    flops: float
    extra: dict[str, Any]
    times: list[float]


def measure(case: Case, peers: list[str], count: int) -> tuple[list[Row], list[str]]:
    """Rows, ours first, and what to print."""
    p = make_problem(case)
    expected = p.dense.astype(np.float64) @ p.x.astype(np.float64)
    work = np.float64 if case.dtype == "float64" else np.float32
    same_precision = (p.dense.astype(work) @ p.x.astype(work)).astype(p.x.dtype)
    dense_error = relative_error(same_precision, expected)
    allowed = max(ALLOWED * dense_error, ROUNDINGS * float(np.finfo(work).eps) / 2)

    rows: list[Row] = []
    contenders = [_ours(p, expected, dense_error, allowed)]
    for who in cpu_peers.wanted(case):
        if who in peers:
            try:
                contenders.append(_rival(p, who, expected, RIVAL_ALLOWED / ALLOWED * allowed))
            except Exception as error:  # what a rival raises is its result
                text = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"[:200]
                rows.append(make_row(case, who, None, None, 0.0, error=text))
    fast = {c.who: c.call for c in contenders if c.times[0] <= SLOW}
    for who, times in rounds(fast, count).items():
        next(c for c in contenders if c.who == who).times = times
    measured = [
        make_row(
            *(case, c.who, "rounds", statistics.median(c.times), c.flops),
            **c.extra,
            runs=len(c.times),
        )
        for c in contenders
    ]
    rows = measured + rows
    rows[0] |= _memory(case)
    return rows, [_note(row) for row in rows]


def make_problem(case: Case) -> Problem:
    rng = np.random.default_rng(SEED)
    pattern = case.make_pattern()
    height, width = case.block
    rows, cols = case.grid
    kind = numpy_dtype(case.dtype)
    work = np.float64 if case.dtype == "float64" else np.float32
    values = rng.standard_normal((case.nnzb, height, width), work).astype(kind)
    x = rng.standard_normal((case.k, case.n), work).astype(kind)
    dense = np.zeros((rows, height, cols, width), kind)
    dense[pattern.rows, :, pattern.indices, :] = values
    return Problem(case, pattern, values, dense.reshape(case.m, case.k), x)


def relative_error(found: Any, expected: np.ndarray) -> float:
    """Of the whole result, in the Frobenius norm; infinite where anything is not finite."""
    error = np.linalg.norm(np.asarray(found).astype(np.float64) - expected)
    error /= np.linalg.norm(expected)
    return float(error) if np.isfinite(error) else math.inf


def _ours(p: Problem, expected: np.ndarray, dense_error: float, allowed: float) -> Contender:
    out = np.full((p.case.m, p.case.n), np.nan, p.x.dtype)
    a = bsr_array((p.values, p.pattern.indices, p.pattern.indptr), (p.case.m, p.case.k))

    def call() -> Any:
        return matmul(a, p.x, out=out)

    seconds = _seconds(call)
    error = relative_error(out, expected)
    extra = {"rel_err": error, "dense_rel_err": dense_error}
    if not error <= allowed:
        extra["wrong"] = True
    return Contender("bsrgemm", call, p.case.useful_flops, extra, [seconds])


def _rival(p: Problem, who: str, expected: np.ndarray, allowed: float) -> Contender:
    call, flops = RIVALS[who](p)
    found: list[Any] = []
    seconds = _seconds(lambda: found.append(call()))
    error = relative_error(cpu_peers.as_numpy(found.pop()), expected)
    extra = {"rel_err": error} | ({} if error <= allowed else {"wrong": True})
    return Contender(who, call, flops, extra, [seconds])


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _memory(case: Case) -> dict[str, Any]:
    """What a process that does this product once needs beyond its inputs and output."""
    command = [sys.executable, "-m", "benchmarks", "memory", "--dtype", case.dtype]
    command += ["--block", str(case.block[0]), "--order", str(case.m)]
    done = subprocess.run(command, cwd=records.ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"memory_error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    return json.loads(done.stdout)


def _note(row: Row) -> str:
    if "error" in row:
        return f"{row['who']} {row['error']}"
    rate = f"{row['who']} {row['us'] / 1e3:.1f} ms {row['tflops'] * 1e3:.1f} GF/s"
    memory = f", memory x{row['peak_memory']:.3f}" if "peak_memory" in row else ""
    error = f", error {row['rel_err']:.1e}" if row["rel_err"] is not None else ", error not finite"
    return rate + error + memory + (" WRONG" if row.get("wrong") else "")
