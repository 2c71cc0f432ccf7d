"""Verify every operation and kernel family here against float64, on random data.

A cell of the tables is ``ok``, ``WRONG`` where the result is further from the float64 reference
than rounding explains, ``ERROR`` where the call failed, or a letter that says why this machine does
not compute it. The exit status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._arguments import natural
from ._array import bsr_array
from ._bench import _Status, _time, uniform
from ._check_attention import attention_cases
from ._check_cases import Case, Place, product_cases, relative_error
from ._dtypes import ACCEPTED_DTYPES, EIGHT_BIT_DTYPES, numpy_dtype
from ._interop import device_name
from ._matmul import matmul

# A single element that is wrong hides in the norm of a large result: no error may be larger than so
# many times the allowed one in the root of the mean square.
LARGEST = 20

COLUMNS = (*ACCEPTED_DTYPES, *EIGHT_BIT_DTYPES)
HEADS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
# Of the products that are timed: density and order of all operands.
DENSITY, ORDER = 0.125, {"cpu": 2048, "cuda": 8192}


class Verdict(NamedTuple):
    word: str  # "ok", "WRONG", "ERROR" or "-"
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", help="cpu or cuda:<index>; default: the CPU and, if one can be used, a GPU"
    )
    parser.add_argument(
        "--select", default="", help="a regular expression; only rows in whose name it is found"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for each case, with errors")
    parser.add_argument("--no-speed", action="store_true", help="do not time products")
    parser.add_argument("--seed", type=natural, default=0, help="of the random numbers (default 0)")


def run(args: argparse.Namespace) -> int:
    start = time.perf_counter()
    try:
        select = re.compile(args.select)
        devices = [device_name(args.device)] if args.device else _devices()
        places = [Place(device) for device in devices]
    except re.error as error:
        print(
            f"--select is {args.select!r}; accepted: a regular expression ({error})",
            file=sys.stderr,
        )
        return 2
    except (ValueError, _core.DeviceUnavailableError) as error:
        print(f"--device: {error}", file=sys.stderr)
        return 2
    bad, counted = [], 0
    for place in places:
        found = _check_device(place, select, args)
        counted += len(found)
        bad += [text for verdict, text in found if verdict in ("WRONG", "ERROR")]
        if not args.no_speed and found:
            _speed(place)
    if not counted:
        print(f"--select is {args.select!r}, but no row has that in its name", file=sys.stderr)
        return 2
    for text in bad:
        print(text, file=sys.stderr)
    print(
        f"\n{counted} cases in {time.perf_counter() - start:.0f} s: "
        + (f"{len(bad)} are wrong" if bad else "all are right")
    )
    return 1 if bad else 0


def _devices() -> list[str]:
    try:
        _core.cuda_devices()
    except _core.DeviceUnavailableError as error:
        print(f"no GPU: {error}")
        return ["cpu"]
    return ["cpu", "cuda:0"]


# ---- verification --------------------------------------------------------------------------------


def _check_device(
    place: Place, select: re.Pattern[str], args: argparse.Namespace
) -> list[tuple[str, str]]:
    """Prints tables; the verdict and what to say of it for each case that was computed."""
    what = (
        f"{place.gpu['name']} (sm_{place.gpu['sm_arch']}), {place.device}"
        if place.gpu
        else f"cpu, {_core.cpu_isa()}, {_core.get_num_threads()} threads"
    )
    print(f"\n{what}")
    rows: dict[tuple[str, str], list[Case]] = {}
    for cases in (product_cases(place), attention_cases(place)):
        for case in cases:
            if select.search(case.name):
                rows.setdefault((case.group, case.name), []).append(case)
    found: list[tuple[str, str]] = []
    notes: dict[str, str] = {}
    shown = None
    # Rows of a group come together, whichever list they are from.
    for (group, name), cases in sorted(rows.items(), key=lambda row: _GROUPS.index(row[0][0])):
        if group != shown:
            columns = "".join(f"{HEADS.get(dtype, dtype):>10}" for dtype in COLUMNS)
            print(f"{group:<24}{columns}")
            shown = group
        cells = dict.fromkeys(COLUMNS, "")
        for case in cases:
            verdict = _verify(case, args.seed, place.device)
            if case.run is not None:
                line = f"{verdict.word}: {place.device}, {case.name}, {case.dtype}: {verdict.text}"
                found.append((verdict.word, line))
                cells[case.dtype] = verdict.word
                if args.verbose:
                    print(f"  {line}")
            else:
                letter = notes.setdefault(verdict.text, chr(ord("a") + len(notes)))
                cells[case.dtype] = f"({letter})"
        print(f"  {name:<22}" + "".join(f"{cells[dtype]:>10}" for dtype in COLUMNS), flush=True)
    for text, letter in notes.items():
        print(f"  ({letter}) not computed here: {text}")
    return found


_GROUPS = ("operations", "attention", "kernel families")


def _verify(case: Case, seed: int, device: str) -> Verdict:
    if case.run is None:
        return Verdict("-", case.missing or "")
    with _Status(f"checking {case.name}, {case.dtype} on {device}"):
        try:
            outcome = case.run(np.random.default_rng(seed))
        except Exception as error:  # whatever it is, the other cases are worth knowing
            return Verdict("ERROR", f"{type(error).__name__}: {error}")
    return judge(*outcome)


def judge(found: np.ndarray, expected: np.ndarray, allowed: float) -> Verdict:
    """Whether rounding explains what was found, as a whole and element by element."""
    if not np.isfinite(found.astype(np.float64)).all():
        return Verdict("WRONG", "not every element was written, or one is not finite")
    error = relative_error(found, expected)
    scale = float(np.sqrt(np.mean(expected**2))) or 1.0
    difference = np.abs(found.astype(np.float64) - expected)
    largest = float((difference / (np.abs(expected) + scale)).max())
    text = f"relative error {error:.1e} (allowed {allowed:.1e}), largest {largest:.1e}"
    return Verdict("ok" if error <= allowed and largest <= LARGEST * allowed else "WRONG", text)


# ---- speed ---------------------------------------------------------------------------------------


def _speed(place: Place) -> None:
    """Rates of A @ X with 128x128 blocks of which an eighth is stored."""
    kind = "cpu" if place.gpu is None else "cuda"
    order, block = ORDER[kind], 128
    unit, scale = ("GFLOP/s", 1e9) if kind == "cpu" else ("TFLOP/s", 1e12)
    rates = []
    for dtype in COLUMNS:
        try:
            small = numpy_dtype(dtype)
        except TypeError:
            continue
        if dtype in EIGHT_BIT_DTYPES and place.gpu and place.gpu["sm_arch"] != 90:
            continue
        name = HEADS.get(dtype, dtype)
        try:
            with _Status(f"timing {dtype} on {place.device}"):
                seconds, flops = _product_seconds(place, small, order, block)
        except (MemoryError, RuntimeError) as error:  # the verdicts are worth more than a rate
            print(f"  {name} is not timed: {error}")
            continue
        rates.append(f"{name} {flops / seconds / scale:.3g}")
    if not rates:
        return
    print(
        f"  {unit} of A @ X, all operands {order} x {order}, {block}x{block} blocks, "
        f"density {DENSITY}: " + ", ".join(rates)
    )


def _product_seconds(
    place: Place, dtype: np.dtype[Any], order: int, block: int
) -> tuple[float, float]:
    rng = np.random.default_rng(1)
    blocks = order // block
    indices, indptr = uniform(rng, blocks, blocks, max(1, round(DENSITY * blocks)))
    data = rng.standard_normal((len(indices), block, block), np.float32).astype(dtype)
    # Random numbers for a part, repeated: they are made on the host.
    x = np.resize(rng.standard_normal(1 << 20, np.float32).astype(dtype), (order, order))
    a = bsr_array((place.array(data), indices, indptr), (order, order))
    right = place.array(x)
    out = place.array(np.zeros((order, order), _result_dtype(dtype)))

    def wait() -> None:
        if place.gpu is not None:
            _core.synchronize(place.device)

    seconds = _time(lambda: matmul(a, right, out=out), wait)
    return seconds, 2.0 * len(indices) * block**2 * order


def _result_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return numpy_dtype("bfloat16") if dtype.name in EIGHT_BIT_DTYPES else dtype
