"""What ``python -m bsrgemm bench --plot`` draws, from measurements made now, the package's own, or
predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import _core, _figures
from ._advise import DENSE_FLOPS, HBM_BYTES_PER_S, dense_seconds
from ._attention import attention
from ._bench import (
    DENSITIES,
    ORDER,
    Case,
    Measured,
    _cases,
    _cpu_rival,
    _gpu_rival,
    _Status,
    _time,
)
from ._demo import or_none
from ._dtypes import dtype_size
from ._figures import GIGA, TERA, Curve, Panel, Timed, check_path
from ._mask import BlockMask

__all__ = ["check_path", "draw_known", "draw_measured"]

# Of attention: dtype, heads, length, head size.
ATTENTION = {"cpu": ("float32", 4, 2048, 64), "cuda": ("float16", 16, 8192, 128)}
MASK_BLOCK = (128, 128)
MASK_DENSITIES = (0.0625, 0.125, 0.25, 0.5)


def draw_known(path: Path, source: str, dtype: str, seed: int) -> None:
    """Without measuring. Attention has no predictions: its panel is that of the results."""
    panels = _figures.shipped()
    if source == "predictions":
        panels |= {panel.name: panel for panel in _predicted(dtype, seed)}
    _finish(path, list(panels.values()))


def draw_measured(
    path: Path, device: str, dtype: str, order: int, measured: list[tuple[Case, Measured]]
) -> None:
    on_gpu = device != "cpu"
    unit = TERA if on_gpu else GIGA
    source = f"measured here, on {_machine(device)}"
    products = [_timed(case, dtype, m.seconds) for case, m in measured]
    with _Status("measuring the dense product"):
        rival, rate = _gpu_rival(device, dtype) if on_gpu else _cpu_rival(dtype)
        dense = or_none(lambda: rate(order, order, order)) if rate else None
    name = "dense" if dense is None else "cuBLAS, dense" if on_gpu else "NumPy, dense"
    what = f"{dtype}, {order}×{order}×{order}"
    panels = [
        _figures.crossover(products, 2.0 * order**3 / dense if dense else None, name, what, source),
        _figures.roofline(products, dense, name, _bandwidth(device), unit, what, source),
    ]
    if rate is None:
        print(f"the dense product's rate is {rival}: the picture is without it")
    panels.append(_attention_panel(device))
    _finish(path, panels)


def _finish(path: Path, panels: list[Panel]) -> None:
    _figures.draw(panels, path)
    print(f"\n{path}:")
    for panel in panels:
        print(f"  {panel.title}; {panel.source}")


def _machine(device: str) -> str:
    if device == "cpu":
        return f"the CPU, {_core.get_num_threads()} threads"
    return f"an {_core.cuda_devices()[int(device.partition(':')[2])]['name']}"


def _timed(case: Case, dtype: str, seconds: float) -> Timed:
    stored = len(case.indices) * case.block**2
    moved = dtype_size(dtype) * (stored + 2.0 * case.order**2)
    return Timed(f"{case.block}×{case.block}", case.density, seconds, case.flops, moved)


def _bandwidth(device: str) -> float | None:
    """Bytes/s of memory: of the CPU by a copy, of a GPU what the planner takes it for."""
    if device != "cpu":
        return _core.cuda_devices()[int(device.partition(":")[2])]["hbm_bytes_per_s"]
    source = np.ones(1 << 24)
    target = np.empty_like(source)
    return 2 * source.nbytes / _time(lambda: np.copyto(target, source), lambda: None)


def _predicted(dtype: str, seed: int) -> list[Panel]:
    order = ORDER["cuda"]
    products = []
    for case in _cases(order, (*DENSITIES["cuda"], 0.75, 1.0), seed):
        structure = _core.Structure(
            case.indices, case.indptr, (order, order), (case.block, case.block), True
        )
        info = structure.explain(order, dtype)
        chosen = next(c for c in info["candidates"] if c["family"] == info["chosen"])
        products.append(_timed(case, dtype, chosen["seconds"]))
    what, source = f"{dtype}, {order}×{order}×{order}", "predicted for an NVIDIA H200, not measured"
    seconds = dense_seconds(order, order, order, dtype)
    return [
        _figures.crossover(products, seconds, "cuBLAS, dense", what, source),
        _figures.roofline(
            products, DENSE_FLOPS[dtype], "cuBLAS, dense", HBM_BYTES_PER_S, TERA, what, source
        ),
    ]


# ---- attention -----------------------------------------------------------------------------------


def _attention_panel(device: str) -> Panel:
    """Measured here or, on a GPU that has no kernel for it, that of the results."""
    try:
        return _measured_attention(device)
    except ValueError as error:
        print(f"attention: {error}; the picture shows the package's results")
        return _figures.shipped()["attention"]


def _measured_attention(device: str) -> Panel:
    dtype, heads, length, size = ATTENTION["cpu" if device == "cpu" else "cuda"]
    rng = np.random.default_rng(0)
    # Random numbers for a part, repeated.
    x = np.resize(rng.standard_normal(1 << 20, np.float32).astype(dtype), (1, heads, length, size))
    on_gpu = device != "cpu"
    q = _core.DeviceArray.from_host(x, device) if on_gpu else x
    out = _core.DeviceArray.empty(x.shape, dtype, device) if on_gpu else np.empty_like(x)

    def seconds(mask: BlockMask | None) -> float:
        with _Status(f"measuring attention on {device}"):
            return _time(
                lambda: attention(q, q, q, block_mask=mask, out=out),
                lambda: _core.synchronize(device) if on_gpu else None,
            )

    points = []
    blocks = length // MASK_BLOCK[0]
    for count in sorted({max(1, round(density * blocks)) for density in MASK_DENSITIES}):
        scores = rng.random((blocks, blocks))
        chosen: Any = scores.argsort(axis=1).argsort(axis=1) < count
        mask = BlockMask.from_dense(chosen, MASK_BLOCK)
        points.append((count / blocks, seconds(mask) * 1e3))
    x_values, y_values = zip(*points, strict=True)
    what = f"{dtype}, {heads} heads of {length}×{size}, blocks of {MASK_BLOCK[0]}×{MASK_BLOCK[1]}"
    return _figures.attention(
        [Curve("bsrgemm", x_values, y_values)],
        [("bsrgemm, dense", seconds(None) * 1e3)],
        what,
        f"measured here, on {_machine(device)}",
    )
