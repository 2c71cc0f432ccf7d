"""tools/sanitize.py, with a stand-in for compute-sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_watches_every_kernel_in_every_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f'echo "$@" >> {log}; echo "3 passed in 1 s"'
    done = run(tmp_path, script, "--tools", "memcheck,racecheck", "--jobs", "2")
    assert done.returncode == 0, done.stdout
    assert "memcheck 8/8: 3 passed in 1 s" in done.stdout
    lines = log.read_text().splitlines()
    assert len(lines) == 2 * 8
    for line in lines:
        for test in ROOT.glob("tests/gpu/test_gpu_*.py"):
            assert str(test) in line
        for name in ("tall", "stream", "regroup", "align", "narrow", "pieces", "portable", "simt"):
            assert f"--kernel-name kns={name} " in line
    for i in range(8):
        assert sum(f"--shard {i + 1}/8 " in line for line in lines) == 2


def test_fails_with_what_the_sanitizer_said(tmp_path: Path) -> None:
    script = "echo Race reported; exit 9"
    done = run(tmp_path, script, "--tools", "racecheck", "--files", "streams", "--jobs", "2")
    assert done.returncode == 1 and "racecheck 8/8" in done.stdout
    assert "FAILED" in done.stdout and "Race reported" in done.stdout


def test_says_what_there_is(tmp_path: Path) -> None:
    done = run(tmp_path, "exit 0", "--tools", "check")
    assert done.returncode == 2 and "memcheck, racecheck" in done.stderr
    done = run(tmp_path, "exit 0", "--files", "none")
    assert done.returncode == 2 and "names no file" in done.stderr
