"""``bsr_array``: a block-sparse matrix around arrays that the caller owns."""

from __future__ import annotations

import copy
import math
import operator
import os
import warnings
from typing import IO, Any

import numpy as np

from . import _core
from ._batch import check_single, dense, transposed_values
from ._blocks import Blocks
from ._convert import (
    INT32,
    INT64,
    Parts,
    check_data,
    check_edges,
    check_given,
    check_index,
    grid_of,
    host_indices,
    own_indices,
    parts_of,
    pattern_of,
    whole_shape,
)
from ._dtypes import dtype_name, dtype_size
from ._elementwise import Arithmetic
from ._interop import TORCH, device_name, library_of
from ._library import NUMPY
from ._matmul import matmul
from ._planning import Planning
from ._storage import write


class bsr_array(Arithmetic, Blocks, Planning):
    """A matrix of M x K elements that stores only some of its blocks of bh x bw elements.

    Parameters
    ----------
    arg : tuple, sparse matrix, tensor or dense array
        One of

        - ``(data, indices, indptr)``: ``data`` of shape (nnzb, bh, bw) or, of a batch of matrices
          with one pattern, (..., nnzb, bh, bw), C-contiguous, of dtype
          float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2; ``indices`` of shape
          (nnzb,) and ``indptr`` of shape (ceil(M / bh) + 1,), int32 or int64. Block row ``i``
          stores ``data[indptr[i]:indptr[i + 1]]`` at the block columns
          ``indices[indptr[i]:indptr[i + 1]]``, which ascend strictly. Nothing is copied but the
          two index arrays. These may lie in host memory whatever the device of ``data``; in device
          memory they have to be on its device, and making the matrix then waits for them.
        - a SciPy sparse matrix or array. BSR is taken without a copy unless its blocks are
          unsorted or duplicated; other formats need ``blocksize``.
        - a torch tensor of layout ``torch.sparse_bsr``, without a copy, or of another sparse
          layout with ``blocksize``.
        - a dense array of 2 dimensions (NumPy, torch, CuPy, DeviceArray, or what can be imported)
          with ``blocksize``; the blocks that have any non-zero are kept, and NaN counts as one.
        - a bsr_array, whose values and pattern the new one shares.
    shape : (int, int), optional
        (M, K), with or without the dimensions of a batch before them. Without it, the smallest
        matrix that holds all blocks. Where (bh, bw) does not divide it, the last block row or
        column reaches beyond the matrix: ``data`` must be 0 there.
    blocksize : (int, int), optional
        (bh, bw), needed where the source has none of its own.
    check : bool
        False trusts the contents of ``indices`` and ``indptr``, and that ``data`` is 0 beyond the
        matrix; dtypes, shapes and lengths are still checked.

    Raises
    ------
    ValueError
        If a shape, a length, the contents of indices or indptr, or the contiguity or alignment of
        data is not accepted, or data is not 0 beyond the matrix.
    TypeError
        If a dtype, a device or the kind of ``arg`` is not accepted, or a dense torch tensor
        requires grad, whose blocks would be copies without a gradient.

    Notes
    -----
    The pattern is fixed once made, and later changes of ``indices`` and ``indptr`` are not seen;
    values may be changed in place through ``data``. Products may run in several threads at the
    same time.

    What blocks have beyond the matrix is looked at when the matrix is made. Values on a GPU are
    waited for then, where there are such blocks; of arrays there those of torch, of CuPy and
    DeviceArrays are looked at, and those of other libraries trusted. All that the library computes
    has zeros there. Products on the CPU do not read it; on a GPU they multiply it with zeros, so
    that a NaN that is put there later would spread.

    A batch, of values of more than three dimensions, is multiplied as NumPy multiplies stacks of
    matrices, and shares pattern and plan. ``A[i]`` is one of its matrices, which shares the values.

    What is computed of a subclass's matrices, and their views, copies and pickles, are bsr_arrays.
    """

    __slots__ = (
        "_batch",
        "_data",
        "_device",
        "_dtype",
        "_indices",
        "_indptr",
        "_structure",
        "__weakref__",
    )
    # NumPy then leaves `x @ A` to __rmatmul__ instead of treating A as a scalar object.
    __array_ufunc__ = None
    __array_priority__ = 1000.0

    def __init__(
        self,
        arg: Any,
        shape: tuple[int, int] | None = None,
        *,
        blocksize: tuple[int, int] | None = None,
        check: bool = True,
    ) -> None:
        if isinstance(arg, bsr_array):
            check_given(arg, shape, blocksize)
            self._set(arg._parts(), check)
        else:
            self._set(parts_of(arg, shape, blocksize), check)

    @classmethod
    def _from_parts(cls, parts: Parts) -> bsr_array:
        self = cls.__new__(cls)
        self._set(parts, check=True)
        return self

    @staticmethod
    def _plain(arrays: tuple[Any, Any, Any], shape: tuple[int, int], check: bool) -> bsr_array:
        """Of no subclass, whose constructor may take something else."""
        return bsr_array(arrays, shape, check=check)

    def _parts(self) -> Parts:
        structure = self._structure
        return Parts(self._data, self._indices, self._indptr, structure.shape, structure)

    def _set(self, parts: Parts, check: bool) -> None:
        data, indices, indptr, shape, structure = parts
        info = _described(data)
        if structure is None:
            for name, array in (("indices", indices), ("indptr", indptr)):
                importable = library_of(array).importable(array, name, False)
                check_index(_core.describe(importable, name), name, info.device)
            structure = _core.Structure(indices, indptr, shape, info.shape[-2:], check)
            if check and info.shape[-3] == structure.nnzb:
                check_edges(data, structure)
        self._data, self._indices, self._indptr = data, indices, indptr
        self._structure = structure
        self._take(info)

    def _take(self, info: Any) -> None:
        wanted = self._values_shape
        if info.shape[-3] != wanted[0]:
            raise ValueError(
                f"data has {info.shape[-3]} blocks (shape {info.shape}) and indices has "
                f"{wanted[0]} entries; accepted: one block an entry"
            )
        if info.shape[-3:] != wanted:
            raise ValueError(
                f"data has blocks of {info.shape[-2:]} (shape {info.shape}) and the matrix was "
                f"made with blocks of {wanted[1:]}; accepted: blocks of that shape"
            )
        self._dtype, self._device, self._batch = info.dtype, info.device, info.shape[:-3]

    @property
    def _values_shape(self) -> tuple[int, int, int]:
        """Of one matrix; of a transposed view, that of the values that it shares."""
        structure = self._structure
        height, width = structure.blocksize
        sides = (width, height) if structure.is_transposed else (height, width)
        return (structure.nnzb, *sides)

    def _look(self) -> None:
        """At the values again, whose owner may have exchanged their memory, as torch's modules do
        with that of their parameters."""
        self._take(_described(self._data))

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def data(self) -> Any:
        """Values of shape (..., nnzb, bh, bw), in the array that was given, not in a copy of it.

        A transposed view has no ``data``, ``indices`` and ``indptr`` (AttributeError).
        """
        return self._own(self._data, "data")

    @property
    def indices(self) -> Any:
        """Block columns, shape (nnzb,), in the array that was given or a host array made here."""
        return self._own(self._indices, "indices")

    @property
    def indptr(self) -> Any:
        """Where block rows begin, shape (ceil(M / bh) + 1,), as given or in a host array."""
        return self._own(self._indptr, "indptr")

    def _own(self, array: Any, name: str) -> Any:
        if not self.is_transposed:
            return array
        raise AttributeError(
            f"a transposed view has no {name}: it shares the arrays of the matrix that it views. "
            f"Use view.T.{name}, or view.copy(), which has arrays of its own"
        )

    @property
    def is_transposed(self) -> bool:
        """Whether this is the transposed view of a matrix, as ``A.T`` is."""
        return self._structure.is_transposed

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, K) in elements, behind the dimensions of the batch if there is one."""
        return (*self._batch, *self._structure.shape)

    @property
    def ndim(self) -> int:
        """2, and more with a batch."""
        return len(self._batch) + 2

    @property
    def blocksize(self) -> tuple[int, int]:
        """(bh, bw) in elements."""
        return self._structure.blocksize

    @property
    def nnzb(self) -> int:
        """Number of stored blocks, of each matrix of a batch."""
        return self._structure.nnzb

    @property
    def density(self) -> float:
        """The share of the blocks that are stored; 0.0 for a matrix of no elements."""
        rows, cols = grid_of(self._structure.shape, self.blocksize)
        return self.nnzb / (rows * cols) if rows and cols else 0.0

    @property
    def dtype(self) -> Any:
        """The dtype as the library of ``data`` writes it, ``torch.float16`` for example."""
        return getattr(self._data, "dtype", self._dtype)

    @property
    def device(self) -> str:
        """Where ``data`` lives, ``"cpu"`` or ``"cuda:<index>"``."""
        self._look()
        return self._device

    @property
    def nbytes(self) -> int:
        """Bytes of data, indices and indptr; of a transposed view, those that it shares."""
        self._look()
        height, width = self.blocksize
        size = dtype_size(self._dtype)
        index_bytes = 0
        for array in (self._indices, self._indptr):
            info = _core.describe(array)
            index_bytes += info.shape[0] * (8 if info.dtype == "int64" else 4)
        return math.prod(self._batch) * self.nnzb * height * width * size + index_bytes

    def __repr__(self) -> str:
        self._look()
        sizes = "x".join(map(str, self.shape))
        height, width = self.blocksize
        kind = ", transposed" if self.is_transposed else ""
        return (
            f"<bsr_array {sizes}, blocksize {height}x{width}, nnzb {self.nnzb}, "
            f"density {self.density:.4g}, {self._dtype}, {self._device}{kind}>"
        )

    # ---- other forms ---------------------------------------------------------------------------

    @property
    def T(self) -> bsr_array:
        """The transpose, a view that shares the values and of which ``.T`` is the matrix again.

        Products take it as it is, and copy neither values nor operands for it. ``A.T.copy()``
        has values of its own, in the order of its rows. Of a batch each matrix is transposed, as
        NumPy's ``mT`` does.
        """
        structure = self._structure.transposed()
        parts = Parts(self._data, self._indices, self._indptr, structure.shape, structure)
        return bsr_array._from_parts(parts)

    @property
    def mT(self) -> bsr_array:
        """The same as :attr:`T`."""
        return self.T

    def todense(self) -> Any:
        """A dense array of shape (..., M, K), in the library, dtype and device of ``data``.

        Elements of blocks that are not stored are zeros.

        Raises
        ------
        TypeError
            If ``data`` is a torch tensor that requires grad or has a tangent of forward mode.
        """
        library_of(self._data).importable(self._data, "A.data")
        self._look()
        if self.is_transposed:
            return self.copy().todense()
        return dense(self)

    toarray = todense

    def to_scipy(self) -> Any:
        """A ``scipy.sparse.bsr_array`` that shares the values; of a transposed view, a copy.

        SciPy's have whole blocks only: where the last blocks of this one reach beyond the matrix,
        it is a copy as ``scipy.sparse.csr_array``, of the same shape.

        Raises
        ------
        TypeError
            If the values are on a GPU, or of a dtype that SciPy's sparse matrices do not have.
        ValueError
            Of a batch.
        """
        check_single(self, "A")
        if self.device != "cpu":
            raise TypeError(
                f"the matrix is on {self._device}; SciPy has host memory only, so use "
                "A.to('cpu').to_scipy()"
            )
        if self._dtype not in ("float32", "float64"):
            raise TypeError(
                f"the matrix has dtype {self._dtype}; SciPy's sparse matrices have float32 and "
                "float64, so use A.astype('float32').to_scipy()"
            )
        if self.is_transposed:
            return self.copy().to_scipy()
        import scipy.sparse

        arrays = library_of(self._data).to_host(self._data), *_index_arrays(self._structure)
        whole = whole_shape(self.shape, self.blocksize)
        blocks = scipy.sparse.bsr_array(arrays, shape=whole, copy=False)
        if whole == self.shape:
            return blocks
        return blocks.tocsr()[: self.shape[0], : self.shape[1]]

    def to_torch(self) -> Any:
        """A torch tensor of layout ``torch.sparse_bsr`` that shares the values.

        Of a transposed view it is a copy, and of values in read-only host memory, which torch does
        not have: NumPy's that are not writable, and JAX's.

        Raises
        ------
        ImportError
            If torch is not installed.
        ValueError
            If it is a batch, or the last blocks reach beyond the matrix: torch's have whole blocks
            only.
        """
        check_single(self, "A")
        if whole_shape(self.shape, self.blocksize) != self.shape:
            raise ValueError(
                f"the matrix has shape {self.shape} in blocks of {self.blocksize}; torch's BSR "
                "tensors have whole blocks only, so use A.reblock(blocksize) with divisors of the "
                "shape, or A.todense()"
            )
        if self.is_transposed:
            return self.copy().to_torch()
        import torch

        library = library_of(self._data)
        if library is TORCH:
            values = self._data
        elif self.device == "cpu":
            values = TORCH.from_host(library.to_host(self._data), torch.empty(0, device="cpu"))
        else:
            values = torch.from_dlpack(self._data)
        indices, indptr = _index_arrays(self._structure)
        with warnings.catch_warnings():
            # Some versions of torch warn of their global default even where the argument is given.
            warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
            return torch.sparse_bsr_tensor(
                torch.as_tensor(indptr, device=values.device),
                torch.as_tensor(indices, device=values.device),
                values,
                size=self._structure.shape,
                device=values.device,
                check_invariants=True,
            )

    def to(self, device: Any) -> bsr_array:
        """The matrix on another device; itself if it is there already.

        Parameters
        ----------
        device : str or torch.device
            ``"cpu"``, ``"cuda"`` (which is ``"cuda:0"``) or ``"cuda:<index>"``.

        Returns
        -------
        bsr_array
            Its values are torch tensors if they were, and CuPy arrays if they were and stay on a
            GPU; otherwise NumPy arrays on the host and :class:`DeviceArray` on a GPU.

        Raises
        ------
        ValueError
            If ``device`` is none of these.
        DeviceUnavailableError
            If it is a GPU that this process, or the library of the values, cannot use.
        """
        device = device_name(device)
        if device == self.device:
            return self
        if self.is_transposed:
            return self.T.to(device).T
        data = library_of(self._data).to_device(self._data, device)
        return bsr_array._from_parts(self._with_data(data, device))

    def astype(self, dtype: Any) -> bsr_array:
        """A copy with values of another dtype.

        Parameters
        ----------
        dtype : str, numpy.dtype or torch.dtype
            float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2. Values are rounded
            as their library rounds them; NumPy needs the package ml_dtypes for bfloat16 and 8 bits.

        Returns
        -------
        bsr_array
            Of the same pattern, which is shared, in the same library and on the same device.

        Raises
        ------
        TypeError
            If ``dtype`` is none of these, NumPy's array would need ml_dtypes and it is missing, or
            ``data`` is a torch tensor that requires grad or has a tangent of forward mode.
        """
        name = dtype_name(dtype)
        library_of(self._data).importable(self._data, "A.data")
        if self.is_transposed:
            return self.T.astype(name).T
        return self._with_values(library_of(self._data).astype(self._data, name))

    def copy(self) -> bsr_array:
        """A matrix with values and index arrays of its own, no view.

        Of a transposed view, one whose blocks are transposed and lie in the order of its rows.
        Values of torch are detached: the copy's require no grad. ``copy.deepcopy`` copies them as
        it does by themselves, so that a copied module's matrices are around its parameters; those
        that autograd has computed it refuses.
        """
        if self.is_transposed:
            indices, indptr = _index_arrays(self._structure)
            data = transposed_values(self)
            return bsr_array((data, indices, indptr), self._structure.shape, check=False)
        indices, indptr = own_indices(self)
        data = library_of(self._data).copy(self._data)
        parts = self._parts()._replace(data=data, indices=indices, indptr=indptr)
        return bsr_array._from_parts(parts)

    def _with_values(self, data: Any) -> bsr_array:
        """The same pattern around other values, on the same device."""
        return bsr_array._from_parts(self._parts()._replace(data=data))

    def _around(self, data: Any, dtype: str, batch: tuple[int, ...]) -> bsr_array:
        """The same pattern around values that have been made for it, on the same device."""
        made = bsr_array.__new__(bsr_array)
        made._indices, made._indptr, made._structure = self._indices, self._indptr, self._structure
        made._data, made._device, made._dtype, made._batch = data, self._device, dtype, batch
        return made

    def _with_data(self, data: Any, device: str) -> Parts:
        """The same pattern around other values, its index arrays where ``data`` may have them."""
        index_arrays = []
        for given, made in zip((self._indices, self._indptr), host_indices(self), strict=True):
            if library_of(given) is TORCH:
                given = TORCH.to_device(TORCH.torch.from_numpy(made), device)
            elif _core.describe(given).device not in ("cpu", device):
                given = made
            index_arrays.append(given)
        indices, indptr = index_arrays
        return Parts(data, indices, indptr, self._structure.shape, self._structure)

    def _sharing(self, data: Any, device: str) -> bsr_array:
        """The same pattern around new values on another device, without copies of its arrays where
        these may stay where they are: it waits for nothing then."""
        arrays = self._indices, self._indptr
        found = {_core.describe(x).device for x in arrays}
        if not found <= {"cpu", device}:
            arrays = _index_arrays(self._structure)
        return bsr_array._from_parts(Parts(data, *arrays, self._structure.shape, self._structure))

    # ---- files, pickles and copies -------------------------------------------------------------

    def save(self, path: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write the matrix in the compressed npz format of ``scipy.sparse.save_npz``.

        ``scipy.sparse.load_npz`` reads the file. Values of 16 and 8 bits are stored as float32,
        which holds them exactly and which SciPy can read, beside an entry ``bsrgemm_dtype`` from
        which :func:`bsrgemm.load` restores them. SciPy's matrices have whole blocks: where the last
        ones reach beyond the matrix, it reads zeros there and a shape that is rounded up, while an
        entry ``bsrgemm_shape`` has the matrix's own.

        Parameters
        ----------
        path : str, path or binary file
            As ``numpy.savez`` does, ``.npz`` is appended to a name that lacks it.

        Raises
        ------
        OSError
            If the file cannot be written.
        TypeError
            If ``path`` is nothing of these.
        ValueError
            If it is a batch.
        """
        check_single(self, "A")
        self._look()
        if self.is_transposed:
            self.copy().save(path)
            return
        library = library_of(self._data)
        data = self._data
        if self._dtype not in ("float32", "float64"):
            data = library.astype(data, "float32")
        whole = whole_shape(self.shape, self.blocksize)
        write(path, library.to_host(data), *host_indices(self), whole, self.shape, self._dtype)

    def __copy__(self) -> bsr_array:
        return bsr_array(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> bsr_array:
        if self.is_transposed:
            return copy.deepcopy(self.T, memo).T
        if library_of(self._data) is not TORCH:
            return self.copy()
        indices, indptr = own_indices(self)
        data = copy.deepcopy(self._data, memo)
        parts = self._parts()._replace(data=data, indices=indices, indptr=indptr)
        return bsr_array._from_parts(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_transposed:
            return operator.attrgetter("T"), (self.T,)
        if isinstance(self._data, _core.DeviceArray):
            host = (self._data.to_host(), *_index_arrays(self._structure))
            return _on_device, (host, self.shape, self._device)
        return _unchecked, ((self._data, *own_indices(self)), self.shape)

    # ---- products ------------------------------------------------------------------------------

    def __matmul__(self, other: Any) -> Any:
        """``matmul(self, other)``, the product with a dense array or another bsr_array, which is
        dense; see :func:`matmul`. ``other @ A`` is the product from the left."""
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return matmul(other, self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("a bsr_array does not turn into a dense array silently; use A.todense()")


def _described(data: Any) -> Any:
    info = _core.describe(library_of(data).importable(data, "data", False), "data")
    check_data(info)
    return info


def _index_arrays(structure: _core.Structure) -> tuple[np.ndarray, np.ndarray]:
    """Copies of indices and indptr on the host, of one dtype, int32 where it holds them."""
    dtype = INT32 if structure.nnzb <= np.iinfo(np.int32).max else INT64
    return pattern_of(structure, dtype, dtype)


def _unchecked(arrays: tuple, shape: tuple[int, ...]) -> bsr_array:
    """Unpickle a matrix, which may have been made without checks; bounds are checked anyway."""
    return bsr_array(arrays, shape, check=False)


def _on_device(host: tuple, shape: tuple[int, ...], device: str) -> bsr_array:
    """Unpickle a matrix whose values were a DeviceArray."""
    return _unchecked((NUMPY.to_device(host[0], device), *host[1:]), shape)
