"""``python -m bsrgemm`` and what its demonstration computes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from bsrgemm import __main__, __version__, _demo


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bsrgemm", *arguments], capture_output=True, text=True, timeout=120
    )


def test_info() -> None:
    result = run("info")
    assert result.returncode == 0, result.stderr
    assert f"bsrgemm {__version__}" in result.stdout
    for fragment in ("processor:", "threads", "CUDA kernels:", "GPU:", "512x112", "portable"):
        assert fragment in result.stdout


def test_demo_on_the_cpu() -> None:
    result = run("demo", "--device", "cpu", "--size", "256")
    assert result.returncode == 0, result.stdout + result.stderr
    for fragment in ("finite-element stiffness", "GFLOP/s", "float64"):
        assert fragment in result.stdout


def test_demo_reports_a_wrong_product(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(
        _demo, "reference", lambda matrix, dense: np.ones((matrix.shape[0], dense.shape[1]))
    )
    assert __main__.main(["demo", "--device", "cpu", "--size", "64"]) == 1
    assert "WRONG" in capsys.readouterr().err


def test_usage_errors() -> None:
    assert run().returncode == 2
    assert run("demo", "--size", "65").returncode == 2


def test_stiffness_matrix_is_that_of_an_elastic_body() -> None:
    """Symmetric, and rigid motions cost no force: three translations and three rotations."""
    nodes = 4
    stiffness = _demo.stiffness_matrix(nodes).todense()
    assert np.allclose(stiffness, stiffness.T, atol=1e-14)
    at = (
        np.stack(np.meshgrid(*[np.arange(nodes)] * 3, indexing="ij"), -1)
        .reshape(-1, 3)
        .astype(float)
    )
    rigid = [np.broadcast_to(axis, at.shape) for axis in np.eye(3)] + [
        np.cross(axis, at) for axis in np.eye(3)
    ]
    for motion in rigid:
        assert np.abs(stiffness @ motion.ravel()).max() < 1e-13
    eigenvalues = np.linalg.eigvalsh(stiffness)
    assert eigenvalues[5] < 1e-12 < 1e-3 < eigenvalues[6]
