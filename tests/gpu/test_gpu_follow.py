"""Kernels that begin while the one before them ends: what it writes is what they read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import pytest
from bsrgemm import DynamicPattern
from bsrgemm._matmul import product
from device_cases import need_processes, random_problem, repeats

pytestmark = pytest.mark.gpu

SIDE = 1536
SHAPES = {"tall": (128, 64), "stream": (32, 32), "portable": (16, 24), "narrow": (16, 16)}


def make(
    torch: Any, rng: np.random.Generator, family: str, blocksize: tuple[int, int] | None = None
) -> Any:
    height, width = blocksize or SHAPES[family]
    pattern = cases.uniform(0.1)(rng, SIDE // height, SIDE // width)
    return random_problem(torch, pattern, (height, width), "float16").matrix


def check_often(torch: Any, given: Any, compute: Callable[[Any, Any], None], expected: Any) -> None:
    """``compute(given[i], out)``, one call behind the other, gives what it gave with rests."""
    for _ in repeats(20):
        found = torch.stack([expected[0]] * len(repeats(50))).fill_(float("nan"))
        for i, out in enumerate(found):
            compute(given[i % len(given)], out)
        for i, out in enumerate(found):
            assert torch.equal(out, expected[i % len(given)]), f"{i} of {len(found)}"


@pytest.mark.parametrize("second", SHAPES)
@pytest.mark.parametrize("first", SHAPES)
def test_chains(torch: Any, rng: np.random.Generator, first: str, second: str) -> None:
    """Products of products, into the same memory each time, with nothing else between them."""
    n = 64 if "narrow" in (first, second) else 256
    a, b = make(torch, rng, first), make(torch, rng, second)
    check_chain(torch, a, b, n, first, second)


@pytest.mark.parametrize("n", [128, 256])
@pytest.mark.parametrize("blocksize", [(64, 64), (128, 64)])
@pytest.mark.parametrize("other", SHAPES)
def test_chains_of_many_columns(
    torch: Any, rng: np.random.Generator, other: str, blocksize: tuple[int, int], n: int
) -> None:
    """The same with a narrow product of several panels of columns."""
    a, b = make(torch, rng, "narrow", blocksize), make(torch, rng, other)
    check_chain(torch, a, b, n, "narrow", other)


def check_chain(torch: Any, a: Any, b: Any, n: int, first: str, second: str) -> None:
    # Sums of a chain must not grow: rows of products have a norm of about that of rows of x.
    for matrix in (a, b):
        matrix.data.div_((SIDE * 0.1) ** 0.5)
    given = torch.randn(5, SIDE, n, device="cuda").half()
    between = torch.empty(SIDE, n, device="cuda", dtype=torch.float16)

    def chain(x: Any, out: Any) -> None:
        product(a, x, None, 1.0, 0.0, between, None, first)
        product(b, between, None, 1.0, 0.0, out, None, second)
        product(a, between, out, 1.0, 0.5, out, None, first)

    expected = torch.empty_like(given)
    for x, out in zip(given, expected, strict=True):
        product(a, x, None, 1.0, 0.0, between, None, first)
        torch.cuda.synchronize()
        product(b, between, None, 1.0, 0.0, out, None, second)
        torch.cuda.synchronize()
        product(a, between, out, 1.0, 0.5, out, None, first)
        torch.cuda.synchronize()
    check_often(torch, given, chain, expected)


@pytest.mark.parametrize("n", [1, 16, 64, 128, 256])
@pytest.mark.parametrize("blocksize", [(16, 16), (32, 32), (64, 32), (128, 128)])
def test_values_written_just_before(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int], n: int
) -> None:
    """Few columns ask memory for blocks while the product that writes these may still run."""
    height, width = blocksize
    pattern = cases.uniform(0.1)(rng, SIDE // height, SIDE // width)
    a = random_problem(torch, pattern, blocksize, "float16").matrix
    rows = a.data.shape[0] * height
    few = cases.uniform(4 / (512 // 16))(rng, rows // 16, 512 // 16)
    maker = random_problem(torch, few, (16, 16), "float16").matrix
    made = a.data.view(rows, width)
    x = torch.randn(SIDE, n, device="cuda").half()
    sources = torch.randn(5, 512, width, device="cuda").half() / 8

    def make_and_multiply(source: Any, out: Any) -> None:
        product(maker, source, None, 1.0, 0.0, made, None, "narrow")
        product(a, x, None, 1.0, 0.0, out, None, "narrow")

    expected = []
    for source in sources:
        product(maker, source, None, 1.0, 0.0, made, None, "narrow")
        torch.cuda.synchronize()
        expected.append(product(a, x, None, 1.0, None, None, None, "narrow"))
        torch.cuda.synchronize()
    check_often(torch, sources, make_and_multiply, expected)


@pytest.mark.parametrize("blocksize", [(64, 64), (16, 16)])
def test_patterns_then_products(
    torch: Any, rng: np.random.Generator, blocksize: tuple[int, int]
) -> None:
    """Patterns that kernels make, and products that read them, in a row."""
    rows, cols = SIDE // blocksize[0], SIDE // blocksize[1]
    masks = torch.from_numpy(rng.random((4, rows, cols)) < 0.1).cuda()
    source = torch.randn(SIDE, SIDE, device="cuda").half()
    x = torch.randn(SIDE, 256, device="cuda").half()
    pattern = DynamicPattern((SIDE, SIDE), blocksize, rows * cols)
    expected = []
    for mask in masks:
        pattern.update(mask)
        torch.cuda.synchronize()
        values = pattern.gather(source)
        torch.cuda.synchronize()
        expected.append(pattern.array(values) @ x)
        torch.cuda.synchronize()
    for _ in repeats(100):
        found = []
        for mask in masks:
            pattern.update(mask)
            found.append(pattern.array(pattern.gather(source)) @ x)
        for out, other in zip(found, expected, strict=True):
            assert torch.equal(out, other)


def test_switch(torch: Any) -> None:
    """BSRGEMM_EARLY_LAUNCH=0 changes no bit."""
    need_processes()
    code = """
import sys, numpy as np, torch, bsrgemm
torch.manual_seed(0)
rng = np.random.default_rng(0)
dense = np.kron(rng.random((16, 16)) < 0.3, np.ones((64, 64))) * rng.standard_normal((1024, 1024))
a = bsrgemm.bsr_array(dense.astype(np.float16), blocksize=(64, 64)).to("cuda")
x = torch.randn(1024, 256, device="cuda").half()
for _ in range(5):
    x = a @ x / 32
sys.stdout.buffer.write(x.cpu().numpy().tobytes())
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "BSRGEMM_EARLY_LAUNCH": value},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for value in ("0", "1")
    }
    assert len(outputs) == 1
