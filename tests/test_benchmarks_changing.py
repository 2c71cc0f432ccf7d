"""Suites of patterns that change, experts and softmax; what suites keep when a call fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_benchmarks import HostTimer, host_suite, small

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import gpu, records
from benchmarks.attention_suite import AttentionSuite
from benchmarks.dynamic import DynamicCase, DynamicSuite, dynamic_cases
from benchmarks.experts import ExpertsCase, ExpertsSuite, experts_cases
from benchmarks.softmax import SoftmaxCase, SoftmaxSuite, softmax_cases
from benchmarks.timing import Timing


def test_dynamic_suite() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = DynamicCase("dynamic", "float32", (4, 8), 3, 32, 16, 64, "zipf_rows")
    assert case.capacity == 30 and case.fields["capacity"] == 30
    outcome = DynamicSuite(torch, HostTimer(), "cpu").run(case)
    assert not outcome.wrong
    who = {row["who"]: row["tflops"] for row in outcome.rows}
    assert [name for name, rate in who.items() if rate == 0] == ["update", "gather", "update_topk"]
    forms = ("product", "transposed_product", "left_product", "sampled_product")
    assert {*forms, *(f"fixed_{form}" for form in forms)} < set(who)


@pytest.mark.parametrize("name", ["transposed_product", "left_product", "gather", "update_topk"])
def test_dynamic_suite_finds_what_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    suite, works = DynamicSuite(torch, HostTimer(), "cpu"), DynamicSuite._works

    def one_is_wrong(case: DynamicCase) -> dict[str, Any]:
        made = works(suite, case)
        found = made[name].found
        return made | {name: made[name]._replace(found=lambda: found() * 1.01)}

    monkeypatch.setattr(suite, "_works", one_is_wrong)
    outcome = suite.run(DynamicCase("dynamic", "float32", (4, 8), 3, 32, 16, 64))
    assert outcome.wrong and [row["who"] for row in outcome.rows if "wrong" in row] == [name]


def test_dynamic_cases() -> None:
    for case in dynamic_cases():
        assert len(case.make_pattern().indices) == case.nnzb <= case.capacity


@pytest.mark.parametrize(("tokens", "block", "top"), [(1, 4, 1), (50, 4, 2), (7, 8, 3)])
def test_experts_suite(tokens: int, block: int, top: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = ExpertsCase(12, 16, 5, top, tokens, block, "float32")
    outcome = ExpertsSuite(torch, HostTimer(), (), "cpu").run(case)
    assert not outcome.wrong and [row["who"] for row in outcome.rows] == ["pattern", "up", "down"]
    assert outcome.rows[1]["tokens"] == tokens and outcome.rows[0]["tflops"] == 0.0


def test_experts_cases() -> None:
    cases = list(experts_cases())
    assert len({case.name for case in cases}) == len(cases)
    assert all(case.hidden % case.block == 0 for case in cases)


@pytest.mark.parametrize("view", [False, True])
def test_softmax_suite(view: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    outcome = SoftmaxSuite(torch, "cpu", HostTimer(), ["torch"]).run(
        SoftmaxCase("float32", 16, 3, view, order=128)
    )
    assert not outcome.wrong and [row["who"] for row in outcome.rows] == ["bsrgemm", "torch_dense"]
    ours = outcome.rows[0]
    assert ours["density"] == 0.375 and 0 < ours["rel_err"] < 1e-6
    moved = 2 * 4 * 128 * 128 * 0.375
    assert ours["tb_s"] == pytest.approx(moved / ours["us"] / 1e6, rel=1e-2)
    cases = list(softmax_cases())
    assert len({case.name for case in cases}) == len(cases)


# ---- what fails ----------------------------------------------------------------------------------


class Failing(HostTimer):
    """Cannot time what comes after so many calls."""

    def __init__(self, left: int) -> None:
        self.left = left

    def sustained(self, call: Callable[[], Any], estimate: float) -> Timing:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("launch failed")
        return super().sustained(call, estimate)


def test_experts_suite_keeps_its_rows_beside_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = ExpertsCase(12, 16, 5, 2, 50, 4, "float32")

    def grouped(x: Any, weights: Any, offs: Any) -> Any:
        if x.shape[1] == 16:
            raise RuntimeError("no such kernel")
        parts = zip(x.tensor_split(offs[:-1].long()), weights, strict=True)
        return torch.cat([rows @ weight for rows, weight in parts])

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", grouped, raising=False)
    outcome = ExpertsSuite(torch, HostTimer(), ("grouped_mm",), "cpu").run(case)
    assert not outcome.wrong, outcome.notes
    ours, (up, down) = outcome.rows[:3], outcome.rows[3:]
    assert all(row["us"] > 0 and row["rel_err"] < 1e-6 for row in (*ours, up))
    assert down["who"] == "grouped_down" and down["error"] == "RuntimeError: no such kernel"

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", lambda x, w, offs: x @ w[0])
    rows = ExpertsSuite(torch, HostTimer(), ("grouped_mm",), "cpu").run(case).rows
    assert ["wrong" in row for row in rows] == [False] * 3 + [True] * 2


def test_suites_keep_rows_beside_what_fails() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = SoftmaxCase("float32", 16, 3, False, order=128)
    ours, dense = SoftmaxSuite(torch, "cpu", Failing(1), ["torch"]).run(case).rows
    assert ours["us"] > 0 and dense["error"] == "RuntimeError: launch failed"
    outcome = SoftmaxSuite(torch, "cpu", Failing(0), []).run(case)
    assert outcome.wrong and outcome.rows[0]["error"]

    changing = DynamicCase("dynamic", "float32", (4, 8), 3, 32, 16, 64)
    outcome = DynamicSuite(torch, Failing(2), "cpu").run(changing)
    assert outcome.wrong and ["error" in row for row in outcome.rows] == [False] * 2 + [True] * 9

    # Ours, the peer; the peer's second turn fails.
    suite = host_suite(peers=["cublas_equal_flop"], turns=3)
    suite.timer = Failing(2)
    outcome = suite.run(small())
    ours, _, dense, _ = outcome.rows
    assert dense["error"] == "RuntimeError: launch failed" and dense["us"] is None
    assert outcome.wrong and ours["error"] == dense["error"]


def test_a_case_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    suite = host_suite(peers=[])
    original = suite._reference

    def no_memory(p: Any) -> Any:
        if p.case.n == 64:
            raise MemoryError("out of memory")
        return original(p)

    monkeypatch.setattr(suite, "_reference", no_memory)
    results = records.Results(tmp_path / "gpu.json", records.facts("abc", None))
    cases = [small(n=64), small()]
    assert gpu.run_cases(suite, cases, results) == [cases[0].name]
    assert "Traceback" in capsys.readouterr().err
    first, *rest = results.rows
    assert first["who"] == "bsrgemm" and first["error"] == "MemoryError: out of memory"
    assert rest and all(row["us"] > 0 for row in rest)


def test_attention_leaves_out_who_refuses_and_records_who_fails() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    suite = AttentionSuite(torch, "cpu", HostTimer())
    refusals = (ValueError("no"), RuntimeError("No available kernel. Aborting execution."))
    for error in (*refusals, RuntimeError("only supports sm80"), ModuleNotFoundError("flash")):
        rows, note = suite._error(small(), "flash3", error)
        assert rows == [] and note.startswith("left out: ")
    for error in (MemoryError("CUDA out of memory"), RuntimeError("launch failed")):
        (row,), note = suite._error(small(), "flash3", error)
        assert row["who"] == "flash3" and row["us"] is None
        assert row["error"] == note == f"{type(error).__name__}: {error}"
    assert suite._error(small(), "bsrgemm", refusals[0])[0][0]["error"] == "ValueError: no"
