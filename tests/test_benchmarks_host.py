"""The suites of host time and of training, and their tables, on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spaces import import_torch

torch = import_torch()

from bsrgemm import _core  # noqa: E402

from benchmarks import __main__ as harness  # noqa: E402 (skipped above where torch is missing)
from benchmarks import records, report  # noqa: E402
from benchmarks.host import OURS, PEERS, HostCase, HostSuite, host_cases  # noqa: E402
from benchmarks.training import (  # noqa: E402
    PARTS,
    TrainingCase,
    TrainingSuite,
    training_cases,
)

HOST = HostCase("float32", 4, 8, 3)
SMALL = TrainingCase("gelu", "float32", 8, 0.25, 12, 16, 32)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny products and steps: threads would only wait for one another."""
    threads = _core.get_num_threads(), torch.get_num_threads()
    _core.set_num_threads(1)
    torch.set_num_threads(1)
    yield
    _core.set_num_threads(threads[0])
    torch.set_num_threads(threads[1])


def write(root: Path, slug: str, rows: list[Any]) -> Path:
    folder = root / slug
    folder.mkdir()
    machine = {"driver": "580.1", "cpu": "A CPU", "isa": "avx2", "threads": 2}
    facts = {"commit": "c0ffee", "date": "2026-01-01T00:00:00Z", "machine": machine}
    facts |= {"gpu": None if slug == "cpu" else "NVIDIA H200", "software": {"bsrgemm": "0.1.0"}}
    (folder / "one.json").write_text(records.dump(facts, rows))
    return root


def test_host_suite() -> None:
    _core.set_num_threads(2)
    outcome = HostSuite(torch, "cpu", calls=4).run(HOST)
    assert not outcome.wrong
    assert [row["who"] for row in outcome.rows] == [*OURS, *PEERS]
    assert all(row["us"] > 0 and row["calls"] == 4 for row in outcome.rows if "error" not in row)
    assert (_core.get_num_threads(), torch.get_num_threads()) == (2, 1)  # as before


def test_host_suite_counts_calls() -> None:
    suite = HostSuite(torch, "cpu", calls=1000)
    made: list[str] = []
    calls = {who: functools.partial(made.append, who) for who in "ab"}
    seconds = suite._seconds(calls)
    assert [len(seconds[who]) for who in calls] == [2, 2]
    assert made == 3 * (400 * ["a"] + 400 * ["b"])  # in turns; the first of each warms up


def test_host_suite_finds_a_wrong_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.host.matmul", lambda a, x, out=None: (a @ x) * 1.01)
    outcome = HostSuite(torch, "cpu", calls=1).run(HOST)
    assert outcome.wrong
    marked = {row["who"] for row in outcome.rows if row.get("wrong")}
    assert marked == {"matmul_out", "matmul_new"}


def test_host_cases_and_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(case.make_pattern().indices.size for case in host_cases("cuda:0"))
    arguments = ["host", "--device", "cpu", "--calls", "2", "--out", str(tmp_path)]
    assert harness.main(arguments) == 0 and (tmp_path / "host.json").exists()
    assert "benchmarks/results/cpu/host.json" in capsys.readouterr().out


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_training_suite(activation: str) -> None:
    case = TrainingCase(activation, "float32", 8, 0.25, 12, 16, 32)
    suite = TrainingSuite(torch, "cpu", ("bsrgemm", "dense"), warm=0.0, steps=2)
    outcome = suite.run(case)
    assert not outcome.wrong, suite._errors(case)
    sparse, dense = (
        {row["timing"]: row for row in outcome.rows if row["who"] == who}
        for who in ("bsrgemm", "dense")
    )
    assert list(sparse) == list(dense) == [*PARTS, "step"]
    assert sparse["step"]["host_us"] > 0
    # Weights, gradients and two moments, in float32; biases are dense.
    biases = 4 * 4 * (16 + 32)
    assert dense["step"]["state_bytes"] == 4 * 4 * 2 * 16 * 32 + biases
    assert sparse["step"]["state_bytes"] == 4 * 4 * 2 * 16 * 32 // 4 + biases


@pytest.mark.parametrize("name", ["try_linear", "sampled_matmul"])
def test_training_suite_finds_wrong_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(_core, name)

    def wrong(*args: Any) -> Any:
        result = original(*args)
        if isinstance(result, torch.Tensor):
            return result * 1.01
        if result is None:
            args[3].mul_(1.01)  # out
        return result

    monkeypatch.setattr(_core, name, wrong)
    outcome = TrainingSuite(torch, "cpu", ("bsrgemm", "dense"), warm=0.0, steps=2).run(SMALL)
    assert outcome.wrong
    assert all(("wrong" in row) == (row["who"] == "bsrgemm") for row in outcome.rows)


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_training_suite_looks_at_compiled_models(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda model: lambda x: model(x) * factor)
    kinds = ("bsrgemm_compiled", "bsrgemm", "dense_compiled")
    outcome = TrainingSuite(torch, "cpu", kinds, warm=0.0, steps=2).run(SMALL)
    marked = {row["who"] for row in outcome.rows if "wrong" in row}
    assert marked == ({"bsrgemm_compiled", "dense_compiled"} if factor > 1 else set())
    assert outcome.wrong == (factor > 1) and not any("error" in row for row in outcome.rows)


def test_training_cases() -> None:
    for case in training_cases():
        assert case.features % case.block == case.hidden % case.block == 0
        assert case.flops(True) == case.density * case.flops(False)


def test_tables(tmp_path: Path) -> None:
    rows = [
        records.make_row(HOST, who, "host", 1e-6 * (i + 2), 0.0, calls=4)
        for i, who in enumerate((*OURS, *PEERS[:-1]))
    ]
    rows.append(records.make_row(HOST, PEERS[-1], None, None, 0.0, error="no"))
    for who, factor in (("bsrgemm", 1.0), ("dense", 4.0)):
        for i, part in enumerate((*PARTS, "step")):
            extra = {"host_us": 250.0, "state_bytes": 10**9} if part == "step" else {}
            rows.append(records.make_row(SMALL, who, part, factor * (i + 1) * 1e-3, 0.0, **extra))
    rows.append(records.make_row(SMALL, "dense_compiled", None, None, 0.0, error="no"))
    results = write(tmp_path, "h200", rows)
    write(tmp_path, "cpu", rows[: len(OURS) + len(PEERS)])
    host = "| 8 × 8 | 4×4 | float32 | 3 | 2.00 | 3.00 | 4.00 | 5.00 | 6.00 | 7.00 | 8.00 | fails |"
    for name in ("gpu-host", "cpu-host"):
        assert report.table(results, name).splitlines()[2] == host
    lines = report.table(results, "gpu-training").splitlines()[2:4]
    assert lines == [
        "| gelu | BSRLinear | 1.00 | 2.00 | 3.00 | 4.00 | 4.00 | 0.25 | 1.00 | - |",
        "| gelu | torch.nn.Linear | 4.00 | 8.00 | 12.0 | 16.0 | 1.00 | 0.25 | 1.00 | - |",
    ]
