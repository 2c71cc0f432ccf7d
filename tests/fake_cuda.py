"""Scripts under a CUDA driver that a test makes up: tests/c/fake_cuda.c in place of libcuda.so.1.

``run`` starts them in a process of their own, which finds that driver first. ``driver`` and
``noted`` are for within such a script.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from bsrgemm import _core

TESTS = Path(__file__).resolve().parent
CC = shlex.split(os.environ.get("CC", "cc"))

# Of tests in which something is computed: the driver loads and counts whatever the library has.
needs_kernels = pytest.mark.skipif(
    not _core.built_with_cuda, reason="this build has no kernels, which the driver would load"
)


@cache
def _built(lacking: str) -> Path:
    """The folder with the library, which has all functions but one; it goes with this process."""
    if not sys.platform.startswith("linux") or shutil.which(CC[0]) is None:
        pytest.skip(f"needs Linux and a C compiler, {CC[0]}")
    folder = tempfile.TemporaryDirectory()
    _folders.append(folder)
    path = Path(folder.name)
    versions = path / "versions"
    versions.write_text(f"{{ global: cu*; fake_*; local: {lacking or 'none'}; *; }};")
    include = [f"-I{TESTS.parent / 'csrc'}", f"-I{TESTS / 'emulator'}"]
    source = [*include, TESTS / "c" / "fake_cuda.c"]
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command = [*CC, *flags, *source, f"-Wl,--version-script={versions}", "-o"]
    done = subprocess.run(
        [*command, path / "libcuda.so.1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return path


_folders: list[tempfile.TemporaryDirectory[str]] = []


def environment(
    *, lacking: str = "", folder: Path | None = None, **variables: object
) -> dict[str, str]:
    """What a process needs to find the driver. ``variables``: those of tests/c/fake_cuda.c, such as
    ``arch=70``."""
    return {
        **{f"FAKE_CUDA_{name.upper()}": str(value) for name, value in variables.items()},
        "LD_LIBRARY_PATH": str(folder or _built(lacking)),
    }


def run(script: str, *, lacking: str = "", folder: Path | None = None, **variables: object) -> str:
    """What the script prints. ``variables`` as in `environment`."""
    path = os.pathsep.join([*filter(None, sys.path), str(TESTS)])
    needed = environment(lacking=lacking, folder=folder, **variables)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **needed, "PYTHONPATH": path},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def driver() -> ctypes.CDLL:
    """The library that the process has loaded, for its counters."""
    library = ctypes.CDLL("libcuda.so.1")
    for name in ("live_objects", "live_bytes", "calls", "launches", "refused_calls"):
        getattr(library, f"fake_{name}").restype = ctypes.c_longlong
    for name in ("last_kernel", "noted"):
        getattr(library, f"fake_{name}").restype = ctypes.c_char_p
    library.fake_fail_at.argtypes = [ctypes.c_longlong, ctypes.c_int]
    return library


class Noted(NamedTuple):
    """What was put on a stream. ``about``: an event, or a launch's kernel."""

    device: int  # of the current context
    stream: int
    function: str
    about: str
    early: bool  # a launch that may begin before what stands in front of it has ended


def noted(call: Callable[[], object], *functions: str) -> list[Noted]:
    """What the call puts on streams; of these functions alone where any are given."""
    library = driver()
    library.fake_note()
    call()
    found = []
    for line in library.fake_noted().decode().splitlines():
        device, stream, function, *about = line.split()
        if not functions or function in functions:
            kernel = about[0] if about else ""
            found.append(Noted(int(device), int(stream), function, kernel, "early" in about))
    return found
