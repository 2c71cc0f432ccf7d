"""Attention where scores grow so fast along the keys that exponentials must be scaled, or overflow
and are computed again: full accuracy all the same, between tiles where nothing of this happens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import varlen_cases
from attention_cases import (
    Case,
    check,
    check_far_and_close_scores,
    check_far_scores,
    masked,
    operands,
)
from bsrgemm import BlockMask, attention
from device_cases import reduced, repeats, some
from spaces import Torch
from varlen_cases import Packed

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper", "torch")]

DTYPES = ("float16", "bfloat16")
SPACE = Torch("cuda:0")


def growing(rng: np.random.Generator, case: Case, dtype: str) -> list[np.ndarray]:
    """Every 64 queries have scores of a spread of their own. The first 32 keys have some of about 2
    times it, all keys of 3 to 4 times: exponentials relative to the first ones grow by up to 2^3,
    2^70 and 2^1400."""
    q, k, v = operands(rng, case, dtype)
    spreads = rng.choice([1.0, 1.0, 1.0, 25.0, 500.0], (1, case.heads, -(-case.queries // 64), 1))
    return [q * spreads.repeat(64, axis=2)[:, :, : case.queries].astype(q.dtype), k, v]


def cases(rng: np.random.Generator, size: int) -> list[Case]:
    """More than three query tiles for each SM of any Hopper GPU, or two."""
    many = Case(1100, 700, size=size, heads=reduced(48))
    few = many._replace(heads=reduced(16))
    return [
        many,
        many._replace(causal=True),
        few._replace(window=(150, 20)),
        few._replace(queries=150, keys=3000),
        masked(rng, many, (128, 128), lead=(1, many.heads), density=0.5),
        masked(rng, many, (64, 64), lead=(1, many.heads), density=0.5),
        masked(rng, few._replace(causal=True), (16, 16), density=0.5),
        masked(rng, few._replace(heads=1, keys=3000), (128, 128), density=0.9),  # parts
    ]


@pytest.mark.parametrize("size", [64, 80, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_growing_scores(size: int, dtype: str, rng: np.random.Generator) -> None:
    for case in some(cases(rng, size)):
        check(SPACE, case, dtype, rng, growing(rng, case, dtype), backend="hopper")


def test_large_values(rng: np.random.Generator) -> None:
    """Exponentials that grow by up to 2^60 after the first keys are summed without a change of the
    shift. Times values of 10^30 they overflow where weights of at most 1 do not."""
    case = Case(300, 1500, size=128, heads=3)
    for each in some([case, case._replace(size=64), masked(rng, case, (128, 128), density=0.9)]):
        q, k, v = operands(rng, each, "bfloat16")
        k[:, :, :128], k[:, :, -128:] = 0, 0  # whichever comes first
        large = (v.astype(np.float32) * np.float32(1e30)).astype(v.dtype)
        factor = np.array(10, q.dtype)
        check(SPACE, each, "bfloat16", rng, [q * factor, k, large], backend="hopper")


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_any_size(size: int, dtype: str, rng: np.random.Generator) -> None:
    """One or two keys that every query prefers to all others, by factors from 2^100 to beyond what
    float32 holds: the reciprocal of a finite sum may vanish."""
    short = Case(400, 1000, size=size, heads=2, scale=1.0)
    long = short._replace(heads=1, keys=3000)
    for case in some(
        [
            short,
            masked(rng, short, (128, 128), density=0.9),
            masked(rng, short, (64, 64), density=0.9),
            masked(rng, long, (128, 128), density=0.9),  # parts
        ]
    ):
        q, k, v = operands(rng, case, dtype)
        q[:], k[:] = 0, 0
        q[..., 0] = np.linspace(70, 90, case.queries).astype(q.dtype)
        for head in range(case.heads):
            k[:, head, [5 + 600 * head, case.keys - 500 - head], 0] = 1
        check(SPACE, case, dtype, rng, [q, k, v], backend="hopper")


@pytest.mark.parametrize("size", [64, 128, 192, 256])
@pytest.mark.parametrize("dtype", [*DTYPES, "float8_e4m3fn"])
def test_scores_far_from_zero(size: int, dtype: str, rng: np.random.Generator) -> None:
    short = Case(400, 1000, size=size)
    long = short._replace(heads=1, keys=3000)
    for case in some(
        [
            short,
            short._replace(causal=True),
            masked(rng, short, (128, 128), density=0.9),
            masked(rng, short, (64, 64), density=0.9),
            masked(rng, short, (16, 16), density=0.5),
            masked(rng, long, (128, 128), density=0.9),  # parts
        ]
    ):
        for scale in (2.0**12, 2.0**20, 2.0**60):
            check_far_scores(SPACE, case._replace(scale=scale), dtype, rng, backend="hopper")


@pytest.mark.parametrize("size", [64, 128, 192, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_far_scores_of_parts(size: int, dtype: str, rng: np.random.Generator) -> None:
    case = Case(128, 4000, size=size, heads=1)
    tail = Case(128 * 20, 4000, size=size, heads=reduced(7))  # 140 query tiles
    for each in some([case, masked(rng, case, (128, 128), density=0.9, empty=False), tail]):
        check_far_and_close_scores(SPACE, each, dtype, rng, backend="hopper")


@pytest.mark.parametrize("spread", [5.0, 25.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences(spread: float, dtype: str, rng: np.random.Generator) -> None:
    for size in some((64, 96, 128)):
        for causal in (False, True):
            count = reduced(100)
            lengths = [tuple(int(n) for n in rng.integers(0, 500, count)) for _ in range(2)]
            options = {"size": size, "heads": 4, "causal": causal, "spread": spread}
            case = Packed((*lengths[0], 5), (*lengths[1], 7), options)
            varlen_cases.check(SPACE, case, dtype, rng, backend="hopper")


@pytest.mark.parametrize("masked_by", [None, (64, 64), (128, 128)])
def test_same_bits_every_time(
    masked_by: tuple[int, int] | None, torch: Any, rng: np.random.Generator
) -> None:
    """Which tiles are computed again depends on the operands alone, not on who computes them."""
    case = Case(1000, 1500, size=128, heads=reduced(64))
    q, k, v = map(SPACE.array, growing(rng, case, "bfloat16"))
    mask = None
    if masked_by:
        lead = (1, case.heads)
        mask = BlockMask.from_dense(masked(rng, case, masked_by, lead=lead).blocks, masked_by)
    expected = attention(q, k, v, block_mask=mask, return_lse=True)
    for _ in repeats(30):
        found = attention(q, k, v, block_mask=mask, return_lse=True)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert not expected[0].isnan().any()
