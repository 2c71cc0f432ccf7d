"""Time products over block sizes and densities, beside the dense product and the prediction."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._arguments import MOST_ORDER, natural
from ._array import bsr_array
from ._demo import TOLERANCE as _TOLERANCE
from ._demo import _best_device, or_none
from ._dtypes import ACCEPTED_DTYPES, numpy_dtype
from ._interop import device_name
from ._matmul import matmul
from ._planning import chip_of

BLOCKS = (16, 32, 64, 128)
DENSITIES = {"cpu": (0.05, 0.125, 0.25), "cuda": (0.05, 0.125, 0.25, 0.5)}
ORDER = {"cpu": 2048, "cuda": 8192}
QUICK_ORDER = {"cpu": 1024, "cuda": 4096}

# Largest relative error (Frobenius norm, against float64) that counts as right.
TOLERANCE = {**_TOLERANCE, "bfloat16": 1.6e-2, "float64": 1e-13}

Dense = Callable[[int, int, int], float]


class Case(NamedTuple):
    block: int
    density: float
    indices: np.ndarray
    indptr: np.ndarray
    order: int

    @property
    def flops(self) -> float:
        """Useful work of the product with ``order`` columns."""
        return 2.0 * len(self.indices) * self.block**2 * self.order

    @property
    def name(self) -> str:
        return f"{self.block}x{self.block}, density {self.density:.3f}"


class Measured(NamedTuple):
    seconds: float
    error: float
    dense_rate: float | None  # FLOP/s of the dense product that does as much work


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="one density, smaller matrices")
    parser.add_argument(
        "--n",
        type=natural,
        help="rows and columns of all operands, a multiple of 128 (default: "
        f"{ORDER['cuda']} on a GPU, {ORDER['cpu']} on the CPU)",
    )
    parser.add_argument(
        "--dtype", choices=ACCEPTED_DTYPES, help="default: float16 on a GPU, float32 on the CPU"
    )
    parser.add_argument("--device", help="cpu or cuda:<index>; default: a GPU if one can be used")
    parser.add_argument("--seed", type=natural, default=0, help="of the random numbers (default 0)")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw time by density, the roofline and attention into FILE.png or FILE.svg",
    )
    parser.add_argument(
        "--source",
        choices=("here", "results", "predictions"),
        default="here",
        help="what --plot draws: measurements made now, the package's own of an H200, or the "
        "planner's predictions for one (default here)",
    )


def run(args: argparse.Namespace) -> int:
    # Drawing needs what this module measures.
    from . import _bench_figures

    if args.source != "here" and args.plot is None:
        print(f"--source is {args.source} without --plot, which it is for", file=sys.stderr)
        return 2
    if args.plot is not None:
        try:
            _bench_figures.check_path(args.plot)
        except (ValueError, ImportError) as error:
            print(f"--plot: {error}", file=sys.stderr)
            return 2
    if args.source != "here":
        for name in ("n", "device"):
            if getattr(args, name) is not None:
                print(
                    f"--{name} is for measurements, and --source is {args.source}", file=sys.stderr
                )
                return 2
        _bench_figures.draw_known(args.plot, args.source, args.dtype or "float16", args.seed)
        return 0
    try:
        device = device_name(args.device) if args.device else _best_device()
    except ValueError as error:
        print(f"--device: {error}", file=sys.stderr)
        return 2
    kind = device.partition(":")[0]
    order = args.n if args.n is not None else (QUICK_ORDER if args.quick else ORDER)[kind]
    if not 128 <= order <= MOST_ORDER or order % 128:
        accepted = f"multiples of 128, from 128 to {MOST_ORDER}"
        print(f"--n is {order}; accepted: {accepted}", file=sys.stderr)
        return 2
    dtype = args.dtype or ("float16" if kind == "cuda" else "float32")
    densities = (0.125,) if args.quick else DENSITIES[kind]
    measured: list[tuple[Case, Measured]] = []
    try:
        ok = _measure_all(device, dtype, order, densities, args.seed, measured)
        if args.plot is not None:
            _bench_figures.draw_measured(args.plot, device, dtype, order, measured)
    except (TypeError, MemoryError, _core.DeviceUnavailableError) as error:
        print(f"cannot measure {dtype} on {device}: {error}", file=sys.stderr)
        return 2
    if kind == "cpu":
        _predict_all(
            args.dtype or "float16",
            args.n or ORDER["cuda"],
            (0.125,) if args.quick else DENSITIES["cuda"],
            args.seed,
        )
    return 0 if ok else 1


def uniform(
    rng: np.random.Generator, rows: int, cols: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """indices and indptr of ``count`` blocks in every block row, at random columns."""
    chosen = np.argpartition(rng.random((rows, cols)), count - 1, axis=1)[:, :count]
    indices = np.sort(chosen, axis=1).astype(np.int32).ravel()
    return indices, np.arange(rows + 1, dtype=np.int32) * np.int32(count)


def _cases(order: int, densities: tuple[float, ...], seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    for block in BLOCKS:
        blocks = order // block
        for count in sorted({max(1, round(density * blocks)) for density in densities}):
            yield Case(block, count / blocks, *uniform(rng, blocks, blocks, count), order)


# ---- measured ----------------------------------------------------------------------------------


def _measure_all(
    device: str,
    dtype: str,
    order: int,
    densities: tuple[float, ...],
    seed: int,
    done: list[tuple[Case, Measured]],
) -> bool:
    """Prints a table, adds to ``done``, and says whether all results are right."""
    on_gpu = device != "cpu"
    chip = _chip(device) if on_gpu else None
    rival, dense_rate = _gpu_rival(device, dtype) if on_gpu else _cpu_rival(dtype)
    where = f"{device}" if on_gpu else f"cpu, {_core.get_num_threads()} threads"
    print(f"measured on {where}: {dtype}, all operands {order} x {order}, random blocks and values")
    unit, scale = ("TFLOP/s", 1e12) if on_gpu else ("GFLOP/s", 1e9)
    header = f"{'block':>9}{'density':>9}{unit:>10}{'of dense':>10}{'time us':>12}"
    header += f"{'predicted us':>14}  family" if on_gpu else ""
    rng = np.random.default_rng(seed + 1)
    x = rng.standard_normal((order, order), np.float32).astype(numpy_dtype(dtype))
    lines, wrong = [], []
    for case in _cases(order, densities, seed):
        with _Status(f"running {case.name} on {device}"):
            data = rng.standard_normal((len(case.indices), case.block, case.block), np.float32)
            a = bsr_array((data.astype(x.dtype), case.indices, case.indptr), (order, order))
            measured = _measure(a, x, case, device, dense_rate)
        done.append((case, measured))
        rate = case.flops / measured.seconds
        share = f"{rate / measured.dense_rate:.2f}" if measured.dense_rate else "-"
        line = f"{f'{case.block}x{case.block}':>9}{case.density:>9.3f}{rate / scale:>10.1f}"
        line += f"{share:>10}{measured.seconds * 1e6:>12.1f}"
        if on_gpu:
            plan = a.plan(order, chip=chip)
            line += f"{plan.seconds * 1e6:>14.1f}  {plan.choice}"
        lines.append(line)
        if not measured.error <= TOLERANCE[dtype]:
            wrong.append(f"{case.name}: relative error {measured.error:.1e}")
        took = f"{measured.seconds * 1e3:.3f} ms, {rate / scale:.1f} {unit}"
        print(f"  {case.name}: {took}, relative error {measured.error:.1e}", flush=True)
    print("\n" + header + "\n" + "\n".join(lines))
    print(f"{unit} count stored blocks only; of dense: {rival}")
    for line in wrong:
        print(f"WRONG: {line}, more than rounding explains", file=sys.stderr)
    return not wrong


def _measure(
    a: bsr_array, x: np.ndarray, case: Case, device: str, dense_rate: Dense | None
) -> Measured:
    poison = np.full(x.shape, np.nan, x.dtype)
    if device == "cpu":
        out = poison
        seconds = _time(lambda: matmul(a, x, out=out), lambda: None)
        result = out
    else:
        matrix, right = a.to(device), _core.DeviceArray.from_host(x, device)
        out = _core.DeviceArray.from_host(poison, device)
        seconds = _time(lambda: matmul(matrix, right, out=out), lambda: _core.synchronize(device))
        result = out.to_host()
    inner = max(8, round(case.density * case.order))
    rate = or_none(lambda: dense_rate(case.order, inner, case.order)) if dense_rate else None
    return Measured(seconds, _error(a, x, result), rate)


def _error(a: bsr_array, x: np.ndarray, result: np.ndarray) -> float:
    """Relative error of eight block rows against float64; infinite if anything is not finite."""
    height, width = a.blocksize
    tiles = x.reshape(-1, width, x.shape[1])
    difference = norm = 0.0
    for i in np.unique(np.linspace(0, len(a.indptr) - 2, 8).astype(int)):
        stored = slice(a.indptr[i], a.indptr[i + 1])
        left = a.data[stored].astype(np.float64).transpose(1, 0, 2).reshape(height, -1)
        right = tiles[a.indices[stored]].astype(np.float64).reshape(-1, x.shape[1])
        expected = left @ right
        found = result[i * height : (i + 1) * height].astype(np.float64)
        difference += float(np.sum((found - expected) ** 2))
        norm += float(np.sum(expected**2))
    finite = all(np.isfinite(rows).all() for rows in np.array_split(result, 16))
    return math.sqrt(difference / (norm or 1.0)) if finite else math.inf


def _time(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Median seconds of a call: 5 groups that last 60 ms together, after 100 ms of the same."""
    call()
    wait()
    start = time.perf_counter()
    call()
    wait()
    once = max(time.perf_counter() - start, 1e-6)
    for _ in range(min(10_000, int(0.1 / once))):
        call()
    wait()
    count = max(1, min(2000, round(0.012 / once)))
    groups = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        groups.append((time.perf_counter() - start) / count)
    return statistics.median(groups)


# ---- the dense rival -----------------------------------------------------------------------------


def _cpu_rival(dtype: str) -> tuple[str, Dense | None]:
    if dtype not in ("float32", "float64"):
        return f"unknown, since NumPy has no fast dense product in {dtype}", None

    def rate(m: int, k: int, n: int) -> float:
        rng = np.random.default_rng(0)
        left = rng.standard_normal((m, k)).astype(dtype)
        right = rng.standard_normal((k, n)).astype(dtype)
        out = np.empty((m, n), dtype)
        return 2.0 * m * k * n / _time(lambda: np.matmul(left, right, out=out), lambda: None)

    return "of the rate of NumPy's dense product with as many useful FLOP", rate


def _gpu_rival(device: str, dtype: str) -> tuple[str, Dense | None]:
    """torch's dense product, else CuPy's, on matrices that need as many FLOP."""
    for library in (_torch_dense, _cupy_dense):
        make = or_none(partial(library, device, dtype))
        if make is not None:
            break
    else:
        return "unknown, since neither torch nor CuPy can use this GPU", None

    def rate(m: int, k: int, n: int) -> float:
        seconds = _time(make(m, k, n), lambda: _core.synchronize(device))
        return 2.0 * m * k * n / seconds

    return "of the rate of cuBLAS on a dense product with as many useful FLOP", rate


def _torch_dense(device: str, dtype: str) -> Callable[[int, int, int], Callable[[], Any]] | None:
    import torch

    if not torch.cuda.is_available():
        return None

    def make(m: int, k: int, n: int) -> Callable[[], Any]:
        kind = getattr(torch, dtype)
        left = torch.randn(m, k, device=device).to(kind)
        right = torch.randn(k, n, device=device).to(kind)
        out = torch.empty(m, n, dtype=kind, device=device)
        return lambda: torch.mm(left, right, out=out)

    return make


def _cupy_dense(device: str, dtype: str) -> Callable[[int, int, int], Callable[[], Any]] | None:
    import cupy

    if dtype == "bfloat16" or not cupy.is_available():
        return None
    cupy.cuda.Device(int(device.partition(":")[2])).use()

    def make(m: int, k: int, n: int) -> Callable[[], Any]:
        left = cupy.random.standard_normal((m, k), np.float32).astype(dtype)
        right = cupy.random.standard_normal((k, n), np.float32).astype(dtype)
        out = cupy.empty((m, n), dtype)
        return lambda: cupy.matmul(left, right, out=out)

    return make


# ---- predicted -----------------------------------------------------------------------------------


def _chip(device: str) -> dict[str, Any]:
    """What the driver tells of the GPU; the planner takes an H200's other rates."""
    gpus, index = _core.cuda_devices(), int(device.partition(":")[2])
    if index >= len(gpus):
        raise _core.DeviceUnavailableError(f"there are {len(gpus)} GPUs, cuda:0 and on")
    gpu = gpus[index]
    return chip_of(gpu)


def _predict_all(dtype: str, order: int, densities: tuple[float, ...], seed: int) -> None:
    print(
        f"\npredicted, not measured, for one NVIDIA H200: {dtype}, all operands {order} x {order}"
    )
    print(f"{'block':>9}{'density':>9}{'TFLOP/s':>10}{'time us':>12}  family")
    for case in _cases(order, densities, seed):
        structure = _core.Structure(
            case.indices, case.indptr, (order, order), (case.block, case.block), True
        )
        info = structure.explain(order, dtype)
        chosen = next(c for c in info["candidates"] if c["family"] == info["chosen"])
        seconds = chosen["seconds"]
        print(
            f"{f'{case.block}x{case.block}':>9}{case.density:>9.3f}"
            f"{case.flops / seconds / 1e12:>10.1f}{seconds * 1e6:>12.1f}  "
            f"{chosen['family']}, {chosen['reason']}"
        )


class _Status:
    """Shows on a terminal what is running, until it is done."""

    def __init__(self, text: str) -> None:
        self.text = text if sys.stderr.isatty() else ""

    def __enter__(self) -> None:
        if self.text:
            print(f"\r{self.text} ...", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.text:
            print("\r" + " " * (len(self.text) + 4) + "\r", end="", file=sys.stderr, flush=True)
