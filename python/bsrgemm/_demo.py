"""Multiply two block-sparse matrices on the best device here, and check and time the products."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from . import _core
from ._arguments import MOST_ORDER, gpu_of, natural
from ._array import bsr_array
from ._interop import device_name
from ._matmul import matmul

# Largest relative error (Frobenius norm, against float64) that counts as right.
TOLERANCE = {"float16": 2e-3, "float32": 2e-5}

Found = TypeVar("Found")


class Case(NamedTuple):
    name: str
    matrix: bsr_array
    dense: np.ndarray


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu or cuda:<index>; default: a GPU if one can be used")
    parser.add_argument("--size", type=natural, help="order of the pruned matrix, a multiple of 64")
    parser.add_argument("--seed", type=natural, default=0, help="of the random numbers (default 0)")


def run(args: argparse.Namespace) -> int:
    try:
        device = device_name(args.device) if args.device else _best_device()
        on_gpu = gpu_of(device) is not None
    except (ValueError, _core.DeviceUnavailableError) as error:
        print(f"--device: {error}", file=sys.stderr)
        return 2
    size = args.size if args.size is not None else (4096 if on_gpu else 2048)
    if not 64 <= size <= MOST_ORDER or size % 64:
        accepted = f"multiples of 64, from 64 to {MOST_ORDER}"
        print(f"--size is {size}; accepted: {accepted}", file=sys.stderr)
        return 2
    dtype = "float16" if on_gpu else "float32"
    try:
        ok = _multiply_all(np.random.default_rng(args.seed), size, dtype, device)
    except (MemoryError, _core.DeviceUnavailableError) as error:
        print(f"cannot multiply matrices of --size {size} on {device}: {error}", file=sys.stderr)
        return 2
    if not ok:
        print("WRONG: an error is larger than rounding explains", file=sys.stderr)
    return 0 if ok else 1


def _multiply_all(rng: np.random.Generator, size: int, dtype: str, device: str) -> bool:
    """Prints a table, and says whether all results are right."""
    ok = True
    lines = []
    for case in _cases(rng, size, dtype):
        print(f"{case.name}: {case.matrix!r} times {case.dense.shape[1]} columns", flush=True)
        error, seconds, dense_seconds = _measure(case, device)
        flops = 2.0 * case.matrix.data.size * case.dense.shape[1]
        dense = f"{dense_seconds * 1e3:.3f} ms" if dense_seconds else "-"
        lines.append(
            f"{case.name:<26}{device:>8}{seconds * 1e3:>11.3f} ms{flops / seconds / 1e9:>11.1f}"
            f"{dense:>14}{error:>12.1e}"
        )
        ok = ok and error <= TOLERANCE[dtype]
    header = ("matrix", "device", "time", "GFLOP/s", "dense time", "rel. error")
    print("\n{:<26}{:>8}{:>14}{:>11}{:>14}{:>12}".format(*header))
    print("\n".join(lines))
    rival = "NumPy's BLAS" if device == "cpu" else "torch's cuBLAS, if torch is installed"
    print(f"{dtype}; GFLOP/s count stored blocks only; dense time: the whole matrix by {rival};")
    print("rel. error: of the whole product, against float64 on the CPU, in the Frobenius norm")
    return ok


def _best_device() -> str:
    try:
        devices = _core.cuda_devices()
    except _core.DeviceUnavailableError as error:
        print(f"no GPU: {error}")
        return "cpu"
    print(f"GPU: {devices[0]['name']}")
    return "cuda:0"


def _cases(rng: np.random.Generator, size: int, dtype: str) -> Iterator[Case]:
    yield Case(
        "finite-element stiffness",
        stiffness_matrix(10).astype(dtype),
        rng.standard_normal((3000, 32)).astype(dtype),
    )
    yield Case(
        "random 64x64, 1/8 kept",
        random_blocks(rng, size, 64, 1 / 8, dtype),
        rng.standard_normal((size, size if dtype == "float16" else 512)).astype(dtype),
    )


def random_blocks(
    rng: np.random.Generator, size: int, block: int, density: float, dtype: str
) -> bsr_array:
    """A square matrix of normal random blocks, as pruning to ``density`` leaves weights."""
    keep = rng.random((size // block, size // block)) < density
    if not keep.any():  # of a few places
        keep[0, 0] = True
    indptr = np.concatenate([[0], keep.sum(axis=1).cumsum()]).astype(np.int32)
    indices = np.nonzero(keep)[1].astype(np.int32)
    data = rng.standard_normal((len(indices), block, block), np.float32) / np.sqrt(size * density)
    return bsr_array((data.astype(dtype), indices, indptr), (size, size))


def stiffness_matrix(nodes: int) -> bsr_array:
    """Linear elasticity on a cube of ``nodes``**3 nodes: one 3 x 3 block for two nodes that meet.

    Trilinear hexahedra of edge 1, Young's modulus 1, Poisson's ratio 0.3, no supports; float64.
    """
    element = _element_stiffness(poisson=0.3)
    corners = np.array([(i, j, k) for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    origin = np.stack(np.meshgrid(*[np.arange(nodes - 1)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
    numbers = (origin + corners) @ np.array([nodes * nodes, nodes, 1])
    row, col = np.broadcast_arrays(numbers[:, :, None], numbers[:, None, :])
    count = nodes**3
    pairs, place = np.unique(row * count + col, return_inverse=True)
    blocks = element.reshape(8, 3, 8, 3).transpose(0, 2, 1, 3)
    data = np.zeros((len(pairs), 3, 3))
    np.add.at(data, place.reshape(-1, 8, 8), blocks)
    indptr = np.searchsorted(pairs, np.arange(count + 1) * count).astype(np.int32)
    return bsr_array((data, (pairs % count).astype(np.int32), indptr), (3 * count, 3 * count))


def _element_stiffness(poisson: float) -> np.ndarray:
    """The 24 x 24 stiffness of a unit cube, by 2 x 2 x 2 Gauss points."""
    shear = (1 - 2 * poisson) / 2
    law = np.diag([1 - poisson] * 3 + [shear] * 3)
    law[:3, :3] += poisson * (1 - np.eye(3))
    law /= (1 + poisson) * (1 - 2 * poisson)
    signs = np.array([(i, j, k) for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)])
    stiffness = np.zeros((24, 24))
    for point in signs / np.sqrt(3):
        ones = 1 + signs * point
        # Gradients of the eight shape functions with respect to edges of length 1.
        grad = signs / 4 * np.stack([ones[:, [1, 2]], ones[:, [0, 2]], ones[:, [0, 1]]], 1).prod(-1)
        strain = np.zeros((6, 8, 3))
        for axis in range(3):
            strain[axis, :, axis] = grad[:, axis]
        for line, (p, q) in enumerate(((0, 1), (1, 2), (0, 2)), start=3):
            strain[line, :, p], strain[line, :, q] = grad[:, q], grad[:, p]
        b = strain.reshape(6, 24)
        stiffness += b.T @ law @ b / 8
    return stiffness


def reference(matrix: bsr_array, dense: np.ndarray) -> np.ndarray:
    """The product in float64, block row by block row, with NumPy alone."""
    height, width = matrix.blocksize
    tiles = dense.astype(np.float64).reshape(-1, width, dense.shape[1])
    out = np.zeros((matrix.shape[0], dense.shape[1]))
    for i in range(len(matrix.indptr) - 1):
        stored = slice(matrix.indptr[i], matrix.indptr[i + 1])
        row = matrix.data[stored].astype(np.float64).transpose(1, 0, 2).reshape(height, -1)
        right = tiles[matrix.indices[stored]].reshape(-1, dense.shape[1])
        out[i * height : (i + 1) * height] = row @ right
    return out


def _measure(case: Case, device: str) -> tuple[float, float, float | None]:
    """Relative error, seconds of the product, and seconds of the dense one where there is one."""
    expected = reference(case.matrix, case.dense)
    if device == "cpu":
        result = np.empty(expected.shape, case.dense.dtype)
        seconds = _time(lambda: matmul(case.matrix, case.dense, out=result))
        whole, whole_out = case.matrix.todense(), np.empty_like(result)
        dense_seconds: float | None = _time(lambda: np.matmul(whole, case.dense, out=whole_out))
    else:
        matrix = case.matrix.to(device)
        right = _core.DeviceArray.from_host(case.dense, device)
        out = _core.DeviceArray.empty(expected.shape, case.dense.dtype.name, device)
        seconds = _time(lambda: matmul(matrix, right, out=out), lambda: _core.synchronize(device))
        dense_seconds = or_none(lambda: _torch_seconds(case, device))
        result = out.to_host()
    size = float(np.linalg.norm(expected)) or 1.0
    error = float(np.linalg.norm(result.astype(np.float64) - expected)) / size
    return error, seconds, dense_seconds


def _time(call: Callable[[], Any], wait: Callable[[], Any] = lambda: None) -> float:
    """Median seconds of a call in 7 groups of as many calls as take about 20 ms."""
    call()
    wait()
    start = time.perf_counter()
    call()
    wait()
    count = max(1, min(200, int(0.02 / max(time.perf_counter() - start, 1e-6))))
    groups = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        groups.append((time.perf_counter() - start) / count)
    return statistics.median(groups)


def or_none(dense: Callable[[], Found]) -> Found | None:
    """What is asked of a dense product: None where its library is not installed, or fails, which is
    told. Ours is worth knowing without it."""
    try:
        return dense()
    except ImportError:
        return None
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        print(f"dense product: {type(error).__name__}: {first_line}", file=sys.stderr)
        return None


def _torch_seconds(case: Case, device: str) -> float | None:
    """Seconds of torch's dense product on the GPU; None without a torch that can use it."""
    import torch

    if not torch.cuda.is_available():
        return None
    left = torch.as_tensor(case.matrix.todense(), device=device)
    right = torch.as_tensor(case.dense, device=device)
    out = torch.empty(left.shape[0], right.shape[1], dtype=left.dtype, device=device)
    return _time(lambda: torch.mm(left, right, out=out), lambda: torch.cuda.synchronize(device))
