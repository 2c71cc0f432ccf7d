"""tools/sanitize.py, with a stand-in for compute-sanitizer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bsrgemm import DeviceUnavailableError, _core

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "sanitize.py"


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    fake = folder / "compute-sanitizer"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_watches_every_kernel_in_every_test(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f'echo "$@" gpu $CUDA_VISIBLE_DEVICES >> {log}; echo "3 passed in 1 s"'
    logs = tmp_path / "logs"
    arguments = ("--jobs", "2", "--gpus", "2", "--logs", str(logs))
    done = run(tmp_path, script, "--tools", "memcheck,racecheck", *arguments)
    assert done.returncode == 0, done.stdout
    assert "memcheck streams 1/1: 3 passed in 1 s" in done.stdout
    lines = log.read_text().splitlines()
    for line in lines:
        for path in ROOT.glob("kernels/sm*/*.cu"):
            assert f"--kernel-name kns={path.stem} " in line
    for test in ROOT.glob("tests/gpu/test_gpu_*.py"):
        for tool in ("memcheck", "racecheck"):
            found = [line for line in lines if f" {test} " in line and f"--tool {tool} " in line]
            shards = sorted(re.search(r"--shard (\d+)/(\d+) ", line).groups() for line in found)
            parts = len(found)
            assert shards == sorted((str(i + 1), str(parts)) for i in range(parts)) and parts > 0
    assert len([line for line in lines if "test_gpu_shapes.py" in line]) > 2 * 2
    by_gpu = [sum(line.endswith(f" gpu {gpu}") for line in lines) for gpu in (0, 1)]
    assert abs(by_gpu[0] - by_gpu[1]) <= 1
    assert (logs / "racecheck-streams-1of1.log").read_text() == "3 passed in 1 s\n"


def test_initcheck_watches_operands_of_the_host(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f'echo "$@" >> {log}; echo; echo "234 cases in 6 s: all are right"'
    done = run(tmp_path, script, "--tools", "initcheck", "--jobs", "2", "--gpus", "1")
    assert done.returncode == 0 and "initcheck check 1/1: 234 cases in 6 s" in done.stdout
    (line,) = log.read_text().splitlines()
    assert "--tool initcheck" in line and "--kernel-name kns=tall_f16 " in line
    assert "kns=align_copy " not in line  # it reads what TMA stored
    assert " -m bsrgemm check --device cuda:0 " in line and "pytest" not in line


def test_fails_with_what_the_sanitizer_said(tmp_path: Path) -> None:
    script = "echo Race reported; exit 9"
    arguments = ("--files", "streams", "--jobs", "2", "--gpus", "1")
    done = run(tmp_path, script, "--tools", "racecheck", *arguments)
    assert done.returncode == 1 and "racecheck streams 1/1" in done.stdout
    assert "FAILED" in done.stdout and "Race reported" in done.stdout


def test_a_shard_without_tests_is_no_failure(tmp_path: Path) -> None:
    """compute-sanitizer has a status of its own for what launches nothing."""
    script = 'echo "============ 80 deselected in 0.7s ============"; exit 1'
    arguments = ("--files", "streams", "--jobs", "1", "--gpus", "1")
    done = run(tmp_path, script, "--tools", "racecheck", *arguments)
    assert done.returncode == 0 and "racecheck streams 1/1: no test" in done.stdout


def test_without_a_tool(tmp_path: Path) -> None:
    """GPU tests in processes of their own; here without a GPU, which skip."""
    if library_has_gpu():
        pytest.skip("there is a GPU")
    arguments = ("--files", "streams", "--jobs", "1", "--gpus", "1", "--logs", str(tmp_path))
    done = run(tmp_path, "exit 9", "--tools", "none", *arguments)
    assert done.returncode == 0 and "none streams 1/1: " in done.stdout
    log = (tmp_path / "none-streams-1of1.log").read_text()
    assert " skipped" in log and "no GPU" in log


def test_needs_a_gpu(tmp_path: Path) -> None:
    """Tests that are all skipped would find nothing wrong."""
    if library_has_gpu():
        pytest.skip("there is a GPU")
    done = run(tmp_path, "exit 0", "--tools", "memcheck")
    assert done.returncode == 2 and "no GPU: " in done.stderr


def library_has_gpu() -> bool:
    try:
        return bool(_core.cuda_devices())
    except DeviceUnavailableError:
        return False


def test_says_what_there_is(tmp_path: Path) -> None:
    done = run(tmp_path, "exit 0", "--tools", "check")
    assert done.returncode == 2 and "memcheck, racecheck" in done.stderr
    done = run(tmp_path, "exit 0", "--files", "none")
    assert done.returncode == 2 and "names no file" in done.stderr
