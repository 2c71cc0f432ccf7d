"""Random problems made, multiplied and compared on the GPU with torch."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import bsrgemm
import numpy as np
import pytest
from bsrgemm._matmul import product
from cases import WORST_ELEMENT, cancellation, least_error

# Cycles for torch.cuda._sleep, about 0.1 s: what is queued behind it waits.
LONG = 150_000_000

# Whether a tool slows kernels down a hundred times: the same tests then, on less.
brief = False


def some(of: Sequence[Any]) -> Sequence[Any]:
    return of[::3] if brief else of


def combined(rng: np.random.Generator, *ways: Sequence[Any], drawn: int = 4) -> list[tuple]:
    """Each of one with each of the others; in brief form so many of these, drawn at random."""
    every = list(itertools.product(*ways))
    if not brief or len(every) <= drawn:
        return every
    return [every[i] for i in rng.choice(len(every), drawn, replace=False)]


def few(of: dict[Any, Any]) -> dict[Any, Any]:
    return {key: of[key] for key in some(list(of))}


def corner(rows: int, cols: int) -> np.ndarray:
    """A mask of one block, the last: most kernels need one."""
    mask = np.zeros((rows, cols), bool)
    mask[-1, -1] = True
    return mask


def device_memory() -> int:
    """Bytes that nobody can have, of all processes."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def least_growth(
    one_round: Callable[[], object], in_use: Callable[[], int], rounds: int, accepted: int = 0
) -> int:
    """In one of some windows: pools and other processes take memory in some, a leak in all."""
    found = []
    for _ in range(12):
        before = in_use()
        for _ in range(rounds):
            one_round()
        found.append(in_use() - before)
        if found[-1] <= accepted:
            break
    return min(found)


def repeats(count: int) -> range:
    return range(3 if brief else count)


def one_behind_the_other(
    torch: Any, launch: Callable[[Any], object], shape: tuple[int, ...], dtype: Any, count: int
) -> Any:
    """The result of so many launches, each into memory of NaN: what one leaves out is seen. All
    have the same bits."""
    outs = [torch.empty(shape, device="cuda", dtype=dtype) for _ in range(5)]
    for _ in repeats(count // len(outs)):
        for out in outs:
            out.fill_(float("nan"))
        for out in outs:
            launch(out)
        assert all(torch.equal(out, outs[0]) for out in outs[1:])
    return outs[0]


def threads(count: int) -> int:
    """How many launch at a time. In brief form one: compute-sanitizer loses track of launches of
    several threads and then waits for ever, or reports an error of its own."""
    return 1 if brief else count


def reduced(number: int) -> int:
    """The side of a large problem, or how many problems there are."""
    return number // 4 if brief else number


def need_graph_trees() -> None:
    """Of torch.compile, mode "reduce-overhead". Under compute-sanitizer torch takes a tensor that
    is gone for one left in its graphs' memory; the tests that capture graphs run there, too."""
    if brief:
        pytest.skip("torch's CUDA graph trees do not work under compute-sanitizer")


def need_cublas() -> None:
    """Of dense products by TMA. Racecheck breaks kernels with TMA that it does not watch."""
    if brief:
        pytest.skip("cuBLAS's kernels with TMA do not work under compute-sanitizer's racecheck")


def need_processes() -> None:
    """Of their own, which the sanitizer does not watch and might not survive."""
    if brief:
        pytest.skip("processes of their own are not run under compute-sanitizer")


def need_many_rounds() -> None:
    """Of measuring memory: few rounds do not fill all caches, and others use the GPU, too."""
    if brief:
        pytest.skip("memory is measured over more rounds than fit under compute-sanitizer")


# Rows of poison before and after out, to see writes outside it.
GUARD = 3


class DeviceProblem(NamedTuple):
    matrix: bsrgemm.bsr_array
    dense: Any  # float64 tensor (M, K)


def random_problem(
    torch: Any, mask: np.ndarray, blocksize: tuple[int, int], dtype: str
) -> DeviceProblem:
    """Normal random values on the blocks of ``mask`` (block rows x block columns)."""
    height, width = blocksize
    rows, cols = np.nonzero(mask)
    indptr = np.concatenate([[0], mask.sum(axis=1).cumsum()]).astype(np.int32)
    shape = (mask.shape[0] * height, mask.shape[1] * width)
    data = torch.randn(len(rows), height, width, device="cuda").to(getattr(torch, dtype))
    dense = torch.zeros(shape, dtype=torch.float64, device="cuda")
    tiles = dense.view(mask.shape[0], height, mask.shape[1], width)
    tiles[torch.from_numpy(rows), :, torch.from_numpy(cols), :] = data.double()
    matrix = bsrgemm.bsr_array((data, cols.astype(np.int32), indptr), shape)
    return DeviceProblem(matrix, dense)


def check_streams(torch: Any, multiply: Callable[[Any], Any], xs: list[Any]) -> None:
    """Products of one matrix on several streams at a time have the bits that each has alone."""
    streams = [torch.cuda.Stream() for _ in xs]
    expected = [multiply(x) for x in xs]
    torch.cuda.synchronize()
    for _ in repeats(20):
        found = []
        for stream, x in zip(streams, xs, strict=True):
            with torch.cuda.stream(stream):
                found.append(multiply(x))
        torch.cuda.synchronize()
        assert all(map(torch.equal, found, expected))


def check_same_bits(torch: Any, multiply: Callable[[], Any], x: Any) -> None:
    """Again and again, and in a graph, where x has new values."""
    first = multiply()
    for _ in repeats(20):
        assert torch.equal(multiply(), first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = multiply()
    for _ in range(3):
        x.copy_(torch.randn(x.shape, device="cuda").to(x.dtype))
        found.fill_(torch.nan)
        graph.replay()
        assert torch.equal(found, multiply())


def captured(torch: Any, step: Callable[[], Any]) -> tuple[Any, Any]:
    """A graph of a step with gradients, and what it makes, after one on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    return graph, made


def check_late(torch: Any, operand: Any, compute: Callable[[Any], Any]) -> None:
    """What is computed from an operand that is late is put behind it, while the host goes on."""
    expected = compute(operand)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(operand)
        torch.cuda._sleep(LONG)
        late.copy_(operand)
        found = compute(late)
        assert not stream.query(), "a call waited for the stream"
    stream.synchronize()
    assert torch.equal(found, expected)


def relative_error(torch: Any, found: Any, expected: Any) -> float:
    """As ``cases.relative_error``."""
    difference = (found.double() - expected).abs()
    error, norm = (torch.linalg.norm(x).item() for x in (difference, expected))
    if norm == 0.0:
        return 0.0 if error == 0.0 else float("inf")
    usual = norm / expected.numel() ** 0.5
    worst = (difference / (expected.abs() + usual)).max().item()
    return max(error / norm, worst / WORST_ELEMENT)


def product_cancellation(expected: Any, left: Any, right: Any, addend: Any = None) -> float:
    """``cancellation`` of a product's sums; of many sums hardly all are small."""
    if expected.numel() > 1000:
        return 1.0
    terms = left.abs() @ right.abs()
    if addend is not None:
        terms += addend.abs()
    return cancellation(expected, terms, left.shape[1])


def extent(where: Any) -> str:
    """How many elements a mask has, and between which indices of each axis they lie."""
    places = where.nonzero()
    ends = zip(places.amin(dim=0).tolist(), places.amax(dim=0).tolist(), strict=True)
    return f"{len(places)} elements from {' and '.join(f'{a} to {b}' for a, b in ends)}"


def check(
    torch: Any,
    p: DeviceProblem,
    n: int,
    alpha: float = 1.0,
    beta: float = 0.0,
    family: str = "auto",
) -> None:
    """Multiply into poisoned memory and compare the whole result; nothing around it may change."""
    m, k = p.matrix.shape
    dtype = p.matrix.dtype
    name = str(dtype).removeprefix("torch.")
    x = torch.randn(k, n, device="cuda").to(dtype)
    c = torch.randn(m, n, device="cuda").to(dtype) if beta else None
    memory = torch.full((m + 2 * GUARD * 8, n), float("nan"), device="cuda", dtype=dtype)
    out = memory[GUARD * 8 : m + GUARD * 8]
    product(p.matrix, x, c, alpha, beta, out, None, family)

    expected = alpha * (p.dense @ x.double())
    # A dense product of 16-bit operands sums in float32 and rounds once. cuBLAS's own kernels for
    # it break under racecheck.
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    same = alpha * torch.mm(p.dense.to(wide), x.to(wide))
    if c is not None:
        expected += beta * c.double()
        same += beta * c.to(wide)
    lost = relative_error(torch, same.to(dtype), expected)
    addend = None if c is None else beta * c.double()
    cancelled = product_cancellation(expected, p.dense, alpha * x.double(), addend)
    allowed = max(2.0 * lost, least_error(name, k, cancelled))
    outside = torch.cat([memory[: GUARD * 8], memory[m + GUARD * 8 :]])
    what = f"{p.matrix!r} n={n} alpha={alpha} beta={beta} family={family}"
    assert outside.isnan().all(), f"{what}: something outside out was written to"
    assert not out.isnan().any(), f"{what}: not all of out was written, {extent(out.isnan())}"
    error = relative_error(torch, out, expected)
    assert error <= allowed, f"{what}: relative error {error:.3e}, allowed {allowed:.3e}"
