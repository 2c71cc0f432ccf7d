"""The attention that is measured, as data.

A name is ``group/dtype/batch x heads x keys x size/block/density/seen``, the block and its density
for masks only. Heads are 32:8 where 32 of q share 8 of k and v. Sequences of different lengths have
256-8192 for keys, the shortest and the longest. Few queries under masks have their number and that
of heads with a mask of their own behind it, as in ``q4/m8``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .cases import SEED
from .patterns import PATTERNS, Pattern

ITEM_BYTES = {"float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "float32": 4}

# Patterns with the block on the diagonal in every row, of which a causal call sees half, and
# otherwise blocks before it.
DIAGONAL = ("causal", "diagonal")


@dataclass(frozen=True)
class AttentionCase:
    """One call. ``count`` is the mean number of blocks a block row. All heads see the same blocks,
    but in the pattern "random", where every block is there with the same probability, each head
    has its own, as many as it happens to get, and the mean need be no whole number."""

    group: str
    dtype: str
    batch: int
    heads: int
    keys: int
    size: int
    causal: bool = False
    queries: int | None = None  # keys
    kv_heads: int | None = None  # heads
    block: tuple[int, int] | None = None
    count: float = 0
    pattern: str = "uniform"
    # Sequences one behind the other, as many as ``batch``, of which the longest has ``keys``.
    lengths: tuple[int, ...] = ()
    timings: tuple[str, ...] = ("sustained", "burst")

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        if self.lengths:
            return 1, self.heads, sum(self.lengths), self.size
        return self.batch, self.heads, self.queries or self.keys, self.size

    @property
    def k_shape(self) -> tuple[int, int, int, int]:
        batch, _, rows, size = self.q_shape
        return batch, self.kv_heads or self.heads, rows if self.lengths else self.keys, size

    @property
    def grid(self) -> tuple[int, int]:
        """Block rows and block columns."""
        height, width = self.block or (1, 1)
        # The last ones may reach beyond the queries: a few are less than a block row.
        return -(-self.q_shape[2] // height), -(-self.keys // width)

    @property
    def nnzb(self) -> float:
        """Of a head, or the mean of the heads."""
        if self.pattern == "random":
            return int(self.make_blocks().sum()) / self.heads
        if self.pattern in DIAGONAL:  # the first rows have fewer columns than they would store
            return sum(min(row + 1, self.count) for row in range(self.grid[0]))
        return self.grid[0] * self.count

    @property
    def visible(self) -> float:
        """Pairs of a query and a key that are seen, a head; of sequences the mean. Causal calls
        count half of what they would be without: of everything, or of the blocks on the diagonal
        of a mask."""
        if self.lengths:
            return sum(n * n for n in self.lengths) / self.batch * (0.5 if self.causal else 1.0)
        if self.block is None:
            return self.q_shape[2] * self.keys * (0.5 if self.causal else 1.0)
        halves = 0.5 * self.grid[0] if self.causal else 0.0
        return (self.nnzb - halves) * self.block[0] * self.block[1]

    @property
    def useful_flops(self) -> float:
        return 4.0 * self.batch * self.heads * self.visible * self.size

    @property
    def score_bytes(self) -> int:
        """What all scores take in memory."""
        return self.batch * self.heads * self.q_shape[2] * self.keys * ITEM_BYTES[self.dtype]

    @property
    def cache_bytes(self) -> int:
        """All keys and values."""
        return 2 * int(np.prod(self.k_shape)) * ITEM_BYTES[self.dtype]

    @property
    def is_chosen(self) -> bool:
        """Whether the mask is made anew for each call, from scores."""
        return self.group == "topk"

    @property
    def density(self) -> float:
        return self.nnzb / (self.grid[0] * self.grid[1]) if self.block else 1.0

    @property
    def shape_name(self) -> str:
        heads = f"{self.heads}:{self.kv_heads}" if self.kv_heads else f"{self.heads}"
        keys = f"{min(self.lengths)}-{self.keys}" if self.lengths else f"{self.keys}"
        return f"{self.batch}x{heads}x{keys}x{self.size}"

    @property
    def seen(self) -> str:
        """Which keys a query sees, in a word."""
        if self.block is not None:
            return self.pattern
        return "decode" if self.queries == 1 else "causal" if self.causal else "full"

    @property
    def name(self) -> str:
        name = f"{self.group}/{self.dtype}/{self.shape_name}"
        if self.block is not None:
            name += f"/{self.block[0]}x{self.block[1]}/d{self.density:.3g}"
        return f"{name}/{self.seen}"

    @property
    def fields(self) -> dict[str, Any]:
        """What a row of results says about the case."""
        fields: dict[str, Any] = {
            "op": "attention",
            "dtype": self.dtype,
            "batch": self.batch,
            "heads": self.heads,
            "kv_heads": self.k_shape[1],
            "queries": self.q_shape[2],
            "keys": self.keys,
            "size": self.size,
            "seen": self.seen,
        }
        if self.block is not None:
            fields |= {"block": list(self.block), "density": self.density, "nnzb": self.nnzb}
        if self.lengths:
            fields["shortest"] = min(self.lengths)
        if self.queries == 1:
            # Keys and values, which such a call reads once: it is as fast as memory at best.
            fields["bytes"] = self.cache_bytes
        return fields

    def make_blocks(self) -> np.ndarray:
        """The mask, one truth value a block: [rows, columns], [heads, rows, columns] where each
        head has its own, or [batch, heads, rows, columns]."""
        # Both masks with the diagonal have the same blocks.
        name = "causal" if self.pattern in DIAGONAL else self.pattern
        rng = np.random.default_rng([SEED, *self.block, int(self.count), *name.encode()])
        if self.pattern == "random":
            return rng.random((self.heads, *self.grid)) < self.count / self.grid[1]
        make = causal_rows if self.pattern in DIAGONAL else PATTERNS[self.pattern]
        pattern = make(rng, *self.grid, self.count)
        blocks = np.zeros(self.grid, bool)
        blocks[pattern.rows, pattern.indices] = True
        return blocks


@dataclass(frozen=True)
class SparseDecodeCase(AttentionCase):
    """A few queries against a long cache, of which ``count`` blocks are read. Every batch has other
    blocks, and so has each of ``mask_heads``: 1, or heads of k or of q. The pattern "topk" has the
    blocks of "uniform", chosen on the GPU."""

    mask_heads: int = 1
    # Calls in a row would find what a short list keeps of the cache in L2.
    timings: tuple[str, ...] = ("cold",)

    @property
    def visible(self) -> float:
        """Not the rows of a block that has no more queries."""
        return self.q_shape[2] * self.count * self.block[1]

    @property
    def is_chosen(self) -> bool:
        return self.pattern == "topk"

    @property
    def name(self) -> str:
        return f"{super().name}/q{self.queries}/m{self.mask_heads}"

    @property
    def needed_bytes(self) -> int:
        """Keys and values that some query sees: each once for all heads of q that share them."""
        kv_heads = self.k_shape[1]
        blocks = self.make_blocks().any(axis=2)
        if self.mask_heads > kv_heads:
            blocks = blocks.reshape(self.batch, kv_heads, -1, self.grid[1]).any(axis=2)
        share = kv_heads // blocks.shape[1]
        keys = int(blocks.sum()) * share * self.block[1]
        return 2 * keys * self.size * ITEM_BYTES[self.dtype]

    @property
    def fields(self) -> dict[str, Any]:
        return super().fields | {"mask_heads": self.mask_heads, "bytes": self.needed_bytes}

    def make_blocks(self) -> np.ndarray:
        shape = self.batch, self.mask_heads, *self.grid
        rng = np.random.default_rng([SEED, *shape, self.count])
        pattern = PATTERNS["uniform"](rng, int(np.prod(shape[:3])), self.grid[1], self.count)
        blocks = np.zeros(shape, bool)
        blocks.reshape(-1, self.grid[1])[pattern.rows, pattern.indices] = True
        return blocks


def causal_rows(rng: np.random.Generator, rows: int, cols: int, count: int) -> Pattern:
    """In every row the block on the diagonal and ``count - 1`` earlier ones at random columns."""
    chosen = [
        np.append(np.sort(rng.permutation(row)[: count - 1]), row) for row in range(min(rows, cols))
    ]
    indptr = np.cumsum([0, *map(len, chosen)])
    return Pattern(np.concatenate(chosen).astype(np.int32), indptr.astype(np.int32))


def mixed_lengths(count: int, shortest: int, longest: int) -> tuple[int, ...]:
    """Both of them and others between, evenly spread in the logarithm, in any order."""
    rng = np.random.default_rng([SEED, count, shortest, longest])
    between = np.exp(rng.uniform(np.log(shortest), np.log(longest), count - 2)).astype(int)
    return tuple(int(n) for n in rng.permutation([shortest, longest, *between]))


# Batch, heads, length, size of a head.
DENSE = (
    (4, 16, 4096, 128),
    (1, 16, 16384, 128),
    (8, 16, 2048, 128),
    (1, 32, 16384, 64),
    (1, 8, 16384, 256),
    (4, 16, 4096, 96),
    (4, 16, 4096, 192),
)

EIGHT_BITS = (
    (4, 16, 4096, 128),
    (1, 16, 16384, 128),
    (8, 16, 2048, 128),
    (1, 32, 16384, 64),
    (1, 8, 16384, 256),
)


def gpu_attention_cases() -> Iterator[AttentionCase]:
    for dtype, shapes in (("bfloat16", DENSE), ("float16", DENSE[:1])):
        for shape in shapes:
            for causal in (False, True):
                yield AttentionCase("dense", dtype, *shape, causal=causal)
    for shape in EIGHT_BITS:
        for causal in (False, True):
            yield AttentionCase("fp8", "float8_e4m3fn", *shape, causal=causal)
    yield _masked(16384, 128, 0.125, group="fp8", dtype="float8_e4m3fn")
    # As long as the longest masks.
    yield AttentionCase("dense", "bfloat16", 1, 16, 32768, 128)
    lengths = mixed_lengths(32, 256, 8192)
    for causal in (False, True):
        shape = (len(lengths), 16, max(lengths), 128)
        yield AttentionCase("varlen", "bfloat16", *shape, causal=causal, lengths=lengths)
    yield AttentionCase("decode", "bfloat16", 16, 32, 8192, 128, queries=1, kv_heads=8)
    for length in (16384, 32768):
        for density in (0.05, 0.125, 0.25, 0.5):
            yield _masked(length, 128, density)
            yield _masked(length, 128, density, "random")
    for density in (0.125, 0.5):
        yield _masked(16384, 64, density)
    yield _masked(16384, 128, 0.125, "zipf_rows")
    # The same blocks: what the diagonal costs of which half is hidden.
    for pattern in ("diagonal", "causal"):
        yield _masked(16384, 128, 0.125, pattern)
    # The mask is made anew for each call, from scores.
    for block in (128, 64):
        yield replace(_masked(16384, block, 0.125), group="topk")
    yield from _sparse_decode()


def cpu_attention_cases(dtypes: list[str]) -> Iterator[AttentionCase]:
    if "float32" in dtypes:
        yield AttentionCase("dense", "float32", 1, 8, 2048, 64, timings=("rounds",))


def _sparse_decode() -> Iterator[SparseDecodeCase]:
    """Blocks are chosen once for all heads of q that share a head of k, as methods do that do."""
    for batch, keys, queries, density, pattern in (
        (16, 32768, 4, 1 / 8, "uniform"),
        (16, 32768, 1, 1 / 8, "uniform"),
        (40, 8192, 8, 1 / 4, "uniform"),
        (1, 131072, 4, 1 / 16, "uniform"),
        (16, 32768, 4, 1 / 8, "topk"),
    ):
        block, kv_heads = (16, 64), 8
        yield SparseDecodeCase(
            *("sparse_decode", "bfloat16", batch, 32, keys, 128),
            queries=queries,
            kv_heads=kv_heads,
            block=block,
            count=round(density * keys / block[1]),
            pattern=pattern,
            mask_heads=kv_heads,
        )


def _masked(
    length: int,
    block: int,
    density: float,
    pattern: str = "uniform",
    group: str = "masks",
    dtype: str = "bfloat16",
) -> AttentionCase:
    count = density * length / block
    return AttentionCase(
        *(group, dtype, 1, 16, length, 128),
        causal=pattern == "causal",
        block=(block, block),
        count=count if pattern == "random" else round(count),
        pattern=pattern,
    )
