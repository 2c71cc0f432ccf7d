"""Any product with a dense matrix, drawn by hypothesis: operands, layouts, options, reference.

What the library does not support is drawn, too, and has to be refused with a reason.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import bsrgemm
import numpy as np
from cases import FLOOR, ROUNDOFF, Problem, fill_beyond, is_partial, normal, numpy_dtype
from hypothesis import strategies as st
from operations import dynamic_matrix, matrix
from precision_cases import (
    CURVE_ERROR,
    EIGHT,
    RESULTS,
    SUM_ERROR,
    TF32_ERROR,
    Scales,
    dense_of,
    make_scales,
)
from spaces import Space
from test_fused import ACTIVATIONS

FORMS = ("A @ X", "A.T @ X", "X @ A", "X @ A.T")
LAYOUTS = ("rows", "columns", "strided", "padded", "aligned")
BATCHES = ((), (), (), (2,), (3, 1), (2, 2), (0,), (1, 2, 1))


class Target(NamedTuple):
    """Where calls run, and what the library's GPU kernels can be asked for there."""

    on_gpu: bool = False
    hopper: bool = False
    own: bool = False  # the arrays are DeviceArrays, whose library computes nothing


class Placed(NamedTuple):
    memory: Any  # to see writes outside the view
    view: Any


def place(space: Space, x: np.ndarray, layout: str) -> Placed:
    """``x`` as a view of an array of the library that is NaN elsewhere."""
    if layout == "rows" or not space.strided or x.ndim == 0:
        memory = space.array(x)
        return Placed(memory, memory)
    if layout == "columns" and x.ndim > 1:
        memory = space.array(np.ascontiguousarray(x.swapaxes(-1, -2)))
        return Placed(memory, memory.swapaxes(-1, -2))
    # Aligned rows begin at multiples of 16 bytes and end anywhere.
    first, step = {"strided": (1, 2), "aligned": (16, 1)}.get(layout, (3, 1))
    last = first + step * x.shape[-1]
    behind = 2 if layout != "aligned" else -last % 16 or 16
    wide = np.full((*x.shape[:-1], last + behind), np.nan, x.dtype)
    wide[..., first:last:step] = x
    memory = space.array(wide)
    return Placed(memory, memory[..., first:last:step])


class Product(NamedTuple):
    """A call of matmul. ``options`` are those that make it fused or are of 8 bits."""

    problem: Problem
    seed: int
    form: str
    dynamic: bool
    batch: tuple[int, ...]
    stack: tuple[int, ...]  # of the values: a batch of matrices, () is a single one
    vector: bool
    layouts: tuple[str, str, str]  # of the dense operand, c and out
    c: str  # "none", "whole", "row" or "out"
    alpha: float
    beta: float
    precision: str
    bias: str  # "none", "columns" or "rows"
    wide: bool  # vectors of float32
    activation: str | None
    scaled: tuple[bool, bool]  # row_scale, col_scale
    scales: str  # as of make_scales
    out_dtype: str | None

    @property
    def right(self) -> bool:
        return self.form.startswith("X")

    @property
    def transposed(self) -> bool:
        return self.form.endswith("T") or self.form.startswith("A.T")

    @property
    def eight(self) -> bool:
        return self.problem.dtype in EIGHT

    @property
    def result_dtype(self) -> str:
        return (self.out_dtype or "bfloat16") if self.eight else self.problem.dtype

    def sizes(self) -> tuple[int, int]:
        """Rows and columns of the matrix as it is multiplied."""
        rows, cols = self.problem.shape[::-1] if self.transposed else self.problem.shape
        return rows, cols

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the dense operand and of the result."""
        rows, cols = self.sizes()
        n = self.problem.n
        lead = np.broadcast_shapes(self.batch, self.stack)
        if self.vector:
            return ((rows,), (*lead, cols)) if self.right else ((cols,), (*lead, rows))
        if self.right:
            return (*self.batch, n, rows), (*lead, n, cols)
        return (*self.batch, cols, n), (*lead, rows, n)

    def refusal(self, target: Target) -> str | None:
        """What an error has to say, of whichever reason comes first; None: it is computed."""
        dtype = self.problem.dtype
        reasons = []
        if self.precision == "tf32" and dtype != "float32":
            reasons.append("only float32 has it")
        if self.eight and self.out_dtype == "float64":
            reasons.append("out_dtype is float64; accepted: float16, bfloat16, float32")
        if not self.eight and self.out_dtype is not None:
            reasons.append("out_dtype is .* only 8-bit operands")
        if not self.eight and self.scales != "none":
            reasons.append("_scale is given, .* only 8-bit operands")
        if self.vector and self.scaled[0 if self.right else 1]:
            reasons.append("a result of one dimension has a single .* accepted: ")
        vectors = self.bias != "none" or any(self.scaled)
        if self.wide and vectors and dtype == "float64":
            reasons.append("must have dtype float64")
        return "|".join(reasons) or None

    # ---- the call ------------------------------------------------------------------------------

    def run(self, space: Space, target: Target) -> None:
        p, rng = self.problem, np.random.default_rng(self.seed)
        x_shape, shape = self.shapes()
        result = self.result_dtype
        x = normal(rng, x_shape, p.dtype)
        c = None
        if self.c != "none":
            c = normal(rng, shape[-1:] if self.c == "row" else shape, result)
        fused = self.vectors(rng, shape)
        scales = make_scales(space, p, rng, self.scales)

        make = dynamic_matrix if self.dynamic else matrix
        a, values = make(space, p), p.data
        if self.stack:
            values = normal(rng, (*self.stack, *p.data.shape), p.dtype)
            fill_beyond(replace(p, data=values), 0)
            a = bsrgemm.bsr_array((space.array(values), p.indices, p.indptr), p.shape)
        a = a.T if self.transposed else a
        poison = c if self.c == "out" else np.full(shape, np.nan, numpy_dtype(result))
        out = place(space, poison.copy(), self.layouts[2])
        given: dict[str, Any] = {k: space.array(v) for k, v in fused.items()}
        if c is not None:
            given["c"] = out.view if self.c == "out" else place(space, c, self.layouts[1]).view
        if self.scales != "none":
            given |= dict(zip(("b_scale", "a_scale"), scales.given, strict=True))
            if not self.right:
                given["a_scale"], given["b_scale"] = given["b_scale"], given["a_scale"]
        if self.out_dtype is not None:
            given["out_dtype"] = self.out_dtype
        operand = place(space, x, self.layouts[0]).view
        found = bsrgemm.matmul(
            *((operand, a) if self.right else (a, operand)),
            alpha=self.alpha,
            beta=self.beta if c is not None else None,
            activation=self.activation,
            precision=self.precision,
            out=out.view,
            **given,
        )
        assert found is out.view
        dense = self.dense(values, scales)
        self.compare(space.host(out.view), dense, x, c, fused, scales, target)
        if out.memory is not out.view:
            around = np.isnan(space.host(out.memory).astype(np.float64)).sum()
            inside = int(np.prod(shape, dtype=int))
            whole = int(np.prod(tuple(out.memory.shape), dtype=int))
            assert around == whole - inside, f"{self}: something outside out was written to"

    def vectors(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """bias, row_scale and col_scale, as far as they are given."""
        dtype = "float32" if self.wide else self.result_dtype
        rows = shape[-1:] if self.vector else shape[-2:-1]
        found = {}
        if self.bias != "none":
            along_rows = self.bias == "rows" and not self.vector
            found["bias"] = normal(rng, (*rows, 1) if along_rows else shape[-1:], dtype)
        if self.scaled[0]:
            found["row_scale"] = normal(rng, rows, dtype)
        if self.scaled[1]:
            found["col_scale"] = normal(rng, shape[-1:], dtype)
        return found

    # ---- the reference -------------------------------------------------------------------------

    def dense(self, values: np.ndarray, scales: Scales) -> np.ndarray:
        """What is meant, of all matrices of a stack, as it is multiplied."""
        p, count = self.problem, len(self.problem.indices)
        each = values.reshape(int(np.prod(self.stack)), count, *p.data.shape[1:])
        found = np.zeros((len(each), *p.shape))
        for one, data in zip(found, each, strict=True):
            whole = Problem(data, p.indices, p.indptr, p.shape, p.n, p.dtype)
            one[...] = dense_of(whole, scales.values)
        found = found.reshape(*self.stack, *p.shape)
        return found.swapaxes(-1, -2) if self.transposed else found

    def sums(
        self,
        dense: np.ndarray,
        x: np.ndarray,
        c: np.ndarray | None,
        fused: dict[str, np.ndarray],
        work: Any,
        size: Any = lambda x: x,
    ) -> np.ndarray:
        """What is activated, computed in ``work`` of ``size`` of all operands."""
        a, b = (size(y).astype(work) for y in ((x, dense) if self.right else (dense, x)))
        total = size(work(self.alpha)) * (a @ b)
        if "row_scale" in fused:
            rows = size(fused["row_scale"]).astype(work)
            total = total * (rows if self.vector else rows[:, None])
        if "col_scale" in fused:
            total = total * size(fused["col_scale"]).astype(work)
        if "bias" in fused:
            total = total + size(fused["bias"]).astype(work)
        if c is not None and self.beta != 0:
            total = total + size(work(self.beta)) * size(c).astype(work)
        return total

    def compare(
        self,
        found: np.ndarray,
        dense: np.ndarray,
        x: np.ndarray,
        c: np.ndarray | None,
        fused: dict[str, np.ndarray],
        scales: Scales,
        target: Target,
    ) -> None:
        """Twice what the same precision loses; a sum that cancels, what its summands lose."""
        meant = x.astype(np.float64) * scales.x
        operands = (dense, meant, c, fused)
        activate = ACTIVATIONS[self.activation]
        sums = self.sums(*operands, np.float64)
        expected = activate(sums)
        result = self.result_dtype
        work = np.float64 if result == "float64" else np.float32
        same = activate(self.sums(*operands, work).astype(np.float64))
        lost = np.linalg.norm(same.astype(numpy_dtype(result)).astype(np.float64) - expected)
        magnitude = np.linalg.norm(self.sums(*operands, np.float64, np.abs))
        terms = dense.shape[-2 if self.right else -1]
        roundoff = ROUNDOFF["float64" if work is np.float64 else "float32"]
        least = FLOOR[result] * ROUNDOFF[result] * np.linalg.norm(expected)
        allowed = max(2 * lost, least) + (4 + np.sqrt(terms) / 4) * roundoff * magnitude
        if result == "float16":
            allowed += 2.0**-25 * np.sqrt(expected.size)  # results below its normal numbers
        if target.on_gpu and (self.eight or self.precision == "tf32"):
            product = self.sums(dense, meant, None, {}, np.float64)
            allowed += (
                (SUM_ERROR if self.eight else TF32_ERROR)
                * np.linalg.norm(product)
                * (self.largest(fused))
            )
            if self.activation not in (None, "relu"):
                allowed += CURVE_ERROR * np.linalg.norm(expected - np.maximum(sums, 0))
        wide = found.astype(np.float64)
        assert wide.shape == expected.shape
        assert not np.isnan(wide).any(), f"{self}: not all of out was written, or NaN"
        error = np.linalg.norm(wide - expected)
        assert error <= allowed, f"{self}: error {error:.3e}, allowed {allowed:.3e}"

    @staticmethod
    def largest(fused: dict[str, np.ndarray]) -> float:
        """What scales multiply an error by, at most."""
        names = ("row_scale", "col_scale")
        factors = [np.abs(fused[k].astype(np.float64)).max(initial=1) for k in names if k in fused]
        return float(np.prod(factors))


@st.composite
def products(draw: st.DrawFn, problems: Any) -> Product:
    """``problems`` draws a structure and a generator, of any dtype that matrices have."""
    p, rng = draw(problems)
    eight = p.dtype in EIGHT
    vector = draw(st.integers(0, 7)) == 0
    dynamic = draw(st.integers(0, 3)) == 0 and not is_partial(p)
    single = p.dtype == "float32"
    # One thing in ten that is not supported; what is, as it comes.
    wrong = draw(st.sampled_from((None,) * 9 + ("options",)))
    may_scale = eight or wrong is not None
    fused = draw(st.booleans())
    out_dtype = None
    if may_scale and draw(st.booleans()):
        out_dtype = draw(st.sampled_from(RESULTS if wrong is None else (*RESULTS, "float64")))
    scaled = [fused and draw(st.booleans()) for _ in range(2)]
    form = draw(st.sampled_from(FORMS))
    batch = () if vector else draw(st.sampled_from(BATCHES))
    # Also one that is broadcast, or that broadcasts the other.
    stacks = ((), (), (), (2,), (2, 1), batch, (1,) * len(batch))
    stack = () if dynamic else draw(st.sampled_from(stacks))
    if any(1 not in pair and pair[0] != pair[1] for pair in zip(batch[::-1], stack[::-1])):  # noqa: B905
        stack = ()
    if vector and wrong is None:
        scaled[0 if form.startswith("X") else 1] = False
    may_widen = p.dtype != "float64" or wrong is not None
    ways = ("none", "numbers", "one") if dynamic else ("none", "numbers", "one", "blocks")
    scalars = st.sampled_from((0.0, 1.0, -1.0, 0.5, 3.0))
    return Product(
        problem=p,
        seed=int(rng.integers(2**62)),
        form=form,
        dynamic=dynamic,
        batch=batch,
        stack=stack,
        vector=vector,
        layouts=tuple(draw(st.sampled_from(LAYOUTS)) for _ in range(3)),
        c=draw(st.sampled_from(("none", "none", "whole", "row", "out"))),
        alpha=draw(scalars),
        beta=draw(scalars),
        precision="tf32" if draw(st.booleans()) and (single or wrong) else "ieee",
        bias=draw(st.sampled_from(("none", "columns", "rows"))) if fused else "none",
        wide=may_widen and draw(st.booleans()),
        activation=draw(st.sampled_from(tuple(ACTIVATIONS))) if fused else None,
        scaled=(scaled[0], scaled[1]),
        scales=draw(st.sampled_from(ways)) if may_scale else "none",
        out_dtype=out_dtype,
    )
