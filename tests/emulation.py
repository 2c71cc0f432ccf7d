"""Kernels on a CPU: compiled as C++ with tests/emulator, for the driver that tests/fake_cuda.py
makes up, whose device memory is the host's.
"""

from __future__ import annotations

import platform
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
FLAGS = ["-std=c++20", "-fPIC", "-w", "-pthread"]

# What means something else to a C++ compiler: parameters by reference, so that their size does not
# matter to who calls, and shared memory, of which the dynamic part has a place of its own.
REPLACED = [
    (r"const __grid_constant__ (\w+) (\w+)", r"const \1 &\2"),
    (
        r"extern __shared__ (?:__align__\(\d+\) )?((?:unsigned )?char) (\w+)\[\];",
        r"auto *const \2 = reinterpret_cast<\1 *>(emulation::dynamic_shared());",
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
    found = re.search(r'INCLUDES="-I([^"]+)"', said.stderr)
    if found is None:
        pytest.skip(f"{nvcc} does not say where the headers of CUDA are")
    return Path(found[1])


def _check_compiler() -> None:
    """Skips where there is none for C++20, or not for the processor that fibers are written for."""
    if platform.machine() != "x86_64":
        pytest.skip("fibers are for x86-64")
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler, g++")
    said = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, check=True)
    if int(said.stdout.split(".")[0]) < 11:
        pytest.skip("needs g++ 11 or newer")


def _write_source(path: Path, text: str) -> None:
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_sources(folder: Path) -> None:
    for path in KERNELS.rglob("*.*"):
        _write_source(folder / path.relative_to(KERNELS), path.read_text())
    shutil.copytree(EMULATOR / "ptx", folder / "ptx", dirs_exist_ok=True)


def all_names() -> tuple[str, ...]:
    paths = sorted(KERNELS.glob("sm*/*.cu"))
    return tuple(path.relative_to(KERNELS).with_suffix("").as_posix() for path in paths)


@cache
def library(names: tuple[str, ...], *, text: str = "", optimised: bool = False) -> Path:
    """Of the kernels in kernels/<name>.cu, or of a text; it goes with this process."""
    _check_compiler()
    holder = tempfile.TemporaryDirectory()
    _folders.append(holder)
    folder = Path(holder.name)
    _write_sources(folder)
    if text:
        _write_source(folder / "text.cu", text)
    flags = [*FLAGS, "-O1" if optimised else "-O0"]
    flags += [f"-I{folder}", f"-I{EMULATOR}", "-isystem", str(_include_of_cuda())]
    # The headers of CUDA take longer than most kernels.
    header = shutil.copy(EMULATOR / "emulation.h", folder)
    _call(["g++", *flags, "-x", "c++-header", header, "-o", f"{header}.gch"])

    def compiled(source: Path) -> Path:
        result = source.with_suffix(".o")
        _call(["g++", *flags, "-include", header, "-x", "c++", "-c", source, "-o", result])
        return result

    machine = Path(shutil.copy(EMULATOR / "emulation.cc", folder))
    sources = [machine, *(folder / f"{name}.cu" for name in (*names, *(["text"] if text else [])))]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources))
    path = folder / "libkernels.so"
    _call(["g++", "-shared", *objects, "-o", path, "-ldl"])
    return path


_folders: list[tempfile.TemporaryDirectory[str]] = []


def _call(command: list[str | Path]) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr[-6000:]}"
