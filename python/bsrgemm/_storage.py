"""Files: the npz format of ``scipy.sparse.save_npz``, read and written without SciPy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from ._dtypes import dtype_name, numpy_dtype

MAGIC_NPY, MAGIC_NPZ = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06")

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
    check_path(path, "write")
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


def read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, ...]]:
    """data, indices and indptr in order, and shape; see :func:`bsrgemm.load`."""
    with _open(path) as archive:
        kind = _format(archive, path)
        if kind not in ("bsr", None):
            raise ValueError(
                f"path {path!r} holds a matrix of format {kind!r}; accepted: 'bsr', so convert "
                "it with scipy.sparse and tobsr()"
            )
        names = ("format", "shape", "data", "indices", "indptr")
        missing = [name for name in names if name not in archive]
        if missing:
            raise ValueError(f"path {path!r} holds no BSR matrix: it lacks {', '.join(missing)}")
        data, indices, indptr = (_entry(archive, name, path) for name in names[2:])
        data, indices, indptr = in_order(data, indices, indptr)
        if "bsrgemm_dtype" in archive and data.dtype.kind == "f":
            stored = _word(archive, "bsrgemm_dtype", path)
            with naming(path, "holds no BSR matrix"):
                stored = dtype_name(stored, "its bsrgemm_dtype")
            data = data.astype(numpy_dtype(stored))
        name = "bsrgemm_shape" if "bsrgemm_shape" in archive else "shape"
        shape = _entry(archive, name, path)
        if shape.ndim != 1 or shape.dtype.kind not in "iu":
            raise ValueError(
                f"path {path!r} holds no BSR matrix: its entry {name} has dtype {shape.dtype} and "
                f"{shape.ndim} dimensions; accepted: two integers"
            )
        return data, indices, indptr, tuple(shape.tolist())


def in_order(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same blocks by ascending columns of each row, those of one place added, as SciPy means
    them. What is malformed is returned as it is, and so are duplicates of what is no float.
    """
    integers = {indices.dtype.kind, indptr.dtype.kind} <= set("iu")
    if not integers or indices.ndim != 1 or indptr.ndim != 1 or data.shape[:1] != indices.shape:
        return data, indices, indptr
    ends = indptr.astype(np.int64)
    counts = np.diff(ends)
    if len(ends) == 0 or ends[0] != 0 or ends[-1] != len(indices) or (counts < 0).any():
        return data, indices, indptr
    ascends = indices[1:] > indices[:-1]
    begins = ends[1:-1]
    ascends[begins[(begins > 0) & (begins < len(indices))] - 1] = True
    if ascends.all():
        return data, indices, indptr
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((indices, rows))
    data, indices, rows = data[order], indices[order], rows[order]
    is_first = np.concatenate([[True], (np.diff(rows) != 0) | (indices[1:] != indices[:-1])])
    if is_first.all() or data.dtype.kind != "f":
        return data, indices, indptr
    before = np.concatenate([[0], np.cumsum(is_first)])
    firsts = np.flatnonzero(is_first)
    return np.add.reduceat(data, firsts, axis=0), indices[firsts], before[ends].astype(indptr.dtype)


def format_of(path: Path) -> str | None:
    """That of the sparse matrix in a file, by SciPy's names; None if the file does not say.

    Raises ValueError and OSError as :func:`bsrgemm.load` does.
    """
    with _open(path) as archive:
        return _format(archive, path)


@contextlib.contextmanager
def naming(path: Path, what: str) -> Iterator[None]:
    """Raise what is wrong with the contents of a file as a ValueError that says ``what`` of it.

    For broken ones zipfile, its decompressors and NumPy have exceptions of a dozen classes.
    """
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"path {path!r} {what}: {reason}") from None


def check_path(path: Any, method: str) -> None:
    """That ``path`` names a file, or is one with the method that is needed."""
    if not (isinstance(path, (str, os.PathLike)) or hasattr(path, method)):
        raise TypeError(
            f"path is {path!r}; accepted: a string, an os.PathLike or a binary file with the "
            f"method {method}"
        )


@contextlib.contextmanager
def _open(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    check_path(path, "read")
    with contextlib.ExitStack() as stack:
        # Of a broken archive np.load would leave the file open.
        file = path if hasattr(path, "read") else stack.enter_context(open(path, "rb"))
        with naming(path, "is no .npz file"):
            # np.load takes what is neither for a pickle, and says how to load that.
            begin = file.read(len(MAGIC_NPY))
            file.seek(-len(begin), os.SEEK_CUR)
            if begin == MAGIC_NPY:
                raise ValueError("it is a .npy file; accepted: an .npz file of a BSR matrix")
            if not begin.startswith(MAGIC_NPZ):
                raise ValueError(f"it begins with {begin!r}")
            archive = np.load(file, allow_pickle=False)
        yield stack.enter_context(archive)


def _entry(archive: np.lib.npyio.NpzFile, name: str, path: Path) -> np.ndarray:
    with naming(path, f"has an entry {name} that cannot be read"):
        found = archive[name]
    if not isinstance(found, np.ndarray):
        raise ValueError(f"path {path!r} has an entry {name} that is no array")
    return found


def _word(archive: np.lib.npyio.NpzFile, name: str, path: Path) -> Any:
    found = _entry(archive, name, path)
    if found.size != 1:
        raise ValueError(f"path {path!r} has an entry {name} of {found.size} words; accepted: one")
    word = found.item()
    return word.decode("ascii", "replace") if isinstance(word, bytes) else word


def _format(archive: np.lib.npyio.NpzFile, path: Path) -> str | None:
    return _word(archive, "format", path) if "format" in archive else None
