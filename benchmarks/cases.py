"""What is measured, as data. A name is ``group/dtype/block/density/pattern/MxNxK``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .patterns import PATTERNS, Pattern

SEED = 20261121
# Of the group "crossover": block shapes against the whole dense product, up to all blocks.
CROSSOVER_SIDES = (16, 32, 64, 128)
CROSSOVER_BLOCKS = [(h, w) for h in CROSSOVER_SIDES for w in CROSSOVER_SIDES] + [(96, 96), (48, 80)]
CROSSOVER_DENSITIES = (0.01, 0.02, 0.05, 0.125, 0.25, 0.5, 0.75, 1.0)
# Numbers of columns of X, odd ones among them. Products of few are as short as the host's part of a
# launch, and read A from memory where they are used: they are measured cold.
SIZES_COLUMNS = (1, 8, 64, 128, 333, 512, 1000, 2048, 8191, 8192, 16384)
FEW_COLUMNS = 64
UNEQUAL_COLUMNS = (16, 64, 96, 128)

# The groups of other products than A @ X, for an A of M x K and N columns or rows of X.
FORMS = {
    "transposed": "bsr.T @ dense",
    "dense_bsr": "dense @ bsr",
    "dense_bsr_transposed": "dense @ bsr.T",
    "linear": "dense @ bsr.T",  # N tokens through a weight that is no longer in the cache
    "rows": "dense @ bsr",  # the same of a weight as [in, out]
}
# Products that read the rows of A; the others read its columns.
READ_ROWS = ("bsr @ dense", "dense @ bsr.T", "bsr @ bsr")


@dataclass(frozen=True)
class Case:
    """One product: M x K in blocks, times K x N, or one of FORMS. ``count`` is the mean number of
    blocks a row."""

    group: str
    dtype: str
    block: tuple[int, int]
    count: int
    m: int
    n: int
    k: int
    pattern: str = "uniform"
    timings: tuple[str, ...] = ("sustained", "burst")

    @property
    def grid(self) -> tuple[int, int]:
        """Block rows and block columns."""
        return self.m // self.block[0], self.k // self.block[1]

    @property
    def op(self) -> str:
        return FORMS.get(self.group, "bsr @ dense")

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of X and of the result."""
        inner, outer = (self.k, self.m) if self.op in READ_ROWS else (self.m, self.k)
        if self.op.startswith("dense"):
            return (self.n, inner), (self.n, outer)
        return (inner, self.n), (outer, self.n)

    @property
    def nnzb(self) -> int:
        rows, cols = self.grid
        return 2 * cols if self.pattern == "two_full_rows" else rows * self.count

    @property
    def density(self) -> float:
        rows, cols = self.grid
        return self.nnzb / (rows * cols)

    @property
    def useful_flops(self) -> float:
        return 2.0 * self.nnzb * self.block[0] * self.block[1] * self.n

    @property
    def equal_flop_k(self) -> int:
        """The inner dimension of a dense product of as much useful work, a multiple of 8."""
        stored = self.nnzb * self.block[0] * self.block[1] / self.m
        return max(8, round(stored / 8) * 8)

    @property
    def equal_flop_shape(self) -> tuple[int, int, int]:
        """M, N and K of that product."""
        return self.m, self.n, self.equal_flop_k

    @property
    def name(self) -> str:
        height, width = self.block
        return (
            f"{self.group}/{self.dtype}/{height}x{width}/d{self.density:.3g}/{self.pattern}/"
            f"{self.m}x{self.n}x{self.k}"
        )

    @property
    def fields(self) -> dict[str, Any]:
        """What a row of results says about the case."""
        return {
            "op": self.op,
            "dtype": self.dtype,
            "block": list(self.block),
            "density": self.density,
            "nnzb": self.nnzb,
            "pattern": self.pattern,
            "M": self.m,
            "N": self.n,
            "K": self.k,
        }

    def make_pattern(self) -> Pattern:
        """The same for every dtype, so that these are comparable."""
        seed = [SEED, *self.block, self.count, *self.pattern.encode()]
        return PATTERNS[self.pattern](np.random.default_rng(seed), *self.grid, self.count)


def order_operands(case: Any, a: Any, x: Any) -> tuple[Any, Any]:
    """Left and right operand of the case's product."""
    a = a.T if "bsr.T" in case.op else a
    return (x, a) if case.op.startswith("dense") else (a, x)


@dataclass(frozen=True)
class PairsCase(Case):
    """Two block-sparse matrices: A, and a B of K x N in blocks as high as those of A are wide, of
    ``b_width`` columns, ``b_count`` a block row on average."""

    b_width: int = 128
    b_count: int = 1

    @property
    def op(self) -> str:
        return "bsr @ bsr"

    @property
    def b_grid(self) -> tuple[int, int]:
        return self.k // self.block[1], self.n // self.b_width

    def make_b_pattern(self) -> Pattern:
        seed = [SEED + 1, *self.block, self.b_width, self.b_count, *self.pattern.encode()]
        return PATTERNS[self.pattern](np.random.default_rng(seed), *self.b_grid, self.b_count)

    @cached_property
    def pairs(self) -> int:
        """Stored blocks that meet."""
        a, b = self.make_pattern(), self.make_b_pattern()
        return int(np.bincount(a.indices, minlength=self.grid[1]) @ np.diff(b.indptr))

    @property
    def useful_flops(self) -> float:
        return 2.0 * self.pairs * self.block[0] * self.block[1] * self.b_width

    @property
    def equal_flop_k(self) -> int:
        return max(8, round(self.useful_flops / (2 * self.m * self.n) / 8) * 8)

    @property
    def fields(self) -> dict[str, Any]:
        return super().fields | {"pairs": self.pairs}


def gpu_cases(dtypes: Iterable[str]) -> Iterator[Case]:
    order = 8192
    for dtype in dtypes:
        if dtype in ("float32", "float64"):
            for block in (32, 128):
                yield _square("blocks", dtype, block, 0.125, order)
            continue
        for block in (128, 64, 32, 16):
            for density in (0.02, 0.05, 0.125, 0.25, 0.5):
                yield _square("blocks", dtype, block, density, order)
        for density in (0.05, 0.125):
            yield _square("blocks", dtype, 8, density, order)
        yield Case("blocks", dtype, (24, 24), 43, 341 * 24, order, 341 * 24)
        yield Case("blocks", dtype, (128, 64), 16, order, order, order)
        yield _square("blocks", dtype, 256, 0.125, order)
        yield Case("blocks", dtype, (512, 112), 16, order, order, 74 * 112)
        yield Case("blocks", dtype, (128, 32), 16, order, order, order)
        for block in (128, 64, 16):
            for pattern in PATTERNS:
                if pattern != "uniform":
                    yield _square("patterns", dtype, block, 0.125, order, pattern)
        for m, k, density in ((order, order, 0.25), (order, order, 0.5), (14336, 4096, 0.125)):
            for block in (128, 64, 32, 16):
                for n in (1, 4, 16, 24, 33, 48, 64):
                    shape = (round(density * k / block), m, n, k)
                    yield Case("columns", dtype, (block, block), *shape, timings=("cold",))
        for m, k, density in ((order, order, 0.25), (4096, 14336, 0.125), (14336, 4096, 0.125)):
            for block in (128, 64, 32, 16):
                for n in (1, 4, 16, 64):
                    shape = (round(density * k / block), m, n, k)
                    yield Case("rows", dtype, (block, block), *shape, timings=("cold",))
        for block in (128, 64):
            for n in (1, 4, 16, 32, 64, 128, 256, 300, 1024, 4096):
                shape = (4096 // block // 8, 14336, n, 4096)
                yield Case("linear", dtype, (block, block), *shape, timings=("cold",))
        for group in (name for name in FORMS if name not in ("linear", "rows")):
            for block, density in ((128, 0.125), (128, 0.25), (64, 0.125), (64, 0.25), (32, 0.125)):
                yield _square(group, dtype, block, density, order)
        for block in (128, 64, 32, 16):
            yield _square("fused", dtype, block, 0.125, order)
        yield from _crossover(dtype)
        yield from _sizes(dtype)
        yield from _unequal(dtype)
        for block in (128, 64, 32, 16):
            for density in (0.125, 0.25, 0.5):
                count, sides = round(density * order / block), (block, block)
                size, b = (order, order, order), {"b_width": block, "b_count": count}
                yield PairsCase("bsr_bsr", dtype, sides, count, *size, **b)


def _crossover(dtype: str) -> Iterator[Case]:
    for height, width in CROSSOVER_BLOCKS:
        m, k = 8192 // height * height, 8192 // width * width
        counts = {max(1, round(density * k / width)) for density in CROSSOVER_DENSITIES}
        for count in sorted(counts):
            size, timings = (m, 8192, k), ("sustained",)
            yield Case("crossover", dtype, (height, width), count, *size, timings=timings)


def _sizes(dtype: str) -> Iterator[Case]:
    """Other shapes than 8192 x 8192 x 8192."""
    for block in (128, 64, 32, 16):
        for m, n, k, density in (
            *((8192, n, 8192, 0.125) for n in SIZES_COLUMNS),
            (4096, 8192, 11008, 0.125),
            (14336, 8192, 4096, 0.125),
            (16384, 8192, 16384, 0.03),
        ):
            count, timing = round(density * k / block), "cold" if n <= FEW_COLUMNS else "sustained"
            yield Case("sizes", dtype, (block, block), count, m, n, k, timings=(timing,))


def _unequal(dtype: str) -> Iterator[Case]:
    """Few columns, of rows that differ in length or are too few to keep all SMs busy."""
    for block in (128, 64):
        for m, k, pattern in (
            *((8192, 8192, "zipf_rows"), (8192, 8192, "scattered")),
            *((14336, 4096, "scattered"), (4096, 14336, "scattered"), (4096, 14336, "uniform")),
        ):
            for n in UNEQUAL_COLUMNS:
                count, sides = round(0.125 * k / block), (block, block)
                yield Case("unequal", dtype, sides, count, m, n, k, pattern, timings=("cold",))


def cpu_cases(dtypes: Iterable[str], order: int = 4096) -> Iterator[Case]:
    for dtype in dtypes:
        for block in (16, 32, 64, 128):
            count = order // block // 8
            yield Case("blocks", dtype, (block, block), count, *[order] * 3, timings=("rounds",))


def select(cases: Iterable[Any], pattern: str) -> list[Any]:
    """The cases in whose name the regular expression is found."""
    return [case for case in cases if re.search(pattern, case.name)]


def _square(
    group: str, dtype: str, block: int, density: float, order: int, pattern: str = "uniform"
) -> Case:
    count = round(density * order / block)
    return Case(group, dtype, (block, block), count, order, order, order, pattern)
