"""What all tables are made of: runs, their rows and cells of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from .cases import gpu_cases
from .records import Row


class Run:
    """One result file."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.facts = content
        self.rows: list[Row] = content["rows"]

    def find_all(self, who: str, timing: str | None = None, **fields: Any) -> Iterator[Row]:
        """The rows of ``who`` that have these fields; without a timing, any or an error."""
        for row in self.rows:
            if (
                row["who"] == who
                and (timing is None or row["timing"] in (timing, None))
                and all(row.get(key) == value for key, value in fields.items())
            ):
                yield row

    def find(self, who: str, timing: str | None = None, **fields: Any) -> Row | None:
        """The first of them."""
        return next(self.find_all(who, timing, **fields), None)

    def rival(self, ours: Row, who: str) -> Row | None:
        """The row of a rival for the case of one of our rows, timed in the same way."""
        found = self.find(who, ours["timing"], case=ours["case"])
        if found is None and who.startswith("cublas_"):
            # Dense products are measured once for all cases that need the same one: a whole one has
            # as many zeros.
            same = ["dtype", "M", "N", "K"]
            same += ["block", "nnzb"] if who == "cublas_equal_flop" else []
            rows = self.find_all(who, ours["timing"], **{key: ours[key] for key in same})
            by_density = {abs(math.log(row["density"] / ours["density"])): row for row in rows}
            found = by_density[min(by_density)] if by_density else None
        return found


Cells = list[str]
Made = tuple[Cells, list[Cells], Iterable[Run]]


@cache
def _order() -> dict[str, int]:
    cases = gpu_cases(("float16", "bfloat16", "float32"))
    return {case.name: place for place, case in enumerate(cases)}


def ours(runs: list[Run], timing: str, **fields: Any) -> list[tuple[Run, Row]]:
    """Our rows of the newest run that has each case. Those of the suite gpu are in its order, since
    parts of it may have been run again; others follow as the runs have them."""
    newest: dict[str, tuple[Run, Row]] = {}
    for run in runs:
        for row in run.rows:
            if (
                row["who"] == "bsrgemm"
                and row["timing"] in (timing, None)
                and all(row.get(key) == value for key, value in fields.items())
            ):
                newest.setdefault(row["case"], (run, row))
    order = _order()
    return sorted(newest.values(), key=lambda found: order.get(found[1]["case"], len(order)))


def number(value: float) -> str:
    """Three digits, more before the point."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def obstacle(row: Row | None) -> str | None:
    """Why a row has no figure to show: not measured, it raised, or its result was wrong."""
    if row is None:
        return "-"
    if row["us"] is None:
        return "fails"
    return "wrong" if row.get("wrong") else None


def micros(row: Row | None) -> str:
    return obstacle(row) or number(row["us"])


def rate(row: Row | None, scale: float = 1.0) -> str:
    """TFLOP/s times scale."""
    return obstacle(row) or number(row["tflops"] * scale)


def ratio(ours: Row, other: Row | None, of: str = "tflops", digits: int = 2) -> str:
    """Ours over the other's: more is better."""
    missing = obstacle(other) or obstacle(ours)
    if missing:
        return missing
    more, less = (ours[of], other[of]) if of == "tflops" else (other[of], ours[of])
    return f"{more / less:.{digits}f}"


def block_of(row: Row) -> str:
    return f"{row['block'][0]}×{row['block'][1]}"


def both_rates(run: Run, row: Row) -> str:
    """Sustained, and burst in parentheses."""
    return f"{rate(row)} ({rate(run.find('bsrgemm', 'burst', case=row['case']))})"
