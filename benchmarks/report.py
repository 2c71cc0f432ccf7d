"""Write the tables of README.md and docs/*.md from the committed results.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->``. Every figure of a row, ours and
the peers', is from one run: the newest one that has the case.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cases import CROSSOVER_DENSITIES
from .families import tally
from .records import ROOT, Row
from .report_cells import (
    Made,
    Run,
    block_of,
    both_rates,
    micros,
    number,
    obstacle,
    ours,
    rate,
    ratio,
)
from .report_host import host, training
from .report_products import (
    dynamic,
    experts,
    fused,
    linear,
    low_products,
    portable_products,
    products,
    sizes,
    softmax,
    unequal,
)

RESULTS = Path("benchmarks", "results")
# The GPU whose results the tables called gpu-... show.
GPU_SLUG = "h200"
# What one card of it was seen to read from memory; others, and other runs, differ by some percent.
MEMORY_BYTES_PER_S = 4.27e12
# A density that is further from that of its column is in the cell.
DENSITY_SHOWN = 0.1
_MARKED = re.compile(r"(<!-- table:(\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


class UnknownTable(Exception):
    """A document asks for a table that nobody makes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a document is out of date"
    )


def run(args: argparse.Namespace) -> int:
    stale = update(ROOT, write=not args.check)
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'out of date' if args.check else 'written'}")
    if args.check and stale:
        print("run: python -m benchmarks tables", file=sys.stderr)
    return 1 if args.check and stale else 0


def update(root: Path, write: bool) -> list[Path]:
    """The documents whose tables are not those of the results; rewrites them if asked."""
    stale = []
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        if not path.exists():
            continue
        text = path.read_text()
        rendered = _MARKED.sub(lambda m: m[1] + table(root / RESULTS, m[2]) + m[4], text)
        if rendered != text:
            stale.append(path)
            if write:
                path.write_text(rendered)
    return stale


def table(results: Path, name: str) -> str:
    """A table in Markdown with what it was measured on, or a line that there is no result yet."""
    if name not in TABLES:
        raise UnknownTable(f"table {name!r}; there are {', '.join(TABLES)}")
    make, slug, command = TABLES[name]
    runs = load(results / slug)
    header, lines, used = make(runs)
    if not lines:
        return f"*No committed measurement yet; `python -m benchmarks {command}` makes one.*\n"
    rule = ["---"] + ["---:"] * (len(header) - 1)
    body = [f"| {' | '.join(cells)} |" for cells in (header, rule, *lines)]
    return "\n".join([*body, "", *sorted({_describe(run) for run in used}), ""])


# ---- results -------------------------------------------------------------------------------------


def load(folder: Path) -> list[Run]:
    """The runs on one machine, the newest first."""
    runs = [_read(path) for path in sorted(folder.glob("*.json"))]
    return sorted(runs, key=lambda run: run.facts["date"], reverse=True)


def _read(path: Path) -> Run:
    try:
        return Run(json.loads(path.read_text()))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no result file: {error}") from None


def _describe(run: Run) -> str:
    software, machine = run.facts["software"], run.facts["machine"]
    names = {"torch": "PyTorch", "triton": "Triton", "stanford-stk": "stk", "numpy": "NumPy"}
    names |= {"scipy": "SciPy", "cudnn": "cuDNN", "fa3-fwd": "FlashAttention-3 (fa3-fwd)"}
    if run.facts["gpu"]:
        where = f"{run.facts['gpu']}, driver {machine['driver']}"
        shown = ("torch", "triton", "stanford-stk", "cudnn", "fa3-fwd")
    else:
        where = f"{machine['cpu']}, {machine['isa']}, {machine['threads']} threads"
        shown = ("numpy", "scipy", "torch")
    versions = ", ".join(f"{names[key]} {software[key]}" for key in shown if key in software)
    return (
        f"*{where}; {versions}; bsrgemm {software['bsrgemm']} at {run.facts['commit']}, "
        f"{run.facts['date'][:10]}.*"
    )


def _prediction(row: Row) -> str:
    return obstacle(row) or f"{row['predicted_us']:.0f} / {row['us']:.0f}"


# ---- tables --------------------------------------------------------------------------------------


def _gpu_blocks(runs: list[Run], dtype: str) -> Made:
    peers = {"torch_triton": "Triton", "stk": "stk", "cusparse": "cuSPARSE"}
    if dtype == "float32":
        peers = {"torch_bsr": "torch BSR (cuSPARSE)"}
    found = [
        (run, row)
        for run, row in ours(runs, "sustained", dtype=dtype, pattern="uniform")
        if row["case"].startswith("blocks/")
    ]
    shown = {
        who: name for who, name in peers.items() if any(run.rival(row, who) for run, row in found)
    }
    header = [
        "block",
        "density",
        "TF/s (burst)",
        "of cuBLAS, equal FLOP",
        "times faster than dense",
    ]
    header += [f"{name} TF/s" for name in shown.values()]
    header += ["predicted / measured µs", "plan ms"]
    lines = []
    for run, row in found:
        cells = [block_of(row), f"{row['density']:.3g}", both_rates(run, row)]
        cells.append(ratio(row, run.rival(row, "cublas_equal_flop")))
        cells.append(ratio(row, run.rival(row, "cublas_dense"), of="us"))
        cells += [rate(run.rival(row, who)) for who in shown]
        plan = obstacle(row) or f"{row['plan_us'] / 1e3:.2f}"
        lines.append([*cells, _prediction(row), plan])
    return header, lines, [run for run, _ in found]


def _gpu_patterns(runs: list[Run], **fields: str) -> Made:
    found = [
        (run, row)
        for run, row in ours(runs, "sustained", **fields)
        if row["case"].startswith("patterns/")
    ]
    header = ["block", "pattern", "dtype", "µs", "TF/s (burst)", "of uniform"]
    header += ["of cuBLAS, equal FLOP", "Triton TF/s", "predicted / measured µs"]
    lines = []
    for run, row in found:
        same = {key: row[key] for key in ("dtype", "block", "nnzb", "M", "N", "K")}
        uniform = run.find("bsrgemm", "sustained", pattern="uniform", **same)
        cells = [block_of(row), row["pattern"].replace("_", " "), row["dtype"]]
        cells.append(obstacle(row) or f"{row['us']:.0f}")
        cells += [both_rates(run, row), ratio(row, uniform)]
        cells.append(ratio(row, run.rival(row, "cublas_equal_flop")))
        lines.append([*cells, rate(run.rival(row, "torch_triton")), _prediction(row)])
    return header, lines, [run for run, _ in found]


def _gpu_crossover(runs: list[Run]) -> Made:
    """How many times faster than the whole dense product each block shape is, by density."""
    found = [
        (run, row)
        for run, row in ours(runs, "sustained", dtype="float16")
        if row["case"].startswith("crossover/")
    ]
    shapes: dict[str, dict[float, str]] = {}
    for run, row in found:
        nominal = _nearest_density(row["density"])
        cell = ratio(row, run.rival(row, "cublas_dense"), of="us")
        if abs(row["density"] / nominal - 1) > DENSITY_SHOWN:
            cell += f" (d={row['density']:.3g})".replace("=0.", "=.")
        shapes.setdefault(block_of(row), {})[nominal] = cell
    header = ["block", *(f"d = {density:g}" for density in CROSSOVER_DENSITIES)]
    lines = [
        [block, *(cells.get(density, "-") for density in CROSSOVER_DENSITIES)]
        for block, cells in shapes.items()
    ]
    return header, lines, [run for run, _ in found]


def _nearest_density(density: float) -> float:
    """The nominal density of a case, whose blocks are of a whole number."""
    return min(CROSSOVER_DENSITIES, key=lambda nominal: abs(math.log(nominal / density)))


def _gpu_few(
    runs: list[Run],
    group: str,
    dtype: str = "float16",
    size: int = 2,
    rival: str = "",
) -> Made:
    """A line for each matrix, a column for each N, and the time to read the blocks once. Behind
    ours the time of the rival in the same run."""
    found = [
        (run, row)
        for run, row in ours(runs, "cold", dtype=dtype)
        if row["case"].startswith(f"{group}/")
    ]
    matrices: dict[tuple[Any, ...], dict[int, Row]] = {}
    rivals = {row["case"]: run.rival(row, rival) for run, row in found if rival}
    for _, row in found:
        key = (row["M"], row["K"], row["nnzb"], *row["block"])
        matrices.setdefault(key, {})[row["N"]] = row
    counts = sorted({row["N"] for _, row in found})
    header = ["A", "density", "block", *(f"N = {n}, µs" for n in counts)]
    memory = MEMORY_BYTES_PER_S
    header.append(f"reading A at {memory / 1e12:.2f} TB/s, as one card did, µs")
    lines = []
    for (m, k, nnzb, height, width), by_count in matrices.items():
        some = next(iter(by_count.values()))
        cells = [f"{m} × {k}", f"{some['density']:.3g}", block_of(some)]
        for n in counts:
            row = by_count.get(n)
            other = rivals.get(row["case"]) if row else None
            behind = f" ({obstacle(other) or format(other['us'], '.0f')})" if other else ""
            cells.append((obstacle(row) or f"{row['us']:.1f}") + behind if row else "-")
        lines.append([*cells, f"{nnzb * height * width * size / memory * 1e6:.1f}"])
    return header, lines, [run for run, _ in found]


def _gpu_families(runs: list[Run]) -> Made:
    """A line for each group of cases of the newest run that has every family."""
    run = next((run for run in runs if any("chosen" in row for row in run.rows)), None)
    header = ["cases", "number", "choice within 3% of the best", "slower than the best, at most"]
    header += ["in the case", "predictions within 25%"]
    lines = [
        [
            name,
            str(g["cases"]),
            str(g["best"]),
            f"{g['worst'] - 1:.0%}",
            g["worst_case"].partition("/")[2] or "-",
            f"{g['good']} of {g['rows']}",
        ]
        for name, g in tally(run.rows if run else []).items()
    ]
    return header, lines, [run] if run else []


def _cpu(runs: list[Run]) -> Made:
    found = [(run, row) for run, row in ours(runs, "rounds") if row["case"].startswith("blocks/")]
    header = ["dtype", "block", "GF/s", "dense GF/s (NumPy; bfloat16: torch)"]
    header += ["of the dense rate", "of our float32 rate"]
    header += ["times SciPy", "times torch BSR", "peak memory / operands"]
    lines = []
    for run, row in found:
        dense = run.rival(row, "numpy_dense") or run.rival(row, "torch_dense")
        same = {key: row[key] for key in ("block", "nnzb", "M", "N", "K")}
        float32 = run.find("bsrgemm", "rounds", dtype="float32", **same)
        cells = [row["dtype"], block_of(row), rate(row, 1e3), rate(dense, 1e3)]
        cells += [ratio(row, dense), ratio(row, float32)]
        cells += [ratio(row, run.rival(row, who), digits=1) for who in ("scipy_bsr", "torch_bsr")]
        memory = row.get("peak_memory")
        lines.append([*cells, "-" if memory is None else f"{memory:.3f}"])
    return header, lines, [run for run, _ in found]


def _gpu_attention(runs: list[Run]) -> Made:
    """Attention without masks and decoding, as ratios to the peers that are in the results."""
    peers = {"flash3": "FlashAttention-3", "cudnn": "cuDNN", "flash2": "FlashAttention-2"}
    peers["composed"] = "two products and softmax"
    found = [
        (run, row)
        for run, row in ours(runs, "sustained", op="attention")
        if row["case"].startswith(("dense/", "decode/", "fp8/", "varlen/")) and not row.get("block")
    ]
    shown = {
        who: name for who, name in peers.items() if any(run.rival(row, who) for run, row in found)
    }
    header = ["batch × heads × length × size", "dtype", "seen", "TF/s (burst)"]
    header += [*(f"of {name}" for name in shown.values()), "K and V, TB/s"]
    lines = []
    for run, row in found:
        cells = [_attention_shape(row), row["dtype"], row["seen"], both_rates(run, row)]
        cells += [ratio(row, run.rival(row, who)) for who in shown]
        bandwidth = "-"
        if row.get("bytes"):
            bandwidth = obstacle(row) or number(row["bytes"] / row["us"] / 1e6)
        lines.append([*cells, bandwidth])
    return header, lines, [run for run, _ in found]


def _gpu_attention_masks(runs: list[Run]) -> Made:
    found = [
        (run, row)
        for run, row in ours(runs, "sustained", op="attention")
        if row.get("block") and row["case"].startswith(("masks/", "topk/", "fp8/"))
    ]
    header = [
        "batch × heads × length × size",
        "dtype",
        "block",
        "pattern",
        "density",
        "TF/s (burst)",
    ]
    header += ["of own dense rate", "times faster than own dense", "of FlexAttention"]
    lines = []
    for run, row in found:
        dense = run.rival(row, "bsrgemm_dense") or _without_mask(run, row)
        made = ", top-k, made at each call" if row["case"].startswith("topk/") else ""
        cells = [_attention_shape(row), row["dtype"], block_of(row)]
        cells.append(row["seen"].replace("_", " ") + made)
        cells += [f"{row['density']:.3g}", both_rates(run, row)]
        cells += [ratio(row, dense), ratio(row, dense, of="us")]
        lines.append([*cells, ratio(row, run.rival(row, "flex"))])
    return header, lines, [run for run, _ in found]


def _without_mask(run: Run, row: Row) -> Row | None:
    """Ours of a case of its own."""
    same = {key: row[key] for key in ("dtype", "batch", "heads", "keys", "size")}
    return run.find("bsrgemm", row["timing"], seen="full", **same)


def _gpu_attention_sparse_decode(runs: list[Run]) -> Made:
    """Few queries over blocks of a cache: by the bytes of these, which are all that such a call has
    to read."""
    others = {
        "bsrgemm_dense": "all keys",
        "bsrgemm_hopper": "Hopper's kernels",
        "bsrgemm_portable": "portable kernels",
        "flex_decode": "FlexAttention",
        "torch_sdpa": "PyTorch, boolean mask",
    }
    found = [
        (run, row)
        for run, row in ours(runs, "cold", op="attention")
        if row["case"].startswith("sparse_decode/")
    ]
    header = ["batch × heads × keys × size", "queries", "block", "density", "heads of the mask"]
    header += ["K and V read, MB", "µs", "TB/s"]
    header += [f"times faster than {name}" for name in others.values()]
    lines = []
    for run, row in found:
        made = ", top-k, made at each call" if row["seen"] == "topk" else ""
        cells = [_attention_shape(row), str(row["queries"]), block_of(row)]
        cells += [f"{row['density']:.3g}", f"{row['mask_heads']}{made}"]
        cells.append(number(row["bytes"] / 1e6))
        cells.append(micros(row))
        cells.append(obstacle(row) or number(row["bytes"] / row["us"] / 1e6))
        lines.append([*cells, *(ratio(row, run.rival(row, who), of="us") for who in others)])
    return header, lines, [run for run, _ in found]


def _attention_shape(row: Row) -> str:
    heads = str(row["heads"])
    if row["kv_heads"] != row["heads"]:
        heads += f" ({row['kv_heads']} of K and V)"
    keys = f"{row['shortest']} to {row['keys']}" if "shortest" in row else row["keys"]
    return f"{row['batch']} × {heads} × {keys} × {row['size']}"


# name: (what makes it, folder of results, command that measures it)
TABLES: dict[str, tuple[Callable[[list[Run]], Made], str, str]] = {
    "gpu-float16": (lambda runs: _gpu_blocks(runs, "float16"), GPU_SLUG, "gpu"),
    "gpu-bfloat16": (lambda runs: _gpu_blocks(runs, "bfloat16"), GPU_SLUG, "gpu"),
    "gpu-float32": (lambda runs: _gpu_blocks(runs, "float32"), GPU_SLUG, "gpu"),
    "gpu-patterns": (_gpu_patterns, GPU_SLUG, "gpu"),
    "gpu-patterns-float16": (lambda runs: _gpu_patterns(runs, dtype="float16"), GPU_SLUG, "gpu"),
    "gpu-columns": (lambda runs: _gpu_few(runs, "columns"), GPU_SLUG, "gpu"),
    "gpu-rows": (lambda runs: _gpu_few(runs, "rows"), GPU_SLUG, "gpu --select ^rows"),
    "gpu-columns-8-bits": (
        lambda runs: _gpu_few(runs, "fp8_columns", "float8_e4m3fn", 1),
        GPU_SLUG,
        "precision --select ^fp8_columns",
    ),
    "gpu-columns-float32": (
        lambda runs: _gpu_few(runs, "float32_columns", "float32", 4, "torch_bsr"),
        GPU_SLUG,
        "precision --select ^float32_columns",
    ),
    "gpu-low": (low_products, GPU_SLUG, "gpu|sampled|precision"),
    "gpu-portable": (
        portable_products,
        GPU_SLUG,
        "precision --select ^(fp8_small|float64)_rows",
    ),
    "gpu-crossover": (_gpu_crossover, GPU_SLUG, "gpu"),
    "gpu-families": (_gpu_families, GPU_SLUG, "families"),
    "gpu-attention": (_gpu_attention, GPU_SLUG, "attention"),
    "gpu-attention-masks": (_gpu_attention_masks, GPU_SLUG, "attention"),
    "gpu-attention-sparse-decode": (
        _gpu_attention_sparse_decode,
        GPU_SLUG,
        "attention --select ^sparse_decode",
    ),
    "gpu-products": (products, GPU_SLUG, "gpu|sampled|precision"),
    "gpu-fused": (fused, GPU_SLUG, "gpu --select ^fused"),
    "gpu-linear": (linear, GPU_SLUG, "gpu --select ^linear"),
    "gpu-sizes": (sizes, GPU_SLUG, "gpu --select ^sizes"),
    "gpu-unequal": (unequal, GPU_SLUG, "gpu --select ^unequal"),
    "gpu-dynamic": (dynamic, GPU_SLUG, "dynamic"),
    "gpu-experts": (experts, GPU_SLUG, "experts"),
    "gpu-softmax": (softmax, GPU_SLUG, "softmax"),
    "gpu-host": (host, GPU_SLUG, "host"),
    "gpu-training": (training, GPU_SLUG, "training"),
    "cpu": (_cpu, "cpu", "cpu"),
    "cpu-host": (host, "cpu", "host --device cpu"),
}
