"""Runs the GPU tests under compute-sanitizer: python tools/sanitize.py [--tools memcheck]

Only this library's kernels are watched, and all of them: others would take hours, and racecheck
breaks kernels with TMA that it does not watch. Several processes share the tests, since most of the
time goes into the sanitizer's work on the host.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def kernel_names() -> list[str]:
    """How the names of the kernels begin: with the first word of their file's."""
    return sorted({path.stem.split("_")[0] for path in ROOT.glob("kernels/sm*/*.cu")})


def command(tool: str, tests: list[Path], shard: str, arguments: list[str]) -> list[str]:
    watched = [part for name in kernel_names() for part in ("--kernel-name", f"kns={name}")]
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *watched]
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "-p", "no:cacheprovider"]
    return [*sanitizer, *pytest, "--shard", shard, *map(str, tests), *arguments]


def check(tool: str, tests: list[Path], shard: str, arguments: list[str]) -> bool:
    start = time.perf_counter()
    run = subprocess.run(
        command(tool, tests, shard, arguments), capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    good = run.returncode in (0, 5)  # 5: the arguments left this shard no test
    said = "ok" if good else f"FAILED\n{run.stdout[-6000:]}{run.stderr[-2000:]}"
    ended = next((line for line in run.stdout.splitlines() if " passed" in line), "no test")
    print(f"{tool} {shard}: {ended}, {seconds:.0f} s: {said}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", default="memcheck,racecheck", help=f"of {','.join(TOOLS)}")
    parser.add_argument("--files", default="*", help="which of tests/gpu/test_gpu_<files>.py")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()
    tools = options.tools.split(",")
    if unknown := [tool for tool in tools if tool not in TOOLS]:
        parser.error(f"--tools has {', '.join(unknown)}, but there are {', '.join(TOOLS)}")
    tests = sorted(ROOT.glob(f"tests/gpu/test_gpu_{options.files}.py"))
    if not tests:
        parser.error(f"--files is {options.files!r}, which names no file of tests/gpu")
    if shutil.which("compute-sanitizer") is None:
        print("no compute-sanitizer on PATH: it comes with the CUDA toolkit", file=sys.stderr)
        return 2
    count = 4 * options.jobs  # so that progress shows
    shards = [f"{i + 1}/{count}" for i in range(count)]
    good = True
    with ThreadPoolExecutor(options.jobs) as pool:
        for tool in tools:
            run = partial(check, tool, tests, arguments=options.arguments)
            good = all(list(pool.map(run, shards))) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
