"""``python -m bsrgemm check``: what it computes, and that it notices what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bsrgemm import __main__, _check, _check_attention, _check_cases, _core

H200 = {"name": "NVIDIA H200", "sm_arch": 90, "sm_count": 132, "hbm_bytes_per_s": 4.2e12}


def main(*arguments: str) -> int:
    return __main__.main(["check", "--device", "cpu", *arguments])


def test_every_operation_is_right_on_the_cpu(capsys: pytest.CaptureFixture) -> None:
    assert main("--no-speed") == 0
    shown = capsys.readouterr().out
    assert "all are right" in shown and "WRONG" not in shown
    for name in ("A.T @ X", "A @ B, both sparse", "sampled", "dynamic", "softmax", "block mask"):
        assert any(name in line and " ok" in line for line in shown.splitlines()), name


def test_speed_is_reported(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_check.ORDER, "cpu", 256)
    assert main("--select", "^A @ x") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "GFLOP/s" in line)
    assert all(f"{dtype} " in line for dtype in ("float16", "float64"))


def test_no_room_for_timed_products(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are larger than those that are verified."""
    seconds = _check._product_seconds

    def no_room(place: Any, dtype: Any, *sizes: int) -> tuple[float, float]:
        if dtype != np.float32:
            raise MemoryError("no room") if dtype == np.float64 else RuntimeError("no launch")
        return seconds(place, dtype, *sizes)

    monkeypatch.setitem(_check.ORDER, "cpu", 256)
    monkeypatch.setattr(_check, "_product_seconds", no_room)
    assert main("--select", "^A @ x") == 0
    shown = capsys.readouterr().out
    assert "float64 is not timed: no room" in shown and "float16 is not timed: no la" in shown
    rates = next(line for line in shown.splitlines() if "GFLOP/s" in line)
    assert "float32 " in rates and "float64" not in rates and "all are right" in shown


@pytest.mark.parametrize(
    ("module", "name", "select"),
    [(_check_cases, "product", "^A @ X$"), (_check_attention, "attention", "^attention$")],
)
def test_one_wrong_element_is_noticed(
    module: Any,
    name: str,
    select: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """It is no large part of the result's norm."""
    right: Callable[..., Any] = getattr(module, name)

    def wrong(*args: Any, **options: Any) -> Any:
        result = right(*args, **options)
        flat = result.reshape(-1)
        flat[flat.size // 3] += np.array(1, flat.dtype)
        return result

    monkeypatch.setattr(module, name, wrong)
    assert main("--no-speed", "--select", select) == 1
    captured = capsys.readouterr()
    assert "WRONG: cpu" in captured.err and "are wrong" in captured.out


def test_what_is_not_written_and_what_fails_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(_check_cases, "product", lambda *args, **options: None)
    assert main("--no-speed", "--select", "^batch") == 1
    assert "not every element was written" in capsys.readouterr().err

    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("the kernel stopped")

    monkeypatch.setattr(_check_cases, "softmax", fail)
    assert main("--no-speed", "--select", "softmax") == 1
    captured = capsys.readouterr()
    assert "ERROR: cpu, softmax, float16: RuntimeError: the kernel stopped" in captured.err


def test_wrong_arguments(capsys: pytest.CaptureFixture) -> None:
    assert main("--select", "no such row") == 2
    assert main("--select", "(") == 2
    assert __main__.main(["check", "--device", "gpu"]) == 2
    assert capsys.readouterr().err.count("accepted") == 2


def test_a_gpu_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(_core, "cuda_devices", lambda: [H200])
    assert __main__.main(["check", "--device", "cuda:1"]) == 2
    assert "device is 'cuda:1', but there are 1 GPUs" in capsys.readouterr().err


def test_without_ml_dtypes_the_rest_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    assert main("--no-speed", "--select", "^sampled$") == 0
    shown = capsys.readouterr().out
    assert "2 cases" not in shown and "3 cases" in shown
    assert "(a) not computed here: NumPy has it only with the package ml_dtypes" in shown


def test_every_family_of_the_planner_has_a_case_that_hopper_computes() -> None:
    named = {family for family, *_ in (*_check_cases.FAMILIES, *_check_cases.TF32_FAMILIES)}
    structure = _core.Structure(np.array([0]), np.array([0, 1]), (64, 64), (64, 64))
    assert named == {c["family"] for c in structure.explain(64, "float16")["candidates"]}
    for family, block, n, dtypes in _check_cases.FAMILIES:
        for dtype in dtypes:
            obstacle = _check_cases.family_obstacle(H200, family, block, n, dtype)
            assert obstacle is None, (family, block, dtype, obstacle)
    for family, block in _check_cases.TF32_FAMILIES:
        needs = "precision 'tf32'"
        assert needs in _check_cases.family_obstacle(H200, family, block, 256, "float32")
    older = H200 | {"sm_arch": 80}
    found = _check_cases.family_obstacle(older, "tall", (128, 64), 256, "float16")
    assert found == _check_cases.NOT_HOPPER


class PretendedGPU(_check_cases.Place):
    """A GPU's list of cases, computed by the CPU."""

    def __init__(self, sm_arch: int) -> None:
        super().__init__("cpu")
        self.gpu = H200 | {"sm_arch": sm_arch}

    def array(self, x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(x)


@pytest.mark.parametrize("sm_arch", [90, 80])
def test_the_cases_of_a_gpu(sm_arch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their operands, references and errors, with the families that there are on the CPU."""
    for module, name, option in (
        (_check_cases, "product", 7),
        (_check_cases, "sampled", "family"),
        (_check_attention, "attention", "backend"),
    ):
        real = getattr(module, name)

        def auto(*args: Any, real: Any = real, option: Any = option, **options: Any) -> Any:
            options.pop(option, None)
            return real(*(args[:option] if isinstance(option, int) else args), **options)

        monkeypatch.setattr(module, name, auto)
    place = PretendedGPU(sm_arch)
    cases = [*_check_cases.product_cases(place), *_check_attention.attention_cases(place)]
    only = [case for case in cases if case.group == "kernel families"]
    names = {case.name for case in only}
    assert names >= {
        "tall 128x64",
        "kmajor tf32 64x40",
        "kstream tf32 16x24",
        "pairs",
        "sampled",
        "attention, decode",
    }
    for case in only if sm_arch == 90 else only[::5]:
        if case.run is not None:
            verdict = _check._verify(case, 0, "pretended")
            assert verdict.word == "ok", (case.name, case.dtype, verdict.text)
    missing = {case.name for case in cases if case.run is None}
    if sm_arch == 90:
        assert missing == set()
    else:
        assert missing >= {"tall 128x64", "pairs", "sampled", "attention, hopper", "A @ X"}
        assert "portable 20x12" not in missing and "attention, portable" not in missing
