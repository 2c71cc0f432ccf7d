"""Block shapes, patterns and column counts for each kernel family, compared on the GPU."""

from __future__ import annotations

import itertools
from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm import bsr_array
from bsrgemm._matmul import product
from device_cases import (
    check,
    corner,
    one_behind_the_other,
    random_problem,
    reduced,
    relative_error,
    repeats,
    some,
)

pytestmark = pytest.mark.gpu

HALVES = ("float16", "bfloat16")
HEIGHTS = (64, 128, 192, 256, 512)
WIDTHS = (16, 32, 48, 64, 80, 112, 128)
# Multiples of 8, below, at and above a column tile, with and without a ragged panel of 64.
TALL_COLUMNS = (8, 64, 200, 256, 264, 520, 768)
RAGGED_COLUMNS = (1, 2, 7, 9, 31, 63, 65, 127, 333)
PATTERNS = {
    "uniform": (cases.uniform(0.3), 9, 11),
    "empty rows": (cases.empty_rows, 9, 6),
    "one block": (cases.one_block, 5, 7),
    "all blocks": (cases.uniform(1.1), 4, 5),
    "one long row": (cases.one_long_row, 20, 60),
    "skewed": (cases.skewed, 24, 40),
    "banded": (cases.banded, 15, 15),
    "one block row": (cases.uniform(0.6), 1, 9),
    "two block rows": (cases.uniform(0.6), 2, 9),
    "three block rows": (cases.uniform(0.6), 3, 9),
    "one block column": (cases.uniform(0.6), 9, 1),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("height", HEIGHTS)
def test_tall(
    torch: Any, rng: np.random.Generator, hopper: None, height: int, width: int, dtype: str
) -> None:
    for rows, cols in ((1, 1), (3, 5), (6, 13)):
        p = random_problem(
            torch, cases.uniform(0.5)(rng, rows, cols) | corner(rows, cols), (height, width), dtype
        )
        for n in some(TALL_COLUMNS):
            check(torch, p, n, family="tall")
        check(torch, p, 264, alpha=-0.5, beta=2.0, family="tall")


def _twice(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Neighbouring block rows with the same columns, two of them with none."""
    mask = rng.random((rows // 2, cols)) < 0.6
    mask[1] = False
    mask[-1, -1] = True
    return np.repeat(mask, 2, axis=0)


def _row_tiles_share_x(matrix: Any) -> bool:
    """What the tall family's plan says of 601 column tiles, too many for parts of tiles to pay:
    rows of X bring twice the bytes of the blocks from L2, or as many as these where two row tiles
    share them. Else two of 602 column tiles share the blocks."""
    tall = next(c for c in matrix.plan(601 * 256).candidates if c["family"] == "tall")
    bytes_of_blocks = 2 * matrix.data.numel()
    paired, unpaired = 601 * 2 * bytes_of_blocks, 602 * 2.5 * bytes_of_blocks
    assert tall["l2_bytes"] in (paired, unpaired)
    return tall["l2_bytes"] == paired


# Pattern, block rows, and whether row tiles come in pairs with the same columns where a block row
# is an odd number of them, so that some pairs belong to two block rows.
ROW_PAIRS = {
    "all blocks": (cases.uniform(1.1), 4, True),
    "all blocks, odd": (cases.uniform(1.1), 3, False),
    "equal neighbours": (_twice, 8, True),
    "unequal neighbours": (cases.banded, 4, False),
    "one block row": (cases.uniform(0.7), 1, False),
    "three block rows": (cases.uniform(0.7), 3, False),
    "skewed": (cases.skewed, 12, False),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pattern", ROW_PAIRS)
@pytest.mark.parametrize(
    "blocksize", [(128, 64), (128, 32), (256, 48), (256, 256), (384, 80), (512, 112)]
)
def test_tall_row_pairs(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    blocksize: tuple[int, int],
    pattern: str,
    dtype: str,
) -> None:
    """Clusters of two row tiles, over odd and even numbers of column tiles and ragged last ones."""
    make, rows, paired = ROW_PAIRS[pattern]
    p = random_problem(torch, make(rng, rows, 7) | corner(rows, 7), blocksize, dtype)
    assert _row_tiles_share_x(p.matrix) == (paired or blocksize[0] % 256 == 0)
    for n in some((8, 256, 456, 768, 1032, 5376)):
        check(torch, p, n, family="tall")
    check(torch, p, 520, alpha=-0.5, beta=2.0, family="tall")
    x = torch.randn(p.matrix.shape[1], 1160, device="cuda").to(p.matrix.dtype)
    first = product(p.matrix, x, None, 1.0, None, None, None, "tall")
    for _ in repeats(10):
        assert torch.equal(product(p.matrix, x, None, 1.0, None, None, None, "tall"), first)


# Blocks that are multiplied in pairs.
NARROW_BLOCKS = [*itertools.product((16, 24, 32, 40, 48, 56, 64, 96, 112, 168), (8, 24)), (72, 40)]
STREAM_HEIGHTS = (8, 16, 24, 32, 40, 48, 56, 64, 72, 96, 112, 128, 168, 192)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("height", "width"), [*itertools.product(STREAM_HEIGHTS, (16, 32, 48, 64, 112)), *NARROW_BLOCKS]
)
def test_stream(
    torch: Any, rng: np.random.Generator, hopper: None, height: int, width: int, dtype: str
) -> None:
    for rows, cols in ((1, 1), (3, 5), (23, 13), (70, 3)):
        p = random_problem(
            torch, cases.uniform(0.4)(rng, rows, cols) | corner(rows, cols), (height, width), dtype
        )
        for n in some((8, 64, 200, 264)):
            check(torch, p, n, family="stream")
        check(torch, p, 136, alpha=-0.5, beta=2.0, family="stream")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("columns", [8, 24, 65], ids="{} columns".format)
@pytest.mark.parametrize("blocksize", [(16, 8), (24, 8), (24, 24), (64, 8)])
def test_only_what_blocks_meet_counts(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    blocksize: tuple[int, int],
    columns: int,
    dtype: str,
) -> None:
    """Blocks 8 columns wide are multiplied in pairs, and one that is left over by itself: numbers
    in X or in other blocks that are not finite stay where they belong."""
    height, width = blocksize
    rows = 400 // height
    mask = rng.random((rows, columns)) < 0.3
    mask[0, :] = False
    mask[0, columns // 2] = True  # one alone
    p = random_problem(torch, mask, blocksize, dtype)
    x = torch.randn(p.matrix.shape[1], 72, device="cuda").to(p.matrix.dtype)
    for column in {0, columns // 2, columns - 1}:
        wild = x.clone()
        wild[column * width : (column + 1) * width] = float("nan")
        found = product(p.matrix, wild, None, 1.0, None, None, None, "stream")
        meet = torch.as_tensor(mask[:, column], device="cuda").repeat_interleave(height)
        assert found[meet].isnan().all() and not found[~meet].isnan().any()
    wild_row = int(rng.integers(1, rows))
    wild_blocks = p.matrix.data.clone()
    wild_blocks[int(mask[:wild_row].sum()) : int(mask[: wild_row + 1].sum())] = float("inf")
    matrix = bsr_array((wild_blocks, p.matrix.indices, p.matrix.indptr), p.matrix.shape)
    found = product(matrix, x, None, 1.0, None, None, None, "stream").isfinite()
    of_row = slice(wild_row * height, (wild_row + 1) * height)
    assert not found[of_row].any() or not mask[wild_row].any()
    found[of_row] = True
    assert found.all()


BLOCKS_OF_FAMILY = [
    *(("tall", block) for block in [(64, 64), (64, 16), (128, 128), (192, 48), (320, 32)]),
    *(("stream", block) for block in [(8, 16), (16, 8), (16, 16), (32, 32), (24, 48), (64, 64)]),
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("family", "blocksize"), BLOCKS_OF_FAMILY)
def test_hopper_patterns(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    family: str,
    blocksize: tuple[int, int],
    pattern: str,
    dtype: str,
) -> None:
    make, rows, cols = PATTERNS[pattern]
    # Small blocks need more of them to fill more than a tile.
    for scale in some((1, 5)) if family == "stream" else (1,):
        mask = make(rng, rows * scale, cols * scale) | corner(rows * scale, cols * scale)
        p = random_problem(torch, mask, blocksize, dtype)
        for n in some((256, 72, 1024)):
            check(torch, p, n, family=family)
        check(torch, p, 136, alpha=1.5, beta=-1.0, family=family)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("blocksize", [(8, 32), (16, 8), (16, 16), (32, 32), (64, 48)])
def test_stream_many_column_tiles(
    torch: Any, rng: np.random.Generator, hopper: None, blocksize: tuple[int, int], dtype: str
) -> None:
    """Odd and even numbers of them, row tiles without blocks between others, and more tiles than a
    GPU holds at once. 512 columns have a plan of lower tiles."""
    rows = 5 * 384 // blocksize[0] + 1
    mask = cases.uniform(0.3)(rng, rows, 9) | corner(rows, 9)
    mask[384 // blocksize[0] : 4 * 384 // blocksize[0]] = False
    p = random_problem(torch, mask, blocksize, dtype)
    for n in (512, *some((2056, 1936))):
        check(torch, p, n, family="stream")
        check(torch, p, n, alpha=2.0, beta=0.5, family="stream")
    many = random_problem(torch, cases.uniform(0.1)(rng, 20 * rows, 5), blocksize, dtype)
    check(torch, many, 2064, family="stream")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("blocksize", [(8, 16), (16, 8), (16, 16), (32, 32), (64, 48)])
def test_stream_clusters(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    blocksize: tuple[int, int],
    pattern: str,
    dtype: str,
) -> None:
    """CTAs in clusters of two load their blocks together where tiles are more than SMs: an even
    number of column tiles, the last of which may be ragged. Row tiles without blocks lie between
    others, and some are much longer."""
    make, rows, cols = PATTERNS[pattern]
    scale = -(-5 * 384 // (rows * blocksize[0]))
    mask = make(rng, rows * scale, cols * scale) | corner(rows * scale, cols * scale)
    p = random_problem(torch, mask, blocksize, dtype)
    for n in some((8192, 8072)):
        check(torch, p, n, family="stream")
    check(torch, p, 8192, alpha=1.5, beta=-1.0, family="stream")


@pytest.mark.parametrize("pattern", ["banded", "one block column", "uniform"])
@pytest.mark.parametrize("blocksize", [(16, 16), (32, 32), (64, 48)])
def test_short_clusters_behind_one_another(
    torch: Any, rng: np.random.Generator, hopper: None, blocksize: tuple[int, int], pattern: str
) -> None:
    """Tiles of one or a few stages: one CTA of a cluster may be done long before the other, and the
    next product begin in its place."""
    make, rows, cols = PATTERNS[pattern]
    scale = -(-5 * 384 // (rows * blocksize[0]))
    p = random_problem(torch, make(rng, rows * scale, cols), blocksize, "float16")
    x = torch.randn(p.matrix.shape[1], 8192, device="cuda").half()
    first = product(p.matrix, x, None, 1.0, 0.0, None, None, "stream")
    for _ in repeats(300):
        assert torch.equal(product(p.matrix, x, None, 1.0, 0.0, None, None, "stream"), first)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("family", "blocksize"),
    [
        ("stream", (16, 128)),
        ("stream", (16, 8)),
        ("stream", (32, 128)),
        ("tall", (64, 128)),
        ("tall", (128, 64)),
        ("tall", (128, 80)),
        ("tall", (256, 64)),
        ("regroup", (128, 80)),
        ("regroup", (32, 32)),
    ],
)
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5])  # of 64 k, about: rings have four such stages
def test_short_tiles(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    family: str,
    blocksize: tuple[int, int],
    blocks: int,
    dtype: str,
) -> None:
    """Many tiles an SM, all of the same few stages, products one right behind the other: what one
    leaves behind, the next must not meet, nor may those who work on a tile wait for one another."""
    rows, cols, n = 8192 // blocksize[0], 8192 // blocksize[1], 8192
    mask = rng.random((rows, cols)).argsort(axis=1) < blocks
    p = random_problem(torch, mask, blocksize, dtype)
    x = torch.randn(p.matrix.shape[1], n, device="cuda").to(p.matrix.dtype)

    def launch(out: Any) -> None:
        product(p.matrix, x, None, 1.0, None, out, None, family)

    found = one_behind_the_other(torch, launch, (8192, n), p.matrix.dtype, 100)
    error = relative_error(torch, found, p.dense @ x.double())
    assert error <= 1.2 * cases.ROUNDOFF[dtype]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("family", "side"), [("tall", 128), ("tall", 64), ("stream", 32)])
def test_even_tiles(
    torch: Any,
    rng: np.random.Generator,
    hopper: None,
    family: str,
    side: int,
    shared: bool,
    dtype: str,
) -> None:
    """Tiles that are equally long go to 128 CTAs, and not to one on each of the 132 SMs of an H200.
    Block rows share all block columns, or each lacks another one."""
    rows, cols = 8192 // side, 2048 // side
    mask = np.ones((rows, cols), bool)
    if not shared:
        mask[np.arange(rows), rng.integers(cols, size=rows)] = False
    p = random_problem(torch, mask, (side, side), dtype)
    check(torch, p, 1024, family=family)


@pytest.mark.parametrize("dtype", HALVES)
def test_tall_many_column_tiles(
    torch: Any, rng: np.random.Generator, hopper: None, dtype: str
) -> None:
    """Clusters of two with an odd last tile, and more tiles than a GPU holds at once."""
    for blocksize in ((64, 64), (128, 32), (256, 112)):
        p = random_problem(torch, cases.uniform(0.4)(rng, 12, 9), blocksize, dtype)
        for n in some((4104, 4608, 8192)):
            check(torch, p, n, family="tall")


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "blocksize", [(1, 1), (3, 7), (8, 8), (16, 16), (32, 32), (64, 64), (40, 24), (130, 17)]
)
def test_portable_patterns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], pattern: str, dtype: str
) -> None:
    make, rows, cols = PATTERNS[pattern]
    p = random_problem(torch, make(rng, rows, cols), blocksize, dtype)
    for n in some((256, 72, 37)):
        check(torch, p, n, family="portable")
    check(torch, p, 100, alpha=1.5, beta=-1.0, family="portable")


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("blocksize", [(64, 64), (128, 112), (16, 16), (5, 3), (512, 16)])
def test_ragged_columns(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    """The planner's choice for column counts that suit no tile."""
    p = random_problem(torch, cases.uniform(0.4)(rng, 5, 8), blocksize, dtype)
    for n in some(RAGGED_COLUMNS):
        check(torch, p, n)
    check(torch, p, 333, alpha=2.0, beta=0.5)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_long_and_flat(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """A few rows and 8191 columns; many rows and one column."""
    for blocksize in ((64, 64), (16, 16), (64, 16)):
        check(
            torch,
            random_problem(torch, cases.uniform(0.6)(rng, 1, 6), blocksize, dtype),
            8191,
        )
        check(
            torch,
            random_problem(torch, cases.uniform(0.1)(rng, 300, 30), blocksize, dtype),
            1,
        )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("family", ["tall", "stream", "portable"])
def test_large(
    torch: Any, rng: np.random.Generator, gpu: dict, family: str, block: int, dtype: str
) -> None:
    if family == "tall" and block < 64:
        pytest.skip("the tall family takes blocks of 64 rows and more")
    if family != "portable" and gpu["sm_arch"] != 90:
        pytest.skip(f"the {family} family needs a Hopper GPU")
    mask = cases.uniform(0.125)(rng, reduced(4096) // block, reduced(4096) // block)
    check(torch, random_problem(torch, mask, (block, block), dtype), reduced(4096), family=family)


@pytest.mark.parametrize(
    "family, block", [("tall", 128), ("tall", 64), ("stream", 32), ("stream", 16)]
)
def test_skewed_panels(
    torch: Any, rng: np.random.Generator, family: str, block: int, hopper: None
) -> None:
    """X larger than L2: long row tiles go first, then sweeps by panels, the last one narrower."""
    rows, cols, columns = reduced(8192) // block, 16384 // block, reduced(3016 // 4) * 4
    chance = rng.permutation(np.where(np.arange(rows) < rows * 5 // 16, 0.25, 0.04))
    mask = rng.random((rows, cols)) < chance[:, None]
    check(torch, random_problem(torch, mask, (block,) * 2, "float16"), columns, family=family)


def test_families_say_what_they_need(torch: Any, rng: np.random.Generator, hopper: None) -> None:
    p = random_problem(torch, np.ones((2, 2), bool), (48, 16), "float16")
    x = torch.ones(32, 64, device="cuda", dtype=torch.float16)
    with pytest.raises(ValueError, match="family 'tall'.*multiple of 64"):
        product(p.matrix, x, None, 1.0, None, None, None, "tall")
    wide = random_problem(torch, np.ones((2, 2), bool), (64, 16), "float16")
    with pytest.raises(ValueError, match="family 'tall'.*multiple of 8"):
        product(wide.matrix, x[:, :7], None, 1.0, None, None, None, "tall")
    with pytest.raises(ValueError, match="family is 'cpu'.*cuda:0"):
        product(wide.matrix, x, None, 1.0, None, None, None, "cpu")


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_same_bits_every_time(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    for blocksize in ((64, 64), (16, 16)):
        p = random_problem(torch, cases.skewed(rng, 24, 40), blocksize, dtype)
        x = torch.randn(p.matrix.shape[1], 520, device="cuda").to(p.matrix.dtype)
        first = p.matrix @ x
        for _ in repeats(30):
            assert torch.equal(p.matrix @ x, first)
