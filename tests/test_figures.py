"""Pictures and their numbers, and how good predictions are by the committed measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bsrgemm import __main__ as command_line
from bsrgemm import _bench_figures, _figures
from bsrgemm._figures import Timed

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import __main__ as harness  # noqa: E402
from benchmarks import accuracy, figures  # noqa: E402
from benchmarks.report import GPU_SLUG, RESULTS, load  # noqa: E402

PRODUCTS = [
    Timed("16×16", 0.1, 2e-3, 4e12, 1e9),
    Timed("16×16", 0.05, 1e-3, 2e12, 1e9),
    Timed("64×64", 0.1, 1e-3, 4e12, 1e9),
]


def panels() -> list[_figures.Panel]:
    return [
        _figures.crossover(PRODUCTS, 5e-3, "dense", "float16", "made up"),
        _figures.roofline(PRODUCTS, 5e15, "dense", 4e12, _figures.TERA, "float16", "made up"),
        _figures.attention(
            [_figures.Curve("ours", (0.1, 0.5), (1.0, 5.0))], [("dense", 8.0)], "some", "made up"
        ),
    ]


def test_panels() -> None:
    crossover, roofline, attention = panels()
    assert crossover.curves[0] == ("16×16", (0.05, 0.1), (1.0, 2.0), "line")
    assert crossover.curves[-1] == ("dense", (0.05, 0.1), (5.0, 5.0), "peer")
    assert roofline.curves[0] == ("16×16", (2000.0, 4000.0), (2000.0, 2000.0), "points")
    memory, peak = roofline.curves[2:]
    # Both limits meet at 5e15 / 4e12 FLOP a byte.
    assert memory.x == (375.0, 1250.0) and memory.y == (1500.0, 5000.0)
    assert peak.x == (1250.0, 4000.0) and peak.y == (5000.0, 5000.0)
    assert attention.curves[-1].x == (0.1, 1.0)
    without = _figures.roofline(PRODUCTS, None, "", None, _figures.GIGA, "float32", "made up")
    assert [curve.kind for curve in without.curves] == ["points", "points"]


def test_the_repository_s_pictures_show_its_results() -> None:
    """And so do the numbers in the package."""
    found = figures.panels_of(load(ROOT / RESULTS / GPU_SLUG))
    assert figures.stale_files(ROOT, found) == [], "run: python -m benchmarks figures"
    assert [_figures.shipped()[panel.name] for panel in found] == found
    for path in (ROOT / figures.PICTURES).iterdir():
        assert path.stat().st_size < 150_000


def test_the_dense_product_is_that_of_the_runs_beside_it() -> None:
    runs = load(ROOT / RESULTS / GPU_SLUG)
    crossover, roofline, _ = figures.panels_of(runs)
    *ours, dense = crossover.curves
    assert dense.kind == "peer" and len(dense.x) == len({x for curve in ours for x in curve.x})
    # Full blocks have no zeros, which take less power.
    assert dense.x[-1] == 1 and dense.y[-1] > 1.05 * dense.y[0]
    for panel, timing, groups in (
        (crossover, "sustained", ("crossover/",)),
        (roofline, "sustained", ("blocks/",)),
        (roofline, "cold", ("columns/",)),
    ):
        shown = [run for group in groups for run, _ in figures._found(runs, timing, group)]
        assert {run.facts["date"][:10] for run in shown} <= set(panel.source.split(", "))


def test_another_measurement_makes_a_picture_stale(tmp_path: Path) -> None:
    found = figures.panels_of(load(ROOT / RESULTS / GPU_SLUG))
    pictures = tmp_path / figures.PICTURES
    pictures.mkdir(parents=True)
    for panel in found:
        picture = ROOT / figures.PICTURES / f"{panel.name}.svg"
        (pictures / picture.name).write_bytes(picture.read_bytes())
    numbers = tmp_path / figures.NUMBERS
    numbers.parent.mkdir(parents=True)
    numbers.write_text(figures.numbers(found))
    assert figures.stale_files(tmp_path, found) == []
    first = found[0].curves[0]
    changed = first._replace(y=(first.y[0] + 0.001, *first.y[1:]))
    found[0] = found[0]._replace(curves=(changed, *found[0].curves[1:]))
    assert figures.stale_files(tmp_path, found) == [pictures / "crossover.svg", numbers]


def test_drawing_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bench(*arguments: str) -> str:
        assert command_line.main(["bench", "--n", "128", "--device", "cpu", *arguments]) == 2
        captured = capsys.readouterr()
        assert "measured on" not in captured.out
        return captured.err

    assert "accepted: .png and .svg" in bench("--plot", str(tmp_path / "a.gif"))
    assert "is no folder" in bench("--plot", str(tmp_path / "none" / "a.svg"))
    assert "without --plot" in bench("--source", "results")
    known = ("--source", "results", "--plot", str(tmp_path / "a.svg"))
    assert "--n is for measurements, and --source is results" in bench(*known)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install matplotlib" in bench("--plot", str(tmp_path / "a.svg"))
    assert harness.main(["figures", "--check"]) == 0


@pytest.mark.parametrize("suffix", _figures.FORMATS)
def test_pictures_are_drawn(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / f"a{suffix}"
    _figures.draw(panels(), path)
    written = path.read_bytes()
    if suffix == ".svg":
        drawn = json.loads(json.dumps([_figures.as_data(panel) for panel in panels()]))
        assert figures.shown_by(path) == drawn
        assert "Attention over a block mask: some" in written.decode()
        _figures.draw(panels(), path)
        assert path.read_bytes() == written, "the same numbers make the same file"
    else:
        assert written.startswith(b"\x89PNG")


def test_bench_draws_what_is_known_or_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without matplotlib too: what would be drawn."""
    drawn: list[list[_figures.Panel]] = []
    monkeypatch.setattr(_figures, "draw", lambda panels, path: drawn.append(panels))
    monkeypatch.setattr(_bench_figures, "check_path", lambda path: None)
    monkeypatch.setitem(_bench_figures.ORDER, "cuda", 1024)
    monkeypatch.setitem(_bench_figures.ATTENTION, "cpu", ("float32", 1, 512, 16))
    path = str(tmp_path / "a.svg")
    for source in ("results", "predictions"):
        assert command_line.main(["bench", "--plot", path, "--source", source]) == 0
    known, predicted = drawn
    assert known == list(_figures.shipped().values())
    assert "predicted for an NVIDIA H200, not measured" in capsys.readouterr().out
    assert [panel.source.split()[0] for panel in predicted] == [
        "predicted",
        "predicted",
        "measured",
    ]
    times = {curve.label: curve.y for curve in predicted[0].curves}
    assert times["16×16"][-1] > times["16×16"][0] > 0
    arguments = ["bench", "--quick", "--device", "cpu", "--n", "128", "--plot", path]
    assert command_line.main(arguments) == 0
    assert {panel.source.split(",")[0] for panel in drawn[2]} == {"measured here"}
    assert [panel.name for panel in drawn[2]] == ["crossover", "roofline", "attention"]
    assert all(y > 0 for panel in drawn[2] for curve in panel.curves for y in curve.y)


# ---- predictions ---------------------------------------------------------------------------------


def test_predictions_and_choices_beside_the_committed_measurements(
    capsys: pytest.CaptureFixture,
) -> None:
    known = {case.name: case for case in accuracy.all_cases()}
    found, choices = accuracy.judge_all(load(ROOT / RESULTS / GPU_SLUG), known, recorded=False)
    families = {row.family for row in found}
    assert families >= {
        "tall",
        "stream",
        "regroup",
        "align",
        "narrow",
        "kmajor",
        "widen",
        "pairs",
        "sampled",
    }
    for family in families:
        rows = [row for row in found if row.family == family]
        assert sum(row.good for row in rows) >= 0.8 * len(rows), family
    assert sum(row.good for row in found) >= 0.95 * len(found)
    assert sum(choice.good for choice in choices) >= 0.97 * len(choices)
    page = " ".join((ROOT / "docs" / "commands.md").read_text().split())
    assert f"{sum(row.good for row in found)} of {len(found)} predictions" in page
    assert f"{sum(choice.good for choice in choices)} of {len(choices)} choices" in page


def test_accuracy_lists_the_losers(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    case = next(c for c in accuracy.all_cases() if c.name.startswith("blocks/float16/64x64/d0.125"))
    plan = accuracy.predict(case)
    times = {c["family"]: c["seconds"] * 1e6 for c in plan["candidates"] if c["supported"]}
    chosen, other = plan["chosen"], next(name for name in times if name != plan["chosen"])

    def row(family: str, us: float) -> dict[str, object]:
        fields = {"who": f"bsrgemm:{family}", "family": family, "timing": "short", "us": us}
        return {"case": case.name, "chosen": family == chosen, "predicted_us": 1.0, **fields}

    machine = {"sm_arch": 90, "sm_count": 132}
    rows = [row(chosen, times[chosen]), row(other, times[chosen] / 1.5)]
    facts = {"date": "2026-01-01", "gpu": "NVIDIA H200", "machine": machine, "rows": rows}
    (tmp_path / "families.json").write_text(json.dumps(facts))
    arguments = ["accuracy", "--results", str(tmp_path)]
    assert harness.main(arguments) == 0
    text = capsys.readouterr().out
    assert "predictions within 25%: 1 of 2 (50%)" in text
    assert "choices within 5% of the best family: 0 of 1" in text
    assert f"1.50  {chosen} where {other} is best  {case.name}" in text
    assert harness.main([*arguments, "--recorded"]) == 0
    assert "predictions within 25%: 0 of 2" in capsys.readouterr().out
    assert harness.main([*arguments, "--select", "nothing"]) == 2


def test_accuracy_takes_the_newest_times(tmp_path: Path) -> None:
    case = next(c for c in accuracy.all_cases() if c.name.startswith("blocks/float16/64x64/d0.125"))
    family = accuracy.predict(case)["chosen"]
    machine = {"sm_arch": 90, "sm_count": 132}
    for name, date, times in (("b", "2026-01-02", [3.0, 4.0]), ("a", "2026-01-01", [1.0])):
        rows = [
            {"case": case.name, "who": "bsrgemm", "family": family, "timing": "short", "us": us}
            for us in times
        ]
        facts = {"date": date, "gpu": "NVIDIA H200", "machine": machine, "rows": rows}
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    found, choices = accuracy.judge_all(load(tmp_path), {case.name: case}, recorded=False)
    assert [row.us for row in found] == [3.0, 4.0]
    assert choices == []
