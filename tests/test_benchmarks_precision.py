"""The benchmark of tf32 and 8-bit floats: its cases, and its suite on small ones."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from test_benchmarks import HostTimer, small

from benchmarks import precision
from benchmarks.precision import PrecisionSuite, precision_cases, wanted


def test_cases() -> None:
    cases = list(precision_cases())
    assert len({case.name for case in cases}) == len(cases)
    family = dict.fromkeys(("tf32", "fp8", "tf32_rows", "fp8_rows"), "kmajor")
    family |= {"float64_rows": "portable"}
    family |= {"fp8_columns": "narrow", "float32_columns": "narrow", "fp8_small_rows": "widen"}
    assert {case.group for case in cases} == set(family)
    for case in cases:
        assert set(wanted(case)) <= set(precision.RIVALS)
        plan = precision.Plan(precision.predict(case, case.make_pattern()))
        low = case.group.startswith("tf32") and case.block[0] <= 64
        assert plan.choice == ("kstream" if low else family[case.group]), case.name


@pytest.mark.parametrize(
    ("group", "dtype"),
    [
        ("tf32", "float32"),
        ("tf32_rows", "float32"),
        ("float64_rows", "float64"),
        ("float32_columns", "float32"),
        *product(
            ("fp8", "fp8_rows", "fp8_small_rows", "fp8_columns"), ("float8_e4m3fn", "float8_e5m2")
        ),
    ],
)
def test_suite(group: str, dtype: str) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    suite = PrecisionSuite(torch, "cpu", HostTimer(), peers=["own_float16", "torch_bsr"])
    outcome = suite.run(small(dtype, group=group))
    assert not outcome.wrong, outcome.notes
    rows = {row["who"]: row for row in outcome.rows}
    assert rows["bsrgemm"]["dtype"] == dtype and rows["bsrgemm"]["predicted_us"] > 0
    is_float32 = group == "float32_columns"
    assert ("own_float16" in rows) == (not group.endswith("_rows") and not is_float32)
    assert ("torch_bsr" in rows) == is_float32


def test_the_rival_of_eight_bits_runs_in_its_faster_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    asked: list[Any] = []

    def multiply(left: Any, right: Any, *_: Any, out_dtype: Any, **options: Any) -> Any:
        asked.append(options)
        return (left.float() @ right.float()).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", multiply)
    rivals = ["cublas_dense", "cublas_equal_flop"]
    outcome = PrecisionSuite(torch, "cpu", HostTimer(), peers=rivals).run(
        small("float8_e4m3fn", group="fp8")
    )
    assert {row["who"] for row in outcome.rows} == {"bsrgemm", *rivals}
    assert not any("error" in row or "wrong" in row for row in outcome.rows)
    assert asked and all(options == {"use_fast_accum": True} for options in asked)
