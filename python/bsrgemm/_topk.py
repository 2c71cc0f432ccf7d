"""``BlockMask.topk``: the blocks with the highest scores, chosen where the scores are."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._interop import library_of
from ._library import stream_handle
from ._mask import BlockMask
from ._mask_arguments import block_shape_of, count_of, diagonal_of

_DTYPES = ("float16", "bfloat16", "float32")


def topk_mask(
    scores: Any,
    k: Any,
    block_shape: tuple[int, int],
    is_causal: bool,
    alignment: str,
    queries: int | None,
    keys: int | None,
    stream: Any,
) -> BlockMask:
    """What :meth:`BlockMask.topk` says."""
    info = _describe(scores)
    rule = _Rule(info.shape, k, block_shape, is_causal, alignment, queries, keys)
    if info.device == "cpu":
        return BlockMask.from_dense(rule.choose(library_of(scores).to_host(scores)), rule.block)
    mask = TopKMask(rule, scores, info.device)
    mask.update(scores, stream=stream)
    return mask


class TopKMask(BlockMask):
    """A mask on a GPU: the host knows how many blocks a row has, the GPU alone which ones.

    Made by :meth:`BlockMask.topk`.
    """

    __slots__ = ("_rule", "_columns", "_device", "_stream")

    def __init__(self, rule: _Rule, scores: Any, device: str) -> None:
        super().__init__((), *rule.shape[:2])
        self._rule, self._device = rule, device
        shape = (*rule.shape[:3], rule.most)
        # Of the scores' library, which knows how long what is captured in a graph needs its memory.
        self._columns = library_of(scores).empty(shape, scores, "scores", "int32")
        self._stream = 0

    def update(self, scores: Any, *, stream: Any = None) -> None:
        info = _describe(scores)
        rule = self._rule
        if (1, 1, *info.shape)[-4:] != rule.shape:
            raise ValueError(f"scores has shape {info.shape}; accepted: {rule.shape}, the mask's")
        if info.device != self._device:
            raise TypeError(f"scores is on {info.device}; accepted: the mask's, {self._device}")
        library = library_of(scores)
        handle = library.current_stream(scores) if stream is None else stream_handle(stream)
        given = library.importable(scores, "scores", differentiated=False)
        _core.topk(given, self._columns, rule.numbers, handle)
        self._stream = handle

    def core_arguments(self) -> dict[str, Any]:
        """Of ``_core.attention``, what says which mask."""
        return {"columns": self._columns, "numbers": self._rule.numbers}

    @property
    def block_shape(self) -> tuple[int, int]:
        return self._rule.block

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self._rule.shape

    @property
    def nnzb(self) -> int:
        return self._batch * self._heads * int(self._rule.counts.sum())

    def to_dense(self) -> np.ndarray:
        rule = self._rule
        batch, heads, rows, cols = rule.shape
        dense = np.zeros((batch * heads, rows, cols), bool)
        if rule.most:
            if self._stream is not None:  # the array knows nothing of a stream that was asked for
                _core.synchronize(self._device, self._stream)
            columns = library_of(self._columns).to_host(self._columns)
            chosen = np.arange(rule.most) < rule.counts[:, None]
            at = np.broadcast_to(chosen, (batch * heads, rows, rule.most)).nonzero()
            dense[at[0], at[1], columns.reshape(batch * heads, rows, rule.most)[at]] = True
        return dense.reshape(rule.shape)


class _Rule:
    """How many blocks each row keeps, and among which."""

    def __init__(
        self,
        scores_shape: tuple[int, ...],
        k: Any,
        block_shape: Any,
        is_causal: bool,
        alignment: str,
        queries: Any,
        keys: Any,
    ) -> None:
        self.shape: tuple[int, int, int, int] = (1, 1, *scores_shape)[-4:]  # type: ignore[assignment]
        self.block = block_shape_of(block_shape)
        rows, cols = self.shape[2:]
        self.most = min(count_of(k, "k"), cols)
        queries = _length(queries, "queries", rows, self.block[0])
        keys = _length(keys, "keys", cols, self.block[1])
        diagonal = diagonal_of(queries, keys, alignment)
        self.candidates = np.full(rows, cols)
        if is_causal:
            ends = np.minimum((np.arange(rows) + 1) * self.block[0], queries)
            self.candidates = ((ends - 1 + diagonal) // self.block[1] + 1).clip(0, cols)
        self.counts = np.minimum(self.candidates, self.most)
        causal = (int(bool(is_causal)), queries, diagonal)
        self.numbers = (*self.shape, *self.block, self.most, *causal)

    def choose(self, scores: np.ndarray) -> np.ndarray:
        """Which blocks are kept, on the host."""
        scores = np.asarray(scores, np.float32).reshape(self.shape)
        # NaN comes last in NumPy's order, ties in the order of columns: so candidates that are NaN
        # come before what is no candidate, which has higher columns.
        hidden = np.arange(self.shape[3]) >= self.candidates[:, None]
        order = np.argsort(np.where(hidden, np.float32(np.nan), -scores), axis=-1, kind="stable")
        kept = np.broadcast_to(np.arange(self.shape[3]) < self.counts[:, None], self.shape)
        blocks = np.zeros(self.shape, bool)
        np.put_along_axis(blocks, order, kept, axis=-1)
        return blocks


def _describe(scores: Any) -> _core.ArrayInfo:
    library = library_of(scores)
    info = _core.describe(library.importable(scores, "scores", differentiated=False), "scores")
    if info.dtype not in _DTYPES:
        raise TypeError(f"scores has dtype {info.dtype}; accepted: {', '.join(_DTYPES)}")
    if len(info.shape) not in (2, 4) or 0 in info.shape[:-2]:
        raise ValueError(
            f"scores has shape {info.shape}; accepted: (block rows, block columns), or (batch or "
            "1, heads or 1, block rows, block columns)"
        )
    return info


def _length(value: Any, name: str, blocks: int, side: int) -> int:
    """Queries or keys: all of the blocks', unless given."""
    if value is None:
        return blocks * side
    count = count_of(value, name)
    if -(-count // side) != blocks:
        raise ValueError(
            f"{name} is {count}; accepted: what rounds up to the {blocks} blocks of {side} that "
            "scores has"
        )
    return count
