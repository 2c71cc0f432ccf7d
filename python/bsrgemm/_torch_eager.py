"""Products and linear layers in eager PyTorch: the extension called directly, with gradients.

Operators of ``torch.library`` cost the host more than many products take on a GPU. They are needed
where something looks at operators, which ``is_plain`` finds out; otherwise nobody misses them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from . import _core
from ._array import bsr_array
from ._convert import Parts
from ._matmul import matmul
from ._torch_func import are_transforms_active
from ._torch_operators import (
    factors_of_values,
    forward_ad,
    keep_structure,
    matmul_gradients,
    precision_of,
    refuse_tangents,
    rows_of,
    sampled,
    sampled_gradients,
)

_is_compiling = torch.compiler.is_compiling
_is_tracing = torch.jit.is_tracing
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_has_memory: Callable[[torch.Tensor], bool] = torch._C._has_storage
_TYPES = (torch.Tensor, torch.nn.Parameter)


def is_plain(first: Any, second: Any, third: Any = None) -> bool:
    """Whether tensors mean what their memory says and nothing records, replaces or transforms
    operators: neither compilers and tracers, modes, functorch nor subclasses of tensors."""
    return not (
        _is_compiling()
        or type(first) not in _TYPES
        or first.is_meta
        or type(second) not in _TYPES
        or _is_lazy(first)
        or _is_lazy(second)
        or (third is not None and (type(third) not in _TYPES or _is_lazy(third)))
        or _dispatch_modes()
        or _function_modes()
        or are_transforms_active()
        or _is_tracing()
    )


def _is_lazy(x: torch.Tensor) -> bool:
    """Whether its elements are others than those in memory, which operators see to."""
    return x.is_neg() or x._is_zerotensor()


def is_plain_or_absent(*arguments: Any) -> bool:
    """The same of other arguments of a call whose tensors are plain."""
    return all(x is None or (type(x) in _TYPES and not _is_lazy(x)) for x in arguments)


def try_linear(
    structure: _core.Structure, values: Any, x: Any, bias: Any, activation: str | None
) -> Any:
    """``activation(x @ A.T + bias)`` by the short way, or NotImplemented."""
    if x.dtype is torch.float32 and precision_of(x) != "ieee":
        return NotImplemented
    return _core.try_linear(structure, values, x, bias, activation)


def general_linear(
    rows: torch.Tensor,
    outer: tuple[int, ...],
    values: torch.Tensor,
    bias: torch.Tensor | None,
    structure: _core.Structure,
    activation: str | None,
) -> torch.Tensor:
    """``activation(rows @ A.T + bias)`` with the sides ``outer`` in place of the first, where the
    short way has something against it, or the error that says what."""
    weight = _matrix(values, structure).T
    options: dict[str, Any] = {"bias": bias, "activation": activation}
    y = matmul(rows.detach(), weight, precision=precision_of(rows), **options)
    if len(outer) == 1:
        return y
    # No view: functions of autograd that return views forbid writing to their results.
    return torch.ops.aten._unsafe_view(y, [*outer, structure.shape[0]])


def _matrix(values: torch.Tensor, structure: _core.Structure) -> bsr_array:
    arrays = structure.indices, structure.indptr
    return bsr_array._from_parts(Parts(values.detach(), *arrays, structure.shape, structure))


def product(
    structure: _core.Structure, values: torch.Tensor, dense: torch.Tensor, dense_left: bool
) -> torch.Tensor:
    """Of the matrix of a structure, which may be a transposed view's, and a dense one on its right
    or, with ``dense_left``, on its left; not recorded."""
    precision = precision_of(dense)
    absent = (None, 1.0, None, None, None, None, None, None)
    result = _core.try_matmul(structure, values, dense, dense_left, *absent, precision)
    if result is NotImplemented:
        matrix, dense = _matrix(values, structure), dense.detach()
        left, right = (dense, matrix) if dense_left else (matrix, dense)
        result = matmul(left, right, precision=precision)
    return result


class RecordedProduct(torch.autograd.Function):
    """``A @ dense``, or ``dense @ A`` with ``dense_left``. A may be a transposed view.

    ``indices`` and ``indptr`` are those of the matrix that is stored. They are saved for gradients
    of gradients, which operators compute.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        dense: torch.Tensor,
        structure: _core.Structure,
        indices: torch.Tensor,
        indptr: torch.Tensor,
        dense_left: bool,
    ) -> torch.Tensor:
        ctx.structure, ctx.dense_left = structure, dense_left
        kept = dense if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(values, indices, indptr, kept)
        return product(structure, values, dense, dense_left)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        of_values, of_dense = _product_gradients(
            ctx.needs_input_grad[:2], ctx.structure, *ctx.saved_tensors, gradient, ctx.dense_left
        )
        return of_values, of_dense, None, None, None, None


class RecordedSampled(torch.autograd.Function):
    """The blocks of ``a @ b`` that a matrix stores."""

    @staticmethod
    def forward(
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        structure: _core.Structure,
        indices: torch.Tensor,
        indptr: torch.Tensor,
    ) -> torch.Tensor:
        ctx.structure = structure
        ctx.save_for_backward(a, b, indices, indptr)
        return sampled(structure, a, b)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        a, b, indices, indptr = ctx.saved_tensors
        wanted, structure = ctx.needs_input_grad[:2], ctx.structure
        if not is_unrecorded(gradient, a, b):
            indices, indptr = _findable(indices, indptr, structure)
            gradients = sampled_gradients(wanted, a, b, indices, indptr, gradient)
            return *gradients, None, None, None
        blocks = gradient.contiguous()
        of_a = product(structure, blocks, b.T, False) if wanted[0] else None
        of_b = product(structure, blocks, a.T, True) if wanted[1] else None
        return of_a, of_b, None, None, None


class RecordedLinear(torch.autograd.Function):
    """``x @ A.T + bias``, with ReLU behind it where ``relu`` is set; otherwise as
    ``RecordedProduct``."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        values: torch.Tensor,
        bias: torch.Tensor | None,
        structure: _core.Structure,
        indices: torch.Tensor,
        indptr: torch.Tensor,
        relu: bool,
    ) -> torch.Tensor:
        activation = "relu" if relu else None
        rows = x
        if x.ndim != 2:
            # Of gradients of gradients, which come to x through it.
            with torch.enable_grad() if x.requires_grad else contextlib.nullcontext():
                rows = rows_of(x)
        y = try_linear(structure, values, x, bias, activation)
        if y is NotImplemented:
            y = general_linear(rows, x.shape[:-1], values, bias, structure, activation)
        ctx.structure, ctx.relu = structure, relu
        # As the operator and ReLU behind it do: of checkpoints that modes or transforms see only
        # one half of, the other comes here.
        kept = rows if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(values, indices, indptr, kept, *((y,) if relu else ()))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        values, indices, indptr, rows, *results = ctx.saved_tensors
        if ctx.relu:  # as torch's own, which takes the result of ReLU
            gradient = torch.ops.aten.threshold_backward(gradient, results[0], 0)
        of_rows = rows_of(gradient)
        wants_x, wants_values, wants_bias = ctx.needs_input_grad[:3]
        of_values, of_x = _product_gradients(
            (wants_values, wants_x),
            ctx.structure.transposed(),
            values,
            indices,
            indptr,
            rows,
            of_rows,
            dense_left=True,
        )
        of_bias = of_rows.sum(0) if wants_bias else None
        if of_x is not None and gradient.ndim != 2:
            of_x = of_x.view(*gradient.shape[:-1], of_x.shape[1])
        return of_x, of_values, of_bias, None, None, None, None


def is_unrecorded(gradient: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether gradients can be computed by the short way, too."""
    if forward_ad._current_level >= 0:
        refuse_tangents({"gradient": gradient})
    # One that stands for several, of is_grads_batched=True, has no memory.
    return is_plain(gradient, *others) and _has_memory(gradient) and not torch.is_grad_enabled()


def _findable(
    indices: torch.Tensor, indptr: torch.Tensor, structure: _core.Structure
) -> tuple[torch.Tensor, torch.Tensor]:
    """Index tensors by which operators find a structure."""
    return (indices, indptr) if _is_compiling() else keep_structure(indices, indptr, structure)


def _product_gradients(
    wanted: tuple[bool, bool],
    structure: _core.Structure,
    values: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    dense: torch.Tensor | None,
    gradient: torch.Tensor,
    dense_left: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Of the values, for which the dense operand is needed, and of that, those that are wanted."""
    is_view = structure.is_transposed
    stored = structure.transposed() if is_view else structure
    if not is_unrecorded(gradient, values, *(() if dense is None else (dense,))):
        indices, indptr = _findable(indices, indptr, stored)
        tensors = values, indices, indptr, dense, gradient
        return matmul_gradients(wanted, *tensors, list(stored.shape), is_view, dense_left)
    of_values = of_dense = None
    if wanted[0]:
        assert dense is not None
        of_values = sampled(stored, *factors_of_values(dense, gradient, is_view, dense_left))
    if wanted[1]:
        of_dense = product(structure.transposed(), values, gradient, dense_left)
    return of_values, of_dense
