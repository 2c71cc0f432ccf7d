"""All tables of malformed inputs as docs/errors.md: python tests/malformed_table.py writes it."""

from __future__ import annotations

import re
from pathlib import Path

import malformed_attention
import malformed_matrices
import malformed_patterns
import malformed_products
import malformed_structure
import malformed_system
from malformed_inputs import Bad

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "errors.md"

# Without those of bsrgemm.torch, which import torch.
MODULES = (
    malformed_structure,
    malformed_products,
    malformed_attention,
    malformed_matrices,
    malformed_system,
    malformed_patterns,
)


def tables(with_torch: bool = True) -> dict[str, tuple[Bad, ...]]:
    """Of each function; names that begin with _ are not public."""
    found = {name: rows for module in MODULES for name, rows in module.TABLES.items()}
    if with_torch:
        import malformed_torch

        found |= malformed_torch.TABLES
    return found


def caught(bad: Bad) -> Exception:
    try:
        bad.call()
    except bad.error as error:
        return error
    raise AssertionError(f"{bad.name}: nothing was raised")


def message_of(bad: Bad) -> str:
    """With addresses left out."""
    return re.sub(r"0x[0-9a-f]+", "0x...", str(caught(bad)))


TEXT = """\
# What malformed inputs raise

One row a kind, from the tests' tables; a test compares the messages. Each names the argument, what
was found and what is accepted. `TypeError` is of kinds, dtypes, devices and libraries, `ValueError`
of values, shapes and memory layouts, `MemoryError` of memory that ran out, and
`bsrgemm.DeviceUnavailableError`, a `RuntimeError`, of GPUs that cannot be used: no driver or an old
one, no device, a compute capability below 8.0, kernels that the driver does not take, or a process
forked from one that had used CUDA. Whatever is refused leaves `out` as it was.

"""


def document() -> str:
    lines = ["| of | what is wrong | raises | message |", "| --- | --- | --- | --- |"]
    for function, rows in tables().items():
        for bad in rows:
            if bad.varies or function.startswith("_"):
                continue
            message = message_of(bad).replace("|", "\\|").replace("<", "&lt;")
            kind = type(caught(bad)).__name__
            lines.append(f"| `{function}` | {bad.name} | `{kind}` | {message} |")
    return TEXT + "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
