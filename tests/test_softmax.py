"""``softmax`` on the CPU: every library, dtype and instruction set; attention by composition."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bsrgemm
import numpy as np
import pytest
import softmax_cases
from bsrgemm import BlockMask, _core, bsr_array, softmax
from cases import DTYPES, Problem, problem
from operations import matrix
from spaces import CPU_SPACES, Space


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", softmax_cases.SHAPES)
def test_shapes(space: Space, dtype: str, name: str, rng: np.random.Generator) -> None:
    space.check()
    pattern, rows, cols, blocksize, *cut = softmax_cases.SHAPES[name]
    p = problem(rng, pattern(rng, rows, cols), blocksize, 1, dtype, cut=tuple(cut or (0, 0)))
    for scale in (1.0, -0.75, 0.0):
        softmax_cases.check(space, p, scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype: str) -> None:
    softmax_cases.check_special(CPU_SPACES[0], dtype)
    softmax_cases.check_largest(CPU_SPACES[0], dtype)


def test_random_structures() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    from hypothesis import given
    from hypothesis import strategies as st
    from strategies import problems, profile

    sizes = st.one_of(st.integers(1, 20), st.sampled_from((31, 32, 33, 64, 65)))

    @profile(200)
    @given(problems(sizes, sizes, st.just(1)), st.sampled_from((1.0, 0.125, -3.0)))
    def run(drawn: tuple[Problem, np.random.Generator], scale: float) -> None:
        softmax_cases.check(CPU_SPACES[0], drawn[0], scale)

    run()


@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_other_instruction_sets(isa: str) -> None:
    """The same tests where the processor had less."""
    script = (
        "import numpy as np, softmax_cases as s\n"
        "from cases import problem\n"
        "from spaces import Space\n"
        "rng = np.random.default_rng(0)\n"
        "for dtype in ('float16', 'float32', 'float64'):\n"
        "    s.check_special(Space(), dtype)\n"
        "    s.check_largest(Space(), dtype)\n"
        "    for pattern, rows, cols, block, *cut in s.SHAPES.values():\n"
        "        cut = tuple(cut or (0, 0))\n"
        "        p = problem(rng, pattern(rng, rows, cols), block, 1, dtype, cut=cut)\n"
        "        s.check(Space(), p, 0.5)\n"
    )
    here = Path(__file__).resolve().parent
    path = os.pathsep.join([str(here), *filter(None, sys.path)])
    environment = {**os.environ, "BSRGEMM_ISA": isa, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_number_of_threads_does_not_matter(rng: np.random.Generator) -> None:
    p = problem(rng, rng.random((20, 30)) < 0.5, (48, 40), 1, "float32")
    a = matrix(CPU_SPACES[0], p)
    before = bsrgemm.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            bsrgemm.set_num_threads(threads)
            found.append(softmax(a).data)
    finally:
        bsrgemm.set_num_threads(before)
    assert all(np.array_equal(found[0], other) for other in found)


def test_structure_is_shared(rng: np.random.Generator) -> None:
    p = problem(rng, rng.random((4, 6)) < 0.5, (8, 8), 1, "float32")
    a = matrix(CPU_SPACES[0], p)
    b = softmax(a)
    assert b._structure is a._structure and b.indices is a.indices
    in_place = matrix(CPU_SPACES[0], p)
    _core.softmax(in_place._structure, in_place.data, in_place.data)
    assert np.array_equal(in_place.data, b.data)
    assert np.array_equal(softmax(a.T.copy()).todense(), softmax(a.T).todense())


def test_attention_by_composition(rng: np.random.Generator) -> None:
    """Scores of chosen blocks, softmax, and the product with values."""
    q, k, v = (rng.standard_normal((128, 32)) for _ in range(3))
    mask = rng.random((8, 4)) < 0.6
    mask[3] = False
    scores = bsr_array.from_block_mask(q @ k.T, mask, (16, 32))
    found = softmax(scores, 32**-0.5) @ v
    blocks = BlockMask.from_dense(mask, (16, 32))
    expected = bsrgemm.attention(q[None, None], k[None, None], v[None, None], block_mask=blocks)
    assert np.allclose(found, expected[0, 0]) and not found[48:64].any()


def small() -> bsr_array:
    return bsr_array(np.ones((4, 6), np.float32), blocksize=(2, 2))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: softmax(np.ones((4, 6))), TypeError, "a is an ndarray; accepted: a bsr_array"),
        (lambda: softmax(small(), "1"), TypeError, "scale is a str; accepted: a real number"),
        (lambda: softmax(small(), stream="1"), TypeError, "stream is a str"),
        (
            lambda: _core.softmax(1, small().data, small().data),
            TypeError,
            "structure is 1, but must be a Structure",
        ),
        (
            lambda: _core.softmax(small()._structure, small().data, small().data[:2]),
            ValueError,
            r"out has shape \(2, 2, 2\), but the matrix stores 6 blocks",
        ),
        (
            lambda: _core.softmax(small()._structure, small().data, small().data[0]),
            ValueError,
            r"out has shape \(2, 2\), but the matrix stores 6 blocks",
        ),
        (
            lambda: _core.softmax(small()._structure, small().data[None], small().data),
            ValueError,
            r"out has shape \(6, 2, 2\), but a.data has shape \(1, 6, 2, 2\)",
        ),
        (
            lambda: _core.softmax(small()._structure, small().data, np.ones((6, 2, 2))),
            TypeError,
            "out has dtype float64, but a.data has dtype float32",
        ),
    ],
)
def test_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_overlapping_memory_is_refused() -> None:
    memory = np.ones((7, 2, 2), np.float32)
    with pytest.raises(ValueError, match=r"out overlaps a\.data in memory"):
        _core.softmax(small()._structure, memory[:6], memory[1:])
    frozen = np.ones((6, 2, 2), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        _core.softmax(small()._structure, memory[:6], frozen)
