"""Runs the GPU tests under compute-sanitizer: python tools/sanitize.py [--tools memcheck]

Only this library's kernels are watched, and all of them: others would take hours, and racecheck
breaks kernels with TMA that it does not watch. Several processes share the tests and all GPUs,
since most of the time goes into the sanitizer's work on the host. Each has neighbouring tests of
one file, which need few kernels: to load one takes long, and so does it to start. Its log names
every test as it runs. The tests take less of everything (--brief); those of more than 2**31
elements are left out. The tool "none" is no tool: the tests as they are, in processes like these,
which is several times faster than workers that each come to need every kernel.

initcheck watches ``python -m bsrgemm check`` instead, every kernel family on operands that the host
copies: what a kernel that is not watched wrote counts as never written, and in the tests PyTorch's
write most. So does what TMA stored, hence it does not watch the copies of such results.

With --host, and no GPU, the C core's tests run instead: all of them under AddressSanitizer,
UndefinedBehaviorSanitizer and LeakSanitizer, every operation from several threads under
ThreadSanitizer, and the fuzzer's corpus. It needs a C compiler and pytest, nothing of this package.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck", "none")
CHECK = ("--device", "cuda:0", "--no-speed", "--verbose")  # what initcheck watches of bsrgemm check
OF_TMA = ("align_copy",)  # kernels that read what TMA stored
TESTS = 80  # of a process, at most
ENDED = re.compile(r" passed|^\d+ cases in ")  # the line that says how it ended
EMPTY = re.compile(r"^=+ \d+ deselected in ", re.MULTILINE)  # the arguments left a shard no test


class Job(NamedTuple):
    """What one process checks."""

    tool: str
    tests: list[Path]
    shard: str
    name: str


def kernel_names() -> list[str]:
    """What the names of the kernels begin with: their file's. All of it, since names of cuBLAS
    kernels have words like ``simt`` and ``align`` in them."""
    return sorted(path.stem for path in ROOT.glob("kernels/sm*/*.cu"))


def command(tool: str, tests: list[Path], shard: str, arguments: list[str]) -> list[str]:
    names = [name for name in kernel_names() if tool != "initcheck" or name not in OF_TMA]
    watched = [part for name in names for part in ("--kernel-name", f"kns={name}")]
    pytest = [sys.executable, "-m", "pytest", "-v", "-x", "-m", "gpu", "-p", "no:cacheprovider"]
    pytest += ["--durations=10", "--durations-min=5", "--shard", shard]
    if tool == "none":
        return [*pytest, *map(str, tests), *arguments]
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *watched]
    if tool == "memcheck":  # tests ask for more memory than there is
        sanitizer += ["--report-api-errors", "no"]
    if tool == "initcheck":
        return [*sanitizer, sys.executable, "-m", "bsrgemm", "check", *CHECK]
    return [*sanitizer, *pytest, "--brief", *map(str, tests), *arguments]


def environment(gpu: int) -> dict[str, str]:
    """Of one of several processes: its GPU, and one thread, since the others have the cores."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = visible.split(",")[gpu] if visible else str(gpu)
    return {**os.environ, **threads, "CUDA_VISIBLE_DEVICES": device, "PYTHONUNBUFFERED": "1"}


def count_tests(files: list[Path]) -> dict[Path, int]:
    """How many GPU tests each file has."""
    pytest = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", "gpu"]
    command = [*pytest, *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    counts = dict(re.findall(r"^(.+\.py): (\d+)$", done.stdout, re.MULTILINE))
    if done.returncode:
        raise SystemExit(f"pytest cannot collect the tests:\n{done.stdout}{done.stderr}")
    return {file: int(counts[str(file.relative_to(ROOT))]) for file in files}


def jobs_of(tools: list[str], counts: dict[Path, int]) -> list[Job]:
    """Those of many tests first, so that none is left running alone."""
    jobs = [Job(tool, [], "1/1", "check") for tool in tools if tool == "initcheck"]
    for file, tests in sorted(counts.items(), key=lambda item: -min(item[1], TESTS)):
        parts = -(-tests // TESTS)
        jobs += [
            Job(tool, [file], f"{i + 1}/{parts}", file.stem.removeprefix("test_gpu_"))
            for tool in tools
            if tool != "initcheck"
            for i in range(parts)
        ]
    return jobs


def check(job: Job, arguments: list[str], logs: Path, gpu: int) -> bool:
    start = time.perf_counter()
    log = logs / f"{job.tool}-{job.name}-{job.shard.replace('/', 'of')}.log"
    with log.open("w") as file:
        code = subprocess.run(
            command(job.tool, job.tests, job.shard, arguments),
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(gpu),
            check=False,
        ).returncode
    seconds = time.perf_counter() - start
    text = log.read_text(errors="replace")
    good = code in (0, 5) or EMPTY.search(text) is not None
    said = "ok" if good else f"FAILED, {log}\n{text[-6000:]}"
    ended = next((line.strip("= ") for line in text.splitlines() if ENDED.search(line)), "no test")
    print(f"{job.tool} {job.name} {job.shard}: {ended}, {seconds:.0f} s: {said}", flush=True)
    return good


def host(arguments: list[str]) -> int:
    """The tests of CI, but with many more rounds of each operation under ThreadSanitizer."""
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=5"]
    command = [*pytest, str(ROOT / "tests" / "test_c_core.py"), *arguments]
    environment = {**os.environ, "BSRGEMM_TEST_ROUNDS": "50"}
    return subprocess.run(command, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", default="memcheck,racecheck", help=f"of {','.join(TOOLS)}")
    parser.add_argument("--files", default="*", help="which of tests/gpu/test_gpu_<files>.py")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--gpus", type=int, help="how many to use (default: all)")
    parser.add_argument("--logs", type=Path, help="folder for a log of each shard")
    parser.add_argument("--host", action="store_true", help="the C core's tests, without a GPU")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()
    if options.host:
        return host(options.arguments)
    tools = options.tools.split(",")
    if unknown := [tool for tool in tools if tool not in TOOLS]:
        parser.error(f"--tools has {', '.join(unknown)}, but there are {', '.join(TOOLS)}")
    tests = sorted(ROOT.glob(f"tests/gpu/test_gpu_{options.files}.py"))
    if not tests:
        parser.error(f"--files is {options.files!r}, which names no file of tests/gpu")
    if tools != ["none"] and shutil.which("compute-sanitizer") is None:
        print("no compute-sanitizer on PATH: it comes with the CUDA toolkit", file=sys.stderr)
        return 2
    from bsrgemm import DeviceUnavailableError, _core

    try:
        gpus = options.gpus or len(_core.cuda_devices())
    except DeviceUnavailableError as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 2
    logs = options.logs or Path(tempfile.mkdtemp(prefix="sanitize-"))
    logs.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(tools, count_tests(tests) if set(tools) != {"initcheck"} else {})
    with ThreadPoolExecutor(options.jobs) as pool:
        running = [
            pool.submit(check, job, options.arguments, logs, i % gpus) for i, job in enumerate(jobs)
        ]
        good = all(future.result() for future in running)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
