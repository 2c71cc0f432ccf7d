"""What each kernel takes of an SM, from the compiled images, as the table docs/resources.md:

    python tools/kernel_resources.py          compares it with the build
    python tools/kernel_resources.py --write  writes it

Registers, spills and static shared memory are ptxas's, threads and dynamic shared memory those of
the launches (csrc/kernels.def). Occupancy follows from them by the rules of NVIDIA's occupancy
calculator. No GPU is needed. Another nvcc gives other numbers, so the table names its own.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import build_kernels
from build_kernels import ROOT, Image, KernelBuildError
from check_kernels import Kernel, parse_report

TABLE = ROOT / "docs" / "resources.md"


@dataclass(frozen=True)
class SM:
    """What an SM has (CUDA programming guide, table of technical specifications)."""

    shared_bytes: int
    warps: int = 64
    ctas: int = 32
    registers: int = 65536
    # Registers are handed out 256 at a time to each warp, warps come by fours, and shared memory in
    # units of 128 bytes, of which the system takes 1024 for each CTA.
    register_unit: int = 256
    warp_unit: int = 4
    shared_unit: int = 128
    reserved_bytes: int = 1024

    def resident_ctas(self, threads: int, registers: int, shared_bytes: int) -> tuple[int, str]:
        """How many CTAs run at a time, and all that there is not enough of for another."""
        warps = -(-threads // 32)
        of_a_warp = -(-registers * 32 // self.register_unit) * self.register_unit
        of_registers = self.registers // of_a_warp // self.warp_unit * self.warp_unit // warps
        taken = shared_bytes + self.reserved_bytes
        of_shared = self.shared_bytes // (-(-taken // self.shared_unit) * self.shared_unit)
        limits = {
            "warps": self.warps // warps,
            "registers": of_registers,
            "shared memory": of_shared,
            "CTAs": self.ctas,
        }
        least = min(limits.values())
        return least, ", ".join(what for what, most in limits.items() if most == least)


SMS = {"sm_80": SM(164 * 1024), "sm_90": SM(228 * 1024), "sm_90a": SM(228 * 1024)}


@dataclass(frozen=True, order=True)
class Launch:
    threads: int
    shared_bytes: int  # dynamic
    cluster: int


LIST = """
#include <stdio.h>
#include "kernels.h"
int main(void) {
  for (int i = 0; i < BSRG_KERNEL_COUNT; ++i) {
    const bsrg_kernel *row = &bsrg_kernels[i];
    printf("%s %d %d %d\\n", row->name, row->threads, row->shared_bytes, row->cluster);
  }
}
"""


def launches() -> dict[str, set[Launch]]:
    """All forms of each kernel by name, as the C compiler reads csrc/kernels.def."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "list")
        command = [*compiler, "-I", ROOT / "csrc", ROOT / "csrc" / "kernels.c", "-x", "c", "-"]
        subprocess.run([*command, "-o", program], input=LIST, text=True, check=True)
        lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    found: dict[str, set[Launch]] = {}
    for line in lines.splitlines():
        name, *numbers = line.split()
        found.setdefault(name, set()).add(Launch(*map(int, numbers)))
    return found


def numbers(kernel: Kernel, launch: Launch) -> tuple[object, ...]:
    """Of a row, from the column of the code on."""
    sm = SMS[kernel.arch]
    shared = kernel.shared_bytes + launch.shared_bytes
    ctas, limit = sm.resident_ctas(launch.threads, kernel.registers, shared)
    occupancy = f"{100 * ctas * -(-launch.threads // 32) // sm.warps}%"
    of_a_cta = (launch.threads, kernel.registers, kernel.spill_bytes)
    memory = (kernel.shared_bytes, launch.shared_bytes, launch.cluster)
    return (kernel.arch, *of_a_cta, *memory, ctas, occupancy, limit)


TEXT = """\
# What each kernel takes

Compiled by nvcc {release}. `python tools/kernel_resources.py --write` makes this table from the
build, and a test compares them. Kernels of one source that take the same share a row; one that is
launched in several forms has a row for each. Registers are those of a thread at the launch:
warpgroups that trade them later have as many in sum. Spills and shared memory are in bytes.
Clusters are the table's; stream kernels may be launched in clusters of two. CTAs on an SM,
occupancy (of the 64 warps that there is room for) and what limits them are of an A100 (`sm_80`,
164 KB of shared memory) and of an H100 or H200 (`sm_90` and `sm_90a`, 228 KB).

"""

COLUMNS = {
    "source": "---",
    "kernels": "---",
    "code": "---",
    "threads": "---:",
    "registers": "---:",
    "spills": "---:",
    "static shared": "---:",
    "dynamic shared": "---:",
    "cluster": "---:",
    "CTAs": "---:",
    "occupancy": "---:",
    "limit": "---",
}


def document(images: list[Image], release: str) -> str:
    how = launches()
    table = [list(COLUMNS), list(COLUMNS.values())]
    for image in images:
        rows: dict[tuple[object, ...], list[str]] = {}
        for kernel in sorted(parse_report(image).values(), key=lambda one: (one.arch, one.name)):
            if kernel.name not in how:
                raise KernelBuildError(f"{image.name} has {kernel.name}, which nobody launches")
            for launch in sorted(how[kernel.name]):
                rows.setdefault(numbers(kernel, launch), []).append(f"`{kernel.name}`")
        for found, names in rows.items():
            table.append([image.name, " ".join(names), *map(str, found)])
    lines = [f"| {' | '.join(cells)} |\n" for cells in table]
    return TEXT.format(release=release) + "".join(lines)


def release_of(table: str) -> str:
    found = re.search(r"^Compiled by nvcc (\S+)\. ", table, re.MULTILINE)
    if found is None:
        raise KernelBuildError(f"{TABLE} does not say which nvcc compiled the kernels")
    return found[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    options = parser.parse_args()
    try:
        nvcc = build_kernels.find_nvcc()
        made = document(build_kernels.compile_kernels(nvcc), nvcc.release)
        if options.write:
            TABLE.write_text(made)
            return 0
        committed = TABLE.read_text()
        if release_of(committed) != nvcc.release:
            print(f"the table is of nvcc {release_of(committed)}, this one is {nvcc.release}")
            return 0
    except KernelBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if made != committed:
        print("docs/resources.md is not of this build; --write makes it anew", file=sys.stderr)
    return int(made != committed)


if __name__ == "__main__":
    sys.exit(main())
