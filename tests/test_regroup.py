"""What the planner says of regrouping, which needs no GPU; tests/c/test_regroup.c has the rest."""

from __future__ import annotations

import re
from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm import bsr_array


def candidate(
    rng: np.random.Generator,
    blocksize: tuple[int, int],
    density: float,
    n: int = 4096,
    dtype: str = "float16",
) -> tuple[dict[str, Any], str]:
    """The family's prediction for a matrix of about 2048 x 2048, and the planner's choice."""
    height, width = blocksize
    mask = rng.random((2048 // height, 2048 // width)) < density
    p = cases.problem(rng, mask, blocksize, n, dtype)
    plan = bsr_array((p.data, p.indices, p.indptr), p.shape).plan(n)
    (found,) = [c for c in plan.candidates if c["family"] == "regroup"]
    assert "regroup" in plan.explain()
    return found, plan.choice


@pytest.mark.parametrize(("side", "where"), [(16, " in place"), (8, "")])
def test_a_dense_matrix_of_small_blocks_becomes_large_ones(
    rng: np.random.Generator, side: int, where: str
) -> None:
    found, choice = candidate(rng, (side, side), 1.1)
    assert found["reason"].startswith(f"as 128x64 blocks for tall{where}, 0% zeros; limited by")
    assert choice == "regroup"


@pytest.mark.parametrize("blocksize", [(32, 32), (48, 80), (96, 96), (24, 24), (8, 8), (5, 3)])
def test_zeros_are_counted(rng: np.random.Generator, blocksize: tuple[int, int]) -> None:
    found, choice = candidate(rng, blocksize, 0.5)
    assert found["supported"] and choice in ("regroup", "stream")
    assert "% zeros; " in found["reason"]
    useful = 2 * 0.5 * 2048 * 2048 * 4096
    assert 0.8 < found["mma_flops"] / useful < 2.2  # about half of the blocks are stored


@pytest.mark.parametrize("blocksize", [(8, 8), (8, 24), (20, 20), (36, 24)])
def test_few_blocks_of_other_shapes_are_made_for_stream(
    rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    found, choice = candidate(rng, blocksize, 0.125)
    shape, zeros = re.fullmatch(
        r"as (\d+x\d+) blocks for stream, (\d+)% zeros; limited by .*", found["reason"]
    ).groups()
    height, width = map(int, shape.split("x"))
    assert height % 8 == 0 and 16 <= height <= 64 and width in (8, 16, 32)
    assert choice in ("regroup", "portable") and 0 < int(zeros) < 75


@pytest.mark.parametrize("blocksize", [(24, 24), (16, 16), (96, 96)])
def test_what_stream_takes_itself_becomes_tall(
    rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    assert "blocks for tall" in candidate(rng, blocksize, 0.05)[0]["reason"]


def test_few_small_blocks_stay_as_they_are(rng: np.random.Generator) -> None:
    found, choice = candidate(rng, (16, 16), 0.02)
    assert found["supported"] and choice != "regroup"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"dtype": "float32"}, "needs float16 or bfloat16"),
        ({"density": -1.0}, "needs at least one block"),
        ({"blocksize": (64, 48)}, "the tall kernels are fast on multiples of (64, 16)"),
        ({"n": 100}, "needs a number of columns that is a multiple of 8"),
    ],
)
def test_obstacles(rng: np.random.Generator, case: dict[str, Any], reason: str) -> None:
    found, choice = candidate(rng, **{"blocksize": (16, 16), "density": 0.5, **case})
    assert not found["supported"] and reason in found["reason"]
    assert choice != "regroup"
