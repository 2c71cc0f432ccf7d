"""Patterns that the GPU chooses, as tensors of PyTorch, and operators of products with them.

A pattern is one tensor, which an operator makes and products read: so autograd keeps it for the
gradients, compilers see what depends on it, and torch's allocator has its memory. In it lies what
the memory of a ``DynamicStructure`` has; on the CPU only the parts that are there to be read.
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
from ._torch_operators import forward_ad, new_result, precision_of, refuse_tangents

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
    indptr = _UNIT
    indices = indptr + (ends + _UNIT - 1) // _UNIT * _UNIT
    # Not by slices, whose ends compilers compare with a length that they may not know.
    pairs = state.as_strided(((capacity + 1) // 2,), (1,), indices)
    return (
        state.as_strided((2,), (1,), 0),
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


@torch.library.custom_op("bsrgemm::block_pattern", mutates_args=())
def pattern_operator(
    chosen_by: torch.Tensor, blocksize: list[int], capacity: int, k: int | None
) -> torch.Tensor:
    """Of the blocks that a mask selects or, with ``k``, of those with a row's highest scores."""
    height, width = blocksize
    rows, cols = chosen_by.shape
    shape = rows * height, cols * width
    elements = _elements_of(shape, (height, width), capacity)
    if chosen_by.is_cuda:
        state = chosen_by.new_empty(elements, dtype=torch.int64)
        _choose(pattern_in(state, shape, (height, width), capacity), chosen_by, k)
        return state
    state = chosen_by.new_zeros(elements, dtype=torch.int64)
    pattern = DynamicPattern(shape, (height, width), capacity, "cpu")
    _choose(pattern, chosen_by, k)
    counts, indptr, indices = parts_of(state, shape, (height, width), capacity)
    found, begins, dropped = pattern._read()
    counts.copy_(torch.tensor([len(found), dropped]))
    indptr.copy_(torch.from_numpy(np.array(begins)))
    indices[: len(found)] = torch.from_numpy(np.array(found))
    return state


def _choose(pattern: DynamicPattern, chosen_by: torch.Tensor, k: int | None) -> None:
    if k is None:
        pattern.update(chosen_by)
    else:
        pattern.update_topk(chosen_by, k)


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


@torch.library.custom_op("bsrgemm::pattern_matmul", mutates_args=())
def product_operator(
    values: torch.Tensor,
    state: torch.Tensor,
    dense: torch.Tensor,
    shape: list[int],
    transposed: bool,
    dense_left: bool,
) -> torch.Tensor:
    """``A @ dense`` or ``dense @ A``; A is (values, state) of ``shape`` or its transpose."""
    if forward_ad._current_level >= 0:
        refuse_tangents({"values": values, "dense": dense})
    a = _array(values, state, shape)
    a = a.T if transposed else a
    left, right = (dense.detach(), a) if dense_left else (a, dense.detach())
    return matmul(left, right, precision=precision_of(dense))


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


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    values, state, dense, *ctx.options = inputs
    ctx.save_for_backward(values, state, dense)


def _product_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    values, state, dense = ctx.saved_tensors
    shape, transposed, dense_left = ctx.options
    of_values = of_dense = None
    if ctx.needs_input_grad[0]:
        left, right = (dense.T, gradient) if dense_left else (gradient, dense.T)
        if transposed:
            left, right = right.T, left.T
        of_values = blocks_operator(left, right, state, list(values.shape[1:]), values.shape[0])
    if ctx.needs_input_grad[2]:
        of_dense = product_operator(values, state, gradient, shape, not transposed, dense_left)
    return of_values, None, of_dense, None, None, None


product_operator.register_autograd(_product_backward, setup_context=_save_product)


@torch.library.custom_op("bsrgemm::pattern_sampled_matmul", mutates_args=())
def blocks_operator(
    a: torch.Tensor, b: torch.Tensor, state: torch.Tensor, blocksize: list[int], capacity: int
) -> torch.Tensor:
    """The blocks of ``a @ b`` at a pattern, (capacity, bh, bw), zeros behind the last one."""
    if forward_ad._current_level >= 0:
        refuse_tangents({"a": a, "b": b})
    height, width = blocksize
    pattern = pattern_in(state, (a.shape[0], b.shape[1]), (height, width), capacity)
    return sampled_matmul(a.detach(), b.detach(), pattern).data


@blocks_operator.register_fake
def _(
    a: torch.Tensor, b: torch.Tensor, state: torch.Tensor, blocksize: list[int], capacity: int
) -> torch.Tensor:
    return a.new_empty((capacity, *blocksize))


def _save_blocks(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, state, _, _ = inputs
    ctx.save_for_backward(a, b, state)


def _blocks_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    """Of ``a``: G @ b^T, and of ``b``: a^T @ G, with G the block-sparse matrix of ``gradient``."""
    a, b, state = ctx.saved_tensors
    shape = [a.shape[0], b.shape[1]]
    of_a = of_b = None
    gradient = gradient.contiguous()
    if ctx.needs_input_grad[0]:
        of_a = product_operator(gradient, state, b.T, shape, False, False)
    if ctx.needs_input_grad[1]:
        of_b = product_operator(gradient, state, a.T, shape, False, True)
    return of_a, of_b, None, None, None


blocks_operator.register_autograd(_blocks_backward, setup_context=_save_blocks)


# ---- blocks of a dense matrix, and back ---------------------------------------------------------


@torch.library.custom_op("bsrgemm::pattern_gather", mutates_args=())
def gather_operator(
    dense: torch.Tensor, state: torch.Tensor, blocksize: list[int], capacity: int
) -> torch.Tensor:
    """The blocks of ``dense`` at a pattern, (capacity, bh, bw), zeros behind the last one."""
    if forward_ad._current_level >= 0:
        refuse_tangents({"dense": dense})
    height, width = blocksize
    rows, cols = dense.shape
    return pattern_in(state, (rows, cols), (height, width), capacity).gather(dense.detach())


@gather_operator.register_fake
def _(
    dense: torch.Tensor, state: torch.Tensor, blocksize: list[int], capacity: int
) -> torch.Tensor:
    return dense.new_empty((capacity, *blocksize))


def _save_gather(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    dense, state, _, _ = inputs
    ctx.shape = dense.shape
    ctx.save_for_backward(state)


def _gather_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    (state,) = ctx.saved_tensors
    return spread(gradient, state, tuple(ctx.shape)), None, None, None


gather_operator.register_autograd(_gather_backward, setup_context=_save_gather)


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
