"""bsrgemm in PyTorch: attention and linear layers, eager, compiled and in CUDA graphs.

``import bsrgemm.torch`` imports torch and registers operators of ``torch.ops.bsrgemm``, which the
functions here call: products, which have gradients, patterns and attention. ``import bsrgemm``
alone does neither.
"""

from __future__ import annotations

from typing import Any

import torch

from ._attention import attention as _attention
from ._kinds import a_kind_of
from ._mask import BlockMask, mask_of
from ._mask_arguments import window_of
from ._matmul import is_real_number, real_number
from ._torch_eager import is_plain, is_plain_or_absent
from ._torch_linear import BSRLinear, cast_for, linear
from ._torch_operators import check_layout, check_tensor, forward_ad, refuse_tangents
from ._torch_products import BlockPattern, BlockTensor, matmul, sampled_matmul
from ._torch_sparsify import Replacement, sparsify_

__all__ = [
    "BSRLinear",
    "BlockPattern",
    "BlockTensor",
    "Replacement",
    "attention",
    "linear",
    "matmul",
    "sampled_matmul",
    "sparsify_",
]

# Operators take no Python objects, so a mask goes in as its serial number. Compiled code reads it
# from the mask of each call, or compares it with that mask's: the mask of a number is alive. SymInt
# lets one graph serve all masks.
_SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor? q_descale=None, Tensor? k_descale=None, "
    "Tensor? v_descale=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, *, "
    "SymInt mask=0, bool is_causal=False, float? scale=None, bool enable_gqa=False, "
    "str layout='bhsd', SymInt window_left=-1, SymInt window_right=-1, float? softcap=None, "
    "str causal_alignment='bottom_right', SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
    "bool return_lse=False, str? backend=None) -> (Tensor, Tensor)"
)


@torch.library.custom_op("bsrgemm::attention", mutates_args=(), schema=_SCHEMA)
def _operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    *,
    mask: int = 0,
    window_left: int = -1,
    window_right: int = -1,
    return_lse: bool = False,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    result = _attention(
        query,
        key,
        value,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        block_mask=mask_of(mask) if mask else None,
        window=(window_left, window_right),
        return_lse=return_lse,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        **options,
    )
    return result if return_lse else (result, query.new_empty(0, dtype=torch.float32))


@_operator.register_fake
def _fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    *,
    layout: str = "bhsd",
    return_lse: bool = False,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.bfloat16 if query.dtype == torch.float8_e4m3fn else query.dtype
    out = query.new_empty((*query.shape[:-1], value.shape[-1]), dtype=dtype)
    by_heads = query if cu_seqlens_q is None and layout == "bhsd" else query.transpose(-3, -2)
    lse_shape = by_heads.shape[:-1] if return_lse else (0,)
    return out, query.new_empty(lse_shape, dtype=torch.float32)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    block_mask: BlockMask | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    layout: str = "bhsd",
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    causal_alignment: str = "bottom_right",
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    backend: str | None = None,
    q_descale: torch.Tensor | float | None = None,
    k_descale: torch.Tensor | float | None = None,
    v_descale: torch.Tensor | float | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """:func:`bsrgemm.attention` of torch tensors, as one operator of a compiled graph.

    Arguments mean what they mean there, where ``query``, ``key`` and ``value`` are called ``q``,
    ``k`` and ``v``. The first three and ``is_causal``, ``scale`` and ``enable_gqa`` have the names
    that they have in ``torch.nn.functional.scaled_dot_product_attention``, whose ``is_causal``
    is ``causal_alignment="top_left"``. Results are new tensors, computed on torch's current stream.
    Under autocast the first three are cast to its dtype, but float64 and 8-bit floats.

    A :class:`bsrgemm.BlockMask` is made outside of compiled code. What is planned from it stays
    with it, and one compiled function serves any of them. A CUDA graph that was captured with a
    mask needs it alive when it is replayed. Since masks belong to their process, graphs with one
    cannot be exported to another.

    Returns
    -------
    torch.Tensor, or a pair of them
        The result, contiguous, and with ``return_lse`` the logarithms of the sums of exponentials.

    Raises
    ------
    TypeError
        If one of them is no torch tensor, requires grad while gradients are recorded or has a
        tangent of forward-mode differentiation, or ``block_mask`` is no ``BlockMask``; and as
        :func:`bsrgemm.attention`.
    ValueError, MemoryError, DeviceUnavailableError
        As :func:`bsrgemm.attention`.
    """
    tensors = {"query": query, "key": key, "value": value}
    for name, x in tensors.items():
        check_tensor(x, name)
    sequences = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    for name, x in sequences.items():
        if x is not None:
            check_tensor(x, name, " or None")
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    tensors |= {name: x for name, x in descales.items() if isinstance(x, torch.Tensor)}
    if torch.is_grad_enabled():
        for name, x in tensors.items():
            if x.requires_grad:
                raise TypeError(
                    f"{name} requires grad, and autograd is not supported by this call; pass "
                    f"{name}.detach() or call it under torch.no_grad()"
                )
    if forward_ad._current_level >= 0:
        refuse_tangents(tensors)
    if query.dtype.itemsize > 1:
        query, key, value = cast_for(query, query, key, value)
    if block_mask is not None and not isinstance(block_mask, BlockMask):
        raise TypeError(
            f"block_mask is {a_kind_of(block_mask)}; accepted: a bsrgemm.BlockMask or None. "
            "BlockMask.from_bsr and BlockMask.from_flex make one of a bsr_array and of a mask of "
            "FlexAttention"
        )
    factors = [x for x in descales.values() if not is_real_number(x)]
    if is_plain(query, key, value) and is_plain_or_absent(cu_seqlens_q, cu_seqlens_k, *factors):
        return _attention(
            query,
            key,
            value,
            block_mask=block_mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            layout=layout,
            window=window,
            softcap=softcap,
            causal_alignment=causal_alignment,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            return_lse=return_lse,
            backend=backend,
            q_descale=q_descale,
            k_descale=k_descale,
            v_descale=v_descale,
        )
    for name, x in (tensors | sequences).items():
        if x is not None:
            check_layout(x, name)
    left, right = (-1, -1) if window is None else window_of(window)
    out, lse = _operator(
        query,
        key,
        value,
        *[_factor(x, name, query) for name, x in descales.items()],
        cu_seqlens_q,
        cu_seqlens_k,
        mask=0 if block_mask is None else block_mask._serial,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        layout=layout,
        window_left=left,
        window_right=right,
        softcap=softcap,
        causal_alignment=causal_alignment,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        return_lse=return_lse,
        backend=backend,
    )
    return (out, lse) if return_lse else out


def _factor(
    factor: torch.Tensor | float | None, name: str, query: torch.Tensor
) -> torch.Tensor | None:
    """As a tensor, made without waiting for a GPU: an operator has one type for an argument."""
    if factor is None or isinstance(factor, torch.Tensor):
        return factor
    if not is_real_number(factor):
        check_tensor(factor, name, ", a real number or None")
    factor = real_number(factor, name)
    if not 0 <= factor <= torch.finfo(torch.float32).max:
        raise ValueError(f"{name} is {factor:g}, but must be a float32 of at least 0")
    return torch.full((), factor, dtype=torch.float32, device=query.device)
