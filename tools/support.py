"""Writes docs/support.md, what the library supports, by asking it: python tools/support.py

Every cell of its tables is a call of the public functions (support_rows.py). On the CPU it
computes, on small operands. For GPUs the same functions are called on operands that are said to be
on one, and at the end of all their checks the core tells which kernels it would launch there. So
neither a GPU nor a list kept by hand is needed, and what raises an error is in the tables with its
message.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import bsrgemm.torch  # noqa: F401, whose modules take part in rehearsals
import support_rows
from bsrgemm import _core
from support_rows import Operands, Row

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "support.md"

CHIPS = {
    "Hopper": {"name": "this GPU", "sm_arch": 90, "sm_count": 132},
    "sm_80": {"name": "this GPU", "sm_arch": 80, "sm_count": 108},
}
REFUSALS = (TypeError, ValueError)
# What every message of a refusal has.
NAMES_WHAT_IS_ACCEPTED = re.compile(r"accepted|must |needs? |takes? |only |use A\.| exist$")


class Answer(NamedTuple):
    """Of one call on one device: the kernels' family or "yes", or else an error."""

    family: str
    error: str = ""


class Rehearsal:
    """The extension as it looks on a machine with a GPU on which all host arrays were.

    Calls that compute are asked which family they would take. What fills patterns has one, and
    they have no memory here.
    """

    def __init__(self, chip: dict[str, Any]) -> None:
        self.chip = chip
        self.families: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(_core, name)

    def describe(self, *arguments: Any) -> _core.ArrayInfo:
        info = _core.describe(*arguments)
        return type(info)((*info[:3], "cuda:0", *info[4:]))

    def cuda_devices(self) -> list[dict[str, Any]]:
        return [self.chip]

    def DynamicStructure(self, *arguments: Any) -> _core.DynamicStructure:
        return _core.DynamicStructure(*arguments, chip=self.chip)

    def _ask(self, function: Callable[..., str | None], *arguments: Any, **options: Any) -> None:
        self.families.append(str(function(*arguments, **options, chip=self.chip)))

    def try_matmul(self, *arguments: Any) -> Any:
        return NotImplemented  # the short way computes at once

    try_linear = try_matmul

    def matmul(self, *arguments: Any) -> None:
        self._ask(_core.matmul, *arguments)

    def matmul_sparse(self, *arguments: Any) -> None:
        self._ask(_core.matmul_sparse, *arguments)

    def sampled_matmul(self, *arguments: Any) -> None:
        self._ask(_core.sampled_matmul, *arguments)

    def softmax(self, *arguments: Any) -> None:
        self._ask(_core.softmax, *arguments)

    def attention(self, *arguments: Any, **options: Any) -> None:
        self._ask(_core.attention, *arguments, **options)

    def pattern_update(self, *arguments: Any) -> None:
        _core.pattern_update(*arguments)
        self.families.append("portable")

    def pattern_topk(self, *arguments: Any) -> None:
        _core.pattern_topk(*arguments)
        self.families.append("portable")

    def pattern_gather(self, *arguments: Any) -> None:
        _core.pattern_gather(*arguments)
        self.families.append("portable")

    def topk(self, *arguments: Any) -> None:
        """Of masks of attention, which is asked itself."""


@contextlib.contextmanager
def rehearsal(chip: dict[str, Any]) -> Iterator[Rehearsal]:
    """Within it the package works on the GPU of which ``chip`` says what it is."""
    stage = Rehearsal(chip)
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("bsrgemm.") and getattr(module, "_core", None) is _core:
                stack.enter_context(mock.patch.object(module, "_core", stage))
        yield stage


def ask(row: Row, dtype: str, stage: Rehearsal | None) -> Answer:
    """What a call does on the CPU, or on the GPU of a rehearsal."""
    operands = Operands(dtype, "cuda:0" if stage else "cpu", row.library or "numpy")
    try:
        if stage is None:
            row.run(operands)
            return Answer("yes" if row.library else "cpu")
        stage.families.clear()
        row.run(operands)
        return Answer(stage.families[-1])  # of several calls the last one is meant
    except REFUSALS as error:
        # Dtypes that are refused alike are to have one column.
        text = re.sub(rf"\b(of|ha(?:s|ve) dtype) {operands.name}\b", r"\1 T", str(error))
        return Answer("", f"{type(error).__name__}: {text}")


def ask_all(rows: list[Row], device: str) -> dict[tuple[int, str], Answer]:
    """By number of the row and dtype, on "cpu" or the GPU of that name."""
    on = contextlib.nullcontext() if device == "cpu" else rehearsal(CHIPS[device])
    with on as stage:
        return {
            (i, dtype): ask(row, dtype, stage) for i, row in enumerate(rows) for dtype in row.dtypes
        }


# ---- the document --------------------------------------------------------------------------------

INTRODUCTION = """\
# What is supported

<!-- Written by `python tools/support.py` from what the library itself says. Do not edit. -->

Each cell is a call that was made: on the CPU it computed its result, for a GPU the library did all
its checks and said which kernels it would launch. A cell names them on Hopper (an H200) / on other
GPUs from compute capability 8.0 up / on the CPU, or once where all are the same;
[kernels.md](kernels.md) explains the families. A number in brackets is an error, listed under its
table, where T is the dtype of the column. Which family is fastest depends on sizes and patterns,
too, as `A.plan(n).explain()` and `A.plan(n, chip=...)` tell. The matrices asked about here are of
4096 × 4096 elements, as far as blocks go, with an eighth of the blocks stored, and have products of
1024 columns unless said otherwise. Columns with the same content are one.

"""


def _cell(answers: list[Answer], notes: list[str]) -> str:
    parts = []
    for answer in answers:
        if not answer.error:
            parts.append(answer.family)
            continue
        if answer.error not in notes:
            notes.append(answer.error)
        parts.append(f"[{notes.index(answer.error) + 1}]")
    return parts[0] if len(set(parts)) == 1 else " / ".join(parts)


def _printable(message: str) -> str:
    """Without what is another one in each run."""
    return re.sub(r"0x[0-9a-f]+", "0x…", message).replace("\n", " ").replace("|", "\\|")


def section(title: str, text: str, rows: list[Row]) -> Iterator[str]:
    """A heading, a table with a column for each group of dtypes that are treated alike, errors.

    All rows have the same dtypes."""
    devices = ("cpu",) if rows[0].library else (*CHIPS, "cpu")
    answers = [ask_all(rows, device) for device in devices]
    notes: list[str] = []
    columns = {
        dtype: [_cell([on[i, dtype] for on in answers], notes) for i in range(len(rows))]
        for dtype in rows[0].dtypes
    }
    groups: dict[tuple[str, ...], list[str]] = {}
    for dtype, column in columns.items():
        groups.setdefault(tuple(column), []).append(dtype)
    yield f"## {title}\n\n{text}\n\n"
    yield "| | " + " | ".join(", ".join(names) for names in groups.values()) + " |\n"
    yield "| --- |" + " --- |" * len(groups) + "\n"
    for i, row in enumerate(rows):
        yield f"| {row.label} | " + " | ".join(column[i] for column in groups) + " |\n"
    yield "\n"
    for number, note in enumerate(notes, 1):
        yield f"- [{number}] {_printable(note)}\n"
    yield "\n" if notes else ""


def document() -> str:
    parts = [INTRODUCTION]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, that its sparse tensors are in beta
        for title, text, rows in support_rows.sections():
            parts.extend(section(title, text, rows))
    return "".join(parts).rstrip("\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="write docs/support.md")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    arguments = parser.parse_args()
    text = document()
    if not arguments.check:
        OUTPUT.write_text(text)
        return 0
    if OUTPUT.read_text() == text:
        return 0
    print(f"{OUTPUT} is not what the library says: run python {os.path.relpath(__file__)}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
