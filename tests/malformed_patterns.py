"""Malformed masks of attention, and patterns that change."""

from __future__ import annotations

from typing import Any

import numpy as np
from bsrgemm import BlockMask, DynamicArray, DynamicPattern
from malformed_inputs import Bad, i32, x


def topk(scores: Any = None, k: Any = 1, block_shape: Any = (4, 4), **options: Any) -> BlockMask:
    return BlockMask.topk(x(2, 3) if scores is None else scores, k, block_shape, **options)


def pattern(shape: Any = (8, 12), blocksize: Any = (2, 4), capacity: Any = 5) -> DynamicPattern:
    return DynamicPattern(shape, blocksize, capacity, device="cpu")


def indices(indptr: Any, found: Any, shape: Any = (4, 8)) -> BlockMask:
    return BlockMask.from_indices(indptr, found, shape, (4, 4))


MASKS = (
    Bad(
        "blocks of floats",
        lambda: BlockMask.from_dense(x(2, 2), (4, 4)),
        TypeError,
        ("dtype float32", "accepted"),
    ),
    Bad(
        "blocks of one dimension",
        lambda: BlockMask.from_dense([True], (4, 4)),
        ValueError,
        ("shape (1,)",),
    ),
    Bad(
        "block_shape of zero",
        lambda: BlockMask.from_dense([[True]], (0, 4)),
        ValueError,
        ("block_shape is (0, 4)",),
    ),
    Bad(
        "block_shape of one number",
        lambda: BlockMask.from_dense([[True]], 4),
        TypeError,
        ("block_shape is 4", "accepted"),
    ),
    Bad(
        "from_bsr of a dense array",
        lambda: BlockMask.from_bsr(x(2, 2)),
        TypeError,
        ("a is an ndarray", "accepted"),
    ),
    Bad(
        "from_bsr of a pattern that changes",
        lambda: BlockMask.from_bsr(pattern().array(x(5, 2, 4))),
        TypeError,
        ("a is a DynamicArray", "accepted: a bsr_array, so use a.to_bsr()"),
    ),
    Bad(
        "negative queries", lambda: BlockMask.causal(-1, 4, (4, 4)), ValueError, ("queries is -1",)
    ),
    Bad(
        "keys of a fraction", lambda: BlockMask.causal(4, 2.5, (4, 4)), TypeError, ("keys is 2.5",)
    ),
    Bad(
        "alignment",
        lambda: BlockMask.causal(4, 4, (4, 4), alignment="left"),
        ValueError,
        ("alignment is 'left'", "'top_left'"),
    ),
    Bad(
        "window of one number",
        lambda: BlockMask.sliding_window(4, 4, 3, (4, 4)),
        TypeError,
        ("window is 3", "accepted"),
    ),
    Bad(
        "window below -1",
        lambda: BlockMask.sliding_window(4, 4, (-2, 0), (4, 4)),
        ValueError,
        ("window is (-2, 0)", "-1 for all"),
    ),
    Bad(
        "window of more than 64 bits",
        lambda: BlockMask.sliding_window(4, 4, (2**63, 0), (4, 4)),
        ValueError,
        ("window is (9223372036854775808, 0)", "below 2**63"),
    ),
    Bad(
        "negative prefix", lambda: BlockMask.prefix(4, 4, -1, (4, 4)), ValueError, ("prefix is -1",)
    ),
    Bad(
        "dilated, window",
        lambda: BlockMask.dilated(4, 4, 2, 3, (4, 4)),
        TypeError,
        ("window is 2", "(blocks before, blocks after)"),
    ),
    Bad(
        "dilation of zero",
        lambda: BlockMask.dilated(4, 4, (1, 0), 0, (4, 4)),
        ValueError,
        ("dilation is 0", "accepted"),
    ),
    Bad(
        "documents that cut blocks",
        lambda: BlockMask.document([10, 4], (4, 4)),
        ValueError,
        ("a document of 10 tokens",),
    ),
    Bad(
        "negative document",
        lambda: BlockMask.document([4, -4], (4, 4)),
        ValueError,
        ("lengths is -4",),
    ),
    Bad(
        "one document",
        lambda: BlockMask.document(5, (4, 4)),
        ValueError,
        ("lengths has shape ()", "accepted: (documents,)"),
    ),
    Bad(
        "masked blocks",
        lambda: BlockMask.from_dense(np.ma.masked_all((2, 2), bool), (4, 4)),
        TypeError,
        ("blocks is a numpy.ma.MaskedArray", "accepted: a plain array"),
    ),
    Bad(
        "lists: masked indices",
        lambda: indices([0, 1], np.ma.masked_equal([0], 0)),
        TypeError,
        ("indices is a numpy.ma.MaskedArray", "accepted: a plain array"),
    ),
    Bad(
        "lists of heads: one number",
        lambda: indices([[[0, 1]]], 5),
        TypeError,
        ("indices is an int", "accepted: of each batch a sequence of one array for each head"),
    ),
    Bad(
        "lists of heads: one list",
        lambda: indices([[[0, 1]]], [0]),
        TypeError,
        ("indices is a list", "accepted: of each batch a sequence of one array for each head"),
    ),
    Bad(
        "from_flex of an array",
        lambda: BlockMask.from_flex(x(2, 2)),
        TypeError,
        ("block_mask is an ndarray",),
    ),
    Bad("lists: column out of range", lambda: indices([0, 1], [2]), ValueError, ("indices",)),
    Bad(
        "lists: column beyond int64",
        lambda: indices([0, 1], np.array([2**63], np.uint64)),
        ValueError,
        ("indices has 9223372036854775808; accepted: integers below 2**63",),
    ),
    Bad("lists: descending columns", lambda: indices([0, 2], [1, 0]), ValueError, ("ascend",)),
    Bad("lists: floats", lambda: indices([0, 1], [0.5]), TypeError, ("indices has",)),
    Bad("lists: shape of one number", lambda: indices([0, 1], [0], 4), TypeError, ("shape is 4",)),
    Bad(
        "topk: scores of float64",
        lambda: topk(x(2, 3, dtype=np.float64)),
        TypeError,
        ("scores has dtype float64",),
    ),
    Bad("topk: a vector", lambda: topk(x(3)), ValueError, ("scores has shape (3,)",)),
    Bad("topk: negative k", lambda: topk(k=-1), ValueError, ("k is -1",)),
    Bad("topk: k of a fraction", lambda: topk(k=1.5), TypeError, ("k is 1.5",)),
    Bad(
        "topk: update of a mask on the CPU",
        lambda: topk().update(x(2, 3)),
        TypeError,
        ("does not change", "accepted"),
    ),
)

PATTERNS = (
    Bad(
        "no capacity",
        lambda: pattern(capacity=0),
        ValueError,
        ("capacity is 0", "accepted: from 1 to the 12 places"),
    ),
    Bad(
        "more capacity than places",
        lambda: pattern(capacity=13),
        ValueError,
        ("capacity is 13", "accepted"),
    ),
    Bad(
        "blocks that do not divide",
        lambda: pattern(blocksize=(3, 4)),
        ValueError,
        ("takes whole blocks alone: the number of rows must be a multiple of the block height",),
    ),
    Bad("shape of one number", lambda: pattern(8), TypeError, ("shape is 8", "a pair of integers")),
    Bad(
        "blocksize of one number",
        lambda: pattern(blocksize=2),
        TypeError,
        ("blocksize is 2", "accepted: a pair of integers"),
    ),
    Bad(
        "capacity of a fraction",
        lambda: pattern(capacity=2.5),
        TypeError,
        ("capacity is 2.5", "accepted: an integer from 1 to the 12 places"),
    ),
    Bad("no blocks", lambda: pattern((0, 12)), ValueError, ("at least one block",)),
    Bad(
        "device",
        lambda: DynamicPattern((8, 12), (2, 4), 5, "tpu"),
        ValueError,
        ("device is 'tpu'", "accepted"),
    ),
    Bad(
        "mask of floats",
        lambda: pattern().update(x(4, 3)),
        TypeError,
        ("mask has dtype float32", "accepted: bool, uint8"),
    ),
    Bad(
        "mask of another shape",
        lambda: pattern().update(np.ones((3, 4), bool)),
        ValueError,
        ("mask has shape (3, 4)", "accepted: (4, 3)"),
    ),
    Bad(
        "scores of integers",
        lambda: pattern().update_topk(i32(*range(12)).reshape(4, 3), 1),
        TypeError,
        ("scores has dtype int32",),
    ),
    Bad("negative k", lambda: pattern().update_topk(x(4, 3), -1), ValueError, ("k is -1",)),
    Bad(
        "dense of another shape",
        lambda: pattern().gather(x(8, 11)),
        ValueError,
        ("dense has shape (8, 11)", "accepted: (8, 12)"),
    ),
    Bad(
        "out of another dtype",
        lambda: pattern().gather(x(8, 12), out=x(5, 2, 4, dtype=np.float64)),
        TypeError,
        ("out has dtype float64",),
    ),
)

VALUES = (
    Bad(
        "values of another number",
        lambda: pattern().array(x(6, 2, 4)),
        ValueError,
        ("values has shape (6, 2, 4)", "accepted: (5, 2, 4)"),
    ),
    Bad(
        "values in another order",
        lambda: pattern().array(x(5, 4, 2).transpose(0, 2, 1)),
        ValueError,
        ("values is not C-contiguous",),
    ),
    Bad(
        "values of integers",
        lambda: DynamicArray(pattern(), x(5, 2, 4, dtype=int)),
        TypeError,
        ("values has dtype int64",),
    ),
    Bad(
        "b of other rows",
        lambda: pattern().array(x(5, 2, 4)) @ x(11, 2),
        ValueError,
        ("b must have 12 rows",),
    ),
    Bad(
        "two block-sparse operands",
        lambda: (
            pattern((8, 8), (2, 2)).array(x(5, 2, 2)) @ pattern((8, 8), (2, 2)).array(x(5, 2, 2))
        ),
        TypeError,
        ("DynamicArray",),
    ),
    Bad(
        "numpy on it", lambda: np.asarray(pattern().array(x(5, 2, 4))), TypeError, ("A.todense()",)
    ),
)

TABLES = {"BlockMask": MASKS, "DynamicPattern": PATTERNS, "DynamicArray": VALUES}
