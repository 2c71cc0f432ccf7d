"""The benchmark of sampled products, without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_benchmarks import HostTimer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import records, sampled
from benchmarks.__main__ import main
from benchmarks.sampled import SampledCase, SampledSuite


def small(dtype: str = "float32", **changes: Any) -> SampledCase:
    case = {"group": "sampled", "dtype": dtype, "block": (64, 64), "count": 2}
    return SampledCase(**(case | {"m": 256, "n": 512, "k": 96} | changes))


def test_cases() -> None:
    cases = list(sampled.gpu_sampled_cases())
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        rows, cols = case.grid
        assert (rows * case.block[0], cols * case.block[1]) == (case.m, case.n)
        assert case.count <= cols
    case = small()
    assert case.density == 0.25 and case.equal_flop_n == 128
    assert case.useful_flops == 2 * 256 * 128 * 96
    assert case.name == "sampled/float32/64x64/d0.25/uniform/256x512x96"


def test_suite(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    suite = SampledSuite(torch, "cpu", HostTimer(), peers=["cublas_dense", "cublas_equal_flop"])
    results = records.Results(tmp_path / "sampled.json", records.facts("abc", None))
    for case in (small(), small("bfloat16", block=(128, 128)), small(pattern="zipf_rows")):
        outcome = suite.run(case)
        assert not outcome.wrong, outcome.notes
        results.add(outcome.rows)
    rows = json.loads((tmp_path / "sampled.json").read_text())["rows"]
    assert not any("error" in row or "wrong" in row for row in rows)
    assert {row["who"] for row in rows} == {"bsrgemm", "cublas_dense", "cublas_equal_flop"}
    assert {row["timing"] for row in rows} == {"sustained", "burst", "eager"}
    first = rows[0]
    assert first["op"] == "dense @ dense at blocks" and first["rel_err"] < 1e-6
    assert first["tflops"] == pytest.approx(small().useful_flops / first["us"] / 1e6, rel=1e-3)


def test_rivals() -> None:
    assert sampled.wanted(small("float16", block=(128, 128))) == list(sampled.RIVALS)
    assert "stk" not in sampled.wanted(small("float16"))


def test_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sampled", "--dry-run", "--select", "128x128/d0.125/uniform"]) == 0
    text = capsys.readouterr().out
    assert "sampled/bfloat16/128x128/d0.125/uniform/8192x8192x2048: 34 GF; cublas_dense" in text
    with pytest.raises(SystemExit, match="^2$"):
        main(["sampled", "--dry-run", "--families", "fast"])
    assert "'fast'; accepted: auto, sampled" in capsys.readouterr().err
