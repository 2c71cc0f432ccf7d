"""Linear layers in eager PyTorch: the extension called directly, with gradients.

Operators of ``torch.library`` cost the host more than many products take on a GPU. They are needed
where something looks at operators, which ``is_plain`` finds out; otherwise nobody misses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _core
from ._array import bsr_array
from ._convert import Parts
from ._interop import TORCH
from ._matmul import matmul
from ._torch_operators import (
    forward_ad,
    keep_structure,
    matmul_operator,
    precision_of,
    refuse_tangents,
    rows_of,
    sampled_operator,
)

_is_compiling = torch.compiler.is_compiling
_is_tracing = torch.jit.is_tracing
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active
_has_memory: Callable[[torch.Tensor], bool] = torch._C._has_storage
_TYPES = (torch.Tensor, torch.nn.Parameter)


def is_plain(x: Any, values: Any, bias: Any) -> bool:
    """Whether tensors mean what their memory says and nothing records, replaces or transforms
    operators: neither compilers and tracers, modes, functorch nor subclasses of tensors."""
    return not (
        _is_compiling()
        or type(x) not in _TYPES
        or x.is_meta
        or type(values) not in _TYPES
        or (bias is not None and type(bias) not in _TYPES)
        or _dispatch_modes()
        or _function_modes()
        or _transforms()
        or _is_tracing()
    )


def is_plain_or_absent(*arguments: Any) -> bool:
    """The same of other arguments of a call whose tensors are plain."""
    return all(x is None or type(x) in _TYPES for x in arguments)


def try_linear(
    structure: _core.Structure, values: Any, x: Any, bias: Any, activation: str | None
) -> Any:
    """``activation(x @ A.T + bias)`` by the short way, or NotImplemented."""
    if x.dtype is torch.float32 and precision_of(x) != "ieee":
        return NotImplemented
    return _core.try_linear(structure, values, x, bias, activation)


def general_linear(
    x: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    structure: _core.Structure,
    activation: str | None,
) -> torch.Tensor:
    """``activation(x @ A.T + bias)`` where the short way has something against it, or the error
    that says what."""
    rows = rows_of(x)
    weight = _matrix(values, structure).T
    options: dict[str, Any] = {"bias": bias, "activation": activation}
    y = matmul(rows.detach(), weight, precision=precision_of(x), **options)
    return y if x.ndim == 2 else y.view(*x.shape[:-1], structure.shape[0])


def _matrix(values: torch.Tensor, structure: _core.Structure) -> bsr_array:
    arrays = structure.indices, structure.indptr
    return bsr_array._from_parts(Parts(values.detach(), *arrays, structure.shape, structure))


class RecordedLinear(torch.autograd.Function):
    """``x @ A.T + bias``, with ReLU behind it where ``relu`` is set.

    ``indices`` and ``indptr`` are saved for gradients of gradients, which operators compute.
    """

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
        y = try_linear(structure, values, x, bias, activation)
        if y is NotImplemented:
            y = general_linear(x, values, bias, structure, activation)
        ctx.structure, ctx.relu = structure, relu
        ctx.save_for_backward(x, values, indices, indptr, *((y,) if relu else ()))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        if forward_ad._current_level >= 0:
            refuse_tangents({"gradient": gradient})
        x, values, indices, indptr, *y = ctx.saved_tensors
        structure = ctx.structure
        rows, cols = structure.shape
        if ctx.relu:  # as torch's own, which takes the result of ReLU
            gradient = torch.ops.aten.threshold_backward(gradient, y[0], 0)
        of_rows, x_rows = rows_of(gradient), rows_of(x)
        of_x = of_values = of_bias = None
        wants_x, wants_values, wants_bias = ctx.needs_input_grad[:3]
        # One that stands for several, of is_grads_batched=True, has no memory.
        plain = is_plain(of_rows, values, x) and _has_memory(gradient)
        if plain and not torch.is_grad_enabled():
            if wants_x:
                of_x = _times_matrix(of_rows, values, structure)
            if wants_values:
                of_values = torch.empty_like(values)
                stream = TORCH.stream_of_work(of_rows, None)
                left, right = of_rows.t(), x_rows.detach()
                _core.sampled_matmul(structure, left, right, of_values, None, 1.0, 0.0, stream)
        else:
            if not _is_compiling():
                indices, indptr = keep_structure(indices, indptr, structure)
            if wants_x:
                of_x = matmul_operator(
                    values, indices, indptr, of_rows, None, [rows, cols], False, True, None
                )
            if wants_values:
                blocksize = list(values.shape[1:])
                of_values = sampled_operator(of_rows.t(), x_rows, indices, indptr, blocksize)
        if wants_bias:
            of_bias = of_rows.sum(0)
        if of_x is not None and x.ndim != 2:
            of_x = of_x.view(x.shape)
        return of_x, of_values, of_bias, None, None, None, None


def _times_matrix(
    dense: torch.Tensor, values: torch.Tensor, structure: _core.Structure
) -> torch.Tensor:
    precision = precision_of(dense)
    result = _core.try_matmul(
        structure, values, dense, True, None, 1.0, None, None, None, None, None, None, precision
    )
    if result is NotImplemented:
        result = matmul(dense.detach(), _matrix(values, structure), precision=precision)
    return result
