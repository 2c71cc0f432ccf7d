"""Packed sequences of different lengths as cases: each against the reference of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import bsrgemm
import numpy as np
from attention_cases import Case, operands, reference, relative_error, tolerance
from cases import ROUNDOFF
from spaces import Space


class Packed(NamedTuple):
    """``options`` are fields of a Case that all sequences have."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    options: dict[str, Any] = {}
    index: tuple[str, str] = ("int32", "int32")  # dtypes of the offsets
    before: int = 0  # rows of q and of k that belong to no sequence, before the first
    rest: tuple[int, int] = (0, 0)  # and behind the last, of q and of k
    strided: bool = False  # a slice of a larger array

    @property
    def cases(self) -> list[Case]:
        pairs = zip(self.queries, self.keys, strict=True)
        return [Case(queries, keys, **self.options) for queries, keys in pairs]


class Operands(NamedTuple):
    """Packed arrays, and those of each sequence as (1, heads, rows, size)."""

    packed: list[np.ndarray]
    single: list[list[np.ndarray]]


def pack(arrays: list[np.ndarray], before: int, rest: int) -> np.ndarray:
    """With NaN where no sequence is."""
    rows = [x[0].swapaxes(0, 1) for x in arrays]
    shape, dtype = rows[0].shape[1:], rows[0].dtype
    first, last = (np.full((n, *shape), np.nan, dtype) for n in (before, rest))
    return np.concatenate([first, *rows, last])


def make(rng: np.random.Generator, case: Packed, dtype: str) -> Operands:
    single = [operands(rng, one, dtype) for one in case.cases]
    rests = (case.rest[0], case.rest[1], case.rest[1])
    columns = zip(*single, strict=True)
    packed = [pack(list(x), case.before, rest) for x, rest in zip(columns, rests, strict=True)]
    return Operands(packed, single)


def offsets(lengths: tuple[int, ...], index: str, before: int = 0) -> np.ndarray:
    return np.cumsum([before, *lengths]).astype(index)


def place(space: Space, x: np.ndarray, strided: bool) -> tuple[Any, Any]:
    """An array of the library, and the memory around it, which is NaN."""
    if not strided:
        memory = space.array(x)
        return memory, memory
    rows, heads, size = x.shape
    memory = np.full((rows, 3, heads + 1, size), np.nan, x.dtype)
    memory[:, 1, :heads] = x
    memory = space.array(memory)
    return memory[:, 1, :heads], memory


def call(
    space: Space, case: Packed, arrays: list[Any], function: Any = None, **options: Any
) -> Any:
    first = case.cases[0]
    return (function or bsrgemm.attention)(
        *arrays,
        cu_seqlens_q=space.array(offsets(case.queries, case.index[0], case.before)),
        cu_seqlens_k=space.array(offsets(case.keys, case.index[1], case.before)),
        max_seqlen_q=max(case.queries),
        max_seqlen_k=max(case.keys),
        is_causal=first.causal,
        scale=first.scale,
        enable_gqa=first.kv_heads is not None,
        window=first.window,
        softcap=first.softcap,
        causal_alignment=first.alignment,
        **options,
    )


def check(space: Space, case: Packed, dtype: str, rng: np.random.Generator, **options: Any) -> None:
    """Each sequence, its lse, and that nothing of another one or around was written."""
    given = make(rng, case, dtype)
    arrays = [place(space, x, case.strided)[0] for x in given.packed]
    q, _, v = given.packed
    poison = np.full((*q.shape[:2], v.shape[2]), np.nan, q.dtype)
    out, memory = place(space, poison, case.strided)
    result, lse = call(space, case, arrays, out=out, return_lse=True, **options)
    assert result is out
    with np.errstate(invalid="ignore"):  # whatever the memory of rows in no sequence held before
        found, sums = (space.host(x).astype(np.float64) for x in (out, lse))
    assert sums.shape == q.shape[1::-1]
    what = f"{case} {dtype} {space!r} {options}"
    around = np.isnan(space.host(memory).astype(np.float64)).sum()
    written = sum(case.queries) * q.shape[1] * v.shape[2]
    size = int(np.prod(space.host(memory).shape))
    assert around == size - written, f"{what}: {size - written - around} elements too many written"

    first = case.before
    for one, single in zip(case.cases, given.single, strict=True):
        rows = slice(first, first + one.queries)
        first += one.queries
        expected = reference(one, *single)
        error = relative_error(found[rows].swapaxes(0, 1)[None], expected)
        limit = tolerance(dtype, expected, None)
        assert error <= limit, f"{what}: {one.queries} x {one.keys}: {error:.3e} of {limit:.3e}"
        seen = np.isfinite(expected.lse)
        mine = sums[None, :, rows]
        assert np.array_equal(mine == -np.inf, ~seen), f"{what}: lse of queries that see nothing"
        scores = max(expected.largest, float(np.abs(expected.lse[seen]).max(initial=1.0)))
        far = float(np.abs(mine[seen] - expected.lse[seen]).max(initial=0.0))
        assert far <= 16 * ROUNDOFF["float32"] * scores, f"{what}: lse is off by {far:.3e}"
        assert not found[rows].swapaxes(0, 1)[None][~seen].any(), f"{what}: sees nothing, not zero"


LENGTHS = (0, 1, 2, 63, 64, 65, 0, 127, 128, 129, 191, 192, 193, 300, 16, 17, 0)

CASES = {
    "self": Packed(LENGTHS, LENGTHS),
    "causal": Packed(LENGTHS, LENGTHS, {"causal": True}),
    "more keys": Packed((5, 70, 1, 130), (9, 200, 500, 140), {"causal": True}),
    "more queries": Packed((300, 70, 20), (200, 3, 0), {"causal": True}),
    "top left": Packed((300, 70, 20), (200, 90, 0), {"causal": True, "alignment": "top_left"}),
    "no keys": Packed((30, 0, 200), (0, 0, 0)),
    "no queries": Packed((0, 0), (10, 0)),
    "one": Packed((700,), (700,), {"causal": True}),
    "queries without keys between": Packed((64, 100, 64), (64, 0, 64), {"causal": True}),
    "window": Packed((300, 1, 150), (300, 40, 170), {"window": (20, 10)}),
    "causal window": Packed((300, 1, 150), (300, 40, 170), {"window": (70, 5), "causal": True}),
    "window, top left": Packed(
        (150, 40, 90), (170, 10, 200), {"window": (20, 10), "alignment": "top_left"}
    ),
    "softcap": Packed((200, 0, 33), (210, 5, 65), {"softcap": 2.0, "spread": 2.0, "causal": True}),
    "grouped": Packed(LENGTHS, LENGTHS, {"heads": 6, "kv_heads": 2, "causal": True}),
    "int64": Packed((64, 3), (70, 8), index=("int64", "int64")),
    "int32, int64": Packed((64, 3), (70, 8), index=("int32", "int64")),
    "int64, int32": Packed((64, 3), (70, 8), index=("int64", "int32")),
    "before": Packed((200, 3, 100), (70, 8, 300), {"causal": True}, before=131, rest=(1, 200)),
    "few queries": Packed(
        (1, 1, 1, 0, 4, 1),
        (700, 1, 33, 12, 300, 0),
        {"heads": 8, "kv_heads": 2, "causal": True, "size": 128},
    ),
    "rest": Packed((64, 3, 100), (70, 8, 100), rest=(50, 9)),
    "strided": Packed((64, 3, 100), (70, 8, 100), {"heads": 3}, strided=True, rest=(3, 0)),
    "size 128": Packed((200, 300, 1), (200, 300, 257), {"size": 128, "causal": True}),
    "size 256": Packed((200, 300, 1), (200, 300, 257), {"size": 256, "causal": True}),
    "size 192": Packed((200, 300, 1), (200, 300, 257), {"size": 192}),
    "size 40": Packed((200, 300, 1), (200, 300, 257), {"size": 40, "value_size": 24}),
    "size 256, softcap": Packed((70, 130), (300, 60), {"size": 256, "softcap": 3.0}),
    "size 128, softcap": Packed((70, 130), (300, 60), {"size": 128, "softcap": 3.0, "heads": 3}),
    "many": Packed(tuple(range(1, 60)), tuple(range(60, 1, -1)), {"causal": True, "size": 16}),
}
