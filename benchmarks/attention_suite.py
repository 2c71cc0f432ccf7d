"""One case of attention: operands, the float64 check, ours and the peers, checked and timed."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bsrgemm import attention

from . import attention_peers
from .attention_cases import AttentionCase
from .attention_peers import Problem, make_mask, mask_of_call, packed
from .peers import Product
from .records import Row
from .suite import ALLOWED, Reference, Suite, describe, our_name, rates, relative_error

# Scores that the reference holds at a time, in float64: 1 GB.
SCORES_AT_A_TIME = 1 << 27

# What weights of at most 1 are multiplied by before they are rounded to 8 bits, of which 448 is the
# largest number.
WEIGHT_UNIT = {"float8_e4m3fn": 256.0}


# What torch and FlashAttention say of a case that they have no kernel for.
REFUSALS = ("No available kernel", "No viable backend", "only supports", "not support")


class AttentionSuite(Suite):
    """Measures attention. ``families`` are backends, or "auto"."""

    rivals = attention_peers.RIVALS
    wanted = staticmethod(attention_peers.wanted)

    def _problem(self, case: AttentionCase) -> Problem:
        return make_problem(self.torch, case, self.device, self.cache)

    def _reference(self, p: Problem) -> Reference:
        return make_reference(p)

    def _possible_families(self, p: Problem) -> list[str]:
        return list(self.families)

    def _ours(self, p: Problem, reference: Reference, family: str) -> tuple[list[Row], str]:
        # The first call with any such mask also loads the kernel: it is not timed.
        our_call(p, family).call()
        ours = our_call(p, family)
        p.out.fill_(math.nan)
        ours.call()
        error = relative_error(self.torch, p.out, reference.expected)
        wrong = not error <= ALLOWED * reference.dense_error
        extra = {"rel_err": error, "dense_rel_err": reference.dense_error}
        note = ""
        if p.blocks is not None:
            plan_seconds = self._plan_seconds(lambda: our_call(p, family))
            extra["plan_us"] = plan_seconds * 1e6
            note = f", plan {plan_seconds * 1e3:.2f} ms"
        rows = self._time(p, our_name(family), ours, extra, wrong, lambda q: our_call(q, family))
        if p.scores is not None:
            choose = Product(lambda: make_mask(p), 0.0)
            chosen = self._time(
                p, f"{our_name(family)} mask alone", choose, {}, False, lambda _: choose
            )
            note += f", mask alone {chosen[0]['us']:.1f} us"
            return [*rows, *chosen], f"{rates(rows)}{note}, error {error:.1e}"
        return rows, f"{rates(rows)}{note}, error {error:.1e}"

    def _copies(self, p: Problem) -> list[Problem]:
        size = p.case.fields["bytes"]  # keys and values that a call reads
        return [
            replace(p, **{name: getattr(p, name).clone() for name in ("q", "k", "v", "out")})
            for _ in range(math.ceil(3 * self.l2_bytes / size) + 1)
        ]

    def _rival(self, p: Problem, reference: Reference, who: str) -> tuple[list[Row], str]:
        # torch says in warnings why it has no kernel for a call.
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                return super()._rival(p, reference, who)
            except Exception as error:
                for warning in said:
                    error.add_note(str(warning.message).split(" (Triggered")[0].strip())
                raise

    def _error(self, case: Any, who: str, error: Exception) -> tuple[list[Row], str]:
        """A rival that refuses a case is left out, as one that is not there."""
        rows, note = super()._error(case, who, error)
        if who not in self.rivals or (rows and not is_refusal(error)):
            return rows, note
        reasons = [describe(error), *getattr(error, "__notes__", ())]
        return [], f"left out: {'; '.join(reasons)[:400]}"


def is_refusal(error: Exception) -> bool:
    """Whether a call says that it does not take such operands."""
    refused = isinstance(error, (NotImplementedError, TypeError, ValueError))
    return refused or any(said in str(error) for said in REFUSALS)


def make_problem(torch: Any, case: AttentionCase, device: str, cache: dict[Any, Any]) -> Problem:
    q, k, v = (
        torch.randn(shape, device=device).to(getattr(torch, case.dtype))
        for shape in (case.q_shape, case.k_shape, case.k_shape)
    )
    ends = None
    if case.lengths:
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        ends = torch.tensor([0, *itertools.accumulate(case.lengths)], device=device).int()
    blocks = case.make_blocks() if case.block else None
    out, factors, scores = torch.empty_like(q), {}, None
    if case.dtype == "float8_e4m3fn":
        out = torch.empty_like(q, dtype=torch.bfloat16)
        names = ("q_descale", "k_descale", "v_descale")
        factors = {name: torch.rand(case.k_shape[:2], device=device) + 0.5 for name in names}
    if case.is_chosen:  # other scores for each head, if all have the same blocks, too
        lead = blocks.shape[:2] if blocks.ndim == 4 else (1, case.heads)
        scores = torch.rand(*lead, *case.grid, device=device)
        scores += torch.from_numpy(blocks).to(device)
    return Problem(torch, case, q, k, v, blocks, out, cache, factors, scores, ends)


def our_call(p: Problem, family: str) -> Product:
    """Ours, with a mask of its own; where it is chosen from scores each call makes it anew."""
    options: dict[str, Any] = {
        "is_causal": p.case.causal,
        "enable_gqa": p.case.kv_heads is not None,
        "backend": None if family == "auto" else family,
    } | p.factors
    if p.ends is not None:
        operands = [packed(x) for x in (p.q, p.k, p.v)]
        options |= {"cu_seqlens_q": p.ends, "cu_seqlens_k": p.ends, "out": packed(p.out)}

        def call_packed() -> Any:
            attention(*operands, **options)
            return p.out

        return Product(call_packed, p.case.useful_flops)
    mask = mask_of_call(p)

    def call() -> Any:
        return attention(p.q, p.k, p.v, block_mask=mask(), out=p.out, **options)

    return Product(call, p.case.useful_flops)


def make_reference(p: Problem) -> Reference:
    """The whole result in float64, and what is lost by composing it from float32 products with
    weights rounded to the dtype before they meet ``v``, as all fused kernels do."""
    torch = p.torch
    expected = torch.empty(p.case.q_shape, dtype=torch.float64, device=p.q.device)
    same_precision = torch.empty_like(p.out)
    heads = p.case.heads
    group = heads // p.case.k_shape[1]
    unit = WEIGHT_UNIT.get(p.case.dtype, 1.0)
    for i, first_query, queries, first_key, keys in _pieces(p.case):
        step = max(1, SCORES_AT_A_TIME // (heads * keys))
        q = _meant(p, "q", i, group)[:, first_query : first_query + queries]
        k, v = (
            _meant(p, name, i)[:, first_key : first_key + keys].repeat_interleave(group, dim=0)
            for name in "kv"
        )
        for first in range(0, queries, step):
            rows = slice(first, min(first + step, queries))
            seen = _seen(p, i, rows, queries, keys)
            place = slice(first_query + rows.start, first_query + rows.stop)
            for into, work in ((expected, torch.float64), (same_precision, torch.float32)):
                rounded = work if into is expected else p.q.dtype
                into[i, :, place] = _attend(torch, q[:, rows], k, v, seen, work, rounded, unit)
    return Reference(expected, relative_error(torch, same_precision, expected))


def _pieces(case: AttentionCase) -> Iterator[tuple[int, int, int, int, int]]:
    """Batches, or sequences: index of the batch, first query, queries, first key, keys."""
    if not case.lengths:
        yield from ((i, 0, case.q_shape[2], 0, case.keys) for i in range(case.batch))
        return
    first = 0
    for length in case.lengths:
        yield 0, first, length, first, length
        first += length


def _meant(p: Problem, name: str, batch: int, group: int = 1) -> Any:
    """An operand of a batch times its factors, if there are some: one for ``group`` heads."""
    x, factors = getattr(p, name)[batch], p.factors.get(f"{name}_descale")
    if factors is None:
        return x
    return x.double() * factors[batch].double().repeat_interleave(group)[:, None, None]


def _attend(
    torch: Any, q: Any, k: Any, v: Any, seen: Any, work: Any, rounded: Any, unit: float
) -> Any:
    scores = torch.matmul(q.to(work) / math.sqrt(q.shape[-1]), k.to(work).mT)
    if seen is not None:
        scores.masked_fill_(~seen, -math.inf)
    top = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(top.clamp(min=torch.finfo(work).min)).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    result = torch.matmul(weights.mul_(unit).to(rounded).to(work), v.to(work))
    return result / (unit * total.where(total > 0, torch.ones_like(total)))


def _seen(p: Problem, batch: int, rows: slice, queries: int, keys: int) -> Any:
    """Which of the keys these queries see: [rows, keys] or [heads, rows, keys], or None for all."""
    torch, device = p.torch, p.q.device
    query = torch.arange(rows.start, rows.stop, device=device)[:, None]
    key = torch.arange(keys, device=device)[None, :]
    seen = None
    if p.blocks is not None:
        height, width = p.case.block
        blocks = p.blocks
        if blocks.ndim == 4:
            blocks = blocks[batch].repeat(p.case.heads // blocks.shape[1], axis=0)
        seen = torch.from_numpy(blocks).to(device)[..., query // height, key // width]
    if p.case.causal:
        before = key <= query + keys - queries
        seen = before if seen is None else seen & before
    return seen
