"""Runs the GPU tests under compute-sanitizer: python tools/sanitize.py [--tools memcheck]

Only this library's kernels are watched, and all of them: others would take hours, and racecheck
breaks kernels of ours that it does not watch. One process a test file, so that progress shows.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def kernel_names() -> list[str]:
    """How the names of the kernels begin: with the first word of their file's."""
    return sorted({path.stem.split("_")[0] for path in ROOT.glob("kernels/sm*/*.cu")})


def command(tool: str, test: Path, arguments: list[str]) -> list[str]:
    watched = [part for name in kernel_names() for part in ("--kernel-name", f"kns={name}")]
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "-p", "no:cacheprovider"]
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *watched]
    return [*sanitizer, *pytest, str(test), *arguments]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", default="memcheck,racecheck", help=f"of {','.join(TOOLS)}")
    parser.add_argument("--files", default="*", help="which of tests/gpu/test_gpu_<files>.py")
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
    failed = []
    for tool in tools:
        for test in tests:
            start = time.perf_counter()
            run = subprocess.run(
                command(tool, test, options.arguments), capture_output=True, text=True, check=False
            )
            seconds = time.perf_counter() - start
            # 5: nothing to run, in a file of which the arguments select no test.
            good = run.returncode in (0, 5)
            result = "ok" if good else "FAILED"
            print(f"{tool:<10} {test.name:<28} {result} {seconds:.1f} s", flush=True)
            if not good:
                failed.append(f"{tool} {test.name}")
                print(run.stdout[-6000:] + run.stderr[-2000:], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
