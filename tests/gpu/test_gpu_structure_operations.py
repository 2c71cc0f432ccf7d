"""Arithmetic and structure operations on the GPU; what does not need the host, in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bsrgemm
import numpy as np
import pytest
import structure_cases
from bsrgemm import bsr_array
from cases import DTYPES, problem
from operations import matrix
from precision_cases import EIGHT
from spaces import GPU_SPACES, OwnDevice, Space

pytestmark = pytest.mark.gpu

SHAPES = ((6, 4, (16, 32)), (5, 7, (3, 5)), (1, 1, (64, 64)), (0, 3, (2, 2)), (3, 0, (2, 3)))


@pytest.mark.parametrize("space", GPU_SPACES[:2], ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("check", structure_cases.CHECKS, ids=lambda c: c.__name__)
def test_operation(
    check: Callable[..., None], space: Space, dtype: str, rng: np.random.Generator
) -> None:
    space.check()
    for rows, cols, blocksize in SHAPES:
        p = problem(rng, rng.random((rows, cols)) < 0.4, blocksize, 1, dtype)
        check(space, p, rng)


@pytest.mark.parametrize("dtype", EIGHT)
def test_eight_bits_are_moved(dtype: str, rng: np.random.Generator) -> None:
    space = GPU_SPACES[0]
    space.check()
    for rows, cols, blocksize in SHAPES:
        p = problem(rng, rng.random((rows, cols)) < 0.4, blocksize, 1, dtype)
        for check in structure_cases.MOVES:
            check(space, p, rng)


def test_values_of_no_library(rng: np.random.Generator) -> None:
    """Sums of rows and columns are products; the rest says what it takes."""
    p = problem(rng, rng.random((5, 4)) < 0.5, (16, 8), 1, "float32")
    a = matrix(OwnDevice(), p)
    for axis in (0, 1):
        assert np.allclose(a.sum(axis).to_host(), p.dense.sum(axis), atol=1e-4)
    assert np.array_equal(a.block_mask(), structure_cases.mask_of(p))
    calls: list[Callable[[], Any]] = [
        lambda: 2 * a,
        lambda: a + a,
        lambda: a.sum(),
        lambda: a[:16],
        lambda: a.reblock((8, 8)),
        lambda: bsrgemm.vstack([a, a]),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="data is a DeviceArray; accepted here: an array of"):
            call()


def test_capture(torch: Any, rng: np.random.Generator) -> None:
    """Operations that keep the pattern, and batches of products, in a CUDA graph."""
    p = problem(rng, rng.random((8, 8)) < 0.4, (64, 64), 1, "float16")
    a = matrix(GPU_SPACES[0], p)
    b = bsr_array((torch.randn_like(a.data), p.indices, p.indptr), p.shape)
    x = torch.randn(3, 512, 128, device="cuda", dtype=torch.float16)
    z = torch.randn(3, 128, 512, device="cuda", dtype=torch.float16)

    def compute() -> list[Any]:
        c = (a + b * 2 - a / 4) * a
        return [c.data, c @ x, z @ c, c.sum(0), c.sum(1), c.sum()]

    compute()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compute()
    for _ in range(2):
        a.data.normal_()
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, found, compute()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_batches(torch: Any, dtype: str, rng: np.random.Generator) -> None:
    """A batch whose rows follow one another has the bits of the one product that it is."""
    p = problem(rng, rng.random((6, 8)) < 0.4, (128, 64), 1, dtype)
    a = matrix(GPU_SPACES[0], p)
    kind = getattr(torch, dtype)
    for n in (1, 8, 100, 256):
        x = torch.randn(2, 3, 512, n, device="cuda").to(kind)
        z = torch.randn(2, 3, n, 768, device="cuda").to(kind)
        out = torch.full((2, 3, 768, n), float("nan"), device="cuda", dtype=kind)
        assert bsrgemm.matmul(a, x, out=out) is out
        expected = torch.tensor(p.dense, device="cuda") @ x.double()
        error = torch.linalg.norm(out.double() - expected) / torch.linalg.norm(expected)
        assert error < {"float16": 6e-4, "bfloat16": 5e-3, "float32": 1e-6}[dtype]
        assert torch.equal((z @ a).view(6 * n, 512), z.view(6 * n, 768) @ a)
        turned = x.transpose(0, 2).contiguous().transpose(0, 2)
        assert not (a @ turned).isnan().any()
