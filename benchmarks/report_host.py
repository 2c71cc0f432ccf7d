"""The tables of what calls cost the host, and of training: see report.py."""

from __future__ import annotations

from typing import Any

from .report_cells import Made, Run, block_of, micros, number, obstacle
from .training import KINDS, PARTS

_CALLS = {
    "matmul_out": "matmul(A, X, out=Y)",
    "matmul_new": "matmul(A, X)",
    "operator": "A @ X",
    "linear": "linear(x, A, bias)",
    "layer": "BSRLinear",
    "torch_linear": "torch: dense linear",
    "torch_bsr_linear": "torch: BSR linear",
    "torch_bsr_matmul": "torch: BSR @ X",
}
_MODELS = {
    "bsrgemm": "BSRLinear",
    "dense": "torch.nn.Linear",
    "bsrgemm_compiled": "BSRLinear, compiled",
    "dense_compiled": "torch.nn.Linear, compiled",
}


def _newest(runs: list[Run], op: str) -> Run | None:
    return next((run for run in runs if any(row.get("op") == op for row in run.rows)), None)


def host(runs: list[Run]) -> Made:
    """Microseconds until a call returns, a line for each case of the newest run."""
    header = ["A", "block", "dtype", "columns or tokens", *_CALLS.values()]
    run = _newest(runs, "host")
    if run is None:
        return header, [], []
    lines = []
    for row in run.find_all("matmul_out", op="host"):
        found = [run.find(who, case=row["case"]) for who in _CALLS]
        cells = [micros(other) for other in found]
        shape = f"{row['M']} × {row['K']}"
        lines.append([shape, block_of(row), row["dtype"], str(row["N"]), *cells])
    return header, lines, [run]


def training(runs: list[Run]) -> Made:
    """Milliseconds of a step and its parts, and memory, by model."""
    header = ["activation", "layers", *(f"{part}, ms" for part in PARTS), "step, ms"]
    header += ["times faster than dense", "host, ms", "weights, gradients, moments, GB", "peak, GB"]
    run = _newest(runs, "training")
    if run is None:
        return header, [], []
    lines = []
    for case in dict.fromkeys(row["case"] for row in run.rows if row.get("op") == "training"):
        for kind in KINDS:
            step = run.find(kind, "step", case=case)
            if step is not None:
                lines.append(_training_line(run, case, kind, step))
    return header, lines, [run]


def _training_line(run: Run, case: str, kind: str, step: dict[str, Any]) -> list[str]:
    start = [step["activation"], _MODELS[kind]]
    why = obstacle(step)
    if why:
        return [*start, *[why] * (len(PARTS) + 1), *["-"] * 4]
    parts = [run.find(kind, part, case=case) for part in PARTS]
    cells = [obstacle(part) or number(part["us"] / 1e3) for part in (*parts, step)]
    dense = run.find("dense_compiled" if kind.endswith("compiled") else "dense", "step", case=case)
    faster = obstacle(dense) or f"{dense['us'] / step['us']:.2f}"
    memory = [
        f"{step[name] / 1e9:.2f}" if name in step else "-" for name in ("state_bytes", "peak_bytes")
    ]
    return [*start, *cells, faster, number(step["host_us"] / 1e3), *memory]
