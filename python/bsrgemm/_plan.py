"""``Plan``: which kernel family a product takes, and the prediction behind the choice."""

from __future__ import annotations

from typing import Any


class Plan:
    """What the planner thinks of one product on one GPU; made by :meth:`bsr_array.plan`.

    It is computed from the pattern alone and needs no device. Products in host memory always take
    the CPU backend, whatever the plan says.

    Attributes
    ----------
    choice : str
        The kernel family with the smallest predicted time.
    seconds : float
        Its predicted time.
    useful_flops : float
        2 * n for each element of a stored block that lies within the matrix.
    candidates : list of dict
        One for every family: ``family``, ``supported``, ``seconds``, ``hbm_bytes``, ``l2_bytes``,
        ``mma_flops`` (issued, with padding) and ``reason``.
    """

    def __init__(self, info: dict[str, Any]) -> None:
        self.candidates: list[dict[str, Any]] = info["candidates"]
        self.useful_flops: float = info["useful_flops"]
        self.choice: str = info["chosen"]
        chosen = next(c for c in self.candidates if c["family"] == self.choice)
        self.seconds: float = chosen["seconds"]

    @property
    def tflops(self) -> float:
        """Predicted useful rate in TFLOP/s."""
        return self.useful_flops / self.seconds / 1e12 if self.seconds > 0 else 0.0

    def explain(self) -> str:
        """A table of all families: predicted time, useful rate, traffic, and what limits each."""
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
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Plan {self.choice}, predicted {self.seconds * 1e6:.1f} us>"
