"""The commands that verify and measure, on a GPU."""

from __future__ import annotations

import subprocess
import sys

import device_cases
import pytest
from bsrgemm import __main__

pytestmark = pytest.mark.gpu

# Stands in for a machine that has NumPy alone.
WITHOUT_LIBRARIES = """
import sys
sys.modules["torch"] = sys.modules["cupy"] = None
from bsrgemm.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_check(capsys: pytest.CaptureFixture) -> None:
    """Brief: one row of each table."""
    select = ["--select", "^A @ X$|^causal|^tall 128"] if device_cases.brief else []
    assert __main__.main(["check", "--device", "cuda:0", "--no-speed", "--verbose", *select]) == 0
    shown = capsys.readouterr().out
    assert "all are right" in shown
    assert any(line.startswith("  A @ X") and " ok" in line for line in shown.splitlines())


def test_check_without_torch_and_cupy() -> None:
    """Every family, and rates, by this package's own arrays alone."""
    if device_cases.brief:
        pytest.skip("another process, whose kernels the tool would watch at length")
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARIES, "check", "--device", "cuda"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "TFLOP/s of A @ X" in result.stdout
    for row in ("tall 128x64", "narrow 32x32", "pairs", "sampled", "attention, decode"):
        line = next(line for line in result.stdout.splitlines() if line.startswith(f"  {row} "))
        assert "ok" in line or "(" in line, line
