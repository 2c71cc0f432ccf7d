"""Result files: facts about the machine and software, and one flat row a measurement."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import bsrgemm
from bsrgemm import _core

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("numpy", "scipy", "torch", "triton", "stanford-stk", "fa3-fwd", "ml_dtypes")
PACKAGES += ("nvidia-cublas", "nvidia-cublas-cu12")
# What nvidia-smi says of the GPU before a run, and what it is called in the facts.
STATE = {
    "power.limit": "power_limit_w",
    "clocks.max.sm": "max_sm_mhz",
    "clocks.sm": "sm_mhz",
    "temperature.gpu": "temperature_c",
}

Row = dict[str, Any]


def make_row(
    case: Any, who: str, timing: str | None, seconds: float | None, flops: float, **extra: Any
) -> Row:
    """``case`` has a name and fields. ``flops``: the useful work that ``who`` did in ``seconds``.
    Without a time, ``extra`` has the ``error`` that says why."""
    row: Row = {
        "case": case.name,
        **case.fields,
        "who": who,
        "timing": timing,
        **time_and_rate(seconds, flops),
    }
    return row | {key: _digits(value, 4) for key, value in extra.items()}


def time_and_rate(seconds: float | None, flops: float) -> Row:
    """The fields of a row that say how long something took."""
    return {
        "us": None if seconds is None else _digits(seconds * 1e6, 5),
        "tflops": None if seconds is None else _digits(flops / seconds / 1e12, 4),
    }


class Results:
    """A result file, complete after every ``add``: an aborted run leaves its part."""

    def __init__(self, path: Path | None, facts: dict[str, Any]) -> None:
        self.path = path
        self.facts = facts
        self.rows: list[Row] = []

    def add(self, rows: list[Row]) -> None:
        self.rows += rows
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # In place of the last one when it is whole, whenever the run is aborted.
            written = self.path.with_suffix(".tmp")
            written.write_text(dump(self.facts, self.rows))
            os.replace(written, self.path)

    def say_where(self) -> None:
        if self.path is not None:
            folder = f"benchmarks/results/{slug(self.facts['gpu'])}"
            print(f"results: {self.path}, to be committed as {folder}/{self.path.name}")


def dump(facts: dict[str, Any], rows: list[Row]) -> str:
    """JSON with one line a row, so that differences can be read."""
    head = json.dumps(facts, indent=1, ensure_ascii=False).removesuffix("\n}")
    body = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{head},\n "rows": [\n{body}\n ]\n}}\n'


def facts(commit: str | None, gpu: dict[str, Any] | None) -> dict[str, Any]:
    """What a reader has to know about a run; ``gpu`` is an entry of ``_core.cuda_devices()``."""
    software = {"python": platform.python_version(), "bsrgemm": bsrgemm.__version__}
    for package in PACKAGES:
        try:
            software[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if (torch := sys.modules.get("torch")) and torch.version.cuda:
        software["cuda"] = torch.version.cuda
    return {
        "commit": commit or _git_commit(),
        # Of the compiled part, which may be of another commit.
        "extension": hashlib.sha256(Path(_core.__file__).read_bytes()).hexdigest()[:16],
        "command": _command(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "gpu": gpu["name"] if gpu else None,
        "machine": {
            "driver": _driver() if gpu else None,
            "sm_arch": gpu["sm_arch"] if gpu else None,
            "sm_count": gpu["sm_count"] if gpu else None,
            "hbm_bytes_per_s": gpu["hbm_bytes_per_s"] if gpu else None,
            **(_state() if gpu else {}),
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": _core.get_num_threads(),
            "isa": _core.cpu_isa(),
        },
        "software": software,
    }


def slug(gpu: str | None) -> str:
    """The folder of a machine's results: h200 for "NVIDIA H200", cpu without a GPU."""
    if gpu is None:
        return "cpu"
    name = re.sub(r"nvidia|geforce|tesla", "", gpu.lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def _digits(value: Any, count: int) -> Any:
    """Floats rounded to ``count`` digits, and null for what JSON has no number for."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{count}g}") if math.isfinite(value) else None


def _git_commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _command() -> str:
    """Without where results go."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out="):
            kept.append(word)
    return shlex.join(kept)


def _driver() -> str | None:
    return _asked_of_gpu("driver_version")


def _state() -> dict[str, float]:
    """Without what it does not know."""
    said = (_asked_of_gpu(",".join(STATE)) or "").split(",")
    found = dict(zip(STATE.values(), said, strict=False))
    return {
        name: float(value) for name, value in found.items() if re.fullmatch(r"\s*[0-9.]+\s*", value)
    }


def _asked_of_gpu(names: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor()
