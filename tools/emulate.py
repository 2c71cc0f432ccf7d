"""Runs Python with a GPU that is emulated by the tests' emulator, without one:

    python tools/emulate.py --arch 90 -m pytest tests/gpu/test_gpu_partial.py -k 'bsrgemm or lent'

Compiling the kernels for that takes two minutes on two cores. Spaces of tests that need no other
library's GPU are ``bsrgemm`` and ``lent``. A call takes some 0.1 s, so that sizes have to be small.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

import emulation  # noqa: E402
import fake_cuda  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog="All else is python's.", allow_abbrev=False
    )
    parser.add_argument("--arch", type=int, default=90, choices=(80, 90))
    given, arguments = parser.parse_known_args()
    kernels = emulation.library(emulation.all_names(), optimised=True)
    environment = fake_cuda.environment(arch=given.arch, kernels=kernels)
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
