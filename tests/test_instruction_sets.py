"""Products of the CPU by each of its instruction sets, and bfloat16 by pairs along k."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cases
import numpy as np
import operations
import pytest
from bsrgemm import _core
from spaces import CPU_SPACES

ISAS = ("avx512_bf16", "avx512", "avx2", "generic")  # each has what those behind it have


@pytest.mark.parametrize("isa", ISAS[1:])
def test_lower_instruction_sets(isa: str) -> None:
    """The tests of products, with NumPy, where the processor has less."""
    if ISAS.index(isa) <= ISAS.index(_core.cpu_isa()):
        pytest.skip(f"this processor has no more than {_core.cpu_isa()}")
    here = Path(__file__).resolve().parent
    files = [here / name for name in ("test_matmul.py", "test_fused.py")]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "not torch"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env={**os.environ, "BSRGEMM_ISA": isa, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Block shape, block rows and columns, columns of the dense operand.
SHAPES = {
    "one pair": ((3, 2), 9, 11, 20),
    "odd rows": ((7, 6), 5, 9, 50),
    "a tile": ((8, 16), 6, 7, 48),
    "a segment": ((64, 128), 3, 4, 33),
    "more than a segment": ((72, 300), 2, 3, 100),
    "several chunks of k": ((16, 64), 2, 700, 49),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("cut", [(0, 0), (1, 0), (0, 1), (2, 1)], ids=str)
def test_pairs(name: str, cut: tuple[int, int], rng: np.random.Generator) -> None:
    """Blocks of whole pairs, and such that the matrix's last column cuts one."""
    block, rows, cols, n = SHAPES[name]
    mask = rng.random((rows, cols)) < 0.4
    mask[-1, -1] = True
    p = cases.problem(rng, mask, block, n, "bfloat16", cut=cut)
    for operation in operations.OPERATIONS:
        print(operation.name)
        operations.check(operation, CPU_SPACES[0], p, rng)


def test_sums_of_pairs_are_exact_where_floats_are(rng: np.random.Generator) -> None:
    """Whole numbers, of which each sum is one that float32 has."""
    p = cases.problem(rng, rng.random((6, 8)) < 0.5, (32, 32), 40, "bfloat16")
    whole = p.data.dtype.type
    p.data[...] = rng.integers(-100, 101, p.data.shape).astype(whole)
    x = rng.integers(-100, 101, (p.shape[1], p.n)).astype(whole)
    found = operations.matrix(CPU_SPACES[0], p) @ x
    expected = (p.dense @ x.astype(np.float64)).astype(whole)
    assert np.array_equal(found.view(np.uint16), expected.view(np.uint16))
