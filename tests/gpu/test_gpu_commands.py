"""The commands that verify and measure, on a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bsrgemm
import device_cases
import numpy as np
import pytest
from bsrgemm import __main__, _bench_figures, _figures

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


def test_advise(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Measured here, by the file's own blocks and by those of other formats."""
    device_cases.need_cublas()
    rng = np.random.default_rng(0)
    order = device_cases.reduced(2048)
    dense = rng.standard_normal((order, order), np.float32)
    path = str(tmp_path / "a.npz")
    bsrgemm.prune(dense, (64, 64), density=0.25).save(path)
    for dtype in ("float16",) if device_cases.brief else ("float16", "float32", "float64"):
        assert __main__.main(["advise", path, "--n", "256", "--dtype", dtype]) == 0
        shown = capsys.readouterr().out
        assert "measured on cuda:0, 64x64 blocks" in shown and "as in the file" in shown


def test_bench_draws_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if device_cases.brief:
        pytest.skip("it measures for seconds")
    drawn: list[list[_figures.Panel]] = []
    monkeypatch.setattr(_figures, "draw", lambda panels, path: drawn.append(panels))
    monkeypatch.setattr(_bench_figures, "check_path", lambda path: None)
    arguments = ["bench", "--quick", "--n", "1024", "--plot", str(tmp_path / "a.svg")]
    assert __main__.main(arguments) == 0
    assert [panel.name for panel in drawn[0]] == ["crossover", "roofline", "attention"]
    assert all(y > 0 for panel in drawn[0] for curve in panel.curves for y in curve.y)
