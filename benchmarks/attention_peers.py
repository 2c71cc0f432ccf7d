"""The rivals in attention. Each takes a problem and gives back its call.

A rival that is not installed, or refuses a case, raises; it is then left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from bsrgemm import attention

from .attention_cases import AttentionCase
from .peers import Product

# Scores that the composed baseline may keep in memory; it holds two such arrays.
MAX_SCORE_BYTES = 8e9


@dataclass
class Problem:
    """Operands of a case as torch tensors on one device."""

    torch: Any
    case: AttentionCase
    q: Any  # [batch, heads, queries, size]
    k: Any  # [batch, heads of k, keys, size]
    v: Any
    blocks: Any  # truth values on the host, [block rows, block columns], or None
    out: Any  # as q, bfloat16 for 8 bits
    cache: dict[Any, Any] = field(default_factory=dict)  # of the whole run, for rivals
    # 8 bits: q_descale, k_descale and v_descale, [batch, heads of k] each
    factors: dict[str, Any] = field(default_factory=dict)
    scores: Any = None  # in the group topk, whose blocks have the highest
    # Sequences: where they begin and the last one ends, int32. Operands have one batch then, and
    # are contiguous as ``packed`` makes them.
    ends: Any = None


def packed(x: Any) -> Any:
    """[1, heads, rows, size] as [rows, heads, size]."""
    return x[0].transpose(0, 1)


def cudnn(p: Problem) -> Product:
    """cuDNN's attention, through torch."""
    return _through_torch(p, "CUDNN_ATTENTION")


def flash2(p: Problem) -> Product:
    """FlashAttention-2, through torch."""
    return _through_torch(p, "FLASH_ATTENTION")


def _through_torch(p: Problem, backend: str) -> Product:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = p.torch.nn.functional.scaled_dot_product_attention
    shared = p.case.kv_heads is not None

    def call() -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return attend(p.q, p.k, p.v, is_causal=p.case.causal, enable_gqa=shared)

    return Product(call, p.case.useful_flops)


def flash3(p: Problem) -> Product:
    """FlashAttention-3, with operands in its own layout."""
    import fa3_fwd_interface

    if p.ends is not None:
        return _flash3_packed(p, fa3_fwd_interface.flash_attn_varlen_func)
    q, k, v = (x.transpose(1, 2).contiguous() for x in (p.q, p.k, p.v))
    # Few queries do not fill the GPU unless the keys are split; 0 lets it choose into how many.
    options = {"num_splits": 0} if p.case.queries == 1 else {}
    options |= p.factors

    def call() -> Any:
        found = fa3_fwd_interface.flash_attn_func(q, k, v, causal=p.case.causal, **options)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return Product(call, p.case.useful_flops)


def _flash3_packed(p: Problem, attend: Callable[..., Any]) -> Product:
    longest = p.case.keys
    operands = (*map(packed, (p.q, p.k, p.v)), p.ends, p.ends, longest, longest)

    def call() -> Any:
        found = attend(*operands, causal=p.case.causal)
        return (found[0] if isinstance(found, tuple) else found).transpose(0, 1)[None]

    return Product(call, p.case.useful_flops)


def flex(p: Problem) -> Product:
    """FlexAttention, compiled, with the case's mask in blocks of the same size."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    if "flex" not in p.cache:
        # Whole graphs only: otherwise it may fall back to unfused code without an error.
        p.cache["flex"] = p.torch.compile(flex_attention, dynamic=False, fullgraph=True)
    attend = p.cache["flex"]
    table = p.torch.from_numpy(p.blocks).to(p.q.device)
    height, width = p.case.block
    each_head = p.blocks.ndim == 3

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        mine = table[head] if each_head else table
        return mine[query // height, key // width]

    def seen_causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return seen(batch, head, query, key) & (key <= query)

    # Not by create_block_mask, which asks for every query and key: 128 GiB at 32,768 of 16 heads.
    partial = np.zeros_like(p.blocks)
    if p.case.causal:
        np.einsum("...ii->...i", partial)[:] = np.einsum("...ii->...i", p.blocks)
    mask = BlockMask.from_kv_blocks(
        *_block_lists(p, partial),
        *_block_lists(p, p.blocks & ~partial),
        BLOCK_SIZE=p.case.block,
        mask_mod=seen_causal if p.case.causal else seen,
        seq_lengths=(p.case.q_shape[2], p.case.keys),
    )
    # Its default tiles are larger than these blocks, which it refuses.
    small = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
    options = small if p.case.block == (64, 64) else None
    return Product(
        lambda: attend(p.q, p.k, p.v, block_mask=mask, kernel_options=options),
        p.case.useful_flops,
    )


def _block_lists(p: Problem, blocks: np.ndarray) -> list[Any]:
    """Of each batch, head and row how many there are, and their columns, before the others'."""
    blocks = blocks.reshape(1, -1, *blocks.shape[-2:])
    lists = np.sum(blocks, axis=-1), np.argsort(~blocks, axis=-1, kind="stable")
    return [p.torch.from_numpy(x.astype(np.int32)).to(p.q.device) for x in lists]


def composed(p: Problem) -> Product:
    """Two products and a softmax, with all scores in memory."""
    torch, case = p.torch, p.case
    batch, heads, queries, size = case.q_shape
    kv_heads = case.k_shape[1]
    hidden = None
    if case.causal:
        hidden = torch.ones(queries, case.keys, dtype=torch.bool, device=p.q.device)
        hidden = hidden.triu(1 + case.keys - queries)

    def call() -> Any:
        # Heads that share keys are rows of one product.
        q = (p.q / math.sqrt(size)).view(batch, kv_heads, -1, size)
        scores = torch.matmul(q, p.k.mT)
        if hidden is not None:
            scores.view(batch, heads, queries, -1).masked_fill_(hidden, -math.inf)
        return torch.matmul(scores.softmax(dim=3), p.v).view(case.q_shape)

    return Product(call, case.useful_flops)


def bsrgemm_dense(p: Problem) -> Product:
    """Ours without the mask, beside torch's: cases without masks compare it with float64."""
    seen = p.case.q_shape[2] * p.case.keys
    attend = p.torch.nn.functional.scaled_dot_product_attention
    return Product(
        lambda: attention(p.q, p.k, p.v, out=p.out),
        4.0 * p.case.batch * p.case.heads * seen * p.case.size,
        lambda: attend(p.q, p.k, p.v),
    )


RIVALS: dict[str, Callable[[Problem], Product]] = {
    f.__name__: f for f in (flash3, cudnn, flash2, bsrgemm_dense, flex, composed)
}


def wanted(case: AttentionCase) -> list[str]:
    """The rivals that a case is for."""
    if case.group == "fp8":
        return ["flash3"] if case.block is None else []
    if case.group == "topk":
        return ["bsrgemm_dense"]
    if case.lengths:
        return ["flash3"]
    if case.block is not None:
        return ["bsrgemm_dense", "flex"]
    names = ["flash3", "cudnn", "flash2"]
    return [*names, "composed"] if case.score_bytes <= MAX_SCORE_BYTES else names
