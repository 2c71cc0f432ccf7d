"""``BlockMask``: which blocks of queries and keys attention looks at."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import _core
from ._convert import grid_of, pattern_of
from ._flex import flex_blocks
from ._kinds import a_kind_of
from ._library import BlockSparse
from ._mask_arguments import block_shape_of, integers_of, on_host, pair_of
from ._mask_builders import Builders

# By which bsrgemm.torch finds a mask again: a number is never used twice in a process.
_serials = itertools.count(2)  # torch.compile makes graphs of their own for 0 and 1
_alive: weakref.WeakValueDictionary[int, BlockMask] = weakref.WeakValueDictionary()


class BlockMask(Builders):
    """Which blocks of queries and keys attention computes.

    Queries and keys are cut into blocks of ``block_shape``; a query sees the keys of the blocks
    that the mask has in its block row. Made by one of the methods ``from_...`` or of the builders.
    A mask does not change and belongs to no device: the first call on a GPU brings what it needs
    there, and it is freed with the mask. Those that :meth:`topk` makes on a GPU are the exception:
    they belong to it and have :meth:`update`.

    Attributes
    ----------
    shape : tuple of int
        ``(batch, heads, block rows, block columns)``; batch and heads may be 1 for all, and heads
        those of ``k``, each for all heads of ``q`` that share it.
    block_shape : tuple of int
        Queries and keys of a block.
    nnzb : int
        Number of blocks in all batches and heads.
    density : float
        The share of all blocks that the mask has.

    Notes
    -----
    One mask serves all lengths that round up to its numbers of blocks. Blocks of 64 keys or more
    and of 64 or 128 queries suit the GPU kernels; others cost as much as the larger blocks that
    cover them.
    """

    __slots__ = ("_structures", "_batch", "_heads", "_serial", "__weakref__")

    def __init__(self, structures: Sequence[_core.Structure], batch: int, heads: int) -> None:
        self._structures = tuple(structures)
        self._batch, self._heads = batch, heads
        self._serial = next(_serials)
        _alive[self._serial] = self

    # ---- from patterns -------------------------------------------------------------------------

    @classmethod
    def from_dense(cls, blocks: Any, block_shape: tuple[int, int]) -> BlockMask:
        """A mask from one truth value a block.

        Parameters
        ----------
        blocks : array of bool
            Shape (block rows, block columns), or (batch or 1, heads or 1, block rows, block
            columns). A NumPy array or what NumPy can make one of, or a tensor or array on a GPU,
            which is copied to the host.
        block_shape : (int, int)
            Queries and keys of a block.

        Raises
        ------
        TypeError
            If ``blocks`` is not of dtype bool.
        ValueError
            If it has not two or four dimensions, or ``block_shape`` is not positive.
        """
        dense = on_host(blocks, "blocks")
        if dense.dtype != np.bool_:
            raise TypeError(f"blocks has dtype {dense.dtype}; accepted: bool")
        if dense.ndim == 2:
            dense = dense[None, None]
        if dense.ndim != 4 or 0 in dense.shape[:2]:
            raise ValueError(
                f"blocks has shape {dense.shape}; accepted: (block rows, block columns), or (batch "
                "or 1, heads or 1, block rows, block columns)"
            )
        batch, heads, rows, cols = dense.shape
        lists = (
            (
                np.concatenate([[0], np.count_nonzero(blocks, axis=1).cumsum()]),
                np.nonzero(blocks)[1],
            )
            for blocks in dense.reshape(batch * heads, rows, cols)
        )
        return cls._from_lists(lists, (batch, heads), (rows, cols), block_shape)

    @classmethod
    def from_indices(
        cls, indptr: Any, indices: Any, shape: tuple[int, int], block_shape: tuple[int, int]
    ) -> BlockMask:
        """A mask from the block columns of each block row, listed as in a BSR matrix.

        Parameters
        ----------
        indptr : array of int
            Shape (block rows + 1,), for all batches and heads, or (batch or 1, heads or 1, block
            rows + 1).
        indices : array of int, or of each batch a sequence of one for each head
            Block row ``i`` has the block columns ``indices[indptr[i] : indptr[i + 1]]``, which
            ascend. With an ``indptr`` of three dimensions ``indices[batch][head]`` are those of
            ``indptr[batch, head]``.
        shape : (int, int)
            Queries and keys.
        block_shape : (int, int)
            Queries and keys of a block.

        Raises
        ------
        TypeError
            If ``indptr`` or ``indices`` are not integers.
        ValueError
            If they do not fit to ``shape`` or to one another, or do not ascend.
        """
        height, width = block_shape_of(block_shape)
        queries, keys = pair_of(shape, "shape")
        pointers = integers_of(indptr, "indptr")
        if pointers.ndim == 1:
            pointers, indices = pointers[None, None], [[indices]]
        if pointers.ndim != 3 or 0 in pointers.shape[:2]:
            raise ValueError(
                f"indptr has shape {pointers.shape}; accepted: (block rows + 1,), or (batch or 1, "
                "heads or 1, block rows + 1)"
            )
        batch, heads = pointers.shape[:2]
        try:
            found = [len(of_batch) for of_batch in indices]
        except TypeError:
            raise TypeError(
                f"indices is {a_kind_of(indices)} of no sequences; accepted: of each batch a "
                "sequence of one array for each head, as indptr has three dimensions"
            ) from None
        if found != [heads] * batch:
            raise ValueError(
                f"indices has {len(found)} batches of {found} heads; accepted: as indptr, {batch} "
                f"of {heads}"
            )
        lists = (
            (pointers[b, h], integers_of(indices[b][h], "indices"))
            for b in range(batch)
            for h in range(heads)
        )
        grid = -(-queries // height), -(-keys // width)
        return cls._from_lists(lists, (batch, heads), grid, block_shape)

    @classmethod
    def _from_lists(
        cls,
        lists: Iterable[tuple[np.ndarray, np.ndarray]],
        lead: tuple[int, int],
        grid: tuple[int, int],
        block_shape: tuple[int, int],
    ) -> BlockMask:
        """A mask of ``grid`` blocks from indptr and indices of each batch and head."""
        height, width = block_shape_of(block_shape)
        shape = grid[0] * height, grid[1] * width
        made: dict[tuple[bytes, bytes], _core.Structure] = {}  # heads that are equal share one
        structures = []
        for indptr, indices in lists:
            key = indptr.tobytes(), indices.tobytes()
            if key not in made:
                made[key] = _core.Structure(indices, indptr, shape, (height, width))
            structures.append(made[key])
        return cls(structures, *lead)

    @classmethod
    def from_flex(cls, block_mask: Any, *, partial: str = "error") -> BlockMask:
        """The blocks of a ``torch.nn.attention.flex_attention.BlockMask``.

        FlexAttention keeps full blocks apart from partial ones, in which its ``mask_mod`` decides
        for each query and key. Here blocks are whole, and ``mask_mod`` is not evaluated. Blocks
        whose ``mask_mod`` is FlexAttention's ``noop_mask`` are whole, too.

        Parameters
        ----------
        block_mask : torch.nn.attention.flex_attention.BlockMask
            On any device: its tensors are copied to the host.
        partial : str
            What becomes of partial blocks: ``"error"`` refuses them, ``"keep"`` takes them as
            whole ones. That is exact if the call says what ``mask_mod`` said, with ``is_causal``
            or ``window``, or if they are partial only because they reach beyond the last query or
            key.

        Raises
        ------
        TypeError
            If ``block_mask`` is something else.
        ValueError
            If there are partial blocks and ``partial`` is ``"error"``.
        """
        return cls.from_dense(*flex_blocks(block_mask, partial))

    @classmethod
    def from_bsr(cls, a: Any) -> BlockMask:
        """The pattern of a ``bsr_array`` of shape (queries, keys), for all batches and heads.

        Its values do not matter; nothing is copied. Blocks of queries and keys are those of the
        matrix.

        Parameters
        ----------
        a : bsr_array
            In any library and on any device; a transposed view, too.

        Raises
        ------
        TypeError
            If ``a`` is no bsr_array.
        """
        if not isinstance(a, BlockSparse) or not a.is_fixed:
            hint = ", so use a.to_bsr()" if isinstance(a, BlockSparse) else ""
            raise TypeError(f"a is {a_kind_of(a)}; accepted: a bsr_array{hint}")
        return cls([a._structure], 1, 1)

    # ---- from scores ---------------------------------------------------------------------------

    @classmethod
    def topk(
        cls,
        scores: Any,
        k: int,
        block_shape: tuple[int, int],
        *,
        is_causal: bool = False,
        alignment: str = "bottom_right",
        queries: int | None = None,
        keys: int | None = None,
        stream: Any = None,
    ) -> BlockMask:
        """In each block row the ``k`` blocks with the highest scores.

        Of equal scores those of lower columns count as higher, and NaN as lower than everything
        else. A row has ``min(k, its candidates)`` blocks whatever the scores, -inf and NaN too.

        From scores on the CPU this makes a mask like any other. From scores on a GPU a kernel on
        its stream chooses the blocks, and kernels make from them what attention needs: the host
        waits for nothing and never learns which blocks they are. Such a mask belongs to that GPU,
        and :meth:`update` gives it other scores. :meth:`to_dense` alone waits. All of it can be
        captured in a CUDA graph; ``docs/attention.md`` says what has to live how long.

        Parameters
        ----------
        scores : array
            Shape (block rows, block columns), or (batch or 1, heads or 1, block rows, block
            columns), float16, bfloat16 or float32, any strides.
        k : int
            Blocks of a block row.
        block_shape : (int, int)
            Queries and keys of a block.
        is_causal : bool
            Whether only blocks that hold a key no later than one of the row's queries compete.
        alignment : str
            As in :meth:`causal`, for ``is_causal``.
        queries, keys : int, optional
            How many there are, if the last blocks reach beyond them: for ``is_causal``.
        stream : int or stream object, optional
            As for :func:`attention`; without it the current stream of the scores' library.

        Raises
        ------
        TypeError
            If the dtype is not accepted or a number no integer.
        ValueError
            If ``scores`` has not two or four dimensions or a number is out of range.
        """
        from ._topk import topk_mask  # which is built on this module

        return topk_mask(scores, k, block_shape, is_causal, alignment, queries, keys, stream)

    def update(self, scores: Any, *, stream: Any = None) -> None:
        """Chooses the blocks of a mask from :meth:`topk` on a GPU anew, by other scores.

        The mask's memory stays where it is: nothing is allocated. Behind this call on its stream,
        attention with the mask sees the new blocks.

        Parameters
        ----------
        scores : array
            Of the mask's shape, on its GPU; the dtype may be another one than before.
        stream : int or stream object, optional
            As for :meth:`topk`.

        Raises
        ------
        TypeError
            If the mask is another one, which does not change, or ``scores`` is on another device.
        ValueError
            If ``scores`` has another shape.
        """
        raise TypeError(
            "this mask does not change; accepted: one that BlockMask.topk made from scores on a GPU"
        )

    # ---- what it is ----------------------------------------------------------------------------

    def core_arguments(self) -> dict[str, Any]:
        """Of ``_core.attention``, what says which mask."""
        return {"masks": self._structures, "mask_shape": (self._batch, self._heads)}

    @property
    def block_shape(self) -> tuple[int, int]:
        return self._structures[0].blocksize

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self._batch, self._heads, *grid_of(self._structures[0].shape, self.block_shape)

    @property
    def nnzb(self) -> int:
        return sum(structure.nnzb for structure in self._structures)

    @property
    def density(self) -> float:
        blocks = int(np.prod(self.shape, dtype=object))
        return self.nnzb / blocks if blocks else 0.0

    def to_dense(self) -> np.ndarray:
        """An array of bool of shape :attr:`shape`, one value a block.

        Of a mask from :meth:`topk` on a GPU, what that GPU has chosen: this waits for it.
        """
        batch, heads, rows, cols = self.shape
        dense = np.zeros((batch * heads, rows, cols), bool)
        for blocks, structure in zip(dense, self._structures, strict=True):
            indices, indptr = pattern_of(structure)
            blocks[np.repeat(np.arange(rows), np.diff(indptr)), indices] = True
        return dense.reshape(batch, heads, rows, cols)

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockMask.from_dense, (self.to_dense(), self.block_shape)

    def __repr__(self) -> str:
        return (
            f"<BlockMask of shape {self.shape} in blocks of {self.block_shape}, "
            f"density {self.density:.4g}>"
        )


def mask_of(serial: int) -> BlockMask:
    """The mask whose ``_serial`` this is."""
    mask = _alive.get(serial)
    if mask is None:
        raise ValueError(
            f"mask is {serial}; accepted: the number of a BlockMask that is alive, or 0"
        )
    return mask
