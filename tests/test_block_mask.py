"""BlockMask: builders against their definitions, and what it says of itself."""

from __future__ import annotations

import copy
import pickle

import bsrgemm
import fake_cuda
import numpy as np
import pytest
from bsrgemm import BlockMask
from spaces import import_torch


def blocks_of(seen: np.ndarray, block_shape: tuple[int, int]) -> np.ndarray:
    """Which blocks hold a pair of query and key that is to be seen."""
    height, width = block_shape
    rows, cols = (-(-n // side) for n, side in zip(seen.shape, block_shape, strict=True))
    padded = np.zeros((rows * height, cols * width), bool)
    padded[: seen.shape[0], : seen.shape[1]] = seen
    return padded.reshape(rows, height, cols, width).any(axis=(1, 3))


def own_keys(queries: int, keys: int, alignment: str) -> tuple[np.ndarray, np.ndarray]:
    shift = keys - queries if alignment == "bottom_right" else 0
    return np.arange(queries)[:, None] + shift, np.arange(keys)[None, :]


LENGTHS = [(1, 1), (64, 64), (100, 100), (37, 120), (120, 37), (0, 5), (5, 0)]
SHAPES = [(16, 16), (7, 12), (64, 32), (1, 1), (128, 128)]


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
@pytest.mark.parametrize("block_shape", SHAPES)
def test_builders(block_shape: tuple[int, int], alignment: str) -> None:
    for queries, keys in LENGTHS:
        own, j = own_keys(queries, keys, alignment)
        made = BlockMask.causal(queries, keys, block_shape, alignment=alignment)
        assert np.array_equal(made.to_dense()[0, 0], blocks_of(j <= own, block_shape))
        far = 2**63 - 1
        for left, right in (
            *((-1, -1), (0, 0), (10, 3), (-1, 5), (5, -1), (200, 200)),
            *((-1, far), (far, -1), (far, far), (far, 5), (5, far)),
        ):
            seen = np.ones((queries, keys), bool)
            if left >= 0:
                seen &= j >= own - min(left, 1000)
            if right >= 0:
                seen &= j <= own + min(right, 1000)
            made = BlockMask.sliding_window(
                queries, keys, (left, right), block_shape, alignment=alignment
            )
            assert np.array_equal(made.to_dense()[0, 0], blocks_of(seen, block_shape))
        for prefix in (0, 1, 50, 1000):
            made = BlockMask.prefix(queries, keys, prefix, block_shape, alignment=alignment)
            seen = (j < prefix) | (j <= own)
            assert np.array_equal(made.to_dense()[0, 0], blocks_of(seen, block_shape))


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
@pytest.mark.parametrize("block_shape", [*SHAPES, (32, 16), (16, 48)])
def test_dilated(block_shape: tuple[int, int], alignment: str) -> None:
    height, width = block_shape
    for queries, keys in LENGTHS:
        shift = keys - queries if alignment == "bottom_right" else 0
        rows, cols = -(-queries // height), -(-keys // width)
        for before, after in ((-1, -1), (0, 0), (2, 0), (1, 2), (-1, 0), (0, -1)):
            for dilation in (1, 2, 3, 7):
                expected = np.zeros((rows, cols), bool)
                for row in range(rows):
                    last = min((row + 1) * height, queries) - 1
                    own = {(i + shift) // width for i in (row * height, last)}
                    for middle in range(min(own), max(own) + 1):
                        steps = range(
                            -(cols + abs(middle)) if before < 0 else -before,
                            cols + abs(middle) + 1 if after < 0 else after + 1,
                        )
                        for column in (middle + n * dilation for n in steps):
                            if 0 <= column < cols:
                                expected[row, column] = True
                made = BlockMask.dilated(
                    queries, keys, (before, after), dilation, block_shape, alignment=alignment
                )
                assert np.array_equal(made.to_dense()[0, 0], expected)


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
def test_numbers_beyond_all_lengths(alignment: str) -> None:
    """They say as much as the lengths do."""
    for queries, keys in LENGTHS:
        lengths, options = (queries, keys), {"alignment": alignment}
        far = 2**63 - 1
        for made, same in (
            (
                BlockMask.dilated(*lengths, (far, far), 2, (16, 16), **options),
                BlockMask.dilated(*lengths, (-1, -1), 2, (16, 16), **options),
            ),
            (
                BlockMask.dilated(*lengths, (3, 3), 2**70, (16, 16), **options),
                BlockMask.dilated(*lengths, (0, 0), 1, (16, 16), **options),
            ),
            (
                BlockMask.prefix(*lengths, 2**70, (16, 16), **options),
                BlockMask.prefix(*lengths, keys, (16, 16), **options),
            ),
        ):
            assert np.array_equal(made.to_dense(), same.to_dense())


def test_dilation_of_one_is_a_sliding_window() -> None:
    made = BlockMask.dilated(512, 512, (2, 1), 1, (64, 64))
    same = BlockMask.sliding_window(512, 512, (128, 64), (64, 64))
    assert np.array_equal(made.to_dense(), same.to_dense())


def test_from_indices(rng: np.random.Generator) -> None:
    dense = rng.random((2, 3, 5, 7)) < 0.5
    indptr = np.concatenate(
        [np.zeros((2, 3, 1), int), np.count_nonzero(dense, axis=3).cumsum(axis=2)], axis=2
    )
    indices = [[np.nonzero(blocks)[1] for blocks in of_batch] for of_batch in dense]
    made = BlockMask.from_indices(indptr, indices, (79, 110), (16, 16))
    assert made.shape == (2, 3, 5, 7) and np.array_equal(made.to_dense(), dense)
    for kind in (np.int32, np.int64, list):
        lists = [
            x.tolist() if kind is list else x.astype(kind) for x in (indptr[0, 0], indices[0][0])
        ]
        made = BlockMask.from_indices(*lists, (80, 112), (16, 16))
        assert np.array_equal(made.to_dense()[0, 0], dense[0, 0])
    empty = BlockMask.from_indices([0, 0, 0], [], (20, 20), (16, 16))
    assert empty.nnzb == 0 and empty.shape == (1, 1, 2, 2)


def test_from_indices_of_torch(rng: np.random.Generator) -> None:
    torch = import_torch()
    made = BlockMask.from_indices(
        torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), (32, 32), (16, 16)
    )
    assert made.to_dense()[0, 0].tolist() == [[True, True], [False, True]]


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
def test_from_flex(rng: np.random.Generator) -> None:
    torch = import_torch()
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    def causal(b, h, q, k):
        return q >= k

    made = flex.create_block_mask(causal, None, None, 256, 384, device="cpu", BLOCK_SIZE=(64, 128))
    with pytest.raises(ValueError, match="4 partial blocks, and mask_mod, which decides"):
        BlockMask.from_flex(made)
    found = BlockMask.from_flex(made, partial="keep")
    expected = BlockMask.causal(256, 384, (64, 128), alignment="top_left")
    assert np.array_equal(found.to_dense(), expected.to_dense())
    assert found.block_shape == (64, 128)
    # Of a part of its rows, which would move to the first ones.
    with pytest.raises(ValueError, match="block_mask has 2 block rows; accepted: 4"):
        BlockMask.from_flex(made[:, :, 1:3], partial="keep")

    q, k, v = (torch.randn(1, 2, n, 16) for n in (256, 384, 384))
    attended = bsrgemm.attention(
        q, k, v, block_mask=found, is_causal=True, causal_alignment="top_left"
    )
    assert torch.allclose(attended, flex.flex_attention(q, k, v, block_mask=made), atol=1e-5)


def test_from_flex_of_each_head(rng: np.random.Generator) -> None:
    """Full blocks alone, for each batch and head; and lists without a rule, which are whole."""
    torch = import_torch()
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    dense = rng.random((2, 3, 4, 5)) < 0.5
    seen = torch.from_numpy(dense)

    def rule(b, h, q, k):
        return seen[b, h, q // 32, k // 32]

    made = flex.create_block_mask(rule, 2, 3, 128, 160, device="cpu", BLOCK_SIZE=32)
    assert np.array_equal(BlockMask.from_flex(made).to_dense(), dense)
    lists = made.full_kv_num_blocks, made.full_kv_indices
    whole = flex.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=32, seq_lengths=(128, 160))
    assert np.array_equal(BlockMask.from_flex(whole).to_dense(), dense)
    whole.kv_indices[:] = 9
    if dense.any():
        with pytest.raises(ValueError, match="block column 9; accepted: below 5"):
            BlockMask.from_flex(whole)


def test_documents() -> None:
    for lengths in ([32], [64, 32, 0, 96, 50], [], [0], [32, 32]):
        owner = np.repeat(np.arange(len(lengths)), lengths)
        made = BlockMask.document(lengths, (32, 16))
        expected = blocks_of(owner[:, None] == owner[None, :], (32, 16))
        assert np.array_equal(made.to_dense()[0, 0], expected)


def test_from_dense() -> None:
    blocks = np.array([[1, 0, 1], [0, 0, 0]], bool)
    mask = BlockMask.from_dense(blocks, (16, 32))
    assert mask.shape == (1, 1, 2, 3) and mask.block_shape == (16, 32)
    assert mask.nnzb == 2 and mask.density == 2 / 6
    assert repr(mask) == "<BlockMask of shape (1, 1, 2, 3) in blocks of (16, 32), density 0.3333>"
    four = np.stack([blocks, ~blocks, blocks]).reshape(1, 3, 2, 3)
    mask = BlockMask.from_dense(four, (8, 8))
    assert np.array_equal(mask.to_dense(), four) and mask.nnzb == 2 + 4 + 2
    assert len(set(map(id, mask._structures))) == 2, "equal heads share a structure"
    assert np.array_equal(BlockMask.from_dense(four.tolist(), (8, 8)).to_dense(), four)


def test_from_torch() -> None:
    torch = import_torch()
    blocks = torch.tensor([[True, False], [False, True]])
    assert np.array_equal(BlockMask.from_dense(blocks, (4, 4)).to_dense()[0, 0], np.eye(2) > 0)


def test_from_bsr(rng: np.random.Generator) -> None:
    blocks = rng.random((4, 6)) < 0.5
    a = bsrgemm.bsr_array(np.kron(blocks, np.ones((8, 4))), blocksize=(8, 4))
    mask = BlockMask.from_bsr(a)
    assert np.array_equal(mask.to_dense()[0, 0], blocks) and mask.block_shape == (8, 4)


def test_from_bsr_of_partial_blocks(rng: np.random.Generator) -> None:
    a = bsrgemm.bsr_array(np.ones((50, 100)), blocksize=(16, 32))
    mask = BlockMask.from_bsr(a)
    assert mask.shape == (1, 1, 4, 4) and mask.density == 1 and mask.to_dense().all()
    half = a[:, :64]
    for of in (half, half.T):
        mask = BlockMask.from_bsr(of)
        queries, keys = (rng.standard_normal((1, 1, n, 8)) for n in of.shape)
        found = bsrgemm.attention(queries, keys, keys, block_mask=mask)
        assert np.array_equal(found, bsrgemm.attention(queries, keys, keys))
        assert np.array_equal(pickle.loads(pickle.dumps(mask)).to_dense(), mask.to_dense())


def test_copies(rng: np.random.Generator) -> None:
    mask = BlockMask.from_dense(rng.random((2, 3, 4, 5)) < 0.5, (16, 8))
    for same in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask), copy.copy(mask)):
        assert np.array_equal(same.to_dense(), mask.to_dense())
        assert same.block_shape == mask.block_shape


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: BlockMask.from_dense(np.ones((2, 2)), (4, 4)), TypeError, "dtype float64; acc"),
        (lambda: BlockMask.from_dense(np.ones(2, bool), (4, 4)), ValueError, r"shape \(2,\)"),
        (
            lambda: BlockMask.from_dense(np.ones((0, 1, 2, 2), bool), (4, 4)),
            ValueError,
            r"shape \(0, 1, 2, 2\)",
        ),
        (lambda: BlockMask.from_dense([[True]], (0, 4)), ValueError, "block_shape is"),
        (lambda: BlockMask.from_dense([[True]], 4), TypeError, "block_shape is 4; accepted"),
        (lambda: BlockMask.from_dense([[True]], (4, 4, 4)), TypeError, "a pair of integers"),
        (lambda: BlockMask.from_bsr(np.ones((2, 2))), TypeError, "a is an ndarray; accepted"),
        (lambda: BlockMask.causal(-1, 4, (4, 4)), ValueError, "queries is -1"),
        (lambda: BlockMask.causal(4, 2.5, (4, 4)), TypeError, "keys is 2.5"),
        (lambda: BlockMask.prefix("4", 4, 1, (4, 4)), TypeError, "queries is '4'"),
        (lambda: BlockMask.causal(4, 4, (4, 4), alignment="left"), ValueError, "'top_left'"),
        (lambda: BlockMask.sliding_window(4, 4, 3, (4, 4)), TypeError, "window is 3; accepted"),
        (lambda: BlockMask.sliding_window(4, 4, (-2, 0), (4, 4)), ValueError, "or -1 for all"),
        (lambda: BlockMask.prefix(4, 4, -1, (4, 4)), ValueError, "prefix is -1"),
        (lambda: BlockMask.dilated(4, 4, (1, 0), 0, (4, 4)), ValueError, "dilation is 0; accepted"),
        (lambda: BlockMask.dilated(4, 4, 3, 1, (4, 4)), TypeError, "window is 3; accepted"),
        (lambda: BlockMask.from_flex(np.ones((2, 2))), TypeError, "block_mask is an ndarray"),
        (lambda: BlockMask.from_flex(None, partial="x"), ValueError, "partial is 'x'; accepted"),
        (
            lambda: BlockMask.from_indices([0, 1], [2], (4, 8), (4, 4)),
            ValueError,
            "indices",
        ),
        (lambda: BlockMask.from_indices([0, 1, 2], [0, 0], (4, 8), (4, 4)), ValueError, "indptr"),
        (lambda: BlockMask.from_indices([0, 2], [1, 0], (4, 8), (4, 4)), ValueError, "ascend"),
        (lambda: BlockMask.from_indices([0, 1.5], [0], (4, 4), (4, 4)), TypeError, "indptr has"),
        (lambda: BlockMask.from_indices([0, 1], [0.5], (4, 4), (4, 4)), TypeError, "indices has"),
        (lambda: BlockMask.from_indices([[0, 1]], [[0]], (4, 4), (4, 4)), ValueError, "indptr has"),
        (
            lambda: BlockMask.from_indices([[[0, 1]]], [[[0], [0]]], (4, 4), (4, 4)),
            ValueError,
            r"indices has 1 batches of \[2\] heads",
        ),
        (lambda: BlockMask.from_indices([0, 1], [0], 4, (4, 4)), TypeError, "shape is 4"),
        (lambda: BlockMask.document([10, 4], (4, 4)), ValueError, "a document of 10 tokens"),
        (lambda: BlockMask.document([4, -4], (4, 4)), ValueError, "lengths is -4"),
    ],
)
def test_malformed(make, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@fake_cuda.needs_kernels
def test_too_large_for_lists() -> None:
    """Of 128 queries one sees all keys: each of their tiles has a word for each of the queries."""
    script = """
        import numpy as np
        from bsrgemm import BlockMask, DeviceArray, attention

        queries, keys = 2**18, 2**19
        some = np.arange(0, queries, 128)
        indptr = np.searchsorted(some, np.arange(queries + 1))
        mask = BlockMask.from_indices(indptr, 0 * some, (queries, keys), (1, keys))
        q, k = (DeviceArray.from_host(np.zeros((1, 1, n, 8), np.float16)) for n in (queries, keys))
        for _ in range(2):
            try:
                attention(q, k, k, block_mask=mask)
            except ValueError as error:
                print(error)
    """
    said = fake_cuda.run(script, arch=80).splitlines()
    assert len(said) == 2
    for line in said:
        assert line.startswith(
            "block_mask has 2048 lists, of 16777216 tiles with 2147483648 block rows in all, but "
        ) and line.endswith("these kernels take fewer than 2^31 block rows of tiles")
