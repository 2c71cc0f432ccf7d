"""Patterns that change on the GPU: against their definition, in CUDA graphs, without waiting."""

from __future__ import annotations

from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm import DeviceArray, DynamicPattern, matmul
from bsrgemm._matmul import product
from cases import ROUNDOFF, cancellation, kept, least_error
from device_cases import (
    GUARD,
    LONG,
    combined,
    device_memory,
    least_growth,
    reduced,
    relative_error,
    repeats,
    some,
)

pytestmark = pytest.mark.gpu

# About 0.1 s on a GPU of 1 to 2 GHz.


def all_masks(rng: np.random.Generator, rows: int, cols: int) -> list[np.ndarray]:
    """The last are rows in threes that have columns of their own, and a column that is long."""
    makers = [cases.uniform(density) for density in (0.0, 1.0, 0.1, 0.5)]
    makers += [cases.one_block, cases.empty_rows, cases.one_long_row, cases.skewed, cases.banded]
    masks = [np.asarray(make(rng, rows, cols)) for make in makers]
    masks.append(np.arange(rows)[:, None] // 3 == np.arange(cols) // 2)
    return [*masks, np.asarray(cases.one_long_row(rng, cols, rows)).T]


def whole(torch: Any, mask: np.ndarray, blocksize: tuple[int, int], dense: Any) -> Any:
    """What the matrix is, in float64."""
    on = torch.as_tensor(np.ascontiguousarray(mask), device="cuda").double()
    return dense.double() * torch.kron(on, torch.ones(blocksize, device="cuda").double())


def check_product(torch: Any, dense: Any, x: Any, left: Any, right: Any, family: str) -> None:
    """``left @ right``, one of them x, against ``dense`` on that side; into poisoned memory."""
    turned = right is not x
    dtype, name = x.dtype, str(x.dtype).removeprefix("torch.")
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    expected = x.double() @ dense if turned else dense @ x.double()
    same = x.to(wide) @ dense.to(wide) if turned else dense.to(wide) @ x.to(wide)
    rows, cols = expected.shape
    memory = torch.full((rows + 2 * GUARD, cols), float("nan"), device="cuda", dtype=dtype)
    out = memory[GUARD : rows + GUARD]
    product(left, right, None, 1.0, 0.0, out, None, family)
    lost = relative_error(torch, same.to(dtype), expected)
    assert memory[:GUARD].isnan().all() and memory[rows + GUARD :].isnan().all()
    assert not out.isnan().any(), "not all of out was written"
    error = relative_error(torch, out, expected)
    terms = x.double().abs() @ dense.abs() if turned else dense.abs() @ x.double().abs()
    count = x.shape[1] if turned else x.shape[0]
    allowed = max(2.0 * lost, least_error(name, count, cancellation(expected, terms, count)))
    assert error <= allowed, f"{left!r} @ {right!r}: {error}, allowed {allowed}"


def check_all(
    torch: Any, pattern: DynamicPattern, mask: np.ndarray, dense: Any, n: int, family: str
) -> None:
    """The lists, and products of every kind with values that are NaN behind the last block."""
    left = kept(mask, pattern.capacity)
    stored, dropped = int(left.sum()), int(mask.sum() - left.sum())
    assert torch.as_tensor(pattern.counts, device="cuda").tolist() == [stored, dropped]
    assert np.array_equal(pattern.to_mask(), left)
    assert (pattern.nnzb, pattern.dropped) == (stored, dropped)
    values = pattern.gather(dense)
    matrix = pattern.array(values)
    expected = whole(torch, left, pattern.blocksize, dense)
    assert torch.equal(matrix.todense().double(), expected)
    assert (values[stored:] == 0).all()
    values[stored:] = float("nan")
    rows, cols = pattern.shape
    x, z = (torch.randn(side, n, device="cuda").to(dense.dtype) for side in (cols, rows))
    check_product(torch, expected, x, matrix, x, family)
    check_product(torch, expected.T, z, matrix.T, z, family)
    x, z = (torch.randn(n, side, device="cuda").to(dense.dtype) for side in (cols, rows))
    check_product(torch, expected, z, z, matrix, family)
    check_product(torch, expected.T, x, x, matrix.T, family)


# Of one strip, two, three and four, wide and narrow ones.
TALL = [(64, 64), (128, 64), (192, 64), (256, 128), (64, 128), (320, 64), (64, 192)]
# (64, 16) and (128, 48) are tall, their transposed views are not.
OTHERS = [(64, 16), (128, 48), (16, 64), (32, 32), (16, 16), (8, 24), (3, 5), (1, 1)]


@pytest.mark.parametrize("blocksize", TALL)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.usefixtures("hopper")
def test_tall(torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str) -> None:
    height, width = blocksize
    grids = [(5, 7), (8, 6), (1, 9), (7, 70), (37, 3)]
    for (rows, cols), part in combined(rng, grids, (1, 3), drawn=2):
        dense = torch.randn(rows * height, cols * width, device="cuda").to(getattr(torch, dtype))
        pattern = DynamicPattern(tuple(dense.shape), blocksize, max(1, rows * cols // part))
        for (mask,) in combined(rng, all_masks(rng, rows, cols)):
            pattern.update(torch.as_tensor(mask, device="cuda"))
            n = int(rng.choice([8, 256, 264, 520]))
            check_all(torch, pattern, mask, dense, n, "tall")


# One and several parts a block, down and across, in pairs of narrow ones and in low and high ones.
STREAM = [
    (32, 32),
    (16, 16),
    (8, 16),
    (32, 8),
    (48, 16),
    (24, 24),
    (96, 32),
    (16, 112),
    (32, 160),
    (64, 16),
    (128, 32),
]


@pytest.mark.parametrize("blocksize", STREAM)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.usefixtures("hopper")
def test_stream(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    """More rows than a tile has, and more columns than its lists take at a time."""
    height, width = blocksize
    grids = [(5, 7), (1, 1), (reduced(101), 33), (3, reduced(1100)), (reduced(600), 4)]
    for rows, cols in some(grids):
        dense = torch.randn(rows * height, cols * width, device="cuda").to(getattr(torch, dtype))
        capacity = max(1, rows * cols // int(rng.choice([1, 3])))
        pattern = DynamicPattern(tuple(dense.shape), blocksize, capacity)
        masks = all_masks(rng, rows, cols)
        for i in rng.choice(len(masks), 4, replace=False):
            mask = masks[i]
            pattern.update(torch.as_tensor(mask, device="cuda"))
            n = int(rng.choice([8, 128, 264, 1000]))
            check_all(torch, pattern, mask, dense, n, "stream")


@pytest.mark.parametrize("blocksize", [*OTHERS, (64, 64)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_any_block(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], dtype: str
) -> None:
    height, width = blocksize
    family = "portable" if blocksize == (64, 64) else "auto"
    grids = [(6, 9), (1, 1), (reduced(33), 65), (3, 100)]
    for (rows, cols), part in combined(rng, grids, (1, 3), drawn=2):
        dense = torch.randn(rows * height, cols * width, device="cuda").to(getattr(torch, dtype))
        pattern = DynamicPattern(tuple(dense.shape), blocksize, max(1, rows * cols // part))
        for (mask,) in combined(rng, all_masks(rng, rows, cols), drawn=3):
            pattern.update(torch.as_tensor(mask, device="cuda"))
            n = int(rng.choice([1, 7, 40, 128]))
            check_all(torch, pattern, mask, dense, n, family)


@pytest.mark.usefixtures("hopper")
def test_aligned_copies(torch: Any, rng: np.random.Generator) -> None:
    """Numbers of columns that TMA cannot take."""
    for side in (64, 32):
        dense = torch.randn(9 * side, 11 * side, device="cuda").half()
        pattern = DynamicPattern(tuple(dense.shape), (side, side), 99)
        for n, mask in combined(rng, (77, 333), all_masks(rng, 9, 11)):
            pattern.update(torch.as_tensor(mask, device="cuda"))
            check_all(torch, pattern, mask, dense, n, "auto")
            matrix = pattern.array(pattern.gather(dense))
            x = torch.randn(11 * side, n, device="cuda").half()
            check_product(torch, whole(torch, mask, (side, side), dense), x, matrix, x, "align")


def test_large_grids(torch: Any, rng: np.random.Generator) -> None:
    """More rows than the CTA that places them has threads, and lengths of more than eight bits."""
    for rows, cols in some([(5000, 40), (40, 5000), (1500, 1500)]):
        rows, cols = reduced(rows), reduced(cols)
        pattern = DynamicPattern((rows, cols), (1, 1), rows * cols)
        dense = torch.randn(rows, cols, device="cuda")
        for make in (cases.uniform(0.02), cases.one_long_row, cases.skewed):
            mask = np.asarray(make(rng, rows, cols))
            pattern.update(torch.as_tensor(mask, device="cuda"))
            check_all(torch, pattern, mask, dense, 3, "auto")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_topk(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    rows, cols = 21, 45
    dense = torch.randn(rows * 64, cols * 64, device="cuda").half()
    pattern = DynamicPattern(tuple(dense.shape), (64, 64), rows * 12)
    for (k,) in combined(rng, (0, 1, 12, 30, 45, 99), drawn=2):
        # Distinct in every dtype.
        places = rng.permuted(np.tile(np.arange(cols), (rows, 1)), axis=1)
        scores = torch.as_tensor(places, device="cuda").to(getattr(torch, dtype))
        for given in (scores, scores.T.contiguous().T):
            pattern.update_topk(given, k)
            check_all(torch, pattern, places >= cols - k, dense, 64, "auto")


def test_views_of_masks(torch: Any, rng: np.random.Generator) -> None:
    mask = rng.random((9, 50)) < 0.3
    pattern = DynamicPattern((9 * 4, 50 * 4), (4, 4), 450)
    on_gpu = torch.as_tensor(mask, device="cuda")
    wide = torch.ones(20, 103, dtype=torch.bool, device="cuda")
    wide[1:19:2, 3::2] = on_gpu
    for given in (on_gpu.T.contiguous().T, wide[1:19:2, 3::2], on_gpu.to(torch.uint8) * 128):
        pattern.update(torch.zeros_like(on_gpu))
        pattern.update(given)
        assert np.array_equal(pattern.to_mask(), mask)
    pattern.update(DeviceArray.from_host(mask))
    assert np.array_equal(pattern.to_mask(), mask)
    dense = rng.standard_normal((9 * 4, 50 * 4))
    matrix = pattern.array(pattern.gather(DeviceArray.from_host(dense)))
    expected = dense * np.kron(mask, np.ones((4, 4)))
    assert np.array_equal(matrix.todense().to_host(), expected)
    assert np.array_equal(matrix.T.todense().to_host(), expected.T)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_gather(torch: Any, rng: np.random.Generator, dtype: str) -> None:
    """Units of 2 to 16 bytes, any strides, and nothing written but the values."""
    for height, width in ((4, 8), (5, 4), (3, 2), (7, 3), (96, 80)):
        mask = rng.random((6, 5)) < 0.5
        capacity = int(mask.sum()) + 2
        pattern = DynamicPattern((6 * height, 5 * width), (height, width), capacity)
        pattern.update(torch.as_tensor(mask, device="cuda"))
        wide = torch.randn(6 * height + 1, 5 * width + 3, device="cuda").to(getattr(torch, dtype))
        plain = wide[1:, 2 : 5 * width + 2].contiguous()
        for dense in (plain, plain.T.contiguous().T, wide[1:, 2 : 5 * width + 2]):
            memory = torch.full((capacity + 2, height, width), 7.0, device="cuda").to(plain.dtype)
            assert pattern.gather(dense, out=memory[1:-1]) is not None
            tiles = plain.view(6, height, 5, width).permute(0, 2, 1, 3)
            assert torch.equal(memory[1:-3], tiles[torch.as_tensor(mask, device="cuda")])
            assert (memory[-3:-1] == 0).all()
            assert (memory[0] == 7).all() and (memory[-1] == 7).all()


@pytest.mark.parametrize("blocksize", [(64, 64), (128, 64), (32, 32), (16, 16)])
@pytest.mark.parametrize("topk", [False, True])
def test_graph(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], topk: bool
) -> None:
    """A graph of mask, gather and products replays right with masks of all kinds."""
    rows, cols = 12, 20
    height, width = blocksize
    dense = torch.randn(rows * height, cols * width, device="cuda").half()
    pattern = DynamicPattern(tuple(dense.shape), blocksize, rows * cols // 2)
    choice = torch.zeros(rows, cols, device="cuda", dtype=torch.float32 if topk else torch.bool)
    x = torch.randn(cols * width, 264, device="cuda").half()
    z = torch.randn(264, rows * height, device="cuda").half()
    values = torch.empty(pattern.capacity, height, width, device="cuda").half()
    matrix = pattern.array(values)

    def step() -> tuple[Any, Any, Any]:
        if topk:
            pattern.update_topk(choice, 7)
        else:
            pattern.update(choice)
        pattern.gather(dense, out=values)
        return matrix @ x, z @ matrix, torch.as_tensor(pattern.counts, device="cuda").clone()

    step()  # torch wants its libraries loaded before
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, turned, counts = step()
    masks = all_masks(rng, rows, cols)
    for (mask,) in combined(rng, [*masks, *masks[::-1]], drawn=5):
        if topk:
            scores = rng.permuted(np.tile(np.arange(cols), (rows, 1)), axis=1)
            choice.copy_(torch.as_tensor(scores))
            mask = scores >= cols - 7
        else:
            choice.copy_(torch.as_tensor(mask))
        dense.normal_()
        for result in (found, turned, values):
            result.fill_(float("nan"))
        graph.replay()
        left = kept(mask, pattern.capacity)
        assert counts.tolist() == [left.sum(), mask.sum() - left.sum()]
        assert np.array_equal(pattern.to_mask(), left)
        expected = whole(torch, left, blocksize, dense)
        for result, wanted in ((found, expected @ x.double()), (turned, z.double() @ expected)):
            assert not result.isnan().any()
            assert relative_error(torch, result, wanted) <= 2 * ROUNDOFF["float16"]
        # The same bits as outside of a graph.
        again = step()
        assert torch.equal(again[0], found) and torch.equal(again[1], turned)


def test_never_waits(torch: Any, rng: np.random.Generator) -> None:
    """Updates, values and products behind a long kernel are queued while it still runs."""
    mask = torch.as_tensor(rng.random((32, 32)) < 0.3, device="cuda")
    dense = torch.randn(2048, 2048, device="cuda").half()
    pattern = DynamicPattern((2048, 2048), (64, 64), 512)
    values, out = pattern.gather(dense), torch.empty_like(dense)
    scores = torch.randn(32, 32, device="cuda")

    def step() -> None:
        pattern.update_topk(scores, 8)
        pattern.update(mask)
        pattern.gather(dense, out=values)
        matmul(pattern.array(values), dense, out=out)

    step()
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    for _ in repeats(20):
        step()
    assert not torch.cuda.current_stream().query(), "the host waited"
    torch.cuda.synchronize()


def test_streams(torch: Any, rng: np.random.Generator) -> None:
    """On the stream that is asked for, behind what it holds."""
    masks = [rng.random((8, 8)) < 0.4 for _ in range(2)]
    late = torch.zeros(8, 8, dtype=torch.bool, device="cuda")
    pattern = DynamicPattern((512, 512), (64, 64), 64)
    dense = torch.randn(512, 512, device="cuda").half()
    x = torch.randn(512, 256, device="cuda").half()
    for number, mask in enumerate(masks):
        stream, source = torch.cuda.Stream(), torch.as_tensor(mask, device="cuda")
        out = torch.empty(512, 256, device="cuda").half()
        values = torch.empty(64, 64, 64, device="cuda").half()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
            late.copy_(source)
        chosen = stream if number else stream.cuda_stream
        pattern.update(late, stream=chosen)
        pattern.gather(dense, out=values, stream=chosen)
        matmul(pattern.array(values), x, out=out, stream=chosen)
        stream.synchronize()
        expected = whole(torch, mask, (64, 64), dense) @ x.double()
        assert relative_error(torch, out, expected) <= 2 * ROUNDOFF["float16"]


def test_made_while_capturing(torch: Any) -> None:
    graph = torch.cuda.CUDAGraph()
    mask = torch.eye(4, dtype=torch.bool, device="cuda")
    values = torch.randn(4, 64, 64, device="cuda").half()
    x = torch.randn(256, 64, device="cuda").half()
    with torch.cuda.graph(graph):
        pattern = DynamicPattern((256, 256), (64, 64), 4)
        pattern.update(mask)
        found = pattern.array(values) @ x
    graph.replay()
    expected = torch.block_diag(*values.double()) @ x.double()
    assert relative_error(torch, found, expected) <= 2 * ROUNDOFF["float16"]


def test_refused(torch: Any) -> None:
    pattern = DynamicPattern((256, 128), (64, 64), 8)
    values = torch.zeros(8, 64, 64, device="cuda", dtype=torch.float16)
    x = torch.zeros(128, 64, device="cuda", dtype=torch.float16)
    with pytest.raises(TypeError, match="mask is on cpu; accepted: the pattern's device, cuda:0"):
        pattern.update(np.zeros((4, 2), bool))
    with pytest.raises(TypeError, match="values is on cpu"):
        pattern.array(np.zeros((8, 64, 64), np.float16))
    with pytest.raises(ValueError, match="values has shape"):
        pattern.array(values[:7])
    with pytest.raises(TypeError, match="out has dtype float16"):
        pattern.gather(torch.zeros(256, 128, device="cuda"), out=values)
    with pytest.raises(ValueError, match="out overlaps dense"):
        pattern.gather(values.view(-1)[: 256 * 128].view(256, 128), out=values)
    for family in ("stream", "regroup", "narrow"):
        with pytest.raises(ValueError, match="needs a pattern that the host knows"):
            product(pattern.array(values), x, None, 1.0, None, None, None, family)
    for capacity in (0, 9):
        with pytest.raises(
            ValueError, match=f"capacity is {capacity}, but must be from 1 to the 8"
        ):
            DynamicPattern((256, 128), (64, 64), capacity)


def test_memory_is_given_back(torch: Any) -> None:
    """Of 20 patterns of over 300 MB each."""

    def make() -> None:
        DynamicPattern((4096, 4096), (1, 1), 1 << 24)

    make()
    assert least_growth(make, device_memory, 20, 3 << 30) <= 3 << 30
