"""Checks what the compiler made of the kernels, without a GPU: python tools/check_kernels.py

Nothing spills or touches local memory, and the kernels that live from tensor cores use them. The
facts come from the report of ptxas, from the machine code's resources and from its SASS, which must
agree on which kernels there are. Disassembling takes longest. So of an image for several
architectures it is done for the newest one, and there for one instruction of each opcode, since
these are numbers in the instructions that can be counted, for how each kernel begins until it
waits, and for what comes before the arrivals at barriers of other CTAs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import build_kernels
from build_kernels import TARGETS, Image, KernelBuildError

# Which instruction the kernels of an image must contain, by how the image's name begins: the first
# that fits counts.
REQUIRED = {
    "sm90/attention_e4m3": "QGMMA",
    "sm90/kmajor_e": "QGMMA",
    "sm90/narrow_tma_e": "QGMMA",
    "sm90/narrow_tma": "HGMMA",
    "sm90/narrow_shares": "HGMMA",
    "sm90/narrow_f32": "FFMA",
    "sm90/narrow_ta_f32": "FFMA",
    "sm90/narrow_f64": "DFMA",
    "sm90/narrow_ta_f64": "DFMA",
    "sm90/narrow_": "HMMA",
    "sm90/": "HGMMA",
    "sm80/portable": "HMMA",
    "sm80/narrow_": "HMMA",
    "sm80/attention_decode": "HMMA",
    "sm80/simt_tf32": "HMMA",
    "sm80/simt_transposed_tf32": "HMMA",
    "sm80/simt_f64": "DMMA",
    "sm80/simt_transposed_f64": "DMMA",
    "sm80/sampled_f64": "DMMA",
    "sm80/pairs_f64": "DMMA",
    "sm80/pairs_transposed_f64": "DMMA",
    "sm80/sampled_f16": "HMMA",
    "sm80/sampled_bf16": "HMMA",
}

# Every kernel may be launched while the one before it still runs, and waits for it with this
# instruction, griddepcontrol.wait; none that touches memory, or leads past it, may come before it,
# but for loads of what the host has uploaded (ptx::load_uploaded), which ask L1 not to keep it.
WAITS = "ACQBULK"
BEFORE_WAIT = re.compile(
    r"(LDG|LD|STG|ST|ATOMG?|REDG?|LDGSTS|LDGMC|UTMA\w+|UBLK\w+|SU\w+|TEX|TLD\w*|EXIT|BRX|JMP|CALL)$"
)
UPLOADED = re.compile(r"\.E(\.\w+)*\.NA\b")
# Of few columns a product is so short that it counts whether the plan is read meanwhile.
READS_PLAN_EARLY = re.compile(r"sm90/narrow_(?!cluster)")
EARLY = "(before the wait)"
PLAN_EARLY = "(of the plan, before the wait)"
UNIFORM_COPY = "(to a uniform address)"
OVERTAKES = "(before a load)"
INVERTED = "(a comparison)"

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_USAGE_ARCH = re.compile(r"^arch = (sm_\w+)")
_USAGE_FUNCTION = re.compile(r"^\s*Function (\S+):")
_USAGE = re.compile(r"\bSTACK:(\d+) .*\bLOCAL:(\d+)")
# An instruction's line is /*address*/, a predicate or none, and the opcode with its modifiers.
SASS_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?\w+\s+)?([A-Z][A-Z0-9_]*)([^;]*)")
_SASS_TARGET = re.compile(r"0x([0-9a-f]+)")

INSTRUCTION_BYTES = 16
TOGETHER = 16  # images that are disassembled at once
OPCODE_BITS = 0xFFF  # of its first two bytes

# An arrival at a barrier that may be another CTA's does not wait for loads of shared memory before
# it, and whoever waits there may replace what they read. So it has to come behind what uses it.
REMOTE_ARRIVAL = re.compile(r"\.ARRIVE\..*\.RED\b")
BEFORE_ARRIVAL = 48  # instructions, within which such loads are looked for
_BARRIER_ARRIVAL = 0x9A7  # local ones, too
_REGISTER = re.compile(r"\bR(\d+)")

# LDGSTS to the sum of a uniform address and one of each lane. ptxas 13.0 also has it where the copy
# has an L2 policy, and with registers then that no GPU executes.
UNIFORM_LDGSTS = 0xDAE

# VIMNMX, with its second operand in a register, a constant, c[][] or a uniform register. Where a
# value that is kept within 0 and a bound is compared with that bound, ptxas 13.0 takes the answer
# from the instruction that keeps it, VIMNMX.RELU, which on an H200 gives the opposite.
_MINIMA = (0x248, 0x848, 0xA48, 0xC48)
_ANSWERS = re.compile(r"(\.\w+)* R\w+, P(\d), P\2\b")


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
        if opcodes[UNIFORM_COPY]:
            found.append(
                "may end with an illegal instruction: its cp.async go to uniform addresses"
            )
        if opcodes[INVERTED]:
            found.append("may compare wrongly: with a bound that it keeps a value within")
        if opcodes[OVERTAKES]:
            found.append("may read a message when another CTA has replaced it")
        if not opcodes[WAITS]:
            found.append("does not wait for the grid before it, beside which it may be launched")
        elif opcodes[EARLY]:
            found.append("may touch memory before it waits for the grid before it")
        elif READS_PLAN_EARLY.match(self.image) and not opcodes[PLAN_EARLY]:
            found.append("reads nothing of the plan before it waits for the grid before it")
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


def _tool(name: str) -> Path:
    """That of PyPI's wheel, else of PATH."""
    found = build_kernels.wheel_file(f"nvidia-cuda-{name}", name) or shutil.which(name)
    if found is None:
        raise KernelBuildError(
            f"no {name} was found: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        )
    return Path(found)


def run_tool(name: str, *arguments: str, folder: str | None = None) -> list[str]:
    command = [str(_tool(name)), *arguments]
    # cuobjdump looks for nvdisasm there.
    path = os.pathsep.join([str(_tool("nvdisasm").parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PATH": path},
    )
    if done.returncode != 0:
        raise KernelBuildError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout.splitlines()


def has_ptx(image: Image) -> bool:
    """Whether the driver can compile the image for GPUs that it has no machine code for."""
    return any(
        line.startswith("PTX file") for line in run_tool("cuobjdump", "-lptx", str(image.fatbin))
    )


def _local_memory(image: Image) -> dict[tuple[str, str], int]:
    """Bytes of each kernel, for each architecture."""
    found: dict[tuple[str, str], int] = {}
    arch = name = ""
    for line in run_tool("cuobjdump", "-res-usage", str(image.fatbin)):
        if code := _USAGE_ARCH.match(line):
            arch = code[1]
        elif function := _USAGE_FUNCTION.match(line):
            name = function[1]
        elif usage := _USAGE.search(line):
            found[arch, name] = int(usage[1]) + int(usage[2])
    return found


def _machine_code(image: Image, arch: str) -> dict[str, bytes]:
    """The instructions of each kernel, which are sections of an ELF file."""
    with tempfile.TemporaryDirectory() as folder:
        run_tool("cuobjdump", "-xelf", f".{arch}.", str(image.fatbin.resolve()), folder=folder)
        (elf,) = (path.read_bytes() for path in Path(folder).iterdir())
    (at,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", elf, 0x3A)
    # Of each section: name, type, flags, address, offset, size.
    sections = [struct.unpack_from("<IIQQQQ", elf, at + size * i) for i in range(count)]
    names = sections[of_names][4]
    found = {}
    for name, _, _, _, offset, length in sections:
        text = elf[names + name : elf.index(b"\0", names + name)].decode()
        if text.startswith(".text."):
            found[text.removeprefix(".text.")] = elf[offset : offset + length]
    return found


def _instructions(code: bytes, arch: str) -> dict[int, re.Match[str]]:
    """By their addresses: predicate, opcode and operands."""
    if not code:  # nvdisasm takes no empty file
        return {}
    with tempfile.NamedTemporaryFile() as file:
        file.write(code)
        file.flush()
        lines = run_tool("nvdisasm", "-b", arch.replace("sm_", "SM"), file.name)
    found = {int(i[1], 16): i for line in lines if (i := SASS_INSTRUCTION.match(line))}
    if sorted(found) != list(range(0, len(code), INSTRUCTION_BYTES)):
        raise KernelBuildError(f"nvdisasm read {len(found)} instructions of {len(code)} bytes")
    return found


def _early(beginning: list[re.Match[str]]) -> tuple[int, int]:
    """Instructions that may touch memory before all threads have waited, and those of what the host
    has uploaded."""
    early = furthest = uploaded = 0
    for instruction in beginning:
        address, predicate, opcode, operands = instruction.groups()
        if opcode == WAITS:  # on no condition of its own, and where no branch leads past it
            early += predicate is not None or furthest > int(address, 16)
            return early, uploaded
        if opcode == "BRA" and (target := _SASS_TARGET.search(operands)):
            furthest = max(furthest, int(target[1], 16))
        elif opcode == "LDG" and UPLOADED.match(operands):
            uploaded += 1
        elif BEFORE_WAIT.match(opcode):
            early += 1
    raise KernelBuildError(f"no {WAITS} among {len(beginning)} instructions that end with one")


def _overtakes(instructions: list[re.Match[str]]) -> bool:
    """Whether the last of them is an arrival at another CTA's barrier, and nothing has waited for
    what a load of shared memory before it gives."""
    waited_for: set[int] = set()
    for instruction in reversed(instructions if REMOTE_ARRIVAL.match(instructions[-1][4]) else []):
        _, _, opcode, operands = instruction.groups()
        if opcode in ("BRA", "EXIT") or ".PHASECHK" in operands:
            break
        registers = [int(number) for number in _REGISTER.findall(operands)]
        if opcode == "LDS" and not re.match(r"\S* RZ,", operands):
            words = 4 if ".128" in operands else 2 if ".64" in operands else 1
            if waited_for.isdisjoint(range(registers[0], registers[0] + words)):
                return True
        waited_for.update(registers)
    return False


Key = tuple[str, str]  # an image's name, a kernel's


def _read(
    codes: dict[Key, bytes], ranges: list[tuple[Key, int, int]], arch: str
) -> Iterator[list[re.Match[str]]]:
    """The instructions of each range: of which kernel, from which number on, and up to which."""
    size = INSTRUCTION_BYTES
    parts = [codes[key][size * begin : size * end] for key, begin, end in ranges]
    found = _instructions(b"".join(parts), arch)
    in_order = iter([found[address] for address in sorted(found)])
    return (list(itertools.islice(in_order, end - begin)) for _, begin, end in ranges)


def _disassemble(codes: dict[Key, bytes], arch: str) -> dict[Key, Counter[str]]:
    """How often each kernel has each opcode, and what else it has that it should not."""
    numbers = {
        key: [number & OPCODE_BITS for (number,) in struct.iter_unpack("<H14x", code)]
        for key, code in codes.items()
    }

    def ranges_of(*wanted: int) -> list[tuple[Key, int, int]]:
        return [
            (key, i, i + 1)
            for key, found in numbers.items()
            for i, number in enumerate(found)
            if number in wanted
        ]

    one_of_each = {
        number: (key, i, i + 1) for key, found in numbers.items() for i, number in enumerate(found)
    }
    arrivals = ranges_of(_BARRIER_ARRIVAL)
    found = _read(codes, [*one_of_each.values(), *arrivals], arch)
    opcodes = {number: next(found)[0][3] for number in one_of_each}
    remote = [
        (key, max(0, end - BEFORE_ARRIVAL), end)
        for key, _, end in arrivals
        if REMOTE_ARRIVAL.match(next(found)[0][4])
    ]

    # The rest, of which these say where it is.
    waits = {number for number, opcode in opcodes.items() if opcode == WAITS}
    beginnings = {key: (key, 0, end) for key, _, end in reversed(ranges_of(*waits))}
    minima = ranges_of(*_MINIMA)
    found = _read(codes, [*beginnings.values(), *remote, *minima], arch)
    counts = {key: Counter(opcodes[number] for number in numbers[key]) for key in codes}
    for key in codes:
        counts[key][UNIFORM_COPY] = numbers[key].count(UNIFORM_LDGSTS)
    for key in beginnings:
        counts[key][EARLY], counts[key][PLAN_EARLY] = _early(next(found))
    for key, _, _ in remote:
        counts[key][OVERTAKES] += _overtakes(next(found))
    for key, _, _ in minima:
        counts[key][INVERTED] += _ANSWERS.match(next(found)[0][4]) is not None
    return counts


def inspect(images: list[Image]) -> list[Kernel]:
    """Every kernel of images of one folder, for each architecture that has machine code."""
    kernels = [parse_report(image) for image in images]
    newest = max((arch for found in kernels for arch, _ in found), default="")
    codes = {
        (image.name, name): code
        for image in images
        for name, code in _machine_code(image, newest).items()
    }
    counts = _disassemble(codes, newest)
    for image, found in zip(images, kernels, strict=True):
        local = _local_memory(image)
        of_newest = {name for arch, name in found if arch == newest}
        disassembled = {name for of, name in codes if of == image.name}
        if not found.keys() == local.keys() or not disassembled == of_newest or not found:
            raise KernelBuildError(
                f"{image.name}: ptxas reports {sorted(found)}, the machine code has "
                f"{sorted(local)}, its SASS {sorted(disassembled)}"
            )
        for (arch, name), kernel in found.items():
            kernel.local_bytes = local[arch, name]
            kernel.opcodes = counts[image.name, name] if arch == newest else None
    return [found[key] for found in kernels for key in sorted(found)]


def table(kernels: list[Kernel]) -> str:
    opcodes = ("HGMMA", "QGMMA", "HMMA", "DMMA")
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
    """Some together, since nvdisasm takes a quarter of a second to start."""
    of_folders = [[image for image in images if image.arch == arch] for arch in TARGETS]
    groups = [some[i : i + TOGETHER] for some in of_folders for i in range(0, len(some), TOGETHER)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [kernel for found in pool.map(inspect, groups) for kernel in found]


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
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.exit(main())
