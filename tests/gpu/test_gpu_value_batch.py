"""Batches of matrices with one pattern on the GPU, and in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bsrgemm
import numpy as np
import pytest
import value_batch_cases
from bsrgemm import bsr_array
from cases import DTYPES, problem
from device_cases import some
from spaces import GPU_SPACES, OwnDevice, Space

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("check", value_batch_cases.CHECKS, ids=lambda c: c.__name__)
def test_batch(
    check: Callable[..., None], space: Space, dtype: str, rng: np.random.Generator
) -> None:
    space.check()
    if check is value_batch_cases.others and space.name not in ("torch", "cupy"):
        pytest.skip("parts of values need a library that has them")
    for batch in some(value_batch_cases.BATCHES[1:]):
        check(space, rng, dtype, batch)


def test_values_of_no_library(rng: np.random.Generator) -> None:
    """Products and dense forms need no parts of the values; what does says so."""
    space = OwnDevice()
    value_batch_cases.products(space, rng, "float32", (2,))
    _, a, dense = value_batch_cases.make(space, rng, "float32", (2,))
    assert np.array_equal(a.todense().to_host(), dense)
    assert np.array_equal(a.T.to("cpu").todense(), dense.swapaxes(-1, -2))
    assert np.allclose(bsrgemm.softmax(a).todense().to_host().sum(-1), (dense != 0).any(-1))
    with pytest.raises(TypeError, match="accepted here: an array of NumPy, torch or CuPy"):
        a[0]


@pytest.mark.parametrize("blocksize", [(128, 128), (64, 32), (32, 32)], ids=str)
def test_as_single_matrices(
    torch: Any, blocksize: tuple[int, int], rng: np.random.Generator
) -> None:
    """On the kernels of any block size: products, which may be one, but for the last rounding, all
    else bit for bit; and in a CUDA graph bit for bit what eager calls give."""
    p = problem(rng, rng.random((6, 5)) < 0.5, blocksize, 1, "float16")
    values = torch.randn(3, *p.data.shape, device="cuda", dtype=torch.float16)
    a = bsr_array((values, p.indices, p.indptr), p.shape)
    x = torch.randn(3, p.shape[1], 256, device="cuda", dtype=torch.float16)
    dy = torch.randn(3, p.shape[0], 256, device="cuda", dtype=torch.float16)

    def compute(one: bsr_array, left: Any, right: Any) -> list[Any]:
        sampled = bsrgemm.sampled_matmul(left, right.mT, one)
        return [one @ right, one.T @ left, sampled.data, bsrgemm.softmax(one).data]

    expected = [compute(a[i], dy[i], x[i]) for i in range(3)]
    found = compute(a, dy, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compute(a, dy, x)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(y, z) for y, z in zip(captured, found, strict=True))
    for i in range(3):
        (first, second, *others), (one, other, *rest) = [y[i] for y in found], expected[i]
        assert all(torch.equal(y, z) for y, z in zip(others, rest, strict=True))
        torch.testing.assert_close(first, one, rtol=2e-3, atol=0.05)
        torch.testing.assert_close(second, other, rtol=2e-3, atol=0.05)
