"""Streams, CUDA graphs, and that the host never waits."""

from __future__ import annotations

import threading
from typing import Any

import bsrgemm
import cases
import numpy as np
import pytest
from bsrgemm import matmul
from bsrgemm._matmul import product
from device_cases import LONG, random_problem, reduced, repeats

pytestmark = pytest.mark.gpu

# About 0.1 s on a GPU of 1 to 2 GHz.
SHAPES = {"tall": (128, 64), "portable": (16, 24)}


def make(torch: Any, rng: np.random.Generator, family: str, n: int = 256) -> tuple[Any, Any]:
    p = random_problem(torch, cases.uniform(0.4)(rng, 8, 12), SHAPES[family], "float16")
    x = torch.randn(p.matrix.shape[1], n, device="cuda").half()
    return p.matrix, x


@pytest.mark.parametrize("family", SHAPES)
def test_current_stream_of_torch(torch: Any, rng: np.random.Generator, family: str) -> None:
    """A product waits for what stands before it on torch's current stream."""
    a, x = make(torch, rng, family)
    expected = a @ x
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(LONG)
        late.copy_(x)
        found = a @ late
    stream.synchronize()
    assert torch.equal(found, expected)


class OwnStream:
    """A stream of no library's type."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream.cuda_stream


@pytest.mark.parametrize("form", ["torch", "int", "protocol"])
@pytest.mark.parametrize("family", SHAPES)
def test_explicit_stream(torch: Any, rng: np.random.Generator, family: str, form: str) -> None:
    a, x = make(torch, rng, family)
    expected = a @ x
    stream = torch.cuda.Stream()
    given = {"torch": stream, "int": stream.cuda_stream, "protocol": OwnStream(stream)}[form]
    late, out = torch.zeros_like(x), torch.full_like(expected, float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        late.copy_(x)
    assert matmul(a, late, out=out, stream=given) is out
    assert not stream.query(), "the product waited for the stream"
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("family", SHAPES)
def test_products_never_wait(torch: Any, rng: np.random.Generator, family: str) -> None:
    """Many products behind a long kernel are put on the stream while it still runs."""
    a, x = make(torch, rng, family)
    out = a @ x
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    for _ in repeats(50):
        matmul(a, x, out=out)
    assert not torch.cuda.current_stream().query(), (
        "the long kernel ended before the products were queued"
    )
    torch.cuda.synchronize()


@pytest.mark.parametrize("n", [1, 7, 256])
@pytest.mark.parametrize("family", SHAPES)
def test_graph(torch: Any, rng: np.random.Generator, family: str, n: int) -> None:
    """A captured product replays with the values that its inputs have then."""
    a, x = make(torch, rng, family, n)
    c = torch.randn(a.shape[0], n, device="cuda").half()
    out = torch.empty_like(c)
    matmul(a, x, c, beta=0.5, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, x, c, beta=0.5, out=out)
        made = a @ x
    for _ in range(3):
        x.normal_()
        a.data.normal_()
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, matmul(a, x, c, beta=0.5))
        assert torch.equal(made, a @ x)


@pytest.mark.parametrize("family", SHAPES)
def test_first_product_inside_a_graph(torch: Any, rng: np.random.Generator, family: str) -> None:
    """Even the product that brings the pattern to the GPU can be captured."""
    a, x = make(torch, rng, family)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = a @ x
    graph.replay()
    assert torch.equal(found, a @ x)


UNEVEN = {"tall": (128, 64), "stream": (16, 16), "pairs": (64, 64)}
UNEVEN_TF32 = {"kmajor": (64, 64), "kstream": (16, 16)}
PER_THREAD = 2  # what CUDA calls the default stream of each thread


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("family", [*UNEVEN, *UNEVEN_TF32, "attention"])
def test_uneven_tiles_without_a_counter(torch: Any, rng: np.random.Generator, family: str) -> None:
    """Kernels whose CTAs draw tiles of very different lengths: two graphs at once, which must not
    draw from one another's, and the stream of each thread."""
    side = reduced(4096)

    def uneven(shape: tuple[int, int]) -> Any:
        mask = cases.skewed(rng, side // shape[0], side // shape[1])
        return random_problem(torch, mask, shape, "float16").matrix

    def array(*shape: int) -> Any:
        return torch.randn(shape, device="cuda").half()

    if family == "attention":
        q, k, v = (array(1, 32, side // 2, 64) for _ in range(3))

        def call(out: Any, **options: Any) -> Any:
            return bsrgemm.attention(q, k, v, is_causal=True, out=out, **options)

        shape = q.shape
    else:
        block = (UNEVEN | UNEVEN_TF32)[family]
        a, b = uneven(block), array(side, side)
        if family == "pairs":
            b = uneven(block).T
        precision = "tf32" if family in UNEVEN_TF32 else "ieee"
        if family in UNEVEN_TF32:
            a, b = a.astype("float32"), b.float()

        def call(out: Any, **options: Any) -> Any:
            return matmul(a, b, out=out, precision=precision, **options)

        shape = (side, side)
    dtype = torch.float32 if family in UNEVEN_TF32 else torch.float16
    expected = call(torch.empty(shape, dtype=dtype, device="cuda"))
    assert expected.isfinite().all()
    found = [torch.empty_like(expected) for _ in range(3)]
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in graphs]
    for graph, out in zip(graphs, found, strict=False):
        with torch.cuda.graph(graph):
            call(out)
    for _ in repeats(10):
        for out in found:
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        call(found[2], stream=PER_THREAD)
        torch.cuda.synchronize()
        assert all(torch.equal(out, expected) for out in found)


def test_streams_and_threads_at_once(torch: Any, rng: np.random.Generator) -> None:
    """Four threads with a stream each share two matrices."""
    work = [make(torch, rng, family) for family in SHAPES]
    expected = [a @ x for a, x in work]
    torch.cuda.synchronize()
    failures: list[str] = []

    def run(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()) as _:
            for step in repeats(50):
                which = (number + step) % 2
                a, x = work[which]
                if not torch.equal(a @ x, expected[which]):
                    failures.append(f"thread {number}, step {step}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_operands_may_be_dropped_while_a_product_runs(torch: Any, rng: np.random.Generator) -> None:
    """torch reuses memory in stream order; the matrix's own uploads must outlive the kernel."""
    a, x = make(torch, rng, "portable")
    expected = a @ x
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    found = a @ x
    del a, x
    noise = [torch.full((256, 256), float("nan"), device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    assert torch.equal(found, expected) and len(noise) == 8


def test_family_argument_reaches_the_extension(torch: Any, rng: np.random.Generator) -> None:
    a, x = make(torch, rng, "portable")
    with pytest.raises(ValueError, match="family is 'fast'"):
        product(a, x, None, 1.0, None, None, None, "fast")
