"""Masks of FlexAttention as truth values of blocks."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ._kinds import a_kind_of


def flex_blocks(block_mask: Any, partial: str) -> tuple[np.ndarray, tuple[int, int]]:
    """Truth values (batch, heads, block rows, block columns), and the queries and keys of a block.

    As ``BlockMask.from_flex`` documents it.
    """
    if partial not in ("error", "keep"):
        raise ValueError(f"partial is {partial!r}; accepted: 'error', 'keep'")
    # Whoever has such a mask has imported the module.
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    if flex is None or not isinstance(block_mask, flex.BlockMask):
        raise TypeError(
            f"block_mask is {a_kind_of(block_mask)}; accepted: a "
            "torch.nn.attention.flex_attention.BlockMask"
        )
    height, width = block_mask.BLOCK_SIZE
    queries, keys = block_mask.seq_lengths
    counts, indices = _lists(block_mask.kv_num_blocks, block_mask.kv_indices)
    found = int(counts.sum())
    if found and partial == "error" and block_mask.mask_mod is not flex.noop_mask:
        raise ValueError(
            f"block_mask has {found} partial blocks, and mask_mod, which decides within them, is "
            "not evaluated; accepted: full blocks, or partial='keep' together with is_causal= or "
            "window= of attention where these say what mask_mod says"
        )
    shape = (*counts.shape[:2], -(-queries // height), -(-keys // width))
    blocks = np.zeros(shape, bool)
    _mark(blocks, counts, indices)
    if block_mask.full_kv_num_blocks is not None:
        _mark(blocks, *_lists(block_mask.full_kv_num_blocks, block_mask.full_kv_indices))
    return blocks, (height, width)


def _lists(counts: Any, indices: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of each batch, head and block row how many of its indices count, and the indices."""
    lead = (1,) * (4 - indices.dim())
    host = [x.detach().cpu().numpy() for x in (counts, indices)]
    return tuple(x.reshape(lead + x.shape) for x in host)


def _mark(blocks: np.ndarray, counts: np.ndarray, indices: np.ndarray) -> None:
    batch, head, row, at = np.nonzero(np.arange(indices.shape[3]) < counts[..., None])
    columns = indices[batch, head, row, at]
    rows, cols = blocks.shape[2:]
    if counts.shape[2] != rows:
        raise ValueError(
            f"block_mask has {counts.shape[2]} block rows; accepted: {rows}, the queries of its "
            "seq_lengths in blocks"
        )
    if columns.min(initial=0) < 0:
        raise ValueError(f"block_mask has block column {columns.min()}; accepted: from 0 on")
    if columns.max(initial=-1) >= cols:
        raise ValueError(
            f"block_mask has block column {columns.max()}; accepted: below {cols}, the keys of its "
            "seq_lengths in blocks"
        )
    blocks[batch, head, row, columns] = True
