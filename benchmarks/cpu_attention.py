"""Attention on the CPU, beside torch's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from .attention_cases import AttentionCase
from .attention_peers import Problem
from .attention_suite import make_problem, make_reference, our_call
from .cases import SEED
from .records import Row, make_row
from .suite import ALLOWED, RIVAL_ALLOWED, relative_error
from .timing import rounds


def torch_sdpa(p: Problem) -> Callable[[], Any]:
    """torch's own choice of kernel."""
    attend = p.torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(p.q, p.k, p.v, is_causal=p.case.causal)


RIVALS = {torch_sdpa.__name__: torch_sdpa}


def measure(case: AttentionCase, peers: list[str], count: int) -> list[Row]:
    """Rows, ours first. Needs torch, with which the reference is computed too."""
    import torch

    torch.manual_seed(SEED)
    p = make_problem(torch, case, "cpu", {})
    reference = make_reference(p)
    p.out.fill_(math.nan)
    calls = {"bsrgemm": our_call(p, "auto").call}
    calls |= {who: make(p) for who, make in RIVALS.items() if who in peers}
    extras = {}
    for who, call in calls.items():
        error = relative_error(torch, call(), reference.expected)
        allowed = ALLOWED if who == "bsrgemm" else RIVAL_ALLOWED
        extras[who] = {"rel_err": error, "dense_rel_err": reference.dense_error}
        if not error <= allowed * reference.dense_error:
            extras[who]["wrong"] = True
    return [
        make_row(
            *(case, who, "rounds", statistics.median(times), case.useful_flops),
            **extras[who],
            runs=len(times),
        )
        for who, times in rounds(calls, count).items()
    ]
