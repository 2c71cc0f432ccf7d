"""``load``: matrices from files."""

from __future__ import annotations

import os
from typing import IO

from ._array import bsr_array
from ._storage import naming, read


def load(path: str | os.PathLike[str] | IO[bytes], *, check: bool = True) -> bsr_array:
    """Read a BSR matrix that ``bsr_array.save`` or ``scipy.sparse.save_npz`` wrote.

    Parameters
    ----------
    path : str, path or binary file
        An ``.npz`` file of a matrix of format BSR and dtype float32 or float64, or of what ``save``
        writes. Blocks that do not ascend within a row, as some of SciPy's conversions leave them,
        are put in order, and duplicates added.
    check : bool
        False trusts the contents of indices and indptr, and zeros beyond the matrix.

    Returns
    -------
    bsr_array
        In host memory, of NumPy arrays. A matrix that was saved as one of 16 or 8 bits comes back
        as that (all but float16 need the package ml_dtypes).

    Raises
    ------
    ValueError
        If the file is no ``.npz`` file of a BSR matrix or is broken, or its matrix is malformed or
        of a dtype that is not accepted. The message names the file and what is wrong with it.
    TypeError
        If ``path`` is nothing of these, or NumPy would need ml_dtypes and it is missing.
    OSError
        If the file cannot be read.
    """
    *arrays, shape = read(path)
    with naming(path, "holds no BSR matrix"):
        return bsr_array(tuple(arrays), shape, check=check)
