"""Masks that follow from lengths and windows alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from ._mask_arguments import block_shape_of, count_of, diagonal_of, integers_of, window_of


class Builders:
    """What makes a ``BlockMask`` without a pattern."""

    __slots__ = ()

    @classmethod
    def causal(
        cls,
        queries: int,
        keys: int,
        block_shape: tuple[int, int],
        *,
        alignment: str = "bottom_right",
    ) -> Self:
        """The blocks that hold a key no later than a query.

        Blocks on the diagonal are whole; together with ``attention(..., is_causal=True)`` the mask
        is exact.

        Parameters
        ----------
        queries, keys : int
            How many there are, at least 0.
        block_shape : (int, int)
            Queries and keys of a block.
        alignment : str
            Which query meets which key: ``"bottom_right"`` the last ones, ``"top_left"`` the first.

        Raises
        ------
        ValueError
            If a number is out of range, or ``alignment`` is another word.
        TypeError
            If a number is no integer.
        """
        return cls.sliding_window(queries, keys, (-1, 0), block_shape, alignment=alignment)

    @classmethod
    def sliding_window(
        cls,
        queries: int,
        keys: int,
        window: tuple[int, int],
        block_shape: tuple[int, int],
        *,
        alignment: str = "bottom_right",
    ) -> Self:
        """The blocks that hold a key in the window of a query.

        With ``attention(..., window=window)`` the mask is exact; alone it has whole blocks.

        Parameters
        ----------
        queries, keys : int
            How many there are, at least 0.
        window : (int, int)
            Keys before and after the query's own, -1 for all of that side.
        block_shape : (int, int)
            Queries and keys of a block.
        alignment : str
            Which query meets which key: ``"bottom_right"`` the last ones, ``"top_left"`` the first.

        Raises
        ------
        ValueError
            If a number is out of range, or ``alignment`` is another word.
        TypeError
            If a number is no integer.
        """
        queries, keys = _lengths_of(queries, keys)
        diagonal = diagonal_of(queries, keys, alignment)
        # A wider window sees no more, and its ends need not be numbers of 64 bits.
        left, right = (min(n, queries + keys) for n in window_of(window))

        def allowed(q0: Any, q1: Any, k0: Any, k1: Any) -> Any:
            seen = (q0 <= q1) & (k0 <= k1)
            if right >= 0:
                seen = seen & (k0 <= q1 + diagonal + right)
            return seen & (k1 >= q0 + diagonal - left) if left >= 0 else seen

        return cls._from_rule(queries, keys, block_shape, allowed)

    @classmethod
    def dilated(
        cls,
        queries: int,
        keys: int,
        window: tuple[int, int],
        dilation: int,
        block_shape: tuple[int, int],
        *,
        alignment: str = "bottom_right",
    ) -> Self:
        """A sliding window with gaps: every ``dilation``-th block around a query's own.

        Where ``alignment`` shifts the keys of a block of queries by no whole block, they have two
        own blocks.

        Parameters
        ----------
        queries, keys : int
            How many there are, at least 0.
        window : (int, int)
            How many blocks before and after the own one are seen, -1 for all of that side: with
            ``dilation=3``, (2, 0) are the own block and those 3 and 6 before it.
        dilation : int
            Distance of the blocks that are seen, at least 1.
        block_shape : (int, int)
            Queries and keys of a block.
        alignment : str
            Which query meets which key: ``"bottom_right"`` the last ones, ``"top_left"`` the first.

        Raises
        ------
        ValueError
            If a number is out of range, or ``alignment`` is another word.
        TypeError
            If a number is no integer.
        """
        height, width = block_shape_of(block_shape)
        queries, keys = _lengths_of(queries, keys)
        diagonal = diagonal_of(queries, keys, alignment)
        before, after = window_of(window, "blocks")
        # From so far on, no block but the own ones is met.
        dilation = min(count_of(dilation, "dilation", least=1), queries + keys + 1)

        def allowed(q0: Any, q1: Any, k0: Any, k1: Any) -> Any:
            column = k0 // width
            # The fewest and the most steps that lead from an own block to this column.
            fewest = -(((q1 + diagonal) // width - column) // dilation)
            most = (column - (q0 + diagonal) // width) // dilation
            seen = (q0 <= q1) & (k0 <= k1) & (fewest <= most)
            if before >= 0:
                seen = seen & (most >= -before)
            return seen & (fewest <= after) if after >= 0 else seen

        return cls._from_rule(queries, keys, block_shape, allowed)

    @classmethod
    def prefix(
        cls,
        queries: int,
        keys: int,
        prefix: int,
        block_shape: tuple[int, int],
        *,
        alignment: str = "bottom_right",
    ) -> Self:
        """The first ``prefix`` keys for all queries, and the causal blocks.

        Blocks that the prefix or the diagonal cut are whole.

        Parameters
        ----------
        queries, keys : int
            How many there are, at least 0.
        prefix : int
            Keys that all queries see, at least 0.
        block_shape : (int, int)
            Queries and keys of a block.
        alignment : str
            Which query meets which key: ``"bottom_right"`` the last ones, ``"top_left"`` the first.

        Raises
        ------
        ValueError
            If a number is out of range, or ``alignment`` is another word.
        TypeError
            If a number is no integer.
        """
        prefix = count_of(prefix, "prefix")
        queries, keys = _lengths_of(queries, keys)
        diagonal = diagonal_of(queries, keys, alignment)

        def allowed(q0: Any, q1: Any, k0: Any, k1: Any) -> Any:
            return (k0 < prefix) | (k0 <= q1 + diagonal)

        return cls._from_rule(queries, keys, block_shape, allowed)

    @classmethod
    def document(cls, lengths: Sequence[int], block_shape: tuple[int, int]) -> Self:
        """Documents that follow one another, each of which sees itself only.

        Parameters
        ----------
        lengths : sequence or array of int
            Queries, and as many keys, of each document: multiples of both sides of a block, but
            for the last one.
        block_shape : (int, int)
            Queries and keys of a block.

        Raises
        ------
        ValueError
            If a document would end within a block, where the next one could be seen, or a number
            is negative.
        TypeError
            If a number is no integer.
        """
        height, width = block_shape_of(block_shape)
        if not isinstance(lengths, (list, tuple)):
            lengths = integers_of(lengths, "lengths")
            if lengths.ndim != 1:
                raise ValueError(f"lengths has shape {lengths.shape}; accepted: (documents,)")
        lengths = [count_of(n, "lengths") for n in lengths]
        for n in lengths[:-1]:
            if n % height or n % width:
                raise ValueError(
                    f"lengths has a document of {n} tokens before the last one; accepted with "
                    f"blocks of {(height, width)}: multiples of both sides"
                )
        total = sum(lengths)
        ends = np.cumsum([0, *lengths], dtype=np.int64)
        owner_q = np.searchsorted(ends, np.arange(0, total, height), side="right")
        owner_k = np.searchsorted(ends, np.arange(0, total, width), side="right")
        return cls.from_dense(owner_q[:, None] == owner_k[None, :], (height, width))  # type: ignore[attr-defined]

    @classmethod
    def _from_rule(
        cls,
        queries: int,
        keys: int,
        block_shape: tuple[int, int],
        allowed: Callable[[Any, Any, Any, Any], Any],
    ) -> Self:
        """The blocks for which ``allowed(first query, last query, first key, last key)`` holds."""
        height, width = block_shape_of(block_shape)
        q0 = np.arange(0, queries, height)[:, None]
        k0 = np.arange(0, keys, width)[None, :]
        q1, k1 = np.minimum(q0 + height, queries) - 1, np.minimum(k0 + width, keys) - 1
        blocks = np.broadcast_to(allowed(q0, q1, k0, k1), (q0.size, k0.size))
        return cls.from_dense(blocks, (height, width))  # type: ignore[attr-defined]


def _lengths_of(queries: Any, keys: Any) -> tuple[int, int]:
    return count_of(queries, "queries"), count_of(keys, "keys")
