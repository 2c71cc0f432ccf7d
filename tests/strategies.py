"""Random structures for hypothesis, shared by the CPU and the GPU suite."""

from __future__ import annotations

from typing import Any, NamedTuple

import bsrgemm
import numpy as np
from attention_cases import Case
from cases import (
    DTYPES,
    Problem,
    allowed_error,
    assert_close,
    long_last_row,
    normal,
    problem,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from operations import matrix
from spaces import Space

CPU_EXAMPLES = 500
GPU_EXAMPLES = 200

# Of blocks that GPU kernels of all kinds take, and numbers of columns.
GPU_SIDES = st.one_of(st.integers(1, 20), st.sampled_from((32, 48, 64, 64, 64, 96, 128, 128, 192)))
GPU_COLUMNS = st.one_of(st.integers(0, 40), st.sampled_from((64, 65, 72, 100, 256, 264)))


def profile(examples: int) -> settings:
    """Settings for a suite of so many structures; no deadline, as a device is slow at first."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@st.composite
def problems(
    draw: st.DrawFn, heights: Any, widths: Any, columns: Any, dtypes: tuple[str, ...] = DTYPES
) -> tuple[Problem, np.random.Generator]:
    """Any pattern of up to 9 x 9 blocks, the last ones perhaps partial, and a generator for the
    values. Kernels begin with a row that is much longer than others, which few patterns have by
    chance."""
    rows, cols = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    bits = draw(st.integers(0, 2 ** (rows * cols) - 1))
    mask = np.array([bits >> k & 1 for k in range(rows * cols)], bool).reshape(rows, cols)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.integers(0, 3)) == 0 and rows > 0 and cols > 0:
        mask = rng.permutation(long_last_row(rng, rows, cols))
    blocksize = (draw(heights), draw(widths))
    index_type = draw(st.sampled_from((np.int32, np.int64)))
    n, dtype = draw(columns), draw(st.sampled_from(dtypes))
    return problem(rng, mask, blocksize, n, dtype, index_type, draw(cuts(blocksize))), rng


def cuts(blocksize: tuple[int, int]) -> Any:
    """What the last blocks have beyond the matrix: nothing, as often as not."""
    partial = st.tuples(*(st.integers(0, side - 1) for side in blocksize))
    return st.one_of(st.just((0, 0)), partial)


def check_product(
    space: Space, p: Problem, rng: np.random.Generator, alpha: float, beta: float
) -> None:
    """alpha * a @ b + beta * c into a poisoned array, compared as a whole."""
    x = normal(rng, (p.shape[1], p.n), p.dtype)
    c = normal(rng, (p.shape[0], p.n), p.dtype)
    out = space.poisoned(c.shape, p.dtype)
    bsrgemm.matmul(
        matrix(space, p), space.array(x), space.array(c), alpha=alpha, beta=beta, out=out
    )
    expected, allowed = allowed_error(p.dense, x, c, alpha, beta, p.dtype)
    assert_close(space.host(out), expected, allowed)


@st.composite
def attention_calls(
    draw: st.DrawFn, dtypes: tuple[str, ...] = DTYPES, largest: int = 260
) -> tuple[Case, str, int]:
    """Any call of attention with up to ``largest`` queries and keys, and a seed for the values."""
    lengths = st.integers(1, largest)
    sizes = st.one_of(st.integers(1, 70), st.sampled_from((80, 96, 128, 160, 256)))
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    bounds = st.one_of(st.just(-1), st.integers(0, 300))
    case = Case(
        queries=draw(lengths),
        keys=draw(lengths),
        size=draw(sizes),
        value_size=draw(st.one_of(st.none(), sizes)),
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        causal=draw(st.booleans()),
        alignment=draw(st.sampled_from(("bottom_right", "top_left"))),
        window=draw(st.one_of(st.none(), st.tuples(bounds, bounds))),
        softcap=draw(st.one_of(st.none(), st.sampled_from((0.5, 10.0, 50.0)))),
        spread=draw(st.sampled_from((1.0, 1.0, 4.0))),
        placed=draw(st.sampled_from(("plain", "bshd"))),
    )
    seed = draw(st.integers(0, 2**32 - 1))
    if not draw(st.booleans()):
        return case, draw(st.sampled_from(dtypes)), seed
    sides = st.one_of(st.integers(1, 40), st.sampled_from((16, 32, 64, 128, 256)))
    height, width = draw(sides), draw(sides)
    heads = st.sampled_from((1, kv_heads, case.heads))
    lead = draw(st.sampled_from((1, case.batch))), draw(heads)
    shape = (*lead, -(-case.queries // height), -(-case.keys // width))
    blocks = np.random.default_rng(seed).random(shape) < draw(st.floats(0, 1))
    case = case._replace(block_shape=(height, width), blocks=blocks)
    return case, draw(st.sampled_from(dtypes)), seed


class Pair(NamedTuple):
    """Two block-sparse matrices that can be multiplied, each perhaps as the view of one given."""

    a: Problem
    b: Problem
    transposed: tuple[bool, bool]

    def operands(self, space: Space) -> tuple[bsrgemm.bsr_array, bsrgemm.bsr_array]:
        a, b = (matrix(space, p) for p in (self.a, self.b))
        return a.T if self.transposed[0] else a, b.T if self.transposed[1] else b

    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        a, b = self.a.dense, self.b.dense
        return a.T if self.transposed[0] else a, b.T if self.transposed[1] else b


@st.composite
def pairs(
    draw: st.DrawFn, sides: Any, dtypes: tuple[str, ...] = DTYPES
) -> tuple[Pair, np.random.Generator]:
    """Any two patterns of up to 7 x 7 blocks, and a generator for values."""
    grid = [draw(st.integers(0, 7)) for _ in range(3)]
    blocks = [draw(sides) for _ in range(3)]
    dtype, density = draw(st.sampled_from(dtypes)), draw(st.floats(0, 1))
    transposed = draw(st.booleans()), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    outer, (inner, _) = draw(cuts((blocks[0], blocks[2]))), draw(cuts((blocks[1], 1)))
    less = (outer[0], inner, outer[1])
    operands = []
    for i in range(2):
        mask, block, cut = rng.random(grid[i : i + 2]) < density, blocks[i : i + 2], less[i : i + 2]
        if transposed[i]:
            mask, block, cut = mask.T, block[::-1], cut[::-1]
        operands.append(problem(rng, mask, tuple(block), 0, dtype, cut=cut))
    return Pair(*operands, transposed), rng


def check_pair(
    space: Space,
    pair: Pair,
    rng: np.random.Generator,
    alpha: float,
    beta: float,
    by_columns: bool = False,
) -> None:
    """alpha * a @ b + beta * c into a poisoned array, compared as a whole."""
    dtype, (left, right) = pair.a.dtype, pair.dense()
    c = normal(rng, (left.shape[0], right.shape[1]), dtype)
    out = space.poisoned(c.shape, dtype)
    given = space.array(c)
    if by_columns:
        out, given = space.poisoned(c.shape[::-1], dtype).T, space.column_major(c)
    bsrgemm.matmul(*pair.operands(space), given, alpha=alpha, beta=beta, out=out)
    expected, allowed = allowed_error(left, right, c, alpha, beta, dtype)
    assert_close(space.host(out), expected, allowed)
