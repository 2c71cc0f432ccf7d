"""``python -m bsrgemm`` and what its demonstration computes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bsrgemm import __main__, __version__, _advise, _bench, _check, _check_cases, _demo

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bsrgemm", *arguments], capture_output=True, text=True, timeout=120
    )


def test_output_that_cannot_show_all_signs_and_none_at_all(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "bsrgemm", "bench", "--source", "predictions"]
    command += ["--plot", str(tmp_path / "rates.svg")]
    said = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert said.returncode == 0 and "8192\\xd78192" in said.stdout, said
    closed = f"exec '{sys.executable}' -m bsrgemm info >&-"
    assert subprocess.run(["sh", "-c", closed], timeout=120).returncode == 0


@pytest.mark.parametrize("package", ["bsrgemm info", "benchmarks softmax --dry-run"])
def test_output_that_has_no_room_or_no_reader(package: str) -> None:
    command = f"'{sys.executable}' -m {package}"
    options: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120}
    full = subprocess.run(["sh", "-c", f"{command} > /dev/full"], **options)
    assert full.returncode == 1 and full.stderr == "[Errno 28] No space left on device\n"
    # The reader ends before anything is written.
    closed = subprocess.run(["sh", "-c", f"({command}; echo $? >&2) | true"], **options)
    assert closed.stderr == "141\n"


def test_an_interrupted_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    assert __main__.without_traceback(interrupted) == 130
    assert capsys.readouterr().err == "interrupted\n"


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


def no_kernel(*_: object, **__: object) -> None:
    raise RuntimeError("no kernel image is available\nfor this device")


def test_a_dense_product_that_fails_leaves_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    told = "dense product: RuntimeError: no kernel image is available\n"
    monkeypatch.setattr(_bench, "_cpu_rival", lambda dtype: ("of nothing", no_kernel))
    assert __main__.main(["bench", "--quick", "--n", "128", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert captured.err == 4 * told and "predicted" in captured.out

    def without_cuda(*_: object) -> None:
        raise OSError("libcudart is missing")

    monkeypatch.setattr(_bench, "_torch_dense", without_cuda)
    monkeypatch.setattr(_bench, "_cupy_dense", lambda *_: None)
    assert _bench._gpu_rival("cuda:0", "float16")[1] is None
    assert "dense product: OSError: libcudart is missing" in capsys.readouterr().err

    monkeypatch.setattr(_advise, "_torch_dense", lambda *_: no_kernel)
    assert _advise._gpu_dense("cuda:0", "float16", 8, 8, 8) == ("since it fails", None)
    assert capsys.readouterr().err == told

    cuda = SimpleNamespace(is_available=no_kernel)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    case = next(_demo._cases(np.random.default_rng(0), 64, "float16"))
    assert _demo.or_none(lambda: _demo._torch_seconds(case, "cuda:0")) is None
    assert capsys.readouterr().err == told


def test_usage_errors() -> None:
    assert run().returncode == 2
    assert run("demo", "--size", "65").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("demo --size 65", "--size is 65; accepted: multiples of 64, from 64 to 1048576"),
        ("demo --size 1099511627776", "argument --size: '1099511627776'; accepted: an integer"),
        ("demo --size 1048576 --device cpu", "cannot multiply matrices of --size 1048576 on cpu"),
        ("demo --device tpu", "--device: device is 'tpu'; accepted: 'cpu'"),
        ("demo --device cuda:x", "--device: device is 'cuda:x'; accepted: 'cpu'"),
        ("demo --device cuda:99", "--device: "),
        ("demo --seed -1", "argument --seed: '-1'; accepted: an integer from 0 to"),
        ("bench --seed -1", "argument --seed: '-1'; accepted: an integer from 0 to"),
        ("bench --seed one", "argument --seed: 'one'; accepted: an integer from 0 to"),
        ("bench --n 1000000000000", "argument --n: '1000000000000'; accepted: an integer"),
        ("bench --n 1048704 --device cpu", "--n is 1048704; accepted: multiples of 128, from 128"),
        ("bench --n 1048576 --device cpu", "cannot measure float32 on cpu"),
        ("check --seed -1", "argument --seed: '-1'; accepted: an integer from 0 to"),
        ("advise a.npz --n 99999999999999999999", "argument --n: '99999999999999999999'; accepted"),
    ],
)
def test_numbers_and_devices_that_are_not_accepted(
    arguments: str,
    message: str,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Told in one line, behind argparse's usage or without it."""

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(_demo, "random_blocks", no_memory)
    monkeypatch.setattr(_bench, "_measure_all", no_memory)
    try:
        status = __main__.main(arguments.split())
    except SystemExit as end:
        status = end.code
    shown = capsys.readouterr().err
    assert status == 2 and message in shown.splitlines()[-1]
    assert len(shown.splitlines()) == 1 or shown.startswith("usage:")


def test_a_matrix_of_one_place_has_a_block(capsys: pytest.CaptureFixture) -> None:
    for seed in range(8):
        assert __main__.main(["demo", "--device", "cpu", "--size", "64", "--seed", str(seed)]) == 0
        assert "nnzb 1, density 1," in capsys.readouterr().out
    zeros = np.zeros((2, 2))
    assert _check_cases.relative_error(zeros, zeros) == 0
    assert _check.judge(zeros, zeros, 0.0).word == "ok"
    assert _check.judge(zeros + 1, zeros, 0.1).word == "WRONG"


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
