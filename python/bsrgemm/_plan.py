"""``Plan``: which kernel family a product takes, and the prediction behind the choice."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._convert import pattern_of
from ._pattern import busiest, fill_of, rows_of

# FLOP/s of a thread of the CPU backend on full panels: of the committed results of two threads of
# Zen 5 with AVX-512, more where it multiplies pairs of bfloat16, and half of that for AVX2.
CPU_FLOPS = {"float16": 189e9, "bfloat16": 187e9, "float32": 185e9, "float64": 88e9}
CPU_SHARE = {"avx512_bf16": 1.0, "avx512": 1.0, "avx2": 0.5, "generic": 0.06}
PAIRS = 1.7
# Patterns of more parts are not looked at in other block sizes.
MOST_CELLS = 4_000_000


class Plan:
    """What the planner thinks of one product on one GPU; made by :meth:`bsr_array.plan`.

    It is computed from the pattern alone and needs no device. Products in host memory always take
    the CPU backend, whatever the plan says.

    Attributes
    ----------
    choice : str
        The kernel family that computes the product: of products with a dense operand, the one with
        the smallest predicted time.
    seconds : float
        Its predicted time.
    useful_flops : float
        2 * n for each element of a stored block that lies within the matrix; of two block-sparse
        matrices 2 for each product of elements, within both, of stored blocks that meet.
    candidates : list of dict
        One for every family: ``family``, ``supported``, ``seconds``, ``hbm_bytes``, ``l2_bytes``,
        ``mma_flops`` (issued, with padding) and ``reason``.
    """

    def __init__(
        self,
        info: dict[str, Any],
        *,
        structure: _core.Structure | None = None,
        columns: int = 0,
        dtype: str = "",
        chip: dict[str, Any] | None = None,
        title: str = "",
    ) -> None:
        self.candidates: list[dict[str, Any]] = info["candidates"]
        self.useful_flops: float = info["useful_flops"]
        self.choice: str = info["chosen"]
        chosen = next(c for c in self.candidates if c["family"] == self.choice)
        self.seconds: float = chosen["seconds"]
        self._structure, self._columns, self._dtype = structure, columns, dtype
        self._chip = {"name": "NVIDIA H200", "sm_count": 132} | (chip or {})
        self._title = title

    @property
    def tflops(self) -> float:
        """Predicted useful rate in TFLOP/s."""
        return self.useful_flops / self.seconds / 1e12 if self.seconds > 0 else 0.0

    def explain(self) -> str:
        """What would run, how fast, and why, as text.

        A table of all families: predicted time, useful rate, traffic, and what limits each. Above
        it the product, the lengths of block rows and how evenly they can be dealt out to the SMs;
        below it what larger square blocks would fill up with zeros, and what the CPU of this
        machine is estimated to take.
        """
        return "\n".join([*self._pattern(), *self._table(), *self._elsewhere()])

    def _pattern(self) -> list[str]:
        if self._structure is None:
            return []
        lengths = np.diff(pattern_of(self._structure)[1])
        sms, uneven = (
            self._chip["sm_count"],
            busiest(lengths, self._columns, self._chip["sm_count"]),
        )
        lines = [
            f"{self._title}, predicted for one {self._chip['name']}",
            f"block rows: {rows_of(lengths)}",
            f"work over {sms} SMs, whole rows by 256 columns: the busiest has {uneven:.2f} times "
            "the mean",
        ]
        if uneven > 1.25:
            lines[-1] += (
                "; long rows are divided where a family's line below says parts"
                if rows_of(lengths).skew > 4
                else "; there are few pieces for so many SMs"
            )
        return lines

    def _table(self) -> list[str]:
        lines = [
            f"{'family':<10}{'time':>11}{'TFLOP/s':>9}{'HBM':>10}{'L2':>10}{'issued':>9}  why",
        ]
        for c in self.candidates:
            mark = "*" if c["family"] == self.choice else " "
            name = f"{mark} {c['family']}"
            if not c["supported"]:
                lines.append(
                    f"{name:<10}{'-':>11}{'-':>9}{'-':>10}{'-':>10}{'-':>9}  {c['reason']}"
                )
                continue
            seconds = c["seconds"]
            rate = self.useful_flops / seconds / 1e12 if seconds > 0 else 0.0
            issued = c["mma_flops"] / self.useful_flops if self.useful_flops else 1.0
            lines.append(
                f"{name:<10}{seconds * 1e6:>8.1f} us{rate:>9.1f}{c['hbm_bytes'] / 1e6:>7.1f} MB"
                f"{c['l2_bytes'] / 1e6:>7.1f} MB{issued:>8.2f}x  {c['reason']}"
            )
        lines.append(
            "* is taken; issued: matrix instructions over useful work; times are predictions"
        )
        return lines

    def _elsewhere(self) -> list[str]:
        if self._structure is None:
            return []
        lines = []
        height, width = self._structure.blocksize
        sides = [side for side in (16, 32, 64, 128, 256) if side > min(height, width)]
        stored = self._structure.nnzb * height * width
        if sides and stored > 0 and self._structure.nnzb * _parts(height, width) <= MOST_CELLS:
            fills = fill_of(self._structure, sides)
            lines.append(
                "larger square blocks, stored elements over those of now: "
                + ", ".join(f"{side}x{side} {fill:.2f}" for side, fill in fills.items())
            )
        if self._dtype in CPU_FLOPS:
            threads = _core.get_num_threads()
            seconds = cpu_seconds(self.useful_flops, self._dtype)
            lines.append(
                f"in host memory the CPU computes it: about {_time(seconds)} here, with {threads} "
                f"threads ({_core.cpu_isa()}), estimated from the rate of another processor"
            )
        return lines

    def __repr__(self) -> str:
        return f"<Plan {self.choice}, predicted {self.seconds * 1e6:.1f} us>"


def _parts(height: int, width: int) -> int:
    """The cells of a block that are told apart in other block sizes."""
    return (height // np.gcd(height, 16)) * (width // np.gcd(width, 16))


def cpu_seconds(flops: float, dtype: str) -> float:
    """An estimate for the CPU of this machine: panels that are full, and nothing else."""
    isa = _core.cpu_isa()
    rate = CPU_FLOPS[dtype] * CPU_SHARE[isa]
    if dtype == "bfloat16" and isa == "avx512_bf16":
        rate *= PAIRS
    return flops / (rate * _core.get_num_threads())


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
