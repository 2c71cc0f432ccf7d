"""``DynamicPattern``: which blocks a matrix stores, decided anew on the GPU at every step."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from . import _core
from ._convert import MOST_ROWS, grid_of, pair_of
from ._dtypes import check_dtype, numpy_dtype
from ._dynamic_array import DynamicArray
from ._interop import device_name, handed_back, library_of
from ._library import stream_handle
from ._topk import _DTYPES, _Rule


class DynamicPattern:
    """The blocks that a matrix stores, of which a GPU makes a new choice whenever it is told to.

    :meth:`update` takes a mask and makes from it, on the GPU, everything that products need: the
    block rows' lists, those of the transposed, and the plan of the Hopper kernels for both. The
    host never learns what was chosen and never waits. So a CUDA graph may hold an update, a
    :meth:`gather` of the values, or a sampled product that makes them, and products with them;
    each replay then uses the mask and the values that are there at the time.

    Parameters
    ----------
    shape : (int, int)
        (M, K) of the matrix in elements, multiples of the blocks' height and width.
    blocksize : (int, int)
        (bh, bw). There may be up to 2^30 places for blocks.
    capacity : int
        The most blocks that are ever stored, from 1 to M / bh * K / bw. Values have room for as
        many. If a mask has more, the last ones are dropped, by rows and then by columns, and
        :attr:`counts` says how many.
    device : str or torch.device
        ``"cuda"`` (which is ``"cuda:0"``, and the default), ``"cuda:<index>"``, or ``"cpu"``, where
        the same is computed by the host.

    Raises
    ------
    ValueError
        If a number is not accepted.
    TypeError
        If something is no integer, or no pair of them.
    DeviceUnavailableError
        If the device is a GPU that this process cannot use.

    Notes
    -----
    It begins without blocks. Making it allocates all its memory: for each block of the capacity 84
    bytes where it is 64 x 64, 116 of 128 x 128, about 2 for each 32 x 32 elements of larger ones
    and, of low or narrow ones, 50 and up to 230 more for each 32 x 32 elements or fewer; some 40
    for each block row and block column; and half a byte for each place. It waits for the GPU; that,
    and :attr:`nnzb` and other questions about the choice, do not belong into a graph. A graph needs
    the pattern alive when it is replayed. Updates and products happen in the order of their stream;
    on several streams that order is the caller's to establish. A pattern is for one thread at a
    time.

    Products of float16 and bfloat16 go on Hopper by the kernels for tall blocks (heights that are
    multiples of 64 and widths that are multiples of 16; for ``A.T`` and ``X @ A`` the other way
    round) or the streaming ones (lower and narrower blocks), all others by the portable ones. Their
    grids and their choice follow from the capacity, so one that is much larger than needed costs
    time. Long rows go first, but are not shared out among SMs as those of a :class:`bsr_array` are.
    :func:`bsrgemm.sampled_matmul` at these blocks goes by Hopper's kernels where both sides are
    multiples of 32.
    """

    __slots__ = (
        "_blocksize",
        "_capacity",
        "_device",
        "_dropped",
        "_given",
        "_is_torn",
        "_made",
        "_shape",
        "_stream",
        "__weakref__",
    )

    def __init__(
        self,
        shape: tuple[int, int],
        blocksize: tuple[int, int],
        capacity: int,
        device: Any = "cuda",
    ) -> None:
        name = device_name(device)
        structure: Any
        if name == "cpu":
            structure = _empty_structure(shape, blocksize)
            self._hold(structure, _host_capacity(capacity, structure), name)
        else:
            structure = _core.DynamicStructure(shape, blocksize, capacity, name)
            self._hold(structure, structure.capacity, name)

    def _hold(self, structure: Any, capacity: int, device: str) -> None:
        self._device, self._made, self._capacity = device, structure, capacity
        self._is_torn = False  # between two choices, since an update has failed
        self._shape, self._blocksize = structure.shape, structure.blocksize
        self._given: Any = None  # the last mask or scores: their library knows the current stream
        self._stream = 0
        self._dropped = 0

    @classmethod
    def _around(cls, structure: Any, capacity: int, device: str) -> DynamicPattern:
        """Of a structure that there is, as ``__init__`` makes one for the device."""
        self = cls.__new__(cls)
        self._hold(structure, capacity, device)
        return self

    @property
    def _structure(self) -> Any:
        if self._is_torn:
            raise RuntimeError(
                "the pattern's last update has failed and left neither its old nor its new blocks; "
                "accepted: another update"
            )
        return self._made

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """(M, K) in elements."""
        return self._shape

    @property
    def blocksize(self) -> tuple[int, int]:
        """(bh, bw) in elements."""
        return self._blocksize

    @property
    def grid(self) -> tuple[int, int]:
        """Block rows and block columns, the shape of masks and scores."""
        (rows, cols), (height, width) = self._shape, self._blocksize
        return rows // height, cols // width

    @property
    def capacity(self) -> int:
        """The most blocks that are stored."""
        return self._capacity

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:<index>"``."""
        return self._device

    @property
    def counts(self) -> Any:
        """How many blocks are stored and how many were dropped, int64 of shape (2,), on the device.

        On a GPU this and the next two are objects with ``__cuda_array_interface__`` (for
        ``torch.as_tensor(pattern.counts, device="cuda")``, ``cupy.asarray`` and others) which
        share the pattern's memory: work that is put on the stream behind an update finds the new
        contents. They are not to be written to.
        """
        if self._device == "cpu":
            return np.array([self._structure.nnzb, self._dropped])
        return _DeviceView(self, self._structure.pointers[2], 2, "<i8")

    @property
    def indptr(self) -> Any:
        """Where block rows begin, int64 of shape (M / bh + 1,), on the device."""
        if self._device == "cpu":
            return self._structure.indptr
        return _DeviceView(self, self._structure.pointers[0], self.grid[0] + 1, "<i8")

    @property
    def indices(self) -> Any:
        """Block columns, int32 of shape (capacity,), undefined behind the last block that is
        stored; on the CPU of shape (nnzb,)."""
        if self._device == "cpu":
            return self._structure.indices
        return _DeviceView(self, self._structure.pointers[1], self._capacity, "<i4")

    @property
    def nnzb(self) -> int:
        """How many blocks are stored. On a GPU the host waits for the last update."""
        return len(self._read()[0])

    @property
    def dropped(self) -> int:
        """How many blocks the last mask had beyond the capacity. The host waits likewise."""
        return self._read()[2]

    def to_mask(self) -> np.ndarray:
        """Which blocks are stored, as a NumPy array of bool of shape ``grid``.

        On a GPU the host waits for the last update.
        """
        indices, indptr, _ = self._read()
        mask = np.zeros(self.grid, bool)
        mask[np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), indices] = True
        return mask

    def _read(self) -> tuple[np.ndarray, np.ndarray, int]:
        """indices, indptr and the number of dropped blocks, in host memory."""
        structure = self._structure
        if self._device == "cpu":
            return structure.indices, structure.indptr, self._dropped
        given = self._given
        # A graph may have been replayed on what is the current stream now.
        current = None if given is None else library_of(given).current_stream(given)
        if isinstance(given, _core.DeviceArray):
            given.to_host()  # waits for the update: it was put on the array's stream
        elif current is not None and current != self._stream:
            _core.synchronize(self._device, self._stream)
        return structure.read(self._stream if current is None else current)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DynamicPattern is memory of this process and has no copies; accepted: the bsr_array "
            "of what it stores now, A.to_bsr()"
        )

    def __repr__(self) -> str:
        (rows, cols), (height, width) = self._shape, self._blocksize
        return (
            f"<DynamicPattern {rows}x{cols}, blocksize {height}x{width}, capacity "
            f"{self._capacity}, {self._device}>"
        )

    # ---- new choices ---------------------------------------------------------------------------

    def update(self, mask: Any, *, stream: Any = None) -> None:
        """Store the blocks that ``mask`` selects, from now on.

        Parameters
        ----------
        mask : array
            bool or uint8 of shape ``grid`` in any strides, on the pattern's device: not 0 where a
            block is stored.
        stream : optional
            As in :func:`bsrgemm.matmul`, the mask standing for the dense operand.

        Raises
        ------
        TypeError, ValueError
            If dtype, device or shape is not accepted.
        """
        library = library_of(mask)
        given = library.importable(mask, "mask", differentiated=False)
        info = _core.describe(given, "mask")
        self._check(info, "mask", ("bool", "uint8"))
        if self._device == "cpu":
            self._choose(library.to_host(mask) != 0)
            return
        handle = library.current_stream(mask) if stream is None else stream_handle(stream)
        self._update(_core.pattern_update, given, handle)
        self._note(mask, handle)

    def update_topk(self, scores: Any, k: int, *, stream: Any = None) -> None:
        """Store the ``k`` blocks of each block row that have the highest scores.

        Of equal scores those of lower columns count as higher, and NaN as lower than everything
        else. For the best blocks of the whole matrix, make a mask of them.

        Parameters
        ----------
        scores : array
            float16, bfloat16 or float32 of shape ``grid`` in any strides, on the pattern's device.
        k : int
            At least 0. All of a row's blocks are stored where it has no more.
        stream : optional
            As in :func:`bsrgemm.matmul`, the scores standing for the dense operand.

        Raises
        ------
        TypeError, ValueError
            If dtype, device, shape or ``k`` is not accepted.
        """
        library = library_of(scores)
        given = library.importable(scores, "scores", differentiated=False)
        info = _core.describe(given, "scores")
        self._check(info, "scores", _DTYPES)
        rule = _Rule(info.shape, k, self._blocksize, False, "bottom_right", None, None)
        if self._device == "cpu":
            self._choose(rule.choose(library.to_host(given))[0, 0])
            return
        handle = library.current_stream(scores) if stream is None else stream_handle(stream)
        self._update(_core.pattern_topk, given, rule.most, handle)
        self._note(scores, handle)

    def _check(self, info: _core.ArrayInfo, name: str, dtypes: tuple[str, ...]) -> None:
        if info.dtype not in dtypes:
            raise TypeError(f"{name} has dtype {info.dtype}; accepted: {', '.join(dtypes)}")
        if info.device != self._device:
            raise TypeError(
                f"{name} is on {info.device}; accepted: the pattern's device, {self._device}"
            )
        if info.shape != self.grid:
            raise ValueError(
                f"{name} has shape {info.shape}; accepted: {self.grid}, the pattern's block rows "
                "and block columns"
            )

    def _update(self, function: Any, *arguments: Any) -> None:
        before, self._is_torn = self._is_torn, True
        try:
            function(self._made, *arguments)
        except (TypeError, ValueError):  # before anything was launched
            self._is_torn = before
            raise
        self._is_torn = False

    def _note(self, given: Any, handle: int | None) -> None:
        self._given, self._stream = given, handle or 0

    def _choose(self, mask: np.ndarray) -> None:
        """On the CPU."""
        rows, cols = mask.nonzero()
        self._dropped = max(len(rows) - self._capacity, 0)
        rows, cols = rows[: self._capacity], cols[: self._capacity]
        indptr = np.searchsorted(rows, np.arange(mask.shape[0] + 1))
        self._made = _core.Structure(cols, indptr, self._shape, self._blocksize)

    # ---- values --------------------------------------------------------------------------------

    def gather(self, dense: Any, *, out: Any = None, stream: Any = None) -> Any:
        """The values of the stored blocks out of a dense matrix.

        Parameters
        ----------
        dense : array
            Shape (M, K), of a dtype that matrices have (on a GPU no 8-bit one), in any strides, on
            the pattern's device.
        out : array, optional
            Shape (capacity, bh, bw), C-contiguous, of the same dtype and device. Without it the
            values are made new.
        stream : optional
            As in :func:`bsrgemm.matmul`.

        Returns
        -------
        array
            ``out`` if given: block b of the pattern, in the order of rows and then columns, and
            zeros behind the last one.

        Raises
        ------
        TypeError, ValueError
            If a dtype, a device, a shape or ``out``'s layout is not accepted.
        """
        library = library_of(dense)
        given = library.importable(dense, "dense")
        info = _core.describe(given, "dense")
        check_dtype(info.dtype, "dense")
        if info.device != self._device:
            raise TypeError(
                f"dense is on {info.device}; accepted: the pattern's device, {self._device}"
            )
        if info.shape != self._shape:
            raise ValueError(f"dense has shape {info.shape}; accepted: {self._shape}")
        if out is None:
            target = library.empty((self._capacity, *self._blocksize), dense, "dense")
        else:
            target = library_of(out).writable(out, "out")
        self._check_values(_core.describe(target, "out"), "out")
        if self._device == "cpu":
            self._gather_on_host(given, target, info.dtype)
        else:
            handle = library.stream_of_work(dense, stream)
            _core.pattern_gather(self._structure, given, target, handle)
        return handed_back(target, dense, out)

    def _gather_on_host(self, dense: Any, out: Any, dtype: str) -> None:
        """Host views share the arrays' memory."""
        source, to = (library_of(x).to_host(x) for x in (dense, out))
        if to.dtype != numpy_dtype(dtype):
            raise TypeError(f"out has dtype {to.dtype.name}; accepted: that of dense, {dtype}")
        if not to.flags.writeable:
            raise ValueError("out is read-only; accepted: a writable array")
        if not to.flags.c_contiguous:
            raise ValueError(f"out has strides {to.strides} in bytes; accepted: C-contiguous ones")
        if np.shares_memory(source, to):
            raise ValueError("out overlaps dense in memory; accepted: an array that does not")
        (rows, cols), (height, width) = self.grid, self._blocksize
        indices, indptr = self._structure.indices, self._structure.indptr
        tiles = source.reshape(rows, height, cols, width).transpose(0, 2, 1, 3)
        to[: len(indices)] = tiles[np.repeat(np.arange(rows), np.diff(indptr)), indices]
        to[len(indices) :] = 0

    def _check_values(self, info: _core.ArrayInfo, name: str) -> None:
        shape = (self._capacity, *self._blocksize)
        if info.shape != shape:
            raise ValueError(f"{name} has shape {info.shape}; accepted: {shape}")
        if info.device != self._device:
            raise TypeError(
                f"{name} is on {info.device}; accepted: the pattern's device, {self._device}"
            )

    def array(self, values: Any) -> DynamicArray:
        """The matrix of this pattern around values, which are not copied.

        Parameters
        ----------
        values : array
            Shape (capacity, bh, bw), C-contiguous, on the pattern's device, of a dtype that
            matrices have. Values behind the last stored block are not read.

        Raises
        ------
        TypeError, ValueError
            If dtype, device, shape or layout is not accepted.
        """
        return DynamicArray(self, values)


class _DeviceView:
    """An array in memory of a pattern, which it keeps alive."""

    __slots__ = ("__cuda_array_interface__", "_owner")

    def __init__(self, owner: DynamicPattern, pointer: int, length: int, typestr: str) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (length,),
            "typestr": typestr,
            "data": (pointer, False),
            "strides": None,
        }


def _empty_structure(shape: Any, blocksize: Any) -> _core.Structure:
    shape, blocksize = pair_of(shape, "shape", 0, MOST_ROWS), pair_of(blocksize, "blocksize", 1)
    none, indptr = np.zeros(0, np.int64), np.zeros(grid_of(shape, blocksize)[0] + 1, np.int64)
    structure = _core.Structure(none, indptr, shape, blocksize)
    for axis, what in enumerate(
        (
            "rows must be a multiple of the block height",
            "columns must be a multiple of the block width",
        )
    ):
        if structure.shape[axis] % structure.blocksize[axis]:
            raise ValueError(
                f"shape is {structure.shape} and blocksize {structure.blocksize}, but a dynamic "
                f"pattern takes whole blocks alone: the number of {what}"
            )
    return structure


def _host_capacity(capacity: Any, structure: _core.Structure) -> int:
    (rows, cols), (height, width) = structure.shape, structure.blocksize
    places = rows // height * (cols // width)
    if places == 0:
        raise ValueError(f"shape is {structure.shape}; accepted: one with at least one block")
    try:
        found = operator.index(capacity)
    except TypeError:
        raise TypeError(
            f"capacity is {capacity!r}; accepted: an integer from 1 to the {places} places of "
            "blocks"
        ) from None
    if not 1 <= found <= places:
        raise ValueError(f"capacity is {found}; accepted: from 1 to the {places} places of blocks")
    return found
