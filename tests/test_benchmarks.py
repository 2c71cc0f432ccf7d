"""The benchmark harness: its patterns, its timers and its suites on small cases."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import bsrgemm  # noqa: E402
from bsrgemm import __main__ as command_line  # noqa: E402
from bsrgemm import _bench  # noqa: E402

from benchmarks import cpu, peers, records, timing  # noqa: E402
from benchmarks import suite as suite_module  # noqa: E402
from benchmarks.cases import FORMS, Case, PairsCase, cpu_cases, gpu_cases, select  # noqa: E402
from benchmarks.families import FamilySuite  # noqa: E402
from benchmarks.pairs import PairsSuite  # noqa: E402
from benchmarks.patterns import PATTERNS  # noqa: E402
from benchmarks.suite import Suite  # noqa: E402
from benchmarks.timing import DeviceTimer, Timing, rounds  # noqa: E402

GRIDS = ((64, 64, 8), (128, 64, 8), (16, 74, 16), (50, 33, 4), (7, 5, 5), (3, 9, 1))


# ---- patterns ------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_is_a_structure_of_the_promised_size(name: str, grid: tuple[int, int, int]) -> None:
    rows, cols, count = grid
    found = PATTERNS[name](np.random.default_rng(5), *grid)
    again = PATTERNS[name](np.random.default_rng(5), *grid)
    assert np.array_equal(found.indices, again.indices) and np.array_equal(
        found.indptr, again.indptr
    )
    # Construction checks the range, order and uniqueness of the columns.
    data = np.zeros((len(found.indices), 1, 1), np.float32)
    matrix = bsrgemm.bsr_array((data, found.indices, found.indptr), shape=(rows, cols))
    assert matrix.nnzb == (2 * cols if name == "two_full_rows" else rows * count)
    lengths = np.diff(found.indptr)
    if name in ("uniform", "banded", "block_diagonal", "zipf_columns"):
        assert set(lengths) == {count}
    if name == "two_full_rows":
        assert sorted(set(lengths)) == [0, cols] and (lengths == cols).sum() == 2


def test_patterns_have_their_character() -> None:
    rows, cols, count = 64, 64, 8
    made = {name: f(np.random.default_rng(5), rows, cols, count) for name, f in PATTERNS.items()}
    uniform, banded = made["uniform"], made["banded"]
    assert np.abs(banded.indices - banded.rows).max() <= count
    assert np.array_equal(made["block_diagonal"].indices // count, made["block_diagonal"].rows // 8)

    lengths = np.sort(np.diff(made["zipf_rows"].indptr))[::-1]
    assert lengths[0] == cols and lengths[-1] < count / 2, "a few long rows and many short ones"
    free = lengths[lengths < cols]
    rank = np.arange(len(lengths) - len(free), len(lengths)) + 1
    assert np.ptp(free * rank) <= 2 * rank.max(), "lengths times rank are constant but for rounding"
    assert not np.array_equal(np.diff(made["zipf_rows"].indptr), lengths), "in random order"

    def largest_share(indices: np.ndarray) -> float:
        return np.bincount(indices, minlength=cols).max() / rows

    assert largest_share(made["zipf_columns"].indices) > 0.7 > 0.4 > largest_share(uniform.indices)
    assert np.bincount(uniform.indices, minlength=cols).min() > 0

    scattered = np.diff(made["scattered"].indptr)
    assert 0 < scattered.min() < count < scattered.max() < 3 * count


# ---- cases ---------------------------------------------------------------------------------------


def test_cases_are_consistent() -> None:
    cases = [*gpu_cases(["float16", "bfloat16", "float32"]), *cpu_cases(["float32", "float64"])]
    names = [case.name for case in cases]
    assert len({*names}) == len(names)
    for case in cases:
        rows, cols = case.grid
        assert (rows * case.block[0], cols * case.block[1]) == (case.m, case.k), case.name
        assert len(case.make_pattern().indices) == case.nnzb, case.name
        equal = 2.0 * case.m * case.n * case.equal_flop_k
        assert abs(equal / case.useful_flops - 1) < 0.02 or case.equal_flop_k == 8, case.name
    assert len(select(cases, "float16/512x112")) == 2
    assert {case.pattern for case in select(cases, "^patterns/float16/64x64")} == {*PATTERNS} - {
        "uniform"
    }


# ---- suites --------------------------------------------------------------------------------------


class HostTimer:
    """Stands in for the timer of a GPU: every call is done when it returns."""

    def prepare(self, call: Callable[[], Any]) -> tuple[Callable[[], Any], float]:
        return call, self._once(call).seconds

    def sustained(self, call: Callable[[], Any], estimate: float) -> Timing:
        return self._once(call)

    def burst(self, call: Callable[[], Any]) -> Timing:
        return self._once(call)

    def cold(self, calls: list[Callable[[], Any]]) -> Timing:
        return max((self._once(call) for call in calls), key=lambda timing: timing.seconds)

    def synchronize(self) -> None:
        pass

    def _once(self, call: Callable[[], Any]) -> Timing:
        start = time.perf_counter()
        call()
        return Timing(time.perf_counter() - start, 1)


def small(dtype: str = "float32", **changes: Any) -> Case:
    case = {"group": "blocks", "dtype": dtype, "block": (64, 64), "count": 2}
    return Case(**(case | {"m": 256, "n": 128, "k": 512} | changes))


def host_suite(**changes: Any) -> Suite:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return Suite(torch, "cpu", HostTimer(), **changes)


def test_gpu_suite_measures_and_records_errors(tmp_path: Path) -> None:
    suite = host_suite(peers=["cublas_dense", "cublas_equal_flop", "torch_bsr", "torch_triton"])
    results = records.Results(tmp_path / "gpu.json", records.facts("abc", None))
    for case in (small(), small(pattern="zipf_rows"), small("float16", block=(32, 32), count=4)):
        outcome = suite.run(case)
        assert not outcome.wrong, outcome.notes
        results.add(outcome.rows)
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert content["commit"] == "abc" and content["gpu"] is None
    rows = content["rows"]
    by_who = {who: [row for row in rows if row["who"] == who] for who in (r["who"] for r in rows)}
    assert [row["timing"] for row in by_who["bsrgemm"]] == ["sustained", "burst"] * 3
    ours = by_who["bsrgemm"][0]
    assert ours["nnzb"] == 8 and ours["density"] == 0.25 and ours["block"] == [64, 64]
    useful = 2 * 8 * 64 * 64 * 128
    assert ours["tflops"] == pytest.approx(useful / ours["us"] / 1e6, rel=1e-3)
    assert 0 < ours["rel_err"] < 1e-6 and ours["predicted_us"] > 0
    assert ours["family"] in ("narrow", "portable")
    # Once for both float32 cases, which need the same dense products, and once for the other.
    assert len(by_who["cublas_dense"]) == len(by_who["cublas_equal_flop"]) == 4
    assert all(row["rel_err"] < 1e-3 and row["us"] > 0 for row in by_who["cublas_dense"])
    # There is no Triton on the host; what it raises is in the results.
    (failed,) = by_who["torch_triton"]
    assert failed["us"] is None and failed["dtype"] == "float16" and failed["error"]


def test_gpu_suite_has_no_row_of_who_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stk", None)
    outcome = host_suite(peers=["stk"]).run(small("float16", block=(128, 128), count=4))
    assert {row["who"] for row in outcome.rows} == {"bsrgemm"} and not outcome.wrong
    assert any("stk left out: ModuleNotFoundError" in note for note in outcome.notes)


@pytest.mark.parametrize("group", FORMS)
def test_gpu_suite_measures_other_forms(group: str) -> None:
    suite = host_suite()
    case = small(group=group, block=(64, 32))
    outcome = suite.run(case)
    assert not outcome.wrong, outcome.notes
    rivals = ["cublas_layer", "cublas_dense"] if group == "linear" else ["bsrgemm_plain"]
    assert [row["who"] for row in outcome.rows] == [w for w in ["bsrgemm", *rivals] for _ in "12"]
    assert {row["op"] for row in outcome.rows} == {FORMS[group]}
    assert all(row["rel_err"] < 1e-6 for row in outcome.rows)


def test_gpu_suite_measures_two_sparse_matrices() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = PairsCase("bsr_bsr", "float32", (64, 32), 2, 256, 192, 128, b_width=48, b_count=3)
    suite = PairsSuite(torch, "cpu", HostTimer(), peers=["cublas_dense", "cublas_equal_flop"])
    outcome = suite.run(case)
    assert not outcome.wrong, outcome.notes
    assert {row["who"] for row in outcome.rows} == {"bsrgemm", "cublas_dense", "cublas_equal_flop"}
    a, b = case.make_pattern(), case.make_b_pattern()
    met = sum(int(np.diff(b.indptr)[k]) for k in a.indices)
    ours = outcome.rows[0]
    assert ours["op"] == "bsr @ bsr" and ours["pairs"] == case.pairs == met > 0
    useful = 2 * met * 64 * 32 * 48
    assert ours["tflops"] == pytest.approx(useful / ours["us"] / 1e6, rel=1e-3)
    assert ours["rel_err"] < 1e-6
    # Other cases go the way of the suite that it is built on.
    assert not suite.run(small()).wrong


def rows_in_turns(times: list[float], peers: list[str]) -> list[records.Row]:
    """Of a suite of three turns whose sustained times these are, one after the other."""

    class Clock(HostTimer):
        left = iter(times)

        def prepare(self, call: Callable[[], Any]) -> tuple[Callable[[], Any], float]:
            return call, 1e-3

        def sustained(self, call: Callable[[], Any], estimate: float) -> Timing:
            call()
            return Timing(next(self.left), 10)

    suite = host_suite(peers=peers, turns=3)
    suite.timer = Clock()
    return [row for row in suite.run(small()).rows if row["timing"] == "sustained"]


def test_those_compared_are_measured_in_turns() -> None:
    rows = rows_in_turns([5e-3, 1e-3, 2e-3, 9e-3, 7e-3, 4e-3], ["cublas_equal_flop"])
    # Ours, the peer; the peer, ours; ours, the peer.
    assert [row["turns_us"] for row in rows] == [[5e3, 9e3, 7e3], [1e3, 2e3, 4e3]]
    assert [row["us"] for row in rows] == [7e3, 2e3]
    useful = 2 * 8 * 64 * 64 * 128
    assert rows[0]["tflops"] == pytest.approx(useful / 7e-3 / 1e12, rel=1e-3)


def test_who_is_alone_is_measured_as_often() -> None:
    (row,) = rows_in_turns([5e-3, 2e-3, 3e-3], [])
    assert row["turns_us"] == [5e3, 2e3, 3e3] and row["us"] == 3e3


def test_dense_products_of_other_zeros_are_measured_apart() -> None:
    suite = host_suite(peers=["cublas_dense"])
    counts = (1, 4, 4, 8)
    dense = [
        [row["who"] for row in suite.run(small(count=count)).rows].count("cublas_dense")
        for count in counts
    ]
    assert dense == [2, 2, 0, 2]  # sustained and burst


def test_gpu_suite_rotates_over_cold_operands() -> None:
    suite = host_suite(peers=["cublas_dense"], l2_bytes=300e3)
    outcome = suite.run(small(group="columns", n=1, timings=("cold",)))
    assert [(row["who"], row["timing"]) for row in outcome.rows] == [
        ("bsrgemm", "cold"),
        ("cublas_dense", "cold"),
    ]


def test_gpu_suite_forces_the_families_that_a_case_admits() -> None:
    suite = host_suite(peers=[], families=["tall", "auto"])
    assert [row["who"] for row in suite.run(small()).rows] == ["bsrgemm"] * 2


def test_gpu_suite_finds_a_wrong_product(monkeypatch: pytest.MonkeyPatch) -> None:
    right = suite_module.product

    def one_element_missing(*arguments: Any) -> Any:
        out = right(*arguments)
        out[-1, -1] = float("nan")
        return out

    suite = host_suite(peers=[])
    monkeypatch.setattr(suite_module, "product", one_element_missing)
    outcome = suite.run(small())
    assert outcome.wrong and outcome.rows[0]["wrong"] and outcome.rows[0]["rel_err"] is None
    assert suite_module.relative_error(suite.torch, suite.torch.ones(2), suite.torch.ones(2)) == 0


def test_every_family_of_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    right = suite_module.product
    # The host knows no families: they are all the same there, but for one that is wrong.
    wrong: list[str] = []

    def any_family(*arguments: Any) -> Any:
        out = right(*arguments[:-1], "auto")
        if arguments[-1] in wrong:
            out.mul_(2)
        return out

    monkeypatch.setattr(suite_module, "product", any_family)
    suite = FamilySuite(torch, "cpu", HostTimer(), peers=[], l2_bytes=300e3)
    case = small("float16")
    outcome = suite.run(case)
    assert not outcome.wrong, outcome.notes
    candidates = suite._matrix(suite._problem(case)).plan(case.n).candidates
    supported = {f"bsrgemm:{c['family']}" for c in candidates if c["supported"]}
    assert len(outcome.rows) > 1 and {row["who"] for row in outcome.rows} <= supported
    assert [row["chosen"] for row in outcome.rows].count(True) == 1
    assert {row["timing"] for row in outcome.rows} == {"short"}
    cold = suite.run(small("float16", group="columns", n=8, timings=("cold",)))
    assert {row["timing"] for row in cold.rows} == {"cold"}

    wrong.append(outcome.rows[-1]["family"])
    outcome = suite.run(case)
    assert outcome.wrong and outcome.rows[-1]["wrong"] and "wrong" not in outcome.rows[0]


def test_cpu_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed")
    case = next(cpu_cases(["float32"], order=256))
    rows, notes = cpu.measure(case, ["numpy_dense", "scipy_bsr"], 3)
    assert [row["who"] for row in rows] == ["bsrgemm", "numpy_dense", "scipy_bsr"], notes
    assert all(row["rel_err"] < 1e-6 and row["runs"] == 3 for row in rows)
    assert 0.9 < rows[0]["peak_memory"] < 20, "a small product, in a process with room of its own"
    assert "wrong" not in rows[0]

    monkeypatch.setattr(cpu, "matmul", lambda a, b, out: out.fill(1.0))
    assert cpu.measure(case, [], 1)[0][0]["wrong"]


class SimulatedGpu:
    """The part of torch.cuda that timers use, around one stream with a clock that only launches
    move. ``host_seconds`` is what a launch costs the host, on the same clock, and a graph's costs
    ``graph_seconds``."""

    graph_seconds = 12e-6

    def __init__(self, host_seconds: float = 0.0) -> None:
        self.cuda = self
        self.host_seconds = host_seconds
        self.stream = self.host = 0.0
        self.capturing: list[float] | None = None

    def launch(self, seconds: float, host_seconds: float | None = None) -> None:
        if self.capturing is not None:
            self.capturing.append(seconds)
            return
        self.host += self.host_seconds if host_seconds is None else host_seconds
        self.stream = max(self.stream, self.host) + seconds

    def _sleep(self, cycles: int) -> None:
        self.stream = max(self.stream, self.host) + cycles / 2e9

    def synchronize(self) -> None:
        self.host = max(self.host, self.stream)

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        event = SimpleNamespace(at=0.0)

        def record() -> None:
            event.at = max(self.stream, self.host)

        event.record = record
        event.elapsed_time = lambda later: (later.at - event.at) * 1e3
        event.query = lambda: event.at <= self.host
        event.synchronize = lambda: setattr(self, "host", max(self.host, event.at))
        return event

    def CUDAGraph(self) -> SimpleNamespace:
        graph = SimpleNamespace(launches=[])

        def replay() -> None:
            self.host += self.graph_seconds
            for seconds in graph.launches:
                self.launch(seconds, 0.0)

        graph.replay = replay
        return graph

    @contextlib.contextmanager
    def graph(self, graph: SimpleNamespace) -> Iterator[None]:
        self.capturing = graph.launches
        try:
            yield
        finally:
            self.capturing = None


def simulate(monkeypatch: pytest.MonkeyPatch, gpu: SimulatedGpu) -> DeviceTimer:
    def sleep(seconds: float) -> None:
        gpu.host += seconds

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: gpu.host, sleep=sleep))
    return DeviceTimer(gpu)


@pytest.mark.parametrize("seconds", [3e-6, 250e-6, 20e-3, 0.5])
def test_device_timer(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    gpu = SimulatedGpu(host_seconds=1e-6)
    timer = simulate(monkeypatch, gpu)
    call, estimate = timer.prepare(lambda: gpu.launch(seconds))
    assert estimate == pytest.approx(seconds)
    before = gpu.stream
    found = timer.sustained(call, estimate)
    assert found.seconds == pytest.approx(seconds)
    assert gpu.stream - before >= 160e-3 and found.launches * seconds >= 60e-3
    timer.synchronize()
    before = gpu.host
    found = timer.burst(call)
    assert (found.seconds, found.launches) == (pytest.approx(seconds), 10)
    assert gpu.host - before >= 60e-3 + 12 * seconds
    assert timer.cold([call] * 3).seconds == pytest.approx(seconds)


def test_device_timer_takes_the_host_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that costs the host more than the GPU is timed as a graph, if it can be captured, but
    not one that did so once."""
    gpu = SimulatedGpu(host_seconds=300e-6)
    timer = simulate(monkeypatch, gpu)
    for seconds, graph in ((300e-6, {"graph": True}), (7e-6, {"graph": True, "graph_calls": 29})):
        call, estimate = timer.prepare(lambda seconds=seconds: gpu.launch(seconds))
        assert timing.graph_of(call) == graph
        before = gpu.stream
        found = timer.sustained(call, estimate)
        assert found.seconds == pytest.approx(seconds)
        assert gpu.stream - before >= 160e-3 and 60e-3 <= found.launches * seconds < 70e-3
        assert timer.burst(call).seconds == pytest.approx(seconds)
        assert timer.cold([call] * 3).seconds == pytest.approx(seconds)

    delays = iter([0.0, 0.0, 2e-3])  # once, in the first measurement

    def delayed() -> None:
        assert gpu.capturing is None
        gpu.launch(100e-6, next(delays, 0.0))

    call, estimate = timer.prepare(delayed)
    assert timing.graph_of(call) == {}
    assert timer.sustained(call, estimate).seconds == pytest.approx(100e-6)

    def uncapturable() -> None:
        if gpu.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        gpu.launch(100e-6)

    call, estimate = timer.prepare(uncapturable)
    assert timing.graph_of(call) == {"graph": False}
    assert timer.sustained(call, estimate).seconds == pytest.approx(300e-6)


def test_fastest_setting_is_that_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the host needs: a busy one would choose settings for the peers at random."""
    gpu = SimulatedGpu()
    simulate(monkeypatch, gpu)

    def fails() -> None:
        raise RuntimeError("out of resource")

    calls = [
        lambda: gpu.launch(90e-6, host_seconds=100e-6),
        fails,
        lambda: gpu.launch(50e-6, host_seconds=300e-6),
        lambda: gpu.launch(70e-6, host_seconds=100e-6),
    ]
    assert peers._fastest(gpu, calls, [0, 1, 2, 3]) == 2
    with pytest.raises(RuntimeError, match="out of resource"):
        peers._fastest(gpu, [fails], [0])


def test_triton_is_searched_for_each_density(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    operations = SimpleNamespace(bsr_dense_addmm=None)
    monkeypatch.setitem(sys.modules, "torch.sparse._triton_ops", operations)
    searched: list[int] = []
    monkeypatch.setattr(peers, "_fastest", lambda _, calls, metas: searched.append(len(metas)))
    suite = Suite(torch, "cpu", HostTimer(), peers=[])
    for count, dtype in ((2, "float16"), (4, "float16"), (4, "bfloat16"), (2, "bfloat16")):
        peers.torch_triton(suite._problem(small(dtype, count=count)))
    assert searched == [2, 2]


def test_device_timer_keeps_what_a_graph_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu(host_seconds=300e-6)
    timer = simulate(monkeypatch, gpu)
    operand = np.array(100e-6)
    kept = weakref.ref(operand)

    def call(operand: Any = operand) -> None:
        gpu.launch(float(operand))

    replay, _ = timer.prepare(call)
    del call, operand
    gc.collect()
    assert kept() is not None
    replay()


def test_rounds_take_turns() -> None:
    order: list[str] = []
    times = rounds({name: lambda n=name: order.append(n) for name in "ab"}, 3, rest=0.0)
    assert order == ["a", "b"] * 3
    assert {name: len(found) for name, found in times.items()} == {"a": 3, "b": 3}


# ---- the command line --------------------------------------------------------------------------


def test_harness_command_line() -> None:
    command = [sys.executable, "-m", "benchmarks", "gpu", "--dry-run", "--select", "128x128"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "blocks/float16/128x128/d0.125/uniform/8192x8192x8192: predicted" in done.stdout
    assert "cublas_equal_flop torch_triton stk cusparse" in done.stdout
    done = subprocess.run([*command, "--peers", "nobody"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "nobody" in done.stderr


# ---- python -m bsrgemm bench ---------------------------------------------------------------------


def test_bench_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--device", "cpu", "--quick", "--n", "256", "--dtype", "float32"]
    assert command_line.main(arguments) == 0
    out = capsys.readouterr().out
    measured, predicted = out.split("predicted, not measured, for one NVIDIA H200")
    assert "GFLOP/s" in measured and measured.count("relative error") == 4
    families = ("tall", "stream", "regroup", "align", "narrow", "portable")
    assert "TFLOP/s" in predicted and sum(map(predicted.count, families)) == 4


def test_bench_reports_a_wrong_product(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_bench, "matmul", lambda a, b, out: out)
    assert command_line.main(["bench", "--device", "cpu", "--quick", "--n", "128"]) == 1
    assert "WRONG: 16x16" in capsys.readouterr().err


def test_bench_refuses_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["bench", "--n", "100", "--device", "cpu"]) == 2
    assert "multiples of 128" in capsys.readouterr().err
    assert command_line.main(["bench", "--device", "tpu"]) == 2
    assert command_line.main(["bench", "--device", "cuda:99", "--n", "128"]) == 2
    assert "cuda:99" in capsys.readouterr().err
