"""Files: the npz format of ``scipy.sparse.save_npz``, read and written without SciPy."""

from __future__ import annotations

import os
import zipfile
from typing import IO, Any

import numpy as np

from ._interop import dtype_name, numpy_dtype

Path = str | os.PathLike[str] | IO[bytes]


def write(
    path: Path,
    data: np.ndarray,
    indices: np.ndarray,
    indptr: np.ndarray,
    whole: tuple[int, int],
    shape: tuple[int, int],
    dtype: str,
) -> None:
    """Write a matrix of host arrays that is of ``dtype``; see :meth:`bsrgemm.bsr_array.save`.

    SciPy has no sparse matrices of 16-bit floats and .npy files have no bfloat16: ``data`` is then
    float32, which holds both exactly, and an entry of our own says so. Nor has it partial blocks:
    ``whole`` is the shape with all of the last ones.
    """
    entries: dict[str, Any] = {
        "indices": indices,
        "indptr": indptr,
        "format": np.array(b"bsr"),
        "shape": np.array(whole, np.int64),
        "data": data,
        "_is_array": np.array(True),
    }
    if dtype != data.dtype.name:
        entries["bsrgemm_dtype"] = np.array(dtype)
    if shape != whole:
        entries["bsrgemm_shape"] = np.array(shape, np.int64)
    np.savez_compressed(path, **entries)


def read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """data, indices, indptr and shape; see :func:`bsrgemm.load`."""
    archive = _open(path)
    with archive:
        kind = _format(archive)
        if kind not in ("bsr", None):
            raise ValueError(
                f"path {path!r} holds a matrix of format {kind!r}; accepted: 'bsr', so convert "
                "it with scipy.sparse and tobsr()"
            )
        names = ("format", "shape", "data", "indices", "indptr")
        missing = [name for name in names if name not in archive]
        if missing:
            raise ValueError(f"path {path!r} holds no BSR matrix: it lacks {', '.join(missing)}")
        data = archive["data"]
        if "bsrgemm_dtype" in archive:
            stored = dtype_name(archive["bsrgemm_dtype"].item(), "the entry bsrgemm_dtype")
            data = data.astype(numpy_dtype(stored))
        shape = archive["bsrgemm_shape" if "bsrgemm_shape" in archive else "shape"]
        return data, archive["indices"], archive["indptr"], tuple(shape)


def format_of(path: Path) -> str | None:
    """That of the sparse matrix in a file, by SciPy's names; None if the file does not say.

    Raises ValueError and OSError as :func:`bsrgemm.load` does.
    """
    with _open(path) as archive:
        return _format(archive)


def _open(path: Path) -> np.lib.npyio.NpzFile:
    try:
        archive = np.load(path, allow_pickle=False)
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise ValueError(f"path {path!r} is no .npz file: {error}") from None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f"path {path!r} is a .npy file; accepted: an .npz file of a BSR matrix")
    return archive


def _format(archive: np.lib.npyio.NpzFile) -> str | None:
    if "format" not in archive:
        return None
    kind = archive["format"].item()
    return kind.decode("ascii", "replace") if isinstance(kind, bytes) else kind
