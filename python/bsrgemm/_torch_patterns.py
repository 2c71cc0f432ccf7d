"""Patterns that the GPU chooses, as tensors of PyTorch, and operators of products with them.

A pattern is one tensor, which an operator makes and products read: so autograd keeps it for the
gradients, compilers see what depends on it, and torch's allocator has its memory. In it lies what
the memory of a ``DynamicStructure`` has; on the CPU only the parts that are there to be read.

Where nothing looks at operators, functions of autograd do the same at less cost to the host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from . import _core
from ._dynamic import DynamicPattern
from ._dynamic_array import DynamicArray
from ._matmul import matmul
from ._sampled import sampled_matmul
from ._torch_eager import is_plain, is_unrecorded
from ._torch_operators import (
    factors_of_values,
    forward_ad,
    in_memory,
    new_result,
    precision_of,
    refuse_tangents,
)

_Pair = tuple[int, int]

# Parts of the memory begin at multiples of as many int64.
_UNIT = 256 // 8


@lru_cache(maxsize=1024)
def _elements_of(shape: _Pair, blocksize: _Pair, capacity: int) -> int:
    """Of a pattern's tensor. Raises ValueError of sizes that no pattern has."""
    return _core.DynamicStructure(shape, blocksize, capacity, chip={}).bytes // 8


# Structures of the same memory and sizes are alike. They own no memory on a GPU.
@lru_cache(maxsize=1024)
def _structure_in(
    memory: int, shape: _Pair, blocksize: _Pair, capacity: int, device: str
) -> _core.DynamicStructure:
    return _core.DynamicStructure(shape, blocksize, capacity, device, memory=memory)


def parts_of(
    state: torch.Tensor, shape: _Pair, blocksize: _Pair, capacity: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views of counts, indptr and indices, the latter of ``capacity`` elements."""
    ends = shape[0] // blocksize[0] + 1
    # Compilers know no offsets, and take this one for 0.
    counts = 0 if torch.compiler.is_compiling() else state.storage_offset()
    indptr = counts + _UNIT
    indices = indptr + (ends + _UNIT - 1) // _UNIT * _UNIT
    # Not by slices, whose ends compilers compare with a length that they may not know.
    pairs = state.as_strided(((capacity + 1) // 2,), (1,), indices)
    return (
        state.as_strided((2,), (1,), counts),
        state.as_strided((ends,), (1,), indptr),
        pairs.view(torch.int32)[:capacity],
    )


def pattern_in(
    state: torch.Tensor, shape: _Pair, blocksize: _Pair, capacity: int
) -> DynamicPattern:
    structure: Any
    if state.is_cuda:
        device = f"cuda:{state.device.index}"
        structure = _structure_in(state.data_ptr(), shape, blocksize, capacity, device)
        return DynamicPattern._around(structure, capacity, device)
    counts, indptr, indices = (x.numpy() for x in parts_of(state, shape, blocksize, capacity))
    structure = _core.Structure(indices[: counts[0]], indptr, shape, blocksize, True)
    return DynamicPattern._around(structure, capacity, "cpu")


def _array(values: torch.Tensor, state: torch.Tensor, shape: list[int]) -> DynamicArray:
    capacity, height, width = values.shape
    rows, cols = shape
    return pattern_in(state, (rows, cols), (height, width), capacity).array(values.detach())


# ---- patterns ------------------------------------------------------------------------------------


def choose(
    chosen_by: torch.Tensor, blocksize: list[int], capacity: int, k: int | None
) -> torch.Tensor:
    """Of the blocks that a mask selects or, with ``k``, of those with a row's highest scores."""
    function = _choose if is_plain(chosen_by, chosen_by) else pattern_operator
    return function(chosen_by, blocksize, capacity, k)


def _choose(
    chosen_by: torch.Tensor, blocksize: list[int], capacity: int, k: int | None
) -> torch.Tensor:
    height, width = blocksize
    rows, cols = chosen_by.shape
    shape = rows * height, cols * width
    elements = _elements_of(shape, (height, width), capacity)
    if chosen_by.is_cuda:
        state = chosen_by.new_empty(elements, dtype=torch.int64)
        _update(pattern_in(state, shape, (height, width), capacity), chosen_by, k)
        return state
    state = chosen_by.new_zeros(elements, dtype=torch.int64)
    pattern = DynamicPattern(shape, (height, width), capacity, "cpu")
    _update(pattern, chosen_by, k)
    counts, indptr, indices = parts_of(state, shape, (height, width), capacity)
    found, begins, dropped = pattern._read()
    counts.copy_(torch.tensor([len(found), dropped]))
    indptr.copy_(torch.from_numpy(np.array(begins)))
    indices[: len(found)] = torch.from_numpy(np.array(found))
    return state


def _update(pattern: DynamicPattern, chosen_by: torch.Tensor, k: int | None) -> None:
    if k is None:
        pattern.update(chosen_by)
    else:
        pattern.update_topk(chosen_by, k)


pattern_operator = torch.library.custom_op("bsrgemm::block_pattern", _choose, mutates_args=())


@pattern_operator.register_fake
def _(chosen_by: torch.Tensor, blocksize: list[int], capacity: int, k: int | None) -> torch.Tensor:
    height, width = blocksize
    rows, cols = chosen_by.shape
    if all(isinstance(x, int) for x in (rows, cols, height, width, capacity)):
        elements = _elements_of((rows * height, cols * width), (height, width), capacity)
    else:
        elements = torch.library.get_ctx().new_dynamic_size()
    return chosen_by.new_empty(elements, dtype=torch.int64)


# ---- products ------------------------------------------------------------------------------------


def product(
    values: torch.Tensor,
    state: torch.Tensor,
    dense: torch.Tensor,
    shape: list[int],
    transposed: bool,
    dense_left: bool,
) -> torch.Tensor:
    """``A @ dense`` or ``dense @ A``, with gradients; A is (values, state) of ``shape`` or its
    transpose."""
    function = _function(_multiply, _Product, product_operator, values, dense, state)
    return function(values, state, dense, shape, transposed, dense_left)


def sampled(
    a: torch.Tensor, b: torch.Tensor, state: torch.Tensor, blocksize: list[int], capacity: int
) -> torch.Tensor:
    """The blocks of ``a @ b`` at a pattern, (capacity, bh, bw), zeros behind the last one, with
    gradients."""
    function = _function(_sample, _Sampled, sampled_operator, a, b, state)
    return function(a, b, state, blocksize, capacity)


def gathered(
    dense: torch.Tensor, state: torch.Tensor, blocksize: list[int], capacity: int
) -> torch.Tensor:
    """The blocks of ``dense`` at a pattern, (capacity, bh, bw), zeros behind the last one, with
    gradients."""
    function = _function(_gather, _Gathered, gather_operator, dense, dense, state)
    return function(dense, state, blocksize, capacity)


def _function(
    plain: Any, recorded: Any, operator: Any, x: torch.Tensor, y: torch.Tensor, state: torch.Tensor
) -> Any:
    """Which of the three forms of a product computes it."""
    if not is_plain(x, y, state):
        return operator
    wanted = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
    return recorded.apply if wanted else plain


def _multiply(
    values: torch.Tensor,
    state: torch.Tensor,
    dense: torch.Tensor,
    shape: list[int],
    transposed: bool,
    dense_left: bool,
) -> torch.Tensor:
    if forward_ad._current_level >= 0:
        refuse_tangents({"values": values, "dense": dense})
    a = _array(values, state, shape)
    a = a.T if transposed else a
    left, right = (dense.detach(), a) if dense_left else (a, dense.detach())
    return matmul(left, right, precision=precision_of(dense))


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor | None) -> None:
    values, state, dense, *ctx.options = inputs
    ctx.save_for_backward(values, state, dense)


def _product_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    values, state, dense = ctx.saved_tensors
    shape, transposed, dense_left = ctx.options
    multiply, sample = _functions_of_gradients(gradient, values, dense)
    of_values = of_dense = None
    if ctx.needs_input_grad[0]:
        factors = factors_of_values(dense, gradient, transposed, dense_left)
        of_values = sample(*factors, state, list(values.shape[1:]), values.shape[0])
    if ctx.needs_input_grad[2]:
        of_dense = multiply(values, state, gradient, shape, not transposed, dense_left)
    return of_values, None, of_dense, None, None, None


def _sample(
    a: torch.Tensor, b: torch.Tensor, state: torch.Tensor, blocksize: list[int], capacity: int
) -> torch.Tensor:
    if forward_ad._current_level >= 0:
        refuse_tangents({"a": a, "b": b})
    height, width = blocksize
    pattern = pattern_in(state, (a.shape[0], b.shape[1]), (height, width), capacity)
    return sampled_matmul(a.detach(), b.detach(), pattern).data


def _save_sampled(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor | None) -> None:
    a, b, state, _, _ = inputs
    ctx.save_for_backward(a, b, state)


def _sampled_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    """Of ``a``: G @ b^T, and of ``b``: a^T @ G, with G the block-sparse matrix of ``gradient``."""
    a, b, state = ctx.saved_tensors
    multiply, _ = _functions_of_gradients(gradient, a, b)
    shape = [a.shape[0], b.shape[1]]
    gradient = in_memory(gradient)
    of_a = of_b = None
    if ctx.needs_input_grad[0]:
        of_a = multiply(gradient, state, b.T, shape, False, False)
    if ctx.needs_input_grad[1]:
        of_b = multiply(gradient, state, a.T, shape, False, True)
    return of_a, of_b, None, None, None


def _functions_of_gradients(gradient: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
    if is_unrecorded(gradient, x, y):
        return _multiply, _sample
    return product_operator, sampled_operator


def _gather(
    dense: torch.Tensor, state: torch.Tensor, blocksize: list[int], capacity: int
) -> torch.Tensor:
    if forward_ad._current_level >= 0:
        refuse_tangents({"dense": dense})
    height, width = blocksize
    rows, cols = dense.shape
    return pattern_in(state, (rows, cols), (height, width), capacity).gather(dense.detach())


def _save_gather(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor | None) -> None:
    dense, state, _, _ = inputs
    ctx.shape = dense.shape
    ctx.save_for_backward(state)


def _gather_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    (state,) = ctx.saved_tensors
    return spread(gradient, state, tuple(ctx.shape)), None, None, None


# ---- their forms ---------------------------------------------------------------------------------


def _recorded(compute: Any, save: Any, backward: Any) -> Any:
    """A function of autograd."""

    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        save(ctx, inputs, None)
        return compute(*inputs)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(compute.__name__, (torch.autograd.Function,), methods)


def _operator(name: str, compute: Any, save: Any, backward: Any) -> Any:
    operator = torch.library.custom_op(f"bsrgemm::{name}", compute, mutates_args=())
    operator.register_autograd(backward, setup_context=save)
    return operator


_OF_PRODUCTS = _multiply, _save_product, _product_backward
_OF_SAMPLED = _sample, _save_sampled, _sampled_backward
_OF_GATHERED = _gather, _save_gather, _gather_backward
_Product, _Sampled, _Gathered = (_recorded(*of) for of in (_OF_PRODUCTS, _OF_SAMPLED, _OF_GATHERED))
product_operator = _operator("pattern_matmul", *_OF_PRODUCTS)
sampled_operator = _operator("pattern_sampled_matmul", *_OF_SAMPLED)
gather_operator = _operator("pattern_gather", *_OF_GATHERED)


@product_operator.register_fake
def _(
    values: torch.Tensor,
    state: torch.Tensor,
    dense: torch.Tensor,
    shape: list[int],
    transposed: bool,
    dense_left: bool,
) -> torch.Tensor:
    outer = shape[1] if transposed != dense_left else shape[0]
    return new_result(dense, (dense.shape[0], outer) if dense_left else (outer, dense.shape[1]))


@sampled_operator.register_fake
def _(
    a: torch.Tensor, b: torch.Tensor, state: torch.Tensor, blocksize: list[int], capacity: int
) -> torch.Tensor:
    return a.new_empty((capacity, *blocksize))


@gather_operator.register_fake
def _(
    dense: torch.Tensor, state: torch.Tensor, blocksize: list[int], capacity: int
) -> torch.Tensor:
    return dense.new_empty((capacity, *blocksize))


def spread(values: torch.Tensor, state: torch.Tensor, shape: _Pair) -> torch.Tensor:
    """The dense matrix of values at a pattern."""
    capacity, height, width = values.shape
    counts, indptr, indices = parts_of(state, shape, (height, width), capacity)
    rows, cols = shape[0] // height, shape[1] // width
    block = torch.arange(capacity, device=state.device)
    place = (torch.searchsorted(indptr, block, right=True) - 1) * cols + indices
    # What lies behind the last block goes where nobody looks.
    place = torch.where(block < counts[0], place, rows * cols)
    blocks = values.new_zeros(rows * cols + 1, height, width).index_copy(0, place, values)
    return blocks[:-1].view(rows, cols, height, width).transpose(1, 2).reshape(shape)
