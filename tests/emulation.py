"""The kernels of kernels/sm80 on a CPU: compiled as C++ with tests/emulator, for the driver that
tests/fake_cuda.py makes up, whose device memory is the host's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import build_kernels  # of tools/
import pytest

TESTS = Path(__file__).resolve().parent
KERNELS = TESTS.parent / "kernels"
EMULATOR = TESTS / "emulator"
FLAGS = ["-std=c++20", "-O1", "-fPIC", "-w", "-pthread"]

# What means something else to a C++ compiler: parameters by reference, so that their size does not
# matter to who calls, and shared memory, of which the dynamic part has a place of its own.
REPLACED = [
    (r"const __grid_constant__ (\w+) (\w+)", r"const \1 &\2"),
    (
        r"extern __shared__ __align__\(\d+\) unsigned char (\w+)\[\];",
        r"unsigned char *const \1 = emulation::dynamic_shared();",
    ),
]


def _include_of_cuda() -> Path:
    try:
        nvcc = build_kernels.find_nvcc().path
    except build_kernels.KernelBuildError as error:
        pytest.skip(f"no headers of CUDA: {error}")
    said = subprocess.run(
        [nvcc, "-dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True, check=False
    )
    return Path(re.search(r'INCLUDES="-I([^"]+)"', said.stderr)[1])


def _write_sources(folder: Path) -> None:
    for path in KERNELS.rglob("*.*"):
        copy = folder / path.relative_to(KERNELS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text()
        for pattern, replacement in REPLACED:
            text = re.sub(pattern, replacement, text)
        copy.write_text(text)
    shutil.copytree(EMULATOR / "ptx", folder / "ptx", dirs_exist_ok=True)


@cache
def library(names: tuple[str, ...]) -> Path:
    """Of the kernels in kernels/sm80/<name>.cu; it goes with this process."""
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler, g++")
    holder = tempfile.TemporaryDirectory()
    _folders.append(holder)
    folder = Path(holder.name)
    _write_sources(folder)
    flags = [*FLAGS, f"-I{folder}", "-isystem", str(_include_of_cuda())]
    # The headers of CUDA take longer than most kernels.
    header = shutil.copy(EMULATOR / "emulation.h", folder)
    _call(["g++", *flags, "-x", "c++-header", header, "-o", f"{header}.gch"])

    def compiled(source: Path) -> Path:
        result = folder / f"{source.stem}.o"
        _call(
            ["g++", *flags, "-include", header, "-x", "c++", "-c", str(source), "-o", str(result)]
        )
        return result

    sources = [EMULATOR / "emulation.cc", *(folder / "sm80" / f"{name}.cu" for name in names)]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources))
    path = folder / "libkernels.so"
    _call(["g++", "-shared", *map(str, objects), "-o", str(path), "-ldl"])
    return path


_folders: list[tempfile.TemporaryDirectory[str]] = []


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-6000:]}"
