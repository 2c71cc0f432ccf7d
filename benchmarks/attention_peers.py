"""The rivals in attention. Each takes a problem and gives back its call.

A rival that is not installed, or refuses a case, raises; it is then left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from bsrgemm import BlockMask, attention

from .attention_cases import AttentionCase, SparseDecodeCase
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
    blocks: Any  # truth values on the host, as the case makes them, or None
    out: Any  # as q, bfloat16 for 8 bits
    cache: dict[Any, Any] = field(default_factory=dict)  # of the whole run, for rivals
    # 8 bits: q_descale, k_descale and v_descale, [batch, heads of k] each
    factors: dict[str, Any] = field(default_factory=dict)
    scores: Any = None  # where masks are chosen: their blocks have the highest
    # Sequences: where they begin and the last one ends, int32. Operands have one batch then, and
    # are contiguous as ``packed`` makes them.
    ends: Any = None


def packed(x: Any) -> Any:
    """[1, heads, rows, size] as [rows, heads, size]."""
    return x[0].transpose(0, 1)


def make_mask(p: Problem) -> BlockMask | None:
    if p.blocks is None:
        return None
    if p.scores is not None:
        return BlockMask.topk(p.scores, p.case.count, p.case.block)
    blocks = p.blocks[None] if p.blocks.ndim == 3 else p.blocks  # [1, heads, rows, columns]
    return BlockMask.from_dense(blocks, p.case.block)


def mask_of_call(p: Problem) -> Callable[[], BlockMask | None]:
    """What gives each call its mask: one for all, or where it is chosen from scores a new one."""
    if p.scores is not None:
        return lambda: make_mask(p)
    mask = make_mask(p)
    return lambda: mask


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
    from torch.nn.attention.flex_attention import BlockMask as FlexMask
    from torch.nn.attention.flex_attention import flex_attention

    attend = _compiled(p, "flex", flex_attention)
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
    mask = FlexMask.from_kv_blocks(
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


def _compiled(p: Problem, name: str, attend: Callable[..., Any]) -> Callable[..., Any]:
    if name not in p.cache:
        # Whole graphs only: otherwise it may fall back to unfused code without an error.
        p.cache[name] = p.torch.compile(attend, dynamic=False, fullgraph=True)
    return p.cache[name]


def flex_decode(p: Problem) -> Product:
    """FlexAttention's kernel for few queries, compiled."""
    from torch.nn.attention.flex_attention import BlockMask as FlexMask
    from torch.nn.attention.flex_attention import flex_attention

    # A function of its own: of one, torch compiles eight variants and no more.
    def attend_few(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return flex_attention(q, k, v, block_mask=mask)

    attend, q = _compiled(p, "flex_decode", attend_few), _in_groups(p)
    # As partial blocks, which that kernel splits by how many there are, and full ones by keys, so
    # that few blocks keep few SMs busy. Without a function nothing is asked within them.
    mask = FlexMask.from_kv_blocks(
        *_block_lists(p, _group_blocks(p)[:, :, None]),
        # One block row for any number of rows that it takes.
        BLOCK_SIZE=(128, p.case.block[1]),
        seq_lengths=(q.shape[2], p.case.keys),
    )
    return Product(
        lambda: attend(q, p.k, p.v, mask).reshape(p.case.q_shape),
        p.case.useful_flops,
    )


def torch_sdpa(p: Problem) -> Product:
    """torch's attention with a truth value a key, by the backend that it chooses."""
    attend, q = p.torch.nn.functional.scaled_dot_product_attention, _in_groups(p)
    seen = _group_blocks(p).repeat(p.case.block[1], axis=-1)[:, :, None, : p.case.keys]
    seen = p.torch.from_numpy(seen).to(p.q.device)
    return Product(
        lambda: attend(q, p.k, p.v, attn_mask=seen).reshape(p.case.q_shape),
        p.case.useful_flops,
        bytes=p.case.cache_bytes,
    )


def _in_groups(p: Problem) -> Any:
    """q with the heads that share one of k as rows of one head: torch has its kernels for masks of
    each head only where no head is shared."""
    batch, _, _, size = p.case.q_shape
    return p.q.view(batch, p.case.k_shape[1], -1, size)


def _group_blocks(p: Problem) -> np.ndarray:
    """The blocks of each head of k, [batch, heads of k, columns], if all its queries have one."""
    batch, kv_heads = p.case.k_shape[:2]
    if p.blocks.shape[1] not in (1, kv_heads) or p.blocks.shape[2] != 1:
        raise ValueError("queries that share keys see different blocks")
    return np.broadcast_to(p.blocks[:, :, 0], (batch, kv_heads, p.blocks.shape[3]))


def _block_lists(p: Problem, blocks: np.ndarray) -> list[Any]:
    """Of each batch, head and row how many there are, and their columns, before the others'."""
    blocks = blocks.reshape((1, 1, *blocks.shape)[-4:])
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
    shared = p.case.kv_heads is not None
    return Product(
        lambda: attention(p.q, p.k, p.v, out=p.out, enable_gqa=shared),
        4.0 * p.case.batch * p.case.heads * seen * p.case.size,
        lambda: attend(p.q, p.k, p.v, enable_gqa=shared),
        bytes=p.case.cache_bytes if isinstance(p.case, SparseDecodeCase) else None,
    )


def bsrgemm_hopper(p: Problem) -> Product:
    """Ours with the same mask, by tiles of 128 queries of a head."""
    return _with_backend(p, "hopper")


def bsrgemm_portable(p: Problem) -> Product:
    """The same by the kernels for any GPU."""
    return _with_backend(p, "portable")


def _with_backend(p: Problem, backend: str) -> Product:
    mask, options = mask_of_call(p), {"enable_gqa": p.case.kv_heads is not None, "out": p.out}
    return Product(
        lambda: attention(p.q, p.k, p.v, block_mask=mask(), backend=backend, **options),
        p.case.useful_flops,
    )


RIVALS: dict[str, Callable[[Problem], Product]] = {
    f.__name__: f
    for f in (
        *(flash3, cudnn, flash2, bsrgemm_dense, flex, composed),
        *(bsrgemm_hopper, bsrgemm_portable, flex_decode, torch_sdpa),
    )
}


def wanted(case: AttentionCase) -> list[str]:
    """The rivals that a case is for."""
    if case.group == "fp8":
        return ["flash3"] if case.block is None else []
    if isinstance(case, SparseDecodeCase):
        own = ["bsrgemm_dense", "bsrgemm_hopper", "bsrgemm_portable"]
        # Where blocks are chosen, torch's stand beside the case that has the same ones from before.
        return own if case.is_chosen else [*own, "flex_decode", "torch_sdpa"]
    if case.group == "topk":
        return ["bsrgemm_dense"]
    if case.lengths:
        return ["flash3"]
    if case.block is not None:
        return ["bsrgemm_dense", "flex"]
    names = ["flash3", "cudnn", "flash2"]
    return [*names, "composed"] if case.score_bytes <= MAX_SCORE_BYTES else names
