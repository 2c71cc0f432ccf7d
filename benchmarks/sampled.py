"""Sampled products, dense x dense at stored blocks, on a GPU: bsrgemm and its peers."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bsrgemm import Plan, bsr_array
from bsrgemm._planning import chip_of
from bsrgemm._sampled import sampled

from .arguments import add_list_argument, are_any
from .cases import Case, select
from .gpu import add_measure_arguments, add_sustained_argument, measure
from .peers import Problem, Product
from .records import Results, Row, make_row
from .suite import TURNS, Reference, Suite, relative_error
from .timing import BURST_IDLE, SUSTAINED_MEASURED, SUSTAINED_WARM, DeviceTimer

FAMILIES = ("auto", "sampled", "cover", "portable")


@dataclass(frozen=True)
class SampledCase(Case):
    """M x K times K x N at the blocks of an M x N pattern; ``count`` of them a row."""

    @property
    def grid(self) -> tuple[int, int]:
        return self.m // self.block[0], self.n // self.block[1]

    @property
    def op(self) -> str:
        return "dense @ dense at blocks"

    @property
    def useful_flops(self) -> float:
        return 2.0 * self.nnzb * self.block[0] * self.block[1] * self.k

    @property
    def equal_flop_n(self) -> int:
        """The columns of a dense product of as much useful work, a multiple of 8."""
        return max(8, round(self.nnzb * self.block[0] * self.block[1] / self.m / 8) * 8)

    @property
    def equal_flop_shape(self) -> tuple[int, int, int]:
        return self.m, self.equal_flop_n, self.k


def gpu_sampled_cases() -> Iterator[SampledCase]:
    for dtype in ("float16", "bfloat16"):
        for block in (128, 64):
            for density, k in ((0.05, 2048), (0.125, 2048), (0.125, 8192), (0.5, 2048)):
                count = round(density * 8192 / block)
                shape = ((block, block), count, 8192, 8192, k)
                yield SampledCase("sampled", dtype, *shape)
        for pattern in ("zipf_rows", "banded"):
            yield SampledCase("sampled", dtype, (128, 128), 8, 8192, 8192, 2048, pattern)
        for side, count in ((32, 12), (32, 32), (32, 128), (16, 26), (16, 64), (16, 256)):
            yield SampledCase("sampled", dtype, (side, side), count, 8192, 8192, 2048)
    yield SampledCase("sampled", "float32", (64, 64), 16, 8192, 8192, 2048)


# ---- peers ---------------------------------------------------------------------------------------
#
# Of a problem, ``dense`` is A (M x K), ``x`` B (K x N), and ``values`` and ``out`` are blocks.


def cublas_dense(p: Problem) -> Product:
    """The whole product, with all that nobody asked for."""
    out = p.torch.empty(p.case.m, p.case.n, dtype=p.x.dtype, device=p.x.device)
    return Product(
        lambda: p.torch.mm(p.dense, p.x, out=out),
        2.0 * p.case.m * p.case.n * p.case.k,
        lambda: p.dense.double() @ p.x.double(),
    )


def cublas_equal_flop(p: Problem) -> Product:
    """A dense product of as many columns as the blocks of a row have."""
    n = p.case.equal_flop_n
    right = p.x[:, :n].contiguous()
    out = p.torch.empty(p.case.m, n, dtype=p.x.dtype, device=p.x.device)
    return Product(
        lambda: p.torch.mm(p.dense, right, out=out),
        2.0 * p.case.m * n * p.case.k,
        lambda: p.dense.double() @ right.double(),
    )


def torch_triton(p: Problem) -> Product:
    """PyTorch's Triton kernel ``sampled_addmm``, in place."""
    from torch.sparse._triton_ops import sampled_addmm

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse .* tensor support is in beta")
        matrix = p.torch.sparse_bsr_tensor(
            *p.indices, p.out, size=(p.case.m, p.case.n), check_invariants=False
        )
    return Product(
        lambda: sampled_addmm(
            matrix, p.dense, p.x, beta=0.0, out=matrix, skip_checks=True
        ).values(),
        p.case.useful_flops,
    )


def stk(p: Problem) -> Product:
    """MegaBlocks' kernel, for 16-bit blocks of 128x128."""
    import stk.ops

    short = p.torch.int16
    indptr, indices = p.indices
    rows = p.torch.as_tensor(p.pattern.rows, device=p.x.device)
    topology = stk.Matrix(
        (p.case.m, p.case.n), p.values, rows.to(short), indices.to(short), indptr.int()
    )
    return Product(lambda: stk.ops.sdd(p.dense, p.x, topology).data, p.case.useful_flops)


RIVALS: dict[str, Callable[[Problem], Product]] = {
    f.__name__: f for f in (cublas_dense, cublas_equal_flop, torch_triton, stk)
}


def wanted(case: Case) -> list[str]:
    """The rivals that can compute a case."""
    names = ["cublas_dense", "cublas_equal_flop"]
    if case.dtype == "float32":
        return names
    return [*names, "torch_triton", *(["stk"] if case.block == (128, 128) else [])]


# ---- suite ---------------------------------------------------------------------------------------


class SampledSuite(Suite):
    """Measures sampled products. ``families`` are "auto", "sampled" and "portable"."""

    rivals = RIVALS
    wanted = staticmethod(wanted)

    def _problem(self, case: Case) -> Problem:
        torch, kind = self.torch, getattr(self.torch, case.dtype)
        a = torch.randn(case.m, case.k, device=self.device).to(kind)
        b = torch.randn(case.k, case.n, device=self.device).to(kind)
        values = torch.zeros(case.nnzb, *case.block, dtype=kind, device=self.device)
        out = torch.empty_like(values)
        return Problem(torch, case, case.make_pattern(), values, a, b, out, self.cache)

    def _reference(self, p: Problem) -> Reference:
        torch = self.torch
        expected = self._blocks(p, p.dense.double() @ p.x.double())
        # cuBLAS may add parts of a sum in 16 bits, which is no yardstick.
        wide = torch.float32 if p.x.dtype.itemsize == 2 else p.x.dtype
        same = self._blocks(p, p.dense.to(wide) @ p.x.to(wide)).to(p.x.dtype)
        return Reference(expected, relative_error(torch, same, expected))

    def _blocks(self, p: Problem, full: Any) -> Any:
        (rows, cols), (height, width) = p.case.grid, p.case.block
        i, j = (
            self.torch.as_tensor(index, device=full.device).long()
            for index in (p.pattern.rows, p.pattern.indices)
        )
        return full.view(rows, height, cols, width)[i, :, j, :]

    def _plan(self, p: Problem) -> Plan:
        return self._pattern(p).plan_sampled(p.case.k, chip=self.chip)

    def _pattern(self, p: Problem) -> bsr_array:
        """One of its own, whose values are ``out``."""
        arrays = p.pattern.indices, p.pattern.indptr
        return bsr_array((p.out, *arrays), (p.case.m, p.case.n))

    def _our_product(self, p: Problem, family: str) -> Product:
        pattern = self._pattern(p)
        return Product(
            lambda: sampled(p.dense, p.x, pattern, out=pattern, family=family), p.case.useful_flops
        )

    def _time(self, p: Problem, who: str, what: Product, *more: Any) -> list[Row]:
        """Also "eager": calls one by one where the others are a graph's, since the host takes
        longer for them than the GPU. So are peers used, and so were they measured elsewhere."""
        rows = super()._time(p, who, what, *more)
        eager = self.timer.sustained(what.call, rows[0]["us"] * 1e-6)
        return [*rows, make_row(p.case, who, "eager", eager.seconds, what.flops)]


# ---- command -------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_measure_arguments(parser, "sampled", RIVALS, select="", groups="sampled")
    add_sustained_argument(parser)
    add_list_argument(parser, "--families", FAMILIES, ["auto"], "kernels to force, of")


def run(args: argparse.Namespace) -> int:
    cases = select(gpu_sampled_cases(), args.select)
    if not are_any(cases):
        return 2
    if args.dry_run:
        dry_run(cases, args.peers)
        return 0

    def make_suite(torch: Any, gpu: dict[str, Any], results: Results) -> SampledSuite:
        options = {
            "chip": chip_of(gpu),
            "peers": args.peers,
            "families": args.families,
            "turns": TURNS,
        }
        return SampledSuite(torch, "cuda:0", DeviceTimer(torch, *args.sustained), **options)

    return measure(args, cases, make_suite)


def dry_run(cases: list[Any], peers: list[str]) -> None:
    """What would run, and about how long at the rates that an H200 sustains: needs no GPU."""
    total = 0.0
    for case in cases:
        rivals = [name for name in wanted(case) if name in peers]
        print(f"{case.name}: {case.useful_flops / 1e9:.0f} GF; {' '.join(rivals)}")
        idle = BURST_IDLE + SUSTAINED_WARM + SUSTAINED_MEASURED
        total += (1 + len(rivals)) * (idle + 60 * case.useful_flops / 300e12) + 0.3
    print(f"{len(cases)} cases, about {total:.0f} s and the compilation of Triton kernels")
