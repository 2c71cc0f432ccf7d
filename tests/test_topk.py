"""BlockMask.topk on the CPU against its definition, and malformed calls."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bsrgemm import BlockMask, _core, attention
from cases import numpy_dtype
from spaces import import_torch
from topk_cases import COUNTS, KINDS, expected_blocks, make_scores


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", COUNTS)
def test_kept(kind: str, k: int, rng: np.random.Generator) -> None:
    for shape in ((1, 1, 5, 9), (2, 3, 4, 7), (1, 2, 3, 1)):
        scores = make_scores(rng, kind, shape)
        for dtype in ("float16", "bfloat16", "float32"):
            if dtype == "bfloat16":
                pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
            given = scores.astype(numpy_dtype(dtype))
            made = BlockMask.topk(given, k, (16, 32))
            assert type(made) is BlockMask and made.block_shape == (16, 32)
            assert np.array_equal(made.to_dense(), expected_blocks(given, k))
            assert made.nnzb == int(np.prod(shape[:3])) * min(k, shape[3])


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
@pytest.mark.parametrize("block_shape", [(64, 64), (32, 16), (7, 12), (128, 64)])
def test_causal(block_shape: tuple[int, int], alignment: str, rng: np.random.Generator) -> None:
    for queries, keys in ((1, 1), (500, 500), (100, 700), (700, 100), (333, 400)):
        shape = [-(-n // side) for n, side in zip((queries, keys), block_shape, strict=True)]
        scores = rng.standard_normal((1, 2, *shape), np.float32)
        options = {"is_causal": True, "alignment": alignment, "queries": queries, "keys": keys}
        below = BlockMask.causal(queries, keys, block_shape, alignment=alignment).to_dense()
        for k in (0, 1, 3, 1000):
            made = BlockMask.topk(scores, k, block_shape, **options)
            assert np.array_equal(made.to_dense(), expected_blocks(scores, k, below[0, 0]))


def test_lengths_are_those_of_the_blocks() -> None:
    scores = np.zeros((2, 4), np.float32)
    made = BlockMask.topk(scores, 9, (8, 8), is_causal=True)
    assert made.to_dense()[0, 0].sum(axis=1).tolist() == [3, 4]
    made = BlockMask.topk(scores, 9, (8, 8), is_causal=True, queries=9, keys=32)
    assert made.to_dense()[0, 0].sum(axis=1).tolist() == [4, 4]


def test_shapes(rng: np.random.Generator) -> None:
    scores = rng.standard_normal((3, 6), np.float32)
    two = BlockMask.topk(scores, 2, (4, 4))
    four = BlockMask.topk(scores[None, None], 2, (4, 4))
    assert two.shape == (1, 1, 3, 6) and np.array_equal(two.to_dense(), four.to_dense())
    turned = BlockMask.topk(scores.T, 2, (4, 4))
    assert np.array_equal(turned.to_dense(), expected_blocks(scores.T, 2))
    for shape in ((0, 4), (4, 0), (0, 0)):
        made = BlockMask.topk(np.zeros(shape, np.float32), 2, (4, 4))
        assert made.shape == (1, 1, *shape) and made.nnzb == 0


def test_torch(rng: np.random.Generator) -> None:
    torch = import_torch()
    scores = rng.standard_normal((2, 1, 3, 6), np.float32)
    tensor = torch.from_numpy(scores).requires_grad_()
    made = BlockMask.topk(tensor, 2, (4, 4))
    assert np.array_equal(made.to_dense(), expected_blocks(scores, 2))


def test_attention(rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((2, 2, 96, 16), np.float32) for _ in range(3))
    scores = rng.standard_normal((2, 1, 6, 12), np.float32)
    made = BlockMask.topk(scores, 3, (16, 8))
    same = BlockMask.from_dense(expected_blocks(scores, 3), (16, 8))
    assert np.array_equal(attention(q, k, v, block_mask=made), attention(q, k, v, block_mask=same))


def test_copies(rng: np.random.Generator) -> None:
    mask = BlockMask.topk(rng.standard_normal((4, 5), np.float32), 2, (16, 8))
    for same in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask)):
        assert np.array_equal(same.to_dense(), mask.to_dense())


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


NUMBERS = (1, 1, 2, 3, 16, 16, 2, 0, 0, 0)
MALFORMED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "dtype": (
        lambda: BlockMask.topk(ones(2, 2, dtype=np.float64), 1, (4, 4)),
        TypeError,
        "scores has dtype float64; accepted: float16, bfloat16, float32",
    ),
    "no array": (lambda: BlockMask.topk([[1.0]], 1, (4, 4)), TypeError, "scores is of type list"),
    "dimensions": (
        lambda: BlockMask.topk(ones(2, 2, 2), 1, (4, 4)),
        ValueError,
        r"scores has shape \(2, 2, 2\); accepted: \(block rows, block columns\), or",
    ),
    "no heads": (lambda: BlockMask.topk(ones(1, 0, 2, 2), 1, (4, 4)), ValueError, "scores has sh"),
    "k": (lambda: BlockMask.topk(ones(2, 2), -1, (4, 4)), ValueError, "k is -1; accepted: an int"),
    "k of a float": (lambda: BlockMask.topk(ones(2, 2), 1.5, (4, 4)), TypeError, "k is 1.5; acc"),
    "block": (lambda: BlockMask.topk(ones(2, 2), 1, (0, 4)), ValueError, "block_shape is"),
    "alignment": (
        lambda: BlockMask.topk(ones(2, 2), 1, (4, 4), alignment="left"),
        ValueError,
        "alignment is 'left'; accepted",
    ),
    "queries": (
        lambda: BlockMask.topk(ones(2, 2), 1, (4, 4), queries=4),
        ValueError,
        "queries is 4; accepted: what rounds up to the 2 blocks of 4 that scores has",
    ),
    "keys": (
        lambda: BlockMask.topk(ones(2, 2), 1, (4, 4), keys=-1),
        ValueError,
        "keys is -1; accepted",
    ),
    "update of another mask": (
        lambda: BlockMask.topk(ones(2, 2), 1, (4, 4)).update(ones(2, 2)),
        TypeError,
        "this mask does not change; accepted: one that BlockMask.topk made from scores on a GPU",
    ),
    "core: on the CPU": (
        lambda: _core.topk(ones(2, 3), ones(1, 1, 2, 2, dtype=np.int32), NUMBERS),
        TypeError,
        "scores is on cpu, but must be on a GPU",
    ),
    "core: columns": (
        lambda: _core.topk(ones(2, 3), ones(1, 1, 2, 3, dtype=np.int32), NUMBERS),
        ValueError,
        r"columns has dtype int32 and shape \(1, 1, 2, 3\), but must have dtype int32 and shape",
    ),
    "core: numbers": (
        lambda: _core.topk(ones(2, 3), ones(1, 1, 2, 2, dtype=np.int32), (1, 2)),
        TypeError,
        "numbers is .* but must be a tuple of the ten integers",
    ),
    "core: shape": (
        lambda: _core.topk(ones(2, 4), ones(1, 1, 2, 2, dtype=np.int32), NUMBERS),
        TypeError,
        "scores is on cpu",
    ),
    "attention: columns on the CPU": (
        lambda: _core.attention(
            *(ones(1, 1, 32, 8) for _ in range(4)),
            columns=ones(1, 1, 2, 2, dtype=np.int32),
            numbers=(1, 1, 2, 2, 16, 16, 2, 0, 0, 0),
        ),
        TypeError,
        "block_mask is on a GPU and q on cpu",
    ),
    "attention: columns without numbers": (
        lambda: _core.attention(
            *(ones(1, 1, 32, 8) for _ in range(4)), columns=ones(1, 1, 2, 2, dtype=np.int32)
        ),
        TypeError,
        "columns are given, so numbers must be",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str) -> None:
    make, error, message = MALFORMED[name]
    with pytest.raises(error, match=message):
        make()
