"""What the planner says of aligned copies, without a GPU; tests/c/test_align.c has the layouts."""

from __future__ import annotations

from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm import bsr_array


def candidate(
    rng: np.random.Generator,
    blocksize: tuple[int, int],
    n: int,
    density: float = 0.25,
    dtype: str = "float16",
) -> tuple[dict[str, Any], str]:
    """The family's prediction for a matrix of about 4096 x 4096, and the planner's choice."""
    height, width = blocksize
    mask = rng.random((4096 // height, 4096 // width)) < density
    p = cases.problem(rng, mask, blocksize, 1, dtype)
    plan = bsr_array((p.data, p.indices, p.indptr), p.shape).plan(n)
    (found,) = [c for c in plan.candidates if c["family"] == "align"]
    assert "align" in plan.explain()
    return found, plan.choice


@pytest.mark.parametrize(
    ("blocksize", "inner"),
    [((128, 128), "tall"), ((64, 64), "tall"), ((16, 16), "stream"), ((8, 8), "regroup")],
)
def test_columns_that_are_no_multiple_of_8(
    rng: np.random.Generator, blocksize: tuple[int, int], inner: str
) -> None:
    for n in (4095, 8191):
        found, choice = candidate(rng, blocksize, n)
        assert choice == "align"
        assert found["reason"].startswith(f"as {inner} on aligned copies; ")


def test_any_gpu(rng: np.random.Generator) -> None:
    p = cases.problem(rng, rng.random((64, 64)) < 0.25, (64, 64), 1, "float16")
    plan = bsr_array((p.data, p.indices, p.indptr), p.shape).plan(4095, chip={"sm_arch": 80})
    (found,) = [c for c in plan.candidates if c["family"] == "align"]
    assert plan.choice == "align"
    assert found["reason"].startswith("as portable on aligned copies; ")


def test_few_columns_are_not_worth_a_copy(rng: np.random.Generator) -> None:
    for n in (1, 9, 63):
        found, choice = candidate(rng, (64, 64), n)
        assert "more than 64 columns" in found["reason"] and choice == "narrow"


def test_copies_are_counted(rng: np.random.Generator) -> None:
    n = 1001
    found, _ = candidate(rng, (64, 64), n)
    operands = 2 * (4096 + 4096) * n
    values = 0.25 * 2 * 4096 * 4096
    assert found["hbm_bytes"] > 3 * operands + 0.9 * values
    assert found["hbm_bytes"] < 3 * 1.05 * operands + 1.1 * values


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"n": 4096}, "operands that kernels cannot read by vectors"),
        ({"n": 4094, "dtype": "float64"}, "operands that kernels cannot read by vectors"),
        ({"n": 4095, "density": -1.0}, "needs at least one block"),
        ({"n": 2**31 - 1}, "needs fewer than 2^31 - 63 columns"),
    ],
)
def test_obstacles(rng: np.random.Generator, case: dict[str, Any], reason: str) -> None:
    found, choice = candidate(rng, **{"blocksize": (64, 64), **case})
    assert not found["supported"] and reason in found["reason"]
    assert choice != "align"


@pytest.mark.parametrize("width", [2**20, 10**6])
def test_copies_that_kernels_could_not_read_either(width: int) -> None:
    """Rows of 2^40 elements: an aligned copy would have to be copied again, without end."""
    data = np.ones((1, 64, width), np.float16)
    a = bsr_array((data, [0], [0, 1]), (64, 2**40 // width * width))
    for matrix, n in ((a, 1), (a, 100), (a.T, 9)):
        assert 0 < matrix.plan(n).seconds < np.inf
