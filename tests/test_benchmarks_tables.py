"""The tables that are made of committed results, and whether the documents show them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import records, report  # noqa: E402
from benchmarks.cases import Case, cpu_cases, gpu_cases, select  # noqa: E402
from benchmarks.dynamic import dynamic_cases  # noqa: E402
from benchmarks.experts import experts_cases  # noqa: E402
from benchmarks.families import describe, tally  # noqa: E402
from benchmarks.report_cells import ours  # noqa: E402
from benchmarks.softmax import softmax_cases  # noqa: E402


def result(case: Case, who: str, timing: str | None, us: float | None, **extra: Any) -> Any:
    flops = case.useful_flops if who != "cublas_dense" else 2.0 * case.m * case.n * case.k
    return records.make_row(case, who, timing, us and us * 1e-6, flops, **extra)


def write_run(root: Path, slug: str, name: str, date: str, rows: list[Any]) -> None:
    folder = root / report.RESULTS / slug
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"driver": "580.1", "cpu": "A CPU", "isa": "avx2", "threads": 2}
    facts = {"commit": f"c0ffee-{name}", "date": f"{date}T00:00:00Z", "machine": machine}
    facts["gpu"] = None if slug == "cpu" else "NVIDIA H200"
    facts["software"] = {"bsrgemm": "0.1.0", "torch": "2.11.0", "numpy": "2.4"}
    (folder / f"{name}.json").write_text(records.dump(facts, rows))


def test_tables_of_few_columns_and_of_the_crossover(tmp_path: Path) -> None:
    cases = list(gpu_cases(["float16"]))
    narrow = select(cases, "^columns/float16/64x64/d0.25/uniform/8192x(1|16)x")
    few, half, full = (
        select(cases, f"^crossover/float16/32x64/d{d}/")[0] for d in (0.00781, 0.5, 1)
    )
    write_run(
        tmp_path,
        "h200",
        "one",
        "2026-01-01",
        [
            *(result(case, "bsrgemm", "cold", 10.0 + case.n) for case in narrow),
            result(few, "bsrgemm", "sustained", 50.0),
            result(few, "cublas_dense", "sustained", 900.0),
            result(half, "bsrgemm", "sustained", 400.0),
            result(half, "cublas_dense", "sustained", 1000.0),
            result(full, "bsrgemm", "sustained", 800.0),
            result(full, "cublas_dense", "sustained", 1200.0),
        ],
    )
    columns = report.table(tmp_path / report.RESULTS, "gpu-columns").splitlines()
    assert columns[0].endswith("| N = 16, µs | reading A at 4.27 TB/s, as one card did, µs |")
    assert columns[2] == "| 8192 × 8192 | 0.25 | 64×64 | 11.0 | 26.0 | 7.9 |"
    crossover = report.table(tmp_path / report.RESULTS, "gpu-crossover").splitlines()
    assert crossover[2] == "| 32×64 | 18.00 (d=.00781) | - | - | - | - | 2.50 | - | 1.50 |"


def test_tables_of_other_products(tmp_path: Path) -> None:
    cases = list(gpu_cases(["float16"]))
    turned, fused = (
        select(cases, f"^{g}/float16/64x64/d0.125")[0] for g in ("transposed", "fused")
    )
    tokens = select(cases, "^linear/float16/64x64/.*/14336x(1|16)x")
    sizes = select(cases, "^sizes/float16/64x64/d0.125/.*/8192x(1|8192)x8192")
    unequal = select(cases, "^unequal/float16/64x64/.*/zipf")[0]
    dynamic, experts = next(iter(dynamic_cases())), next(iter(experts_cases()))
    seconds = turned.useful_flops / 400e12
    rows = [
        *(result(turned, "bsrgemm", timing, seconds * 1e6) for timing in ("sustained", "burst")),
        result(turned, "bsrgemm", "eager", 2 * seconds * 1e6),
        result(turned, "bsrgemm_plain", "sustained", 0.9 * seconds * 1e6),
        result(turned, "bsrgemm_plain", "eager", 2.5 * seconds * 1e6),
        result(turned, "torch_triton", "sustained", 3 * seconds * 1e6),
        result(fused, "bsrgemm", "sustained", fused.useful_flops / 500e6),
        result(fused, "fused_bias", "sustained", fused.useful_flops / 480e6),
        result(fused, "separate_bias_gelu", "sustained", fused.useful_flops / 250e6),
        *(result(case, "bsrgemm", "cold", 10.0) for case in tokens),
        *(result(case, "cublas_dense", "cold", 32.0 + case.n) for case in tokens),
        *(result(case, "cublas_layer", "cold", 40.0 + case.n) for case in tokens),
        *(result(case, "bsrgemm", case.timings[0], 20.0 + case.n) for case in sizes),
        result(sizes[0], "bsrgemm", "sustained", 12.0),
        result(sizes[1], "cublas_dense", "sustained", 24636.0),
        result(unequal, "bsrgemm", "cold", 8.0),
        result(unequal, "cublas_equal_flop", "cold", 12.0),
        result(dynamic, "update", "sustained", 18.3),
        result(dynamic, "product", "sustained", 343.0),
        result(experts, "pattern", "sustained", 21.0),
        result(experts, "up", "sustained", 250.0),
        result(experts, "down", "sustained", 240.0),
        result(experts, "grouped_up", "sustained", 375.0),
    ]
    write_run(tmp_path, "h200", "one", "2026-01-01", rows)

    def lines(name: str) -> list[str]:
        return report.table(tmp_path / report.RESULTS, name).splitlines()[2:]

    def first_line(name: str) -> str:
        return lines(name)[0]

    assert first_line("gpu-products") == (
        "| A.T @ X | float16 | 64×64 | uniform | 0.125 | 400 (400) "
        "| A @ X 0.90 (1.25), Triton 3.00 |"
    )
    assert first_line("gpu-fused") == (
        "| 64×64 | float16 | 500 | 480 | - | - | - | - | - | 250 | - |"
    )
    layer = "| 64×64 | float16 | 14336 × 4096 | 0.125 |"
    assert lines("gpu-linear")[:2] == [
        f"{layer} random | 4.10 (10.0 µs) | 5.60 (10.0 µs) |",
        f"{layer} with the same zeros | 3.30 (10.0 µs) | 4.80 (10.0 µs) |",
    ]
    assert first_line("gpu-sizes") == (
        "| 64×64 | float16 | 8192 × 8192 | 0.125 | - (21.0 µs) | 3.00 (8212 µs) |"
    )
    assert first_line("gpu-unequal") == (
        "| 64×64 | float16 | 8192 × 8192, zipf rows | 0.125 | 1.50 (8.00 µs) |"
    )
    assert first_line("gpu-dynamic") == (
        "| 64×64 | uniform | 18.3 | - | - | 343 | - | - | - | - | - | - | - |"
    )
    assert first_line("gpu-experts") == (
        "| 8 of 4096 × 14336 | 2 | 16 | 64×64 | 21.0 | 250 | 1.50 | 240 | - |"
    )


def test_table_of_families(tmp_path: Path) -> None:
    cases = select(gpu_cases(["float16"]), "^blocks/float16/64x64/")[:3]
    measured = [  # of the choice and of another family, then predicted for both
        (100.0, 98.0, 110.0, 130.0),
        (100.0, 80.0, 130.0, 80.0),
        (100.0, None, 100.0, 100.0),
    ]
    rows = []
    for case, (chosen, other, *predicted) in zip(cases, measured, strict=True):
        for us, which, family in ((chosen, 0, "tall"), (other, 1, "stream")):
            extra = {"family": family, "predicted_us": predicted[which], "chosen": not which}
            rows.append(result(case, f"bsrgemm:{family}", "short", us, **extra))
    groups = tally(rows)
    assert groups.keys() == {"blocks"}
    assert (groups["blocks"]["cases"], groups["blocks"]["best"]) == (3, 2)
    assert groups["blocks"]["worst"] == 1.25 and groups["blocks"]["worst_case"] == cases[1].name
    assert "best in 2 of 3 cases, at worst 1.25 times" in describe(rows)[0]
    assert "3 of 5 predictions within 25%" in describe(rows)[0]

    assert "No committed measurement" in report.table(tmp_path / report.RESULTS, "gpu-families")
    write_run(tmp_path, "h200", "families", "2026-01-01", rows)
    text = report.table(tmp_path / report.RESULTS, "gpu-families")
    worst = cases[1].name.removeprefix("blocks/")
    assert f"| blocks | 3 | 2 | 25% | {worst} | 3 of 5 |" in text


def test_gpu_tables_show_the_newest_run_with_its_own_peers(tmp_path: Path) -> None:
    dense = select(gpu_cases(["float16"]), "blocks/float16/128x128/d0.0469")[0]
    sparse = select(gpu_cases(["float16"]), "256x256")[0]
    pattern = select(gpu_cases(["float16"]), "patterns/float16/128x128.*banded")[0]
    uniform = select(gpu_cases(["float16"]), "blocks/float16/128x128/d0.125")[0]
    ours = {"predicted_us": 110.0, "plan_us": 1500.0, "rel_err": 1e-4}
    write_run(
        tmp_path,
        "h200",
        "old",
        "2026-01-01",
        [
            result(dense, "bsrgemm", "sustained", 999.0, **ours),
            result(dense, "torch_triton", "sustained", 500.0),
            result(sparse, "bsrgemm", "sustained", 200.0, **ours),
            result(sparse, "torch_triton", None, None, error="OutOfResources: shared memory"),
        ],
    )
    write_run(
        tmp_path,
        "h200",
        "new",
        "2026-02-01",
        [
            result(dense, "bsrgemm", "sustained", 100.0, **ours),
            result(dense, "bsrgemm", "burst", 80.0, **ours),
            result(dense, "cublas_dense", "sustained", 1000.0),
            result(dense, "cublas_equal_flop", "sustained", 90.0),
            result(dense, "stk", "sustained", 200.0, wrong=True),
            result(uniform, "bsrgemm", "sustained", 250.0, **ours),
            result(pattern, "bsrgemm", "sustained", 200.0, **ours),
        ],
    )
    assert report.table(tmp_path / report.RESULTS, "gpu-float16").splitlines() == [
        "| block | density | TF/s (burst) | of cuBLAS, equal FLOP | times faster than dense | "
        "Triton TF/s | stk TF/s | predicted / measured µs | plan ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 128×128 | 0.0469 | 515 (644) | 0.90 | 10.00 | - | wrong | 110 / 100 | 1.50 |",
        "| 128×128 | 0.125 | 550 (-) | - | 4.00 | - | - | 110 / 250 | 1.50 |",
        "| 256×256 | 0.125 | 687 (-) | - | - | fails | - | 110 / 200 | 1.50 |",
        "",
        "*NVIDIA H200, driver 580.1; PyTorch 2.11.0; bsrgemm 0.1.0 at c0ffee-new, 2026-02-01.*",
        "*NVIDIA H200, driver 580.1; PyTorch 2.11.0; bsrgemm 0.1.0 at c0ffee-old, 2026-01-01.*",
    ]
    lines = report.table(tmp_path / report.RESULTS, "gpu-patterns").splitlines()
    assert lines[2] == "| 128×128 | banded | float16 | 200 | 687 (-) | 1.25 | - | - | 110 / 200 |"
    nothing = report.table(tmp_path / report.RESULTS, "gpu-bfloat16")
    assert nothing == "*No committed measurement yet; `python -m benchmarks gpu` makes one.*\n"


# Cells of a line that say what was measured.
DESCRIBED = {"gpu-float16": 2, "gpu-patterns": 3, "gpu-dynamic": 2, "gpu-experts": 4}
DESCRIBED |= {"gpu-sizes": 4, "gpu-linear": 5, "gpu-host": 4, "cpu": 2}


@pytest.mark.parametrize("said", ["wrong", "fails"])
def test_tables_have_no_times_of_what_is_wrong_or_failed(said: str) -> None:
    folders = {slug: report.load(ROOT / report.RESULTS / slug) for slug in ("h200", "cpu")}
    for row in (row for runs in folders.values() for run in runs for row in run.rows):
        row |= {"wrong": True}
        row.pop("peak_memory", None)
        if said == "fails":
            row |= {"timing": None, "us": None, "tflops": None, "error": "no"}
            for name in ("predicted_us", "plan_us", "host_us"):
                row.pop(name, None)
    for name, (make, slug, _) in report.TABLES.items():
        _, lines, _ = make(folders[slug])
        for line in lines if name in DESCRIBED else []:
            cells = " ".join(line[DESCRIBED[name] :])
            assert said in cells and not re.search("[0-9]", cells), (name, cells)


def test_results_of_a_machine_have_a_folder_of_their_own() -> None:
    names = {None: "cpu", "NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100-80gb-hbm3"}
    assert {name: records.slug(name) for name in names} == names


def test_facts_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase $1 in *driver*) echo 580.1;; *) echo '700.00, 1980, [N/A], 41';; esac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sys, "argv", ["-m", "gpu", "--out", "a/b", "--select", "^rows|^columns"])
    gpu = {"name": "NVIDIA H200", "sm_arch": 90, "sm_count": 132, "hbm_bytes_per_s": 4.2e12}
    facts = records.facts("abc", gpu)
    assert facts["command"] == "gpu --select '^rows|^columns'"
    assert re.fullmatch("[0-9a-f]{16}", facts["extension"])
    machine = facts["machine"]
    assert machine["driver"] == "580.1" and machine["power_limit_w"] == 700
    assert (machine["max_sm_mhz"], machine["temperature_c"]) == (1980, 41)
    assert "sm_mhz" not in machine
    monkeypatch.setattr(records, "_asked_of_gpu", lambda names: None)
    assert "power_limit_w" not in records.facts("abc", gpu)["machine"]


def test_a_result_file_is_whole_or_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    results = records.Results(path, {"date": "2026-01-01"})
    results.add([{"who": "bsrgemm"}])
    before = path.read_text()

    def full(self: Path, text: str) -> None:
        with self.open("w") as file:
            file.write(text[:10])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        results.add([{"who": "cublas_dense"}])
    assert path.read_text() == before
    (run,) = report.load(tmp_path)
    assert run.rows == [{"who": "bsrgemm"}]
    path.open("w").close()
    with pytest.raises(ValueError, match=r"gpu\.json is no result file: Expecting value"):
        report.load(tmp_path)


def test_cpu_table(tmp_path: Path) -> None:
    single, half = (next(cpu_cases([dtype])) for dtype in ("float32", "float16"))
    rows = [
        result(single, "bsrgemm", "rounds", 200e3, peak_memory=1.02, rel_err=1e-7),
        result(single, "scipy_bsr", "rounds", 20e6),
        records.make_row(single, "numpy_dense", "rounds", 1.0, 2.0 * 4096**3),
        result(half, "bsrgemm", "rounds", 400e3, rel_err=1e-4),
        result(half, "torch_bsr", None, None, error="NotImplementedError: no"),
    ]
    write_run(tmp_path, "cpu", "cpu", "2026-01-01", rows)
    lines = report.table(tmp_path / report.RESULTS, "cpu").splitlines()
    assert lines[2] == "| float32 | 16×16 | 85.9 | 137 | 0.63 | 1.00 | 100.0 | - | 1.020 |"
    assert lines[3] == "| float16 | 16×16 | 43.0 | - | - | 0.50 | - | fails | - |"
    assert lines[-1] == "*A CPU, avx2, 2 threads; NumPy 2.4, PyTorch 2.11.0; bsrgemm 0.1.0 at " + (
        "c0ffee-cpu, 2026-01-01.*"
    )


def test_documents_are_updated_and_checked(tmp_path: Path) -> None:
    case = next(cpu_cases(["float32"]))
    write_run(tmp_path, "cpu", "cpu", "2026-01-01", [result(case, "bsrgemm", "rounds", 200e3)])
    readme, page = tmp_path / "README.md", tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("no table here\n")
    readme.write_text("before\n<!-- table:cpu -->\nold\n<!-- end -->\nafter\n")
    assert report.update(tmp_path, write=False) == [readme]
    assert report.update(tmp_path, write=True) == [readme]
    assert report.update(tmp_path, write=False) == []
    text = readme.read_text()
    assert text.startswith("before\n<!-- table:cpu -->\n| dtype |") and "old" not in text
    assert text.endswith(".*\n<!-- end -->\nafter\n")
    readme.write_text("<!-- table:gpu-float61 -->\n<!-- end -->\n")
    with pytest.raises(report.UnknownTable, match="gpu-float61"):
        report.update(tmp_path, write=False)


def test_table_of_softmax(tmp_path: Path) -> None:
    first, view = select(softmax_cases(), "/float16/128x128/d0.125/")
    rows = [
        records.make_row(case, who, "sustained", us * 1e-6, 0.0, tb_s=33.6 / us)
        for case, who, us in ((first, "bsrgemm", 20.0), (first, "torch_dense", 30.0))
    ]
    rows.append(records.make_row(view, "bsrgemm", None, None, 0.0, error="no"))
    write_run(tmp_path, "h200", "softmax", "2026-01-01", rows)
    assert report.table(tmp_path / report.RESULTS, "gpu-softmax").splitlines()[2] == (
        "| 128×128 | float16 | 0.125 | 20.0 | 1.68 | 1.50 | fails | fails | - |"
    )


def test_tables_are_all_in_a_document() -> None:
    """Of cases that are lost, too."""
    documents = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    text = "".join(path.read_text() for path in documents)
    assert [name for name in report.TABLES if f"<!-- table:{name} -->" not in text] == []


def test_tables_of_the_repository_are_those_of_its_results() -> None:
    assert report.update(ROOT, write=False) == [], "run: python -m benchmarks tables"


def test_what_fused_output_costs_is_what_the_readme_says() -> None:
    found = ours(report.load(ROOT / report.RESULTS / "h200"), "sustained")
    costs: dict[str, list[float]] = {"bias": [], "bias_relu": [], "bias_gelu": [], "bias_silu": []}
    for run, row in found:
        if row["case"].startswith("fused/"):
            for kind, of_kind in costs.items():
                fused = run.rival(row, f"fused_{kind}")
                assert fused is not None, row["case"]
                of_kind.append(100 * (fused["us"] / row["us"] - 1))
    bias, gelu, silu = costs["bias"] + costs["bias_relu"], costs["bias_gelu"], costs["bias_silu"]
    said = (
        f"a bias, alone or with ReLU, up to {max(bias):.0f}% of a product, with GELU "
        f"{min(gelu):.0f} to {max(gelu):.0f}%, with SiLU {min(silu):.0f} to {max(silu):.0f}%"
    )
    assert said in " ".join((ROOT / "README.md").read_text().split())
