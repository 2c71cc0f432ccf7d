"""Products of tf32, 8-bit floats, float64 and few columns of float32 on a GPU, beside cuBLAS's
dense ones, our own of float16 and, of float32, cuSPARSE's.

The dense operand is column-major, as Hopper's kernels of the first two read it; in the groups that
end in ``_rows`` it is row-major, which these copy at each product, and of few columns of float32.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bsrgemm import Plan, bsr_array
from bsrgemm._matmul import product
from bsrgemm._planning import chip_of

from .arguments import are_any
from .cases import Case, select
from .gpu import add_measure_arguments, add_sustained_argument, measure
from .patterns import Pattern
from .peers import Problem, Product, torch_bsr
from .records import Results
from .suite import TURNS, Reference, Suite, multiply
from .timing import DeviceTimer

ORDER = 8192
EIGHT = ("float8_e4m3fn", "float8_e5m2")
# By what stands before "_rows" in the name of a group.
GROUPS = {"tf32": ("float32",), "fp8": EIGHT}
# Sides of blocks and densities: of both, and by group.
TALL = ((128, 0.05), (128, 0.125), (128, 0.25), (64, 0.125))
LOW = {"tf32": ((32, 0.05), (32, 0.125), (32, 0.5), (16, 0.125), (16, 0.5))}


def precision_cases() -> Iterator[Case]:
    for group, dtypes in GROUPS.items():
        for dtype in dtypes:
            for side, density in (*TALL, *LOW.get(group, ())):
                count = round(density * ORDER / side)
                yield Case(group, dtype, (side, side), count, ORDER, ORDER, ORDER)
            for side in (128, *(side for side, density in LOW.get(group, ()) if density == 0.125)):
                rows = (f"{group}_rows", dtype, (side, side), ORDER // side // 8)
                yield Case(*rows, ORDER, ORDER, ORDER)
    # Blocks that WGMMA does not take as they are.
    for group, dtype, sides in (
        ("fp8_small_rows", EIGHT[0], (16, 32)),
        ("float64_rows", "float64", (16, 32, 64)),
    ):
        for side in sides:
            yield Case(group, dtype, (side, side), ORDER // side // 8, ORDER, ORDER, ORDER)
    for group, dtype in (("fp8_columns", EIGHT[0]), ("float32_columns", "float32")):
        for side in (128, 64, 32, 16):
            for n in (1, 16, 64):
                few = (group, dtype, (side, side), ORDER // side // 4)
                yield Case(*few, ORDER, n, ORDER, timings=("cold",))


# ---- rivals -------------------------------------------------------------------------------------


def _dense(p: Problem, left: Any, right: Any) -> Product:
    """torch's dense product of the same types, in the faster of cuBLAS's two modes of 8 bits, which
    keeps fewer digits of partial sums. ``right`` is column-major."""
    torch, flops = p.torch, 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
    if p.case.dtype not in EIGHT:
        return Product(lambda: torch.mm(left, right, out=p.out), flops)
    one = torch.ones((), device=left.device)
    options = {"out_dtype": p.out.dtype, "use_fast_accum": True}
    return Product(lambda: torch._scaled_mm(left, right, one, one, **options), flops)


def cublas_dense(p: Problem) -> Product:
    return _dense(p, p.dense, column_major(p.x))


def cublas_equal_flop(p: Problem) -> Product:
    """With an inner dimension of density * K: as much useful work."""
    k = -(-p.case.equal_flop_k // 16) * 16
    left = p.torch.randn(p.case.m, k, device=p.x.device).to(p.x.dtype)
    right = column_major(p.x[:k])
    return _dense(p, left, right)._replace(expected=lambda: left.double() @ right.double())


def own_float16(p: Problem) -> Product:
    """Our product of random float16 with the same blocks, the dense operand row-major. Not of the
    same numbers: those of 8 bits leave most of a float16's empty, which takes less power and
    so less time."""
    torch, half = p.torch, p.torch.float16
    values, x = (torch.randn(t.shape, device=p.x.device).to(half) for t in (p.values, p.x))
    a = bsr_array((values, p.pattern.indices, p.pattern.indptr), (p.case.m, p.case.k))
    out = torch.empty(p.out.shape, dtype=half, device=p.x.device)

    def expected() -> Any:
        wide = bsr_array((values.double(), p.pattern.indices, p.pattern.indptr), a.shape)
        return multiply(p.case, wide, x.double())

    return Product(lambda: product(a, x, None, 1.0, None, out, None), p.case.useful_flops, expected)


RIVALS = {f.__name__: f for f in (cublas_dense, cublas_equal_flop, own_float16, torch_bsr)}


def wanted(case: Case) -> list[str]:
    if case.group == "fp8_rows":
        return []
    if case.group == "fp8_columns":
        return ["own_float16"]
    if case.group == "float32_columns":
        return ["torch_bsr"]
    names = ["cublas_dense", "cublas_equal_flop", "own_float16"]
    if case.group.endswith("_rows"):
        return names[:2]
    # cuBLAS multiplies e5m2 by e4m3 alone.
    return names[2:] if case.dtype == "float8_e5m2" else names


# ---- ours ---------------------------------------------------------------------------------------


class PrecisionSuite(Suite):
    rivals = RIVALS
    wanted = staticmethod(wanted)

    def _problem(self, case: Case) -> Problem:
        """Made in float32, of which the 8-bit types are a part: torch assigns no blocks of them."""
        p = super()._problem(replace(case, dtype="float32"))
        kind = getattr(self.torch, case.dtype)
        x = p.x.to(kind)
        return replace(
            p,
            case=case,
            values=p.values.to(kind),
            dense=p.dense.to(kind),
            x=x if case.group.endswith("_rows") or is_few_float32(case) else column_major(x),
            out=p.out.to(self.torch.bfloat16 if case.dtype in EIGHT else kind),
        )

    def _reference(self, p: Problem) -> Reference:
        reference = super()._reference(p)
        if p.case.dtype == "float64":  # of which it is no other than the dense product
            reference.dense_error = 2.0**-53 * (8 + math.sqrt(p.case.k) / 4)
        return reference

    def _rounded_product(self, p: Problem) -> Any:
        if p.case.dtype in EIGHT:
            return multiply(p.case, p.dense.float(), p.x.float()).to(p.out.dtype)
        return multiply(p.case, p.dense, p.x)

    def _plan(self, p: Problem) -> Plan:
        return self._read(p).plan(p.case.n, chip=self.chip, precision=precision_of(p.case))

    def _our_product(self, p: Problem, family: str) -> Product:
        a = self._matrix(p)
        precision = precision_of(p.case)
        return Product(
            lambda: product(a, p.x, None, 1.0, None, p.out, None, family, precision=precision),
            p.case.useful_flops,
        )


def is_few_float32(case: Case) -> bool:
    return case.group == "float32_columns"


def precision_of(case: Case) -> str:
    return "tf32" if case.dtype == "float32" and not is_few_float32(case) else "ieee"


def column_major(x: Any) -> Any:
    return x.T.contiguous().T


# ---- command ------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_measure_arguments(
        parser,
        "precision",
        RIVALS,
        select="^(tf32|fp8)/",
        groups="tf32, fp8, tf32_rows, fp8_rows, fp8_small_rows, float64_rows, fp8_columns, "
        "float32_columns (default: the first two)",
    )
    add_sustained_argument(parser)


def run(args: argparse.Namespace) -> int:
    cases = select(precision_cases(), args.select)
    if not are_any(cases):
        return 2
    if args.dry_run:
        dry_run(cases, args.peers)
        return 0

    def make_suite(torch: Any, gpu: dict[str, Any], results: Results) -> PrecisionSuite:
        torch.backends.cuda.matmul.allow_tf32 = True
        return PrecisionSuite(
            torch,
            "cuda:0",
            DeviceTimer(torch, *args.sustained),
            chip=chip_of(gpu),
            peers=args.peers,
            l2_bytes=torch.cuda.get_device_properties(0).L2_cache_size,
            turns=TURNS,
        )

    return measure(args, cases, make_suite)


def predict(case: Case, pattern: Pattern) -> dict[str, Any]:
    from bsrgemm import _core

    shape = (case.m, case.k)
    structure = _core.Structure(pattern.indices, pattern.indptr, shape, case.block, True)
    return structure.explain(case.n, case.dtype, None, precision_of(case))


def dry_run(cases: list[Case], peers: list[str]) -> None:
    """What would run: needs no GPU. Predictions are for a row-major dense operand."""
    for case in cases:
        plan = Plan(predict(case, case.make_pattern()))
        rivals = [name for name in wanted(case) if name in peers]
        print(
            f"{case.name}: predicted {plan.seconds * 1e6:.0f} us, {plan.tflops:.0f} TF/s, "
            f"{plan.choice}; {' '.join(rivals)}",
            file=sys.stdout,
        )
