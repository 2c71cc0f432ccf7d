"""Checks what the compiler made of the kernels, without a GPU: python tools/check_kernels.py

Nothing spills or touches local memory, and the kernels that live from tensor cores use them. The
facts come from the report of ptxas, from the machine code's resources and from its SASS, which must
agree on which kernels there are. Disassembling takes longest: of an image for several architectures
it is done for the newest one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import build_kernels
from build_kernels import Image, KernelBuildError

# Which instruction the kernels of an image must contain, by how the image's name begins: the first
# that fits counts.
REQUIRED = {
    "sm90/attention_e4m3": "QGMMA",
    "sm90/kmajor_e": "QGMMA",
    "sm90/": "HGMMA",
    "sm80/portable": "HMMA",
    "sm80/narrow_": "HMMA",
    "sm80/attention_decode": "HMMA",
    "sm80/sampled_f16": "HMMA",
    "sm80/sampled_bf16": "HMMA",
}

# Every kernel may be launched while the one before it still runs, and waits for it with this
# instruction, griddepcontrol.wait; none that touches memory, or leads past it, may come before it.
WAITS = "ACQBULK"
BEFORE_WAIT = re.compile(
    r"(LDG|LD|STG|ST|ATOMG?|REDG?|LDGSTS|LDGMC|UTMA\w+|UBLK\w+|SU\w+|TEX|TLD\w*|EXIT|BRX|JMP|CALL)$"
)
EARLY = "(before the wait)"

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_USAGE_ARCH = re.compile(r"^arch = (sm_\w+)")
_USAGE_FUNCTION = re.compile(r"^\s*Function (\S+):")
_USAGE = re.compile(r"\bSTACK:(\d+) .*\bLOCAL:(\d+)")
_SASS_ARCH = re.compile(r"^\s*code for (\w+)")
_SASS_FUNCTION = re.compile(r"^\s*Function : (\S+)")
# An instruction's line is /*address*/, a predicate or none, and the opcode with its modifiers.
_SASS_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?\w+\s+)?([A-Z][A-Z0-9_]*)([^;]*)")
_SASS_TARGET = re.compile(r"0x([0-9a-f]+)")


@dataclass
class Kernel:
    image: str
    arch: str
    name: str
    registers: int = 0
    shared_bytes: int = 0  # static; dynamic shared memory is the launch's
    stack_bytes: int = 0
    spill_bytes: int = 0
    local_bytes: int = 0  # of the machine code, stack included
    opcodes: Counter[str] | None = None  # where it was disassembled

    def problems(self) -> list[str]:
        found = []
        if self.spill_bytes:
            found.append(f"spills {self.spill_bytes} bytes")
        if self.stack_bytes:
            found.append(f"has a stack frame of {self.stack_bytes} bytes")
        if self.local_bytes:
            found.append(f"has {self.local_bytes} bytes of local memory")
        if self.opcodes is not None:
            found += self._problems_of_opcodes(self.opcodes)
        return [f"{self.image}: {self.name} ({self.arch}) {problem}" for problem in found]

    def _problems_of_opcodes(self, opcodes: Counter[str]) -> list[str]:
        found = [
            f"uses local memory: {opcodes[opcode]} {opcode}"
            for opcode in ("LDL", "STL")
            if opcodes[opcode]
        ]
        fitting = (op for prefix, op in REQUIRED.items() if self.image.startswith(prefix))
        opcode = next(fitting, None)
        if opcode is not None and not opcodes[opcode]:
            found.append(f"has no {opcode}")
        if not opcodes[WAITS]:
            found.append("does not wait for the grid before it, beside which it may be launched")
        elif opcodes[EARLY]:
            found.append("may touch memory before it waits for the grid before it")
        return found


def parse_report(image: Image) -> dict[tuple[str, str], Kernel]:
    kernels: dict[tuple[str, str], Kernel] = {}
    kernel = None
    for line in image.report.read_text().splitlines():
        if entry := _ENTRY.search(line):
            name, arch = entry.groups()
            kernel = kernels[arch, name] = Kernel(image.name, arch, name)
        elif kernel is None:
            continue
        elif frame := _FRAME.search(line):
            # Functions that were not inlined have frames of their own, reported under their caller.
            stack, stores, loads = map(int, frame.groups())
            kernel.stack_bytes += stack
            kernel.spill_bytes += stores + loads
        elif used := _USED.search(line):
            kernel.registers = int(used[1])
            shared = _SHARED.search(line)
            kernel.shared_bytes = int(shared[1]) if shared else 0
    return kernels


def _cuobjdump() -> tuple[str, dict[str, str]]:
    """cuobjdump of PyPI's wheel, else of PATH, and an environment in which it finds nvdisasm."""
    found = build_kernels.wheel_file("nvidia-cuda-cuobjdump", "cuobjdump")
    tool = str(found) if found else shutil.which("cuobjdump")
    if tool is None:
        raise KernelBuildError(
            "no cuobjdump was found: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        )
    disassembler = build_kernels.wheel_file("nvidia-cuda-nvdisasm", "nvdisasm")
    folders = [str(path.parent) for path in (disassembler, Path(tool)) if path]
    return tool, {**os.environ, "PATH": os.pathsep.join([*folders, os.environ.get("PATH", "")])}


def _dump(image: Image, *what: str) -> list[str]:
    tool, environment = _cuobjdump()
    command = [tool, *what, str(image.fatbin)]
    dump = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if dump.returncode != 0:
        raise KernelBuildError(f"{' '.join(command)} failed: {dump.stderr.strip()}")
    return dump.stdout.splitlines()


def has_ptx(image: Image) -> bool:
    """Whether the driver can compile the image for GPUs that it has no machine code for."""
    return any(line.startswith("PTX file") for line in _dump(image, "-lptx"))


def _local_memory(image: Image) -> dict[tuple[str, str], int]:
    """Bytes of each kernel, for each architecture."""
    found: dict[tuple[str, str], int] = {}
    arch = name = ""
    for line in _dump(image, "-res-usage"):
        if code := _USAGE_ARCH.match(line):
            arch = code[1]
        elif function := _USAGE_FUNCTION.match(line):
            name = function[1]
        elif usage := _USAGE.search(line):
            found[arch, name] = int(usage[1]) + int(usage[2])
    return found


def _disassemble(image: Image, only: str) -> dict[tuple[str, str], Counter[str]]:
    functions: dict[tuple[str, str], Counter[str]] = {}
    arch, opcodes, furthest = "", Counter[str](), 0
    for line in _dump(image, "-sass", "-arch", only):
        if instruction := _SASS_INSTRUCTION.match(line):
            address, predicate, opcode, operands = instruction.groups()
            waited = opcodes[WAITS] > 0
            opcodes[opcode] += 1
            if waited:
                continue
            if opcode == WAITS:  # on no condition of its own, and where no branch leads past it
                opcodes[EARLY] += predicate is not None or furthest > int(address, 16)
            elif opcode == "BRA" and (target := _SASS_TARGET.search(operands)):
                furthest = max(furthest, int(target[1], 16))
            elif BEFORE_WAIT.match(opcode):
                opcodes[EARLY] += 1
        elif function := _SASS_FUNCTION.match(line):
            opcodes, furthest = functions.setdefault((arch, function[1]), Counter()), 0
        elif code := _SASS_ARCH.match(line):
            arch = code[1]
    return functions


def inspect(image: Image) -> list[Kernel]:
    """Every kernel of an image, for each architecture that has machine code."""
    kernels, local = parse_report(image), _local_memory(image)
    newest = max((arch for arch, _ in kernels), default="")
    functions = _disassemble(image, newest)
    of_newest = {key for key in kernels if key[0] == newest}
    if not kernels.keys() == local.keys() or not functions.keys() == of_newest or not kernels:
        raise KernelBuildError(
            f"{image.name}: ptxas reports {sorted(kernels)}, the machine code has {sorted(local)}, "
            f"its SASS {sorted(functions)}"
        )
    for key, kernel in kernels.items():
        kernel.local_bytes = local[key]
        kernel.opcodes = functions.get(key)
    return [kernels[key] for key in sorted(kernels)]


def table(kernels: list[Kernel]) -> str:
    opcodes = ("HGMMA", "QGMMA", "HMMA")
    rows = [("kernel", "arch", "registers", "shared", *opcodes)]
    for kernel in kernels:
        counts = ("" if kernel.opcodes is None else kernel.opcodes[opcode] for opcode in opcodes)
        numbers = (kernel.registers, kernel.shared_bytes, *counts)
        rows.append((kernel.name, kernel.arch, *map(str, numbers)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True))
        for row in rows
    )


def inspect_all(images: list[Image]) -> list[Kernel]:
    """As many at a time as there are processors: most of it is cuobjdump's work."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [kernel for found in pool.map(inspect, images) for kernel in found]


def main() -> int:
    try:
        images = build_kernels.compile_kernels(build_kernels.find_nvcc())
        kernels = inspect_all(images)
    except KernelBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    problems = [problem for kernel in kernels for problem in kernel.problems()]
    print(table(kernels))
    summary = f"{len(kernels)} kernels: no spills, no local memory, tensor cores used"
    print("\n".join(problems) or summary)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
