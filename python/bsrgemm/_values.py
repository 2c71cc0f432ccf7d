"""Arrays of blocks, worked on by the library that holds them: NumPy, torch or CuPy.

Positions come from structures, which live on the host. Where they are no plain ranges they are
copied to the device of the blocks, for which torch and CuPy wait.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import _core
from ._convert import edges_of, grid_of, whole_shape
from ._dtypes import EIGHT_BIT_DTYPES, check_dtype, numpy_dtype
from ._interop import CUPY, TORCH, library_of
from ._kinds import a_kind_of
from ._library import NUMPY, without_repeats


class Values:
    """What a library does with arrays like the one given, which ``name`` calls in messages.

    Raises TypeError for arrays of other libraries.
    """

    def __init__(self, like: Any, name: str) -> None:
        library = library_of(like)
        if library not in (NUMPY, TORCH, CUPY):
            raise TypeError(
                f"{name} is {a_kind_of(like)}; accepted here: an array of NumPy, torch or "
                f"CuPy, for example torch.from_dlpack({name})"
            )
        self.like = library.importable(like, name)
        self.library = library
        self.xp = sys.modules[library.name]
        self.dtype: str = _core.describe(self.like, name).dtype
        check_dtype(self.dtype, name)
        self._name = name
        # torch moves 8-bit floats about on some devices only, and bytes on all.
        self._eight = None
        if self.library is TORCH and self.dtype in EIGHT_BIT_DTYPES:
            self._eight = self.like.dtype
            self.like = self._bytes(self.like)

    def here(self) -> contextlib.AbstractContextManager[Any]:
        """CuPy makes arrays on its current device."""
        return self.like.device if self.library is CUPY else contextlib.nullcontext()

    def _positions(self, positions: np.ndarray) -> Any:
        if self.library is TORCH:
            return self.xp.as_tensor(positions, device=self.like.device)
        return self.xp.asarray(positions)

    def _index(self, positions: np.ndarray) -> Any:
        """Positions in one dimension, as a slice where they follow one another."""
        first = int(positions[0]) if len(positions) else 0
        if np.array_equal(positions, np.arange(first, first + len(positions))):
            return slice(first, first + len(positions))
        return self._positions(positions)

    def _new(self, shape: Sequence[int], filled: str = "zeros") -> Any:
        make = getattr(self.xp, filled)
        if self.library is TORCH:
            return make(tuple(shape), dtype=self.like.dtype, device=self.like.device)
        return make(tuple(shape), dtype=self.like.dtype)

    def _bytes(self, x: Any) -> Any:
        """What is moved for ``x``, an array of the dtype of these."""
        return x.detach().view(self.xp.uint8) if self._eight else x

    def _moved(self, x: Any) -> Any:
        """The other way round."""
        return x.view(self._eight) if self._eight else x

    def array(self) -> Any:
        """The array itself."""
        return self._moved(self.like)

    def check_arithmetic(self) -> None:
        """Raise TypeError for 8 bits: without scales, most sums do not fit in them."""
        if self.dtype in EIGHT_BIT_DTYPES:
            raise TypeError(
                f"{self._name} has dtype {self.dtype}; arithmetic takes float16, bfloat16, float32 "
                "and float64, so use A.astype('float32')"
            )

    def _wide(self) -> Any:
        """The dtype in which 16-bit floats are summed and scaled, else their own."""
        name = "float32" if self.dtype in ("float16", "bfloat16") else self.dtype
        return getattr(self.xp, name)

    def _convert(self, x: Any, dtype: Any) -> Any:
        if self.library is TORCH:
            return x.to(dtype)
        return x.astype(dtype, copy=False)

    # ---- numbers -------------------------------------------------------------------------------

    def scaled(self, factor: float, divide: bool) -> Any:
        """All values times, or over, a number; 16-bit floats are rounded once."""
        self.check_arithmetic()
        with self.here():
            # torch does as much by itself.
            x = self.like if self.library is TORCH else self._convert(self.like, self._wide())
            return self._convert(x / factor if divide else x * factor, self.like.dtype)

    def total(self) -> Any:
        """The sum of all values: a scalar of NumPy, an array of no dimensions of the others."""
        self.check_arithmetic()
        with self.here():
            total = self.like.sum(dtype=self._wide())
            return self._convert(total, self.like.dtype)

    def ones(self, count: int) -> Any:
        with self.here():
            dtype = self._eight or self.like.dtype
            if self.library is TORCH:
                return self.xp.ones((count,), device=self.like.device).to(dtype)
            return self.xp.ones((count,), dtype=dtype)

    def clear_edges(self, structure: _core.Structure) -> Any:
        """The array itself, with zeros put where blocks reach beyond the matrix."""
        with self.here():
            for blocks, rows, cols in edges_of(structure):
                self.like[..., self._index(blocks), rows, cols] = 0
            return self.like

    # ---- blocks --------------------------------------------------------------------------------

    def take(self, positions: np.ndarray) -> Any:
        """A copy of some blocks."""
        with self.here():
            index = self._index(positions)
            taken = self.like[index]
            return self._moved(self.library.copy(taken) if isinstance(index, slice) else taken)

    def add_up(self, slots: np.ndarray, count: int) -> Any:
        """``count`` blocks, each the sum of those whose slot it is."""
        self.check_arithmetic()
        with self.here():
            out = self._new((count, *self.like.shape[1:]))
            for chosen in without_repeats(slots, np.zeros_like(slots)):
                if isinstance(chosen, slice):
                    chosen = np.arange(len(slots))
                out[self._index(slots[chosen])] += self.like[self._index(chosen)]
            return out

    def place(self, parts: Iterable[tuple[Any, np.ndarray]], count: int, subtract: bool) -> Any:
        """``count`` blocks: zeros, and of each part blocks where its slots say.

        No slot is twice in one part. The first part is put there, others are added or subtracted.
        """
        with self.here():
            out = self._new((count, *self.like.shape[1:]))
            for number, (blocks, slots) in enumerate(parts):
                index = self._index(slots)
                if number == 0:
                    out[index] = blocks
                elif subtract:
                    out[index] -= blocks
                else:
                    out[index] += blocks
            return out

    def join(self, parts: Iterable[tuple[Any, np.ndarray]], count: int) -> Any:
        """``count`` blocks, each put where its slot says."""
        with self.here():
            out = self._new((count, *self.like.shape[1:]), "empty")
            for blocks, slots in parts:
                out[self._index(slots)] = self._bytes(blocks)
            return self._moved(out)

    def nonzero(self) -> np.ndarray:
        """On the host, which blocks have any non-zero; NaN counts as one."""
        with self.here():
            count, size = len(self.like), int(np.prod(self.like.shape[1:]))
            bits = self.like & 0x7F if self._eight else self.like  # -0 is a zero
            return self.library.to_host((bits.reshape(count, size) != 0).any(1))

    def rearranged(
        self,
        part: tuple[int, int],
        kept: np.ndarray,
        slots: np.ndarray,
        inner: np.ndarray,
        count: int,
        shape: tuple,
    ) -> Any:
        """``count`` blocks of ``shape``, made of those parts of these that are kept.

        Every block has its parts in the order of their rows. The i-th that is kept goes to block
        slots[i], where ``inner`` has its row and column counted in parts.
        """
        with self.here():
            height, width = part
            blocks, rows, cols = self.like.shape
            tiles = self.like.reshape(blocks, rows // height, height, cols // width, width)
            order = (0, 1, 3, 2, 4)
            tiles = tiles.permute(order) if self.library is TORCH else tiles.transpose(order)
            pieces = tiles.reshape(len(kept), height, width)
            if not kept.all():
                pieces = pieces[self._positions(np.flatnonzero(kept))]
            out = self._new((count, shape[0] // height, height, shape[1] // width, width))
            at, i, j = (self._positions(x) for x in (slots, inner[0], inner[1]))
            out[at, i, :, j, :] = pieces
            return self._moved(out.reshape(count, *shape))

    # ---- of dense matrices ---------------------------------------------------------------------

    def _tiles(self, blocksize: tuple[int, int]) -> Any:
        rows, cols = self.like.shape
        height, width = blocksize
        return self.like.reshape(rows // height, height, cols // width, width)

    def gathered(self, rows: np.ndarray, cols: np.ndarray, blocksize: tuple[int, int]) -> Any:
        """The blocks of a dense matrix at block positions (rows[i], cols[i]), contiguous."""
        with self.here():
            tiles = self._tiles(blocksize)
            blocks = tiles[self._positions(rows), :, self._positions(cols), :]
            contiguous = blocks.contiguous if self.library is TORCH else None
            return self._moved(contiguous() if contiguous else self.xp.ascontiguousarray(blocks))

    def norms(self, blocksize: tuple[int, int]) -> np.ndarray:
        """On the host, those of the blocks of a dense matrix, as :func:`block_norms` has them."""
        with self.here():
            tiles = self._tiles(blocksize)
            if self._eight:
                tiles = self._moved(tiles).float()
            return self.library.to_host(block_norms(tiles, (1, 3), self.xp))

    def padded(self, blocksize: tuple[int, int]) -> Any:
        """A dense matrix filled up with zeros to whole blocks; itself where it has those."""
        rows, cols = self.like.shape
        whole = whole_shape((rows, cols), blocksize)
        if whole == (rows, cols):
            return self.array()
        with self.here():
            out = self._new(whole)
            out[:rows, :cols] = self.like
            return self._moved(out)


def block_norms(tiles: Any, axes: tuple[int, int], xp: Any) -> Any:
    """Frobenius norms over two axes of an array of the library ``xp``, in float64, where it is; of
    blocks with NaN they are infinite.

    All are smaller by one power of two where the largest could leave the range.
    """
    if tiles.dtype != xp.float64:
        return _unscaled_norms(tiles, axes, xp)
    # Squares of float64 may leave its range, of what are no larger than 2 not.
    powers = _powers(tiles, axes, xp)
    norms = _unscaled_norms(tiles / powers, axes, xp)
    powers = powers.reshape(norms.shape)
    return norms * xp.where((powers > 2.0**1000).any(), powers * 2.0**-23, powers)


def _unscaled_norms(tiles: Any, axes: tuple[int, int], xp: Any) -> Any:
    if hasattr(tiles, "astype"):
        norms = xp.sqrt((tiles.astype(xp.float64) ** 2).sum(axis=axes))
    else:
        norms = xp.linalg.vector_norm(tiles, dim=axes, dtype=xp.float64)
    return xp.where(xp.isnan(norms), math.inf, norms)


def _powers(tiles: Any, axes: tuple[int, int], xp: Any) -> Any:
    """Of each block the largest power of two that is no more than its largest value, by which
    division rounds nothing; 1 where that is 0 or not finite."""
    largest = xp.amax(xp.abs(tiles), axis=axes, keepdims=True)
    largest = xp.where(xp.isfinite(largest) & (largest > 0), largest, 1.0)
    return largest / (2 * xp.frexp(largest)[0])


def dense_values(dense: Any, name: str) -> Values:
    """The same for a dense matrix, which has to have two dimensions."""
    values = Values(dense, name)
    if values.library is NUMPY:
        values.like = np.asarray(values.like)  # a numpy.matrix has two dimensions and no blocks
    if len(values.like.shape) != 2:
        raise ValueError(f"{name} has shape {tuple(values.like.shape)}; accepted: 2 dimensions")
    return values


def masked_blocks(dense: Values, mask: Any, blocksize: tuple[int, int]) -> tuple[Any, np.ndarray]:
    """The blocks of a dense matrix that ``mask`` chooses, and ``mask`` on the host."""
    shape = tuple(dense.like.shape)
    library = library_of(mask)
    chosen = np.asarray(library.to_host(library.importable(mask, "mask", False)))
    if chosen.dtype != np.bool_:
        raise TypeError(f"mask has dtype {chosen.dtype}; accepted: bool")
    wanted = grid_of(shape, blocksize)
    if chosen.shape != wanted:
        raise ValueError(
            f"mask has shape {chosen.shape}; accepted: {wanted}, an entry for each block of "
            f"{blocksize} in a matrix of shape {shape}"
        )
    whole = Values(dense.padded(blocksize), "dense")
    return whole.gathered(*np.nonzero(chosen), blocksize), chosen


def ones_like(data: Any, dtype: str, count: int, name: str) -> Any:
    """Ones in the library and on the device of ``data``, whichever these are."""
    library = library_of(data)
    if library in (NUMPY, TORCH, CUPY):
        return Values(data, name).ones(count)
    return library.from_host(np.ones(count, numpy_dtype(dtype)), data)
