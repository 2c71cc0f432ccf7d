"""Any call of the operations in docs/support.md, drawn by hypothesis, on any library and device.

Each is compared with float64 by the checks of its operation or, where it is not supported, has to
raise an error that says what is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import attention_cases
import attention_fp8
import bsrgemm
import numpy as np
import pytest
import sampled_cases
import softmax_cases
import structure_cases
import varlen_cases
from cases import DTYPES, Problem, is_partial, mask_of, normal, problem
from drawn_products import Product, Target, products
from hypothesis import strategies as st
from operations import dynamic_matrix, matrix
from precision_cases import EIGHT
from spaces import Space
from strategies import Pair, attention_calls, check_pair, pairs, problems
from support import NAMES_WHAT_IS_ACCEPTED

ALL = (*DTYPES, *EIGHT)
ROUNDS = np.random.default_rng


class Drawn(NamedTuple):
    """``run`` makes the call and compares; ``refusal`` is what an error has to say on a target."""

    what: str
    run: Callable[[Space, Target], None]
    refusal: Callable[[Target], str | None] = lambda target: None


def check(drawn: Drawn, space: Space, target: Target) -> None:
    refusal = drawn.refusal(target)
    if refusal is None:
        drawn.run(space, target)
        return
    with pytest.raises((TypeError, ValueError), match=refusal) as raised:
        drawn.run(space, target)
    assert NAMES_WHAT_IS_ACCEPTED.search(str(raised.value)), raised.value


def of_product(product: Product) -> Drawn:
    return Drawn(str(product._replace(problem=None)), product.run, product.refusal)  # type: ignore[arg-type]


# ---- two block-sparse matrices -----------------------------------------------------------------


class SparseProduct(NamedTuple):
    pair: Pair
    seed: int
    alpha: float
    beta: float
    by_columns: bool
    wrong: str | None

    def refusal(self, target: Target) -> str | None:
        if self.wrong is None and self.pair.a.dtype in EIGHT:
            return "must have dtype float16, bfloat16, float32 or float64"
        return {
            None: None,
            "bias": "bias is given and a and b are both block-sparse; accepted: None",
            "activation": "activation is given and a and b are both block-sparse; accepted: None",
            "out_dtype": "out_dtype is given and a and b are both block-sparse; accepted: None",
            "a_scale": "a_scale is given and a and b are both block-sparse; accepted: None",
            "dynamic": "accepted: two bsr_arrays, so use a.to_bsr",
        }[self.wrong]

    def run(self, space: Space, target: Target) -> None:
        rng = ROUNDS(self.seed)
        a, b = self.pair.operands(space)
        if self.wrong is not None:
            options = {"activation": "relu", "out_dtype": "float16", "a_scale": 2.0}
            options["bias"] = space.array(np.zeros(b.shape[1:]))
            if self.wrong == "dynamic":
                a = dynamic_matrix(space, self.pair.a)
                bsrgemm.matmul(a.T if self.pair.transposed[0] else a, b)
            bsrgemm.matmul(a, b, **{self.wrong: options[self.wrong]})
        elif self.pair.a.dtype in EIGHT:
            a @ b
        else:
            by_columns = self.by_columns and space.strided
            check_pair(space, self.pair, rng, self.alpha, self.beta, by_columns)


@st.composite
def sparse_products(draw: st.DrawFn, sides: Any) -> Drawn:
    pair, rng = draw(pairs(sides, draw(st.sampled_from((DTYPES, DTYPES, DTYPES, EIGHT)))))
    wrong = draw(
        st.sampled_from((None,) * 15 + ("bias", "activation", "out_dtype", "a_scale", "dynamic"))
    )
    if wrong == "dynamic" and (0 in pair.a.shape or is_partial(pair.a)):
        wrong = None
    scalars = st.sampled_from((0.0, 1.0, -1.0, 0.5, 3.0))
    by_columns, seed = draw(st.booleans()), int(rng.integers(2**62))
    call = SparseProduct(pair, seed, draw(scalars), draw(scalars), by_columns, wrong)
    return Drawn(f"two block-sparse {call}", call.run, call.refusal)


# ---- sampled products, softmax, structure ------------------------------------------------------


def _sampled(
    p: Problem, k: int, seed: int, call: sampled_cases.Call, wrong: str | None, space: Space, _: Any
) -> None:
    rng = ROUNDS(seed)
    if wrong is None and p.dtype in DTYPES:
        sampled_cases.check(space, p, k, rng, call if space.strided else call._replace(
            a="rows", b="rows"
        ))  # fmt: skip
        return
    pattern, options = matrix(space, p), {}
    a, b = (
        space.array(normal(rng, shape, p.dtype)) for shape in ((p.shape[0], k), (k, p.shape[1]))
    )
    if wrong == "dynamic":
        options["out"] = dynamic_matrix(space, p)
    if wrong == "structure":
        other = np.ones((1, 1), bool)
        q = problem(rng, other, (p.data.shape[1] + 1, p.data.shape[2]), 0, p.dtype)
        options["out"] = matrix(space, q)
    bsrgemm.sampled_matmul(a, b, pattern, **options)


@st.composite
def samples(draw: st.DrawFn, drawn: Any) -> Drawn:
    p, rng = draw(drawn)
    wrong = draw(st.sampled_from((None,) * 15 + ("dynamic", "structure")))
    may_change = sampled_cases.may_change(p)
    if wrong == "dynamic" and not may_change:
        wrong = None
    orders = st.sampled_from(sampled_cases.ORDERS)
    call = sampled_cases.Call(
        alpha=draw(st.sampled_from((0.0, 1.0, -0.5))),
        beta=draw(st.sampled_from((0.0, 0.0, 1.0, 2.0))),
        a=draw(orders),
        b=draw(orders),
        transposed=draw(st.booleans()),
        out=draw(st.sampled_from(("new", "given", "pattern"))),
        changing=may_change and draw(st.integers(0, 3)) == 0,
    )
    k, seed = draw(st.integers(0, 70)), int(rng.integers(2**62))
    refusal = {
        None: "must have dtype float16, bfloat16, float32 or float64" if p.dtype in EIGHT else None,
        "dynamic": "out is a DynamicArray; accepted: a bsr_array",
        "structure": "accepted: a matrix of the pattern's structure|must have dtype",
    }[wrong]
    run = partial(_sampled, p, k, seed, call, wrong)
    return Drawn(f"sampled {call} k={k} wrong={wrong}", run, lambda target: refusal)


def _softmax(p: Problem, scale: float, wrong: str | None, space: Space, _: Any) -> None:
    if wrong == "dynamic":
        bsrgemm.softmax(dynamic_matrix(space, p))
    elif p.dtype in EIGHT:
        bsrgemm.softmax(matrix(space, p), scale)
    else:
        softmax_cases.check(space, p, scale)


@st.composite
def softmaxes(draw: st.DrawFn, drawn: Any) -> Drawn:
    p, _ = draw(drawn)
    may_change = 0 not in p.shape and not is_partial(p)
    wrong = "dynamic" if draw(st.integers(0, 15)) == 0 and may_change else None
    scale = draw(st.sampled_from((1.0, 0.125, -2.0, 0.0)))
    refusal = "must have dtype float16, bfloat16, float32 or" if p.dtype in EIGHT else None
    if wrong:
        refusal = "a is a DynamicArray; accepted: a bsr_array"
    return Drawn("softmax", partial(_softmax, p, scale, wrong), lambda target: refusal)


def _structure(p: Problem, seed: int, name: str, space: Space, _: Any) -> None:
    getattr(structure_cases, name)(space, p, ROUNDS(seed))


@st.composite
def structures(draw: st.DrawFn, drawn: Any) -> Drawn:
    p, rng = draw(drawn)
    eight = p.dtype in EIGHT
    checks = structure_cases.CHECKS
    if eight:  # of which sums of rows and columns are products like others
        checks = (structure_cases.arithmetic, *structure_cases.MOVES)
    name = draw(st.sampled_from(checks)).__name__
    run = partial(_structure, p, int(rng.integers(2**62)), name)

    def refusal(target: Target) -> str | None:
        if target.own:
            return "accepted here: an array of NumPy, torch or CuPy"
        return "arithmetic takes float16, bfloat16" if eight and name == "arithmetic" else None

    return Drawn(name, run, refusal)


# ---- patterns that change ----------------------------------------------------------------------


def _dynamic(p: Problem, seed: int, topk: int | None, dtype: str, space: Space, _: Any) -> None:
    """What is stored after an update of a pattern that had another mask, and its values."""
    rng = ROUNDS(seed)
    grid = mask_of(p).shape
    capacity = int(rng.integers(1, grid[0] * grid[1] + 1))
    pattern = bsrgemm.DynamicPattern(p.shape, p.data.shape[1:], capacity, space.device)
    pattern.update(space.array(rng.random(grid) < 0.5))
    if topk is None:
        mask = mask_of(p)
        pattern.update(space.array(mask))
    else:
        scores = normal(rng, grid, dtype)
        mask = np.zeros(grid, bool)
        best = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, :topk]
        np.put_along_axis(mask, best, True, axis=1)
        pattern.update_topk(space.array(scores), topk)
    flat = mask.ravel()
    flat[flat.nonzero()[0][capacity:]] = False
    dense = normal(rng, p.shape, p.dtype)
    values = space.host(pattern.gather(space.array(dense)))
    assert np.array_equal(pattern.to_mask(), mask)
    expected = np.zeros(values.shape)
    expected[: mask.sum()] = sampled_cases.blocks_of(_with_mask(p, mask), dense)
    assert np.array_equal(values.astype(np.float64), expected)


def _with_mask(p: Problem, mask: np.ndarray) -> Problem:
    indptr = np.concatenate([[0], mask.sum(axis=1).cumsum()])
    return Problem(p.data, np.nonzero(mask)[1], indptr, p.shape, p.n, p.dtype)


@st.composite
def dynamics(draw: st.DrawFn, drawn: Any) -> Drawn:
    p, rng = draw(drawn.filter(lambda found: 0 not in found[0].shape))
    topk = draw(st.one_of(st.none(), st.integers(0, 5)))
    dtype = draw(st.sampled_from((*ALL[:3], *ALL)))
    run = partial(_dynamic, p, int(rng.integers(2**62)), topk, dtype)

    def refusal(target: Target) -> str | None:
        if is_partial(p):
            return "takes whole blocks alone: the number of (rows|columns) must be a multiple of"
        if topk is not None and dtype not in ALL[:3]:
            return "scores has dtype .*; accepted: float16, bfloat16, float32"
        eight = target.on_gpu and p.dtype in EIGHT
        return "dense has dtype .* must have dtype float16, bfloat16, float32" if eight else None

    return Drawn(f"dynamic {topk} {dtype}", run, refusal)


# ---- attention ---------------------------------------------------------------------------------


class Attention(NamedTuple):
    case: attention_cases.Case
    dtype: str
    seed: int
    wrong: str | None

    def refusal(self, target: Target) -> str | None:
        case, reasons = self.case, []
        if self.wrong == "descale":
            reasons.append("only float8_e4m3fn takes factors")
        if self.wrong == "e5m2":
            reasons.append("must have dtype float16, bfloat16, float32, float64 or float8_e4m3fn")
        if target.on_gpu and self.dtype in ("float32", "float64"):
            reasons.append("on Hopper, float8_e4m3fn; the CPU computes it in float32 and float64")
        if target.on_gpu and self.dtype == "float8_e4m3fn":
            if not target.hopper:
                reasons.append("needs a Hopper GPU")
            if case.block_shape and any(side % 16 for side in case.block_shape):
                reasons.append(
                    "needs a block_mask whose blocks have sides that are multiples of 16"
                )
        return "|".join(reasons) or None

    def run(self, space: Space, target: Target) -> None:
        rng = ROUNDS(self.seed)
        if self.wrong is not None:
            dtype = "float8_e5m2" if self.wrong == "e5m2" else self.dtype
            given = [space.array(x) for x in attention_cases.operands(rng, self.case, dtype)]
            options = {"q_descale": 0.5} if self.wrong == "descale" else {}
            attention_cases.call(self.case._replace(placed="plain"), given, **options)
        elif self.dtype == "float8_e4m3fn":
            how = ("none", "numbers", "shared", "each")[self.seed % 4]
            error = {"sum_error": 2.0**-13} if target.on_gpu else {}
            attention_fp8.check(space, self.case, rng, how, **error)
        else:
            attention_cases.check(space, self.case, self.dtype, rng)


@st.composite
def attentions(draw: st.DrawFn, largest: int) -> Drawn:
    dtypes = (*DTYPES, "float8_e4m3fn")
    case, dtype, seed = draw(attention_calls(dtypes, largest))
    if dtype == "float8_e4m3fn" and draw(st.integers(0, 3)):  # mostly what Hopper takes, too
        whole = None if case.value_size is None else -(-case.value_size // 16) * 16
        case = case._replace(size=-(-case.size // 16) * 16, value_size=whole)
    wrong = draw(st.sampled_from((None,) * 15 + ("e5m2", "descale")))
    if wrong == "descale" and dtype == "float8_e4m3fn":
        wrong = None
    call = Attention(case, dtype, seed, wrong)
    return Drawn(
        f"attention {call._replace(case=case._replace(blocks=None))}", call.run, call.refusal
    )


class Sequences(NamedTuple):
    case: varlen_cases.Packed
    dtype: str
    seed: int
    wrong: str | None

    def refusal(self, target: Target) -> str | None:
        reasons = []
        if self.wrong == "block_mask":
            reasons.append("only one of them is accepted")
        if self.wrong == "layout":
            reasons.append("accepted: one of them")
        if target.on_gpu and self.dtype in ("float32", "float64"):
            reasons.append("on Hopper, float8_e4m3fn; the CPU computes it in float32 and float64")
        return "|".join(reasons) or None

    def run(self, space: Space, target: Target) -> None:
        rng = ROUNDS(self.seed)
        case = self.case if space.strided else self.case._replace(strided=False)
        if self.wrong is None:
            varlen_cases.check(space, case, self.dtype, rng)
            return
        given = [space.array(x) for x in varlen_cases.make(rng, case, self.dtype).packed]
        rows, keys = given[0].shape[0], given[1].shape[0]
        mask = bsrgemm.BlockMask.from_dense(np.ones((1, 1), bool), (rows or 1, keys or 1))
        options = {"layout": "bshd"} if self.wrong == "layout" else {"block_mask": mask}
        varlen_cases.call(space, case, given, **options)


@st.composite
def sequences(draw: st.DrawFn, largest: int) -> Drawn:
    lengths = st.lists(st.tuples(*[st.integers(0, largest)] * 2), min_size=1, max_size=5)
    pairs_of = draw(lengths)
    heads = draw(st.integers(1, 2))
    options = {
        "causal": draw(st.booleans()),
        "size": draw(st.sampled_from((1, 8, 24, 33, 64, 128))),
        "heads": heads * draw(st.integers(1, 2)),
        "kv_heads": heads,
        "softcap": draw(st.sampled_from((None, 20.0))),
        "alignment": draw(st.sampled_from(("bottom_right", "top_left"))),
        "window": draw(st.sampled_from((None, (7, 5), (0, 0), (30, -1)))),
    }
    case = varlen_cases.Packed(
        queries=tuple(q for q, _ in pairs_of),
        keys=tuple(k for _, k in pairs_of),
        options=options,
        index=(draw(st.sampled_from(("int32", "int64"))),) * 2,
        before=draw(st.integers(0, 3)),
        rest=(draw(st.integers(0, 3)), draw(st.integers(0, 3))),
        strided=draw(st.booleans()),
    )
    wrong = draw(st.sampled_from((None,) * 15 + ("block_mask", "layout")))
    dtype = draw(st.sampled_from(DTYPES))
    call = Sequences(case, dtype, draw(st.integers(0, 2**32 - 1)), wrong)
    return Drawn(f"sequences {call}", call.run, call.refusal)


# ---- all ---------------------------------------------------------------------------------------


@st.composite
def calls(draw: st.DrawFn, heights: Any, widths: Any, columns: Any, largest: int = 150) -> Drawn:
    """Of blocks and numbers of columns that those strategies draw."""
    of_all = problems(heights, widths, columns, ALL)
    small = problems(st.integers(1, 12), st.integers(1, 12), st.just(1), ALL)
    operations = (
        (8, products(of_all).map(of_product)),
        (3, sparse_products(heights)),
        (3, samples(of_all)),
        (1, softmaxes(of_all)),
        (1, structures(small)),
        (1, dynamics(small)),
        (2, attentions(largest)),
        (1, sequences(largest)),
    )
    weighted = [strategy for weight, strategy in operations for _ in range(weight)]
    return draw(weighted[draw(st.integers(0, len(weighted) - 1))])
