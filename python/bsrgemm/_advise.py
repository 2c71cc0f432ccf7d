"""Say what a matrix in a file would gain from block sparsity: predicted time beside the dense
product, the density at which both are equal, block sizes, row lengths; measured, too, where it can
be. Reads what bsr_array.save and scipy.sparse.save_npz wrote, in any format."""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._arguments import MOST, natural
from ._array import bsr_array
from ._bench import _chip, _cupy_dense, _Status, _time, _torch_dense, uniform
from ._convert import grid_of
from ._demo import or_none
from ._dtypes import ACCEPTED_DTYPES, EIGHT_BIT_DTYPES, dtype_size, numpy_dtype
from ._interop import device_name
from ._matmul import matmul
from ._pattern import Cells, cell_size, cells_of_blocks, rows_of
from ._plan import cpu_seconds
from ._storage import format_of, in_order, naming
from ._storage import read as read_arrays

SIDES = (16, 32, 64, 128, 256)
# What cuBLAS sustained on an H200 with 8192 x 8192 matrices of as many zeros as the sparse ones.
DENSE_FLOPS = {
    "float16": 710e12,
    "bfloat16": 750e12,
    "float32": 51e12,
    "float64": 51e12,  # not measured: tensor cores of float64 are rated as high as float32's cores
    "float8_e4m3fn": 1400e12,
    "float8_e5m2": 1400e12,  # not measured: cuBLAS has no product of two
}
HBM_BYTES_PER_S, LAUNCH_SECONDS = 4.2e12, 4e-6
# The break-even density is looked for in patterns of no more places for blocks than this.
MOST_PLACES = 1 << 18
# Nothing that takes longer on the CPU, or more memory, is measured.
CPU_SECONDS, DENSE_BYTES = 1.0, 4 << 30


class Matrix(NamedTuple):
    """A file's matrix: what is not zero, and the blocks that it is stored in, if it is."""

    format: str
    cells: Cells
    blocks: bsr_array | None
    dtype: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.cells.shape


class Candidate(NamedTuple):
    """A block size: how many blocks, and what a product would take."""

    block: tuple[int, int]
    structure: _core.Structure
    seconds: float
    family: str

    @property
    def density(self) -> float:
        rows, cols = grid_of(self.structure.shape, self.block)
        return self.structure.nnzb / max(rows * cols, 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="A.npz", help="a matrix of scipy.sparse.save_npz or .save")
    parser.add_argument(
        "--n", type=natural, default=4096, help="columns to multiply (default 4096)"
    )
    parser.add_argument(
        "--dtype", choices=(*ACCEPTED_DTYPES, *EIGHT_BIT_DTYPES), help="default: that of the file"
    )
    parser.add_argument(
        "--device", help="cuda:<index> or cpu, to measure on; default: a GPU if there is one"
    )
    parser.add_argument("--no-measure", action="store_true", help="predict only")


def run(args: argparse.Namespace) -> int:
    if args.n < 1:
        print(f"--n is {args.n}; accepted: at least 1", file=sys.stderr)
        return 2
    try:
        matrix = read(args.file, args.dtype)
        device = _device(args.device)
        chip = _chip(device) if device != "cpu" else None
    except (OSError, ValueError, TypeError, ImportError, _core.DeviceUnavailableError) as error:
        print(error, file=sys.stderr)
        return 2
    if not len(matrix.cells.rows):
        print(f"{args.file} holds a matrix of {matrix.shape} without a single non-zero")
        return 0
    if max(matrix.shape) > MOST:
        print(
            f"{args.file} holds a matrix of {matrix.shape}; accepted: up to {MOST} rows and "
            "columns",
            file=sys.stderr,
        )
        return 2
    advise(matrix, args.n, chip)
    if not args.no_measure:
        try:
            _measure(matrix, args.n, device)
        except MemoryError as error:
            print(f"\nnot measured: {error}")
    return 0


def _device(wanted: str | None) -> str:
    if wanted:
        return device_name(wanted)
    try:
        _core.cuda_devices()
    except _core.DeviceUnavailableError:
        return "cpu"
    return "cuda:0"


# ---- files ---------------------------------------------------------------------------------------


def read(path: str, dtype: str | None = None) -> Matrix:
    """A matrix in host memory. Formats other than BSR need SciPy."""
    kind = format_of(path)
    if kind in ("bsr", None):
        blocks = _load_blocks(path)
        data = np.asarray(blocks.data)
        found = dtype or str(blocks._dtype)
        return Matrix("bsr", cells_of_blocks(blocks._structure, data), blocks, found)
    try:
        import scipy.sparse
    except ImportError:
        raise ImportError(
            f"{path} holds a matrix of format {kind!r}, which SciPy reads: pip install scipy, or "
            "save it in the format 'bsr'"
        ) from None
    with naming(path, f"holds no matrix of format {kind!r}"):
        sparse = scipy.sparse.load_npz(path).tocoo()
    if len(sparse.shape) != 2:
        raise ValueError(f"{path} holds an array of shape {sparse.shape}; accepted: a matrix")
    sparse.sum_duplicates()
    kept = sparse.data != 0
    found = dtype or (sparse.dtype.name if sparse.dtype.name in ACCEPTED_DTYPES else "float32")
    rows, cols = (x[kept].astype(np.int64) for x in (sparse.row, sparse.col))
    return Matrix(kind, Cells(rows, cols, cell_size((1, 1)), sparse.shape), None, found)


def _load_blocks(path: str) -> bsr_array:
    """Of a type that products do not take (integers, say): ones where it is not zero."""
    data, indices, indptr, shape = read_arrays(path)
    if data.dtype.kind in "biuc":
        data = (data != 0).astype(np.float32)
    with naming(path, "holds no BSR matrix"):
        return bsr_array(in_order(data, indices, indptr), shape)


# ---- prediction ----------------------------------------------------------------------------------


def dense_seconds(m: int, n: int, k: int, dtype: str) -> float:
    """Of the dense product on an H200: the tensor cores, or the memory."""
    size = dtype_size(dtype)
    result = 2 if dtype in EIGHT_BIT_DTYPES else size
    bytes_moved = size * (m * k + k * n) + result * m * n
    compute = 2.0 * m * n * k / DENSE_FLOPS[dtype]
    return LAUNCH_SECONDS + max(compute, bytes_moved / HBM_BYTES_PER_S)


def candidate(
    structure: _core.Structure, n: int, dtype: str, chip: dict[str, Any] | None
) -> Candidate:
    info = structure.explain(n, dtype, chip)
    chosen = next(c for c in info["candidates"] if c["family"] == info["chosen"])
    return Candidate(structure.blocksize, structure, chosen["seconds"], chosen["family"])


def break_even(
    shape: tuple[int, int],
    block: tuple[int, int],
    n: int,
    dtype: str,
    chip: dict[str, Any] | None,
) -> float | None:
    """The density of a uniform random pattern at which its product is predicted to take as long as
    the dense one; None where it is slower at any density, 1 where it is never slower."""
    rows, cols = (max(1, -(-size // side)) for size, side in zip(shape, block, strict=True))
    shrink = math.sqrt(max(1.0, rows * cols / MOST_PLACES))
    rows, cols = max(1, int(rows / shrink)), max(1, int(cols / shrink))
    size = rows * block[0], cols * block[1]
    limit = dense_seconds(size[0], n, size[1], dtype)
    rng = np.random.default_rng(0)
    counts = sorted({max(1, round(cols * d)) for d in (0.02, 0.1, 0.25, 0.4, 0.6, 0.8, 1.0)})
    before: tuple[float, float] | None = None
    for count in counts:
        structure = _core.Structure(*uniform(rng, rows, cols, count), size, block)
        density, seconds = count / cols, candidate(structure, n, dtype, chip).seconds
        if seconds >= limit:
            if before is None:
                return None
            share = (limit - before[1]) / (seconds - before[1])
            return before[0] + share * (density - before[0])
        before = density, seconds
    return 1.0


def advise(matrix: Matrix, n: int, chip: dict[str, Any] | None) -> None:
    m, k = matrix.shape
    cells, dtype = matrix.cells, matrix.dtype
    share = cells.elements / (m * k)
    gpu = chip["name"] if chip else "NVIDIA H200"
    print(f"A: {m} x {k}, format {matrix.format}, {share:.4g} of it in parts that are not zero")
    print(f"A @ X with {n} columns of {dtype}, predicted for one {gpu}:")
    dense = dense_seconds(m, n, k, dtype)
    print(f"  dense product: {dense * 1e6:.1f} us")
    found = []
    with _Status("planning"):
        if matrix.blocks is not None:
            found.append(candidate(matrix.blocks._structure, n, dtype, chip))
        for side in SIDES:
            if found and (side, side) == found[0].block:
                continue
            structure = cells.structure((side, side))
            found.append(candidate(structure, n, dtype, chip))
    best = min(found, key=lambda c: c.seconds)
    print(
        f"\n{'blocks':>11}{'stored':>10}{'density':>9}{'fill-in':>9}{'time us':>10}"
        f"{'x dense':>9}  family"
    )
    for c in found:
        stored = c.structure.nnzb * c.block[0] * c.block[1]
        mark = "*" if c is best else " "
        own = "  as in the file" if matrix.blocks is not None and c is found[0] else ""
        name = f"{c.block[0]}x{c.block[1]}"
        line = f"{mark}{name:>10}{c.structure.nnzb:>10}{c.density:>9.4f}"
        line += f"{stored / cells.elements:>9.2f}"
        line += f"{c.seconds * 1e6:>10.1f}{dense / c.seconds:>9.2f}  {c.family}{own}"
        print(line)
    _explain_table()
    _conclude(matrix, n, chip, best, dense)


def _explain_table() -> None:
    print(
        "  fill-in: stored elements over those of the parts that are not zero; x dense: how many\n"
        "  times faster than the dense product; *: the fastest"
    )


def _conclude(
    matrix: Matrix,
    n: int,
    chip: dict[str, Any] | None,
    best: Candidate,
    dense: float,
) -> None:
    name = f"{best.block[0]}x{best.block[1]}"
    if best.seconds < dense:
        print(f"\nblock sparsity pays: {name} blocks are {dense / best.seconds:.2f} times faster")
    else:
        print(f"\nblock sparsity does not pay: {name} blocks, the best of these, take longer")
    with _Status("looking for the break-even density"):
        even = break_even(matrix.shape, best.block, n, matrix.dtype, chip)
    if even is None:
        print(f"in {name} blocks no density breaks even, by prediction")
    else:
        print(
            f"in {name} blocks, at random places, the product is as fast as the dense one at a "
            f"density of {even:.2f}"
        )
    rows = rows_of(np.diff(best.structure.indptr))
    print(f"block rows of {name}: {rows}")
    if rows.skew > 4:
        print(
            "  some rows are long: kernels for tall blocks share them out among SMs, others begin "
            "with them"
        )
    print(
        "assumed: operands that are contiguous and row-major on the GPU, kernels that have run\n"
        "before, a chip that is busy for long, and a dense product at what cuBLAS sustains on an\n"
        "H200, where more than nine of ten predictions were within 25% of measurements"
    )


# ---- measurement ---------------------------------------------------------------------------------


def _measure(matrix: Matrix, n: int, device: str) -> None:
    """The matrix in its own blocks, or the smallest of the list, beside the dense product."""
    try:
        kind = numpy_dtype(matrix.dtype)
    except TypeError as error:
        print(f"\nnot measured: {error}")
        return
    a = _values(matrix, kind)
    m, k = a.shape
    height, width = a.blocksize
    flops = 2.0 * a.nnzb * height * width * n
    if device == "cpu" and cpu_seconds(flops, _near(matrix.dtype)) > CPU_SECONDS:
        print(f"\nnot measured: {flops:.1e} FLOP take long on this CPU, and no GPU can be used")
        return
    rng = np.random.default_rng(0)
    # Random numbers for a part, repeated.
    x = np.resize(rng.standard_normal(1 << 20, np.float32).astype(kind), (k, n))
    out_kind = numpy_dtype("bfloat16") if matrix.dtype in EIGHT_BIT_DTYPES else kind
    with _Status(f"measuring on {device}"):
        if device == "cpu":
            out = np.empty((m, n), out_kind)
            seconds = _time(lambda: matmul(a, x, out=out), lambda: None)
            rival, dense = _cpu_dense(a, x, matrix.dtype)
        else:
            there, right = a.to(device), _core.DeviceArray.from_host(x, device)
            result = _core.DeviceArray.empty((m, n), out_kind.name, device)

            def wait() -> None:
                _core.synchronize(device)

            seconds = _time(lambda: matmul(there, right, out=result), wait)
            rival, dense = _gpu_dense(device, matrix.dtype, m, n, k)
    print(f"\nmeasured on {device}, {height}x{width} blocks: {seconds * 1e6:.1f} us")
    if dense is None:
        print(f"dense product: not measured, {rival}")
    else:
        print(
            f"dense product ({rival}): {dense * 1e6:.1f} us, so block sparsity is "
            f"{dense / seconds:.2f} times as fast"
        )


def _near(dtype: str) -> str:
    return "float16" if dtype in EIGHT_BIT_DTYPES else dtype


def _values(matrix: Matrix, kind: np.dtype[Any]) -> bsr_array:
    """The file's own blocks, or blocks of 64x64 of random numbers at its places."""
    if matrix.blocks is not None:
        return matrix.blocks.astype(kind.name)
    block = (64, 64)
    indices, indptr, shape = matrix.cells.regrouped(block)
    rng = np.random.default_rng(1)
    data = rng.standard_normal((len(indices), *block), np.float32).astype(kind)
    return bsr_array((data, indices, indptr), shape)


def _cpu_dense(a: bsr_array, x: np.ndarray, dtype: str) -> tuple[str, float | None]:
    if dtype not in ("float32", "float64"):
        return f"since NumPy has no fast dense product in {dtype}", None
    m, k = a.shape
    flops = 2.0 * m * k * x.shape[1]
    if m * k * x.itemsize > DENSE_BYTES or cpu_seconds(flops, dtype) > CPU_SECONDS:
        return "since it is too large for this CPU", None
    dense, out = a.todense(), np.empty((m, x.shape[1]), x.dtype)
    return "NumPy's BLAS", _time(lambda: np.matmul(dense, x, out=out), lambda: None)


def _gpu_dense(device: str, dtype: str, m: int, n: int, k: int) -> tuple[str, float | None]:
    if dtype in EIGHT_BIT_DTYPES:
        return "since its libraries want other layouts for 8 bits", None
    for library in (_torch_dense, _cupy_dense):
        make = or_none(partial(library, device, dtype))
        if make is not None:
            break
    else:
        return "since neither torch nor CuPy can use this GPU", None
    seconds = or_none(lambda: _time(make(m, k, n), lambda: _core.synchronize(device)))
    return ("since it fails" if seconds is None else "cuBLAS"), seconds
