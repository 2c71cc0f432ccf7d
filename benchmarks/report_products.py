"""The tables of what is no plain product of a BSR and a dense matrix: see report.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cases import FEW_COLUMNS
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

# Groups of cases, what the table calls them, and whom ours is compared with.
_PRODUCTS = {
    "transposed": "A.T @ X",
    "dense_bsr": "X @ A",
    "dense_bsr_transposed": "X @ A.T",
    "sampled": "X @ Z at stored blocks, K = {K}",
    "bsr_bsr": "A @ B, both block-sparse",
    "tf32": "A @ X, tf32, X column-major",
    "tf32_rows": "A @ X, tf32",
    "fp8": "A @ X, X column-major",
    "fp8_rows": "A @ X",
}
# Likewise, in tables of their own.
_LOW = {group: _PRODUCTS[group] for group in ("tf32", "tf32_rows", "sampled", "bsr_bsr")}
_PORTABLE = {
    "fp8_small_rows": "A @ X",
    "float64_rows": "A @ X",
}
_RIVALS = {
    "bsrgemm_plain": "A @ X",
    "own_float16": "ours in float16",
    "cublas_equal_flop": "cuBLAS, equal FLOP",
    "stk": "stk",
    "torch_triton": "Triton",
}


def _in_groups(runs: list[Run], groups: Any, timing: str) -> list[tuple[Run, dict[str, Any]]]:
    """Attention has groups of the same names, and no M."""
    return [
        (run, row)
        for run, row in ours(runs, timing)
        if "M" in row and row["case"].split("/")[0] in groups
    ]


def _is_low(row: dict[str, Any]) -> bool:
    """Of a product for which low blocks have kernels of their own, in a table of their own."""
    group, (height, _) = row["case"].split("/")[0], row["block"]
    return group in _LOW and (height < 32 if group == "sampled" else height < 64)


def products(
    runs: list[Run],
    groups: dict[str, str] = _PRODUCTS,
    wanted: Callable[[dict[str, Any]], bool] = lambda row: not _is_low(row),
) -> Made:
    """Rates of useful work, and over those of the rivals."""
    found = [(run, row) for run, row in _in_groups(runs, groups, "sustained") if wanted(row)]
    header = [
        "product",
        "dtype",
        "block",
        "pattern",
        "density",
        "TF/s (burst)",
        "times the rate of",
    ]
    lines = []
    for run, row in sorted(found, key=lambda f: list(groups).index(f[1]["case"].split("/")[0])):
        rivals = [
            f"{name} {ratio(row, run.rival(row, who))}{_one_by_one(run, row, who)}"
            for who, name in _RIVALS.items()
            if run.rival(row, who) is not None
        ]
        lines.append(
            [
                groups[row["case"].split("/")[0]].format(**row),
                row["dtype"],
                block_of(row),
                row["pattern"].replace("_", " "),
                f"{row['density']:.3g}",
                both_rates(run, row),
                ", ".join(rivals) or "-",
            ]
        )
    return header, lines, [run for run, _ in found]


def _one_by_one(run: Run, row: dict[str, Any], who: str) -> str:
    """The same of calls that are no graph's, where the host may be slower than the GPU."""
    own = run.find("bsrgemm", "eager", case=row["case"])
    rival = run.rival(own, who) if own else None
    return f" ({ratio(own, rival)})" if own and rival else ""


def low_products(runs: list[Run]) -> Made:
    """The same of low blocks."""
    return products(runs, _LOW, _is_low)


def portable_products(runs: list[Run]) -> Made:
    """The same of what the portable kernels compute."""
    return products(runs, _PORTABLE)


def fused(runs: list[Run]) -> Made:
    """The output stage, and the same by separate kernels, as TF/s of the product."""
    found = _in_groups(runs, ("fused",), "sustained")
    kinds = ("bias", "bias_relu", "bias_gelu", "bias_silu")
    header = ["block", "dtype", "TF/s plain"]
    header += [f"{kind.replace('_', ', ')}" for kind in kinds]
    header += [f"{kind.replace('_', ', ')} by torch" for kind in kinds]
    lines = [
        [
            block_of(row),
            row["dtype"],
            rate(row),
            *(rate(run.rival(row, f"fused_{kind}")) for kind in kinds),
            *(rate(run.rival(row, f"separate_{kind}")) for kind in kinds),
        ]
        for run, row in found
    ]
    return header, lines, [run for run, _ in found]


def linear(runs: list[Run]) -> Made:
    """How many times faster than dense layers, by tokens."""
    found = _in_groups(runs, ("linear",), "cold")
    all_lines = []
    for weight, rival in (("random", "cublas_layer"), ("with the same zeros", "cublas_dense")):
        header, lines, used = _by_columns(found, "weight", "{} tokens", rival)
        all_lines += [[*line[:4], weight, *line[4:]] for line in lines]
    return [*header[:4], "dense weight", *header[4:]], all_lines, used


def sizes(runs: list[Run]) -> Made:
    """How many times faster than the whole dense product, by columns of X."""
    found = [
        (run, row)
        for timing in ("cold", "sustained")
        for run, row in _in_groups(runs, ("sizes",), timing)
        if (row["N"] <= FEW_COLUMNS) == (timing == "cold")
    ]
    return _by_columns(found, "A", "N = {}", "cublas_dense")


def unequal(runs: list[Run]) -> Made:
    """How often cuBLAS takes as long for a dense product of equal useful work."""
    return _by_columns(_in_groups(runs, ("unequal",), "cold"), "A", "N = {}", "cublas_equal_flop")


def _by_columns(
    found: list[tuple[Run, dict[str, Any]]], matrix: str, count: str, rival: str
) -> Made:
    numbers = sorted({row["N"] for _, row in found})
    header = ["block", "dtype", matrix, "density", *(count.format(n) for n in numbers)]
    rows: dict[tuple[str, ...], dict[int, str]] = {}
    for run, row in found:
        pattern = "" if row["pattern"] == "uniform" else f", {row['pattern'].replace('_', ' ')}"
        size = f"{row['M']} × {row['K']}{pattern}"
        key = (block_of(row), row["dtype"], size, f"{row['density']:.3g}")
        faster = ratio(row, run.rival(row, rival), of="us")
        rows.setdefault(key, {})[row["N"]] = obstacle(row) or f"{faster} ({micros(row)} µs)"
    lines = [[*key, *(cells.get(n, "-") for n in numbers)] for key, cells in rows.items()]
    return header, lines, [run for run, _ in found]


def dynamic(runs: list[Run]) -> Made:
    """What a new pattern takes, in µs, and products with it beside those with a fixed one."""
    header = ["block", "pattern", "from a mask", "from scores", "values", "A @ X", "fixed pattern"]
    header += ["A.T @ X", "fixed pattern", "X @ A.T", "fixed pattern"]
    header += ["sampled, K = 2048", "fixed pattern"]
    names = ("update", "update_topk", "gather", "product", "fixed_product")
    names += ("transposed_product", "fixed_transposed_product")
    names += ("left_product", "fixed_left_product")
    names += ("sampled_product", "fixed_sampled_product")
    lines, used = [], []
    for run in runs:
        cases = {row["case"]: row for row in run.find_all("update")}
        for case, row in cases.items():
            found = [run.find(name, case=case) for name in names]
            cells = [micros(other) for other in found]
            lines.append([block_of(row), row["pattern"].replace("_", " "), *cells])
        if cases:
            used.append(run)
            break
    return header, lines, used


def experts(runs: list[Run]) -> Made:
    """Both layers of mixtures of experts, in µs, and how often torch's grouped_mm takes as long."""
    header = ["experts", "a token's", "tokens", "block", "pattern", "X @ W1", "grouped_mm"]
    header += ["H @ W2", "grouped_mm"]
    found = [(run, row) for run in runs for row in run.find_all("up", op="experts")]
    lines = []
    for run, row in found:
        cells = [f"{row['experts']} of {row['width']} × {row['hidden']}", str(row["top"])]
        cells += [str(row["tokens"]), block_of(row)]
        pattern, down = (run.find(who, case=row["case"]) for who in ("pattern", "down"))
        cells.append(micros(pattern))
        for layer, who in ((row, "grouped_up"), (down, "grouped_down")):
            rival = run.find(who, case=row["case"])
            cells.append(micros(layer))
            cells.append("-" if layer is None else ratio(layer, rival, of="us"))
        lines.append(cells)
    return header, lines, [run for run, _ in found]


def softmax(runs: list[Run]) -> Made:
    """Of a matrix and its view, and over torch's of a dense matrix of as many elements."""
    forms = {"softmax(bsr)": "softmax(A)", "softmax(bsr.T)": "softmax(A.T)"}
    header = ["block", "dtype", "density"]
    for form in forms.values():
        header += [f"{form}, µs", "TB/s", "times faster than dense"]
    found = [(run, row) for run, row in ours(runs, "sustained") if row.get("op") in forms]
    lines: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for run, row in found:
        moved = obstacle(row) or number(row["tb_s"])
        cells = [micros(row), moved, ratio(row, run.rival(row, "torch_dense"), of="us")]
        key = (block_of(row), row["dtype"], f"{row['density']:.3g}")
        lines.setdefault(key, {})[row["op"]] = cells
    return (
        header,
        [
            [*key, *(cell for form in forms for cell in cells.get(form, ["-"] * 3))]
            for key, cells in lines.items()
        ],
        [run for run, _ in found],
    )
