"""Products of bsrgemm.torch with gradients, of fixed patterns and of ones in tensors, on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
from bsrgemm import bsr_array
from spaces import count_compilations, import_torch

torch = import_torch()

from bsrgemm.torch import BlockPattern, matmul, sampled_matmul  # noqa: E402 (see above)

# Inductor's own modules use what torch has deprecated.
pytestmark = [
    pytest.mark.usefixtures("seeded_torch"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

BLOCK = (4, 6)
GRID = (5, 3)
M, K = GRID[0] * BLOCK[0], GRID[1] * BLOCK[1]
KINDS = ("fixed", "changing", "full", "empty", "dropped")


def make_mask(kind: str = "changing") -> Any:
    if kind in ("full", "empty"):
        return torch.full(GRID, kind == "full")
    mask = torch.rand(GRID) < 0.5
    mask[2], mask[0, 0], mask[4, 1] = False, True, True  # one is left where one is dropped
    return mask


def make(kind: str, mask: Any) -> tuple[Any, Any, Any]:
    """A pattern, how a matrix is made of values, and where it stores one, as a dense 0 or 1."""
    if kind == "fixed":
        dense = torch.kron(mask.double(), torch.ones(BLOCK, dtype=torch.float64))
        fixed = bsr_array(dense, blocksize=BLOCK)
        parts = fixed.indices, fixed.indptr
        return fixed, lambda values: bsr_array((values, *parts), shape=(M, K)), dense
    capacity = {"changing": GRID[0] * GRID[1] - 1, "dropped": int(mask.sum()) - 1}.get(kind)
    pattern = BlockPattern.from_mask(mask, BLOCK, capacity)
    stored = mask.flatten() & (mask.flatten().cumsum(0) <= pattern.capacity)
    places = stored.view(GRID).double()
    return pattern, pattern.array, torch.kron(places, torch.ones(BLOCK, dtype=torch.float64))


def values_of(pattern: Any, dense: Any) -> Any:
    """Of a matrix that has those of ``dense`` at the pattern's blocks."""
    if isinstance(pattern, bsr_array):
        eye = torch.eye(M, dtype=dense.dtype)
        return sampled_matmul(eye, dense, pattern)
    return pattern.gather(dense)


def test_saved_patterns_may_come_back_as_views() -> None:
    """As from hooks that keep saved tensors in a buffer of their own."""

    def pack(saved: Any) -> Any:
        buffer = torch.zeros(saved.numel() + 512, dtype=saved.dtype)
        buffer[512:] = saved.reshape(-1)
        return buffer[512:].view(saved.shape)

    pattern, array, stored = make("changing", make_mask())
    dense = torch.randn(M, K, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        y = matmul(array(pattern.gather(dense)), torch.ones(K, 2, dtype=torch.float64))
    y.sum().backward()
    torch.testing.assert_close(dense.grad, 2 * stored)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_pattern_holds(kind: str) -> None:
    mask = make_mask(kind)
    pattern, _, stored = make(kind, mask)
    if kind == "fixed":
        return
    count = int(stored.sum()) // (BLOCK[0] * BLOCK[1])
    assert pattern.counts.tolist() == [count, int(mask.sum()) - count]
    rows, cols = stored[:: BLOCK[0], :: BLOCK[1]].nonzero(as_tuple=True)
    assert pattern.indices[:count].tolist() == cols.tolist()
    assert pattern.indptr.tolist() == [int((rows < i).sum()) for i in range(GRID[0] + 1)]
    assert pattern.shape == (M, K) and pattern.blocksize == BLOCK
    dense = torch.randn(M, K, dtype=torch.float64)
    values = pattern.gather(dense)
    assert values.shape == (pattern.capacity, *BLOCK) and not values[count:].any()
    assert torch.equal(pattern.array(values).todense(), dense * stored)
    assert torch.equal(pattern.array(values).T.todense(), (dense * stored).T)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dense_left", [False, True])
def test_products_and_gradients(kind: str, transposed: bool, dense_left: bool) -> None:
    pattern, array, stored = make(kind, make_mask(kind))
    dense = torch.randn(M, K, dtype=torch.float64)
    values = values_of(pattern, dense).detach().requires_grad_()
    rows, cols = (K, M) if transposed else (M, K)
    x = torch.randn((2, 7, rows) if dense_left else (cols, 7), dtype=torch.float64)
    x.requires_grad_()
    matrix = array(values).T if transposed else array(values)
    y = matmul(x, matrix) if dense_left else matmul(matrix, x)
    reference = (dense * stored).requires_grad_()
    a = reference.T if transposed else reference
    expected = x @ a if dense_left else a @ x
    torch.testing.assert_close(y, expected)
    wanted = torch.randn_like(expected)
    of_values, of_x = torch.autograd.grad(y, (values, x), wanted)
    of_dense, of_other = torch.autograd.grad(expected, (reference, x), wanted)
    torch.testing.assert_close(of_x, of_other)
    torch.testing.assert_close(of_values, values_of(pattern, of_dense))


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_products_and_gradients(kind: str) -> None:
    pattern, array, stored = make(kind, make_mask(kind))
    a = torch.randn(M, 9, dtype=torch.float64, requires_grad=True)
    b = torch.randn(9, K, dtype=torch.float64, requires_grad=True)
    values = sampled_matmul(a, b, pattern)
    torch.testing.assert_close(values, values_of(pattern, (a @ b).detach()))
    weight = torch.randn(M, K, dtype=torch.float64) * stored
    found = torch.autograd.grad((values * values_of(pattern, weight)).sum(), (a, b))
    expected = torch.autograd.grad(((a @ b) * weight).sum(), (a, b))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["fixed", "changing"])
def test_gradients_of_gradients(kind: str) -> None:
    pattern, array, _ = make(kind, make_mask(kind))
    values = values_of(pattern, torch.randn(M, K, dtype=torch.float64))
    inputs = (values.detach().requires_grad_(),)
    for transposed in (False, True):
        rows = K if transposed else M
        x = torch.randn(3, rows, dtype=torch.float64, requires_grad=True)

        def product(values: Any, x: Any, transposed: bool = transposed) -> Any:
            a = array(values)
            return matmul(x, a.T if transposed else a)

        if kind == "fixed":
            assert torch.autograd.gradgradcheck(product, (*inputs, x))
        else:  # values behind the last block have no part in it
            count = int(pattern.counts[0])
            few = values[:count].detach().requires_grad_()
            rest = values[count:].detach()

            def of_few(few: Any, x: Any, rest: Any = rest, product: Any = product) -> Any:
                return product(torch.cat([few, rest]), x)

            assert torch.autograd.gradcheck(of_few, (few, x))
            assert torch.autograd.gradgradcheck(of_few, (few, x))


def test_gradients_of_gathered_values() -> None:
    pattern = BlockPattern.from_mask(make_mask(), BLOCK)
    dense = torch.randn(M, K, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(pattern.gather, (dense,))
    assert torch.autograd.gradgradcheck(pattern.gather, (dense,))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_of_scores(k: int) -> None:
    scores = torch.randn(GRID, requires_grad=True)
    pattern = BlockPattern.from_topk(scores, k, BLOCK)
    best = torch.zeros(GRID, dtype=torch.bool).scatter_(1, scores.topk(k, 1).indices, True)
    assert pattern.capacity == GRID[0] * k and pattern.counts.tolist() == [GRID[0] * k, 0]
    places = pattern.array(torch.ones(pattern.capacity, *BLOCK)).todense()
    assert torch.equal(places[:: BLOCK[0], :: BLOCK[1]] != 0, best)


def test_each_gradient_has_the_pattern_of_its_product() -> None:
    """Other choices between the product and its gradient change nothing."""
    x = torch.randn(K, 7, dtype=torch.float64)
    layers = []
    for _ in range(4):
        pattern, array, stored = make("changing", make_mask())
        values = pattern.gather(torch.randn(M, K, dtype=torch.float64)).requires_grad_()
        layers.append((pattern, stored, values, matmul(array(values), x)))
    for pattern, stored, values, y in layers:
        (found,) = torch.autograd.grad(y.sum(), values)
        expected = (torch.ones(M, 7, dtype=torch.float64) @ x.T) * stored
        torch.testing.assert_close(found, pattern.gather(expected))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_opcheck(dtype: str) -> None:
    operators = torch.ops.bsrgemm
    of = getattr(torch, dtype)
    mask = make_mask()
    torch.library.opcheck(operators.block_pattern.default, (mask, list(BLOCK), 9, None))
    scores = torch.randn(GRID)
    torch.library.opcheck(operators.block_pattern.default, (scores, list(BLOCK), 10, 2))
    pattern = BlockPattern.from_mask(mask, BLOCK)
    dense = torch.randn(M, K).to(of).requires_grad_()
    given = (pattern.state, list(BLOCK), pattern.capacity)
    torch.library.opcheck(operators.pattern_gather.default, (dense, *given))
    values = pattern.gather(dense).detach().requires_grad_()
    x = torch.randn(5, M).to(of).requires_grad_()
    options = ([M, K], False, True)
    torch.library.opcheck(operators.pattern_matmul.default, (values, pattern.state, x, *options))
    a = torch.randn(M, 5).to(of).requires_grad_()
    b = torch.randn(5, K).to(of).requires_grad_()
    torch.library.opcheck(operators.pattern_sampled_matmul.default, (a, b, *given))


def routed(x: Any, up: Any, down: Any, scores: Any) -> Any:
    """A layer whose hidden activations are at blocks that scores choose."""
    mask = scores > 0
    pattern = BlockPattern.from_mask(mask, BLOCK, 12)
    hidden = torch.nn.functional.gelu(sampled_matmul(x, up, pattern))
    return matmul(pattern.array(hidden), down)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_equals_eager(backend: str, dynamic: bool) -> None:
    compiled = torch.compile(routed, fullgraph=True, backend=backend, dynamic=dynamic)
    for _ in range(3):
        inputs = [torch.randn(s) for s in ((M, 8), (8, K), (K, 5))]
        for x in inputs:
            x.requires_grad_()
        scores = torch.randn(GRID)
        y, expected = compiled(*inputs, scores), routed(*inputs, scores)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        wanted = torch.randn_like(expected)
        found = torch.autograd.grad(y, inputs, wanted)
        for a, b in zip(found, torch.autograd.grad(expected, inputs, wanted), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def of_best_blocks(x: Any, up: Any, scores: Any) -> Any:
    pattern = BlockPattern.from_topk(scores, scores.shape[1] - 1, BLOCK)
    return matmul(x.T, pattern.array(sampled_matmul(x, up, pattern)))


def of_half_the_places(x: Any, up: Any, scores: Any) -> Any:
    pattern = BlockPattern.from_mask(scores > 0, BLOCK, scores.shape[0] * scores.shape[1] // 2)
    return matmul(x.T, pattern.array(sampled_matmul(x, up, pattern))), pattern.counts * 1.0


def of_gathered_blocks(x: Any, up: Any, scores: Any) -> Any:
    pattern = BlockPattern.from_mask(scores > 0, BLOCK)
    return matmul(x.T, pattern.array(pattern.gather(x @ up)))


@pytest.mark.parametrize(
    "function, backend",
    [
        (of_best_blocks, "aot_eager"),
        (of_half_the_places, "aot_eager"),
        (of_gathered_blocks, "inductor"),
    ],
)
def test_one_compilation_for_all_sizes(function: Any, backend: str) -> None:
    """Capacities that follow from sizes are symbols, too, as sizes are after the first call."""
    frames = count_compilations(backend)
    compiled = torch.compile(function, fullgraph=True, backend=frames)
    for rows, cols in ((5, 3), (6, 4), (9, 5), (12, 7), (10, 8)):
        scores = torch.randn(rows, cols)
        x = torch.randn(rows * BLOCK[0], 8, requires_grad=True)
        up = torch.randn(8, cols * BLOCK[1], requires_grad=True)
        both = []
        for call in (compiled, function):
            results = call(x, up, scores)
            y = results if isinstance(results, torch.Tensor) else results[0]
            both.append((y, *torch.autograd.grad(y.square().sum(), (x, up))))
        for a, b in zip(*both, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert frames.frame_count <= 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_patterns_go_into_compiled_code_and_out_of_it(backend: str) -> None:
    def made(mask: Any) -> BlockPattern:
        return BlockPattern.from_mask(mask, BLOCK)

    def used(pattern: BlockPattern, dense: Any, x: Any) -> Any:
        return matmul(pattern.array(pattern.gather(dense)).T, x)

    made = torch.compile(made, fullgraph=True, backend=backend)
    used = torch.compile(used, fullgraph=True, backend=backend)
    for _ in range(2):
        mask, dense, x = make_mask(), torch.randn(M, K), torch.randn(M, 5)
        stored = torch.kron(mask.float(), torch.ones(BLOCK))
        torch.testing.assert_close(used(made(mask), dense, x), (dense * stored).T @ x)


def test_states_that_are_views() -> None:
    masks = torch.rand(2, 3, 4) < 0.5
    masks[:, 0, 0] = torch.tensor([True, False])
    patterns = [BlockPattern.from_mask(mask, (2, 4)) for mask in masks]
    states = torch.stack([pattern.state for pattern in patterns])
    x = torch.randn(16, 3)
    for pattern, state in zip(patterns, states, strict=True):
        view = BlockPattern(state, pattern.shape, pattern.blocksize, pattern.capacity)
        assert torch.equal(view.counts, pattern.counts)
        assert torch.equal(view.indptr, pattern.indptr)
        values = torch.randn(pattern.capacity, 2, 4)
        assert torch.equal(matmul(view.array(values), x), matmul(pattern.array(values), x))


def test_autocast() -> None:
    pattern, array, _ = make("changing", make_mask())
    values, x = pattern.gather(torch.randn(M, K)), torch.randn(3, M)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = matmul(x, array(values))
        blocks = sampled_matmul(torch.randn(M, 4), torch.randn(4, K), pattern)
    assert y.dtype == blocks.dtype == torch.bfloat16
    assert torch.equal(y, matmul(x.bfloat16(), array(values.bfloat16())))


def test_forward_mode_is_refused() -> None:
    pattern, array, _ = make("changing", make_mask())
    values, x = pattern.gather(torch.randn(M, K)), torch.randn(3, M)
    with torch.autograd.forward_ad.dual_level():
        tangent = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        for call in (
            lambda: matmul(tangent, array(values)),
            lambda: sampled_matmul(tangent.T, x[:, :K], pattern),
        ):
            with pytest.raises(TypeError, match="tangent"):
                call()


def test_operators_of_python() -> None:
    pattern, array, stored = make("changing", make_mask())
    dense = torch.randn(M, K)
    a = array(pattern.gather(dense))
    x, y = torch.randn(K, 3), torch.randn(3, M)
    assert torch.equal(a @ x, matmul(a, x)) and torch.equal(y @ a, matmul(y, a))
    assert torch.equal(a.T @ y.T, matmul(a.T, y.T)) and torch.equal(x.T @ a.T, matmul(x.T, a.T))


def test_repr() -> None:
    pattern = BlockPattern.from_mask(make_mask(), BLOCK, 9)
    assert repr(pattern) == "<BlockPattern 20x18, blocksize 4x6, capacity 9, cpu>"
    matrix = pattern.array(torch.zeros(9, *BLOCK))
    expected = "<BlockTensor 18x20, blocksize 6x4, capacity 9, torch.float32, cpu, transposed>"
    assert repr(matrix.T) == expected and matrix.T.T.shape == matrix.shape == (M, K)
