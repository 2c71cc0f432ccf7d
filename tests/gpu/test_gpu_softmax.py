"""``softmax`` on the GPU: libraries and dtypes, poisoned results, graphs, streams, same bits."""

from __future__ import annotations

from typing import Any

import bsrgemm
import numpy as np
import pytest
import softmax_cases
from bsrgemm import _core, softmax
from cases import DTYPES, problem
from device_cases import check_streams, random_problem, reduced
from operations import matrix
from spaces import GPU_SPACES, Space

pytestmark = pytest.mark.gpu

SHAPES = {**softmax_cases.SHAPES, **softmax_cases.GPU_SHAPES}


@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(space: Space, dtype: str, name: str, rng: np.random.Generator) -> None:
    space.check()
    pattern, rows, cols, blocksize, *cut = SHAPES[name]
    p = problem(rng, pattern(rng, rows, cols), blocksize, 1, dtype, cut=tuple(cut or (0, 0)))
    for scale in (1.0, -0.75, 0.0, 1e-50):
        softmax_cases.check(space, p, scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype: str) -> None:
    space = GPU_SPACES[0]
    space.check()
    softmax_cases.check_special(space, dtype)
    softmax_cases.check_largest(space, dtype)


def test_random_structures() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    from hypothesis import given
    from hypothesis import strategies as st
    from strategies import problems, profile

    sizes = st.one_of(st.integers(1, 20), st.sampled_from((31, 32, 33, 64, 65, 128)))

    @profile(reduced(100))
    @given(problems(sizes, sizes, st.just(1)), st.sampled_from((1.0, 0.125, -3.0)))
    def run(drawn: tuple, scale: float) -> None:
        softmax_cases.check(GPU_SPACES[-1], drawn[0], scale)

    run()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("offset", [0, 1])
def test_memory_around_the_result(torch: Any, dtype: str, offset: int) -> None:
    """Poisoned results between guards, at aligned and odd addresses; in place, too."""
    kind = getattr(torch, dtype)
    allowed = {"bfloat16": 8e-3, "float16": 2e-3}.get(dtype, 1e-6)
    mask = np.random.default_rng(1).random((7, 9)) < 0.5
    for blocksize in ((16, 16), (3, 5), (64, 64), (8, 1200)):
        a = random_problem(torch, mask, blocksize, dtype).matrix
        size = a.data.numel()
        expected = [softmax(x).data if x is a else softmax(x).T.data for x in (a, a.T)]
        for of, wanted in zip((a, a.T), expected, strict=True):
            memory = torch.full((size + 64,), float("nan"), device="cuda", dtype=kind)
            out = memory[32 + offset : 32 + offset + size].view(a.data.shape)
            _core.softmax(of._structure, a.data, out, 1.0, None)
            assert torch.allclose(out, wanted, rtol=allowed, atol=2e-7)
            if offset == 0:
                assert torch.equal(out, wanted)
            assert memory[: 32 + offset].isnan().all()
            assert memory[32 + offset + size :].isnan().all()
            out.copy_(a.data)
            _core.softmax(of._structure, out, out, 1.0, None)
            assert torch.allclose(out, wanted, rtol=allowed, atol=2e-7)
            assert memory[32 + offset + size :].isnan().all()


def test_same_bits_in_graphs_and_on_streams(torch: Any, rng: np.random.Generator) -> None:
    p = problem(rng, rng.random((12, 40)) < 0.5, (64, 64), 1, "float16")
    a = matrix(GPU_SPACES[0], p)
    others = [
        bsrgemm.bsr_array((torch.randn_like(a.data), p.indices, p.indptr), p.shape)
        for _ in range(3)
    ]
    check_streams(torch, lambda x: softmax(x, 0.125).data, [a, *others])
    check_streams(torch, lambda x: softmax(x.T, 0.125).T.data, [a, *others])

    def attend() -> Any:
        v = torch.ones(a.shape[1], 64, device="cuda", dtype=torch.float16)
        return softmax(a, 0.125) @ v

    attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = attend()
    for _ in range(2):
        a.data.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, attend())
        assert (found - 1).abs().max() < 2e-3


def test_as_torch(torch: Any) -> None:
    """The dense softmax of torch over all blocks."""
    for dtype, allowed in ((torch.float32, 1e-6), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)):
        dense = torch.randn(512, 4096, device="cuda", dtype=dtype)
        a = bsrgemm.bsr_array(dense, blocksize=(64, 64))
        wanted = torch.softmax(0.3 * dense.double(), 1)
        assert torch.allclose(softmax(a, 0.3).todense().double(), wanted, rtol=allowed, atol=1e-7)
