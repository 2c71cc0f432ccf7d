"""Products under transformations of ``torch.func``: ``vmap``, ``grad`` and others, in one another.

The gradients that ``torch.library`` gives an operator have no rule for these. So where a
transformation is active, products are functions of autograd whose gradients are such functions
again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._torch_operators import (
    matmul_gradients,
    matmul_operator,
    sampled_gradients,
    sampled_operator,
)

_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active


def is_transformed() -> bool:
    """Whether the caller is within a function that is transformed, and not compiled as well."""
    return not torch.compiler.is_compiling() and _transforms()


def matmul(
    values: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    dense: torch.Tensor,
    bias: torch.Tensor | None,
    shape: list[int],
    transposed: bool,
    dense_left: bool,
    activation: None = None,
) -> torch.Tensor:
    """As ``matmul_operator``, which has the activation too."""
    return _Matmul.apply(values, indices, indptr, dense, bias, shape, transposed, dense_left)


def sampled(
    a: torch.Tensor,
    b: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    blocksize: list[int],
) -> torch.Tensor:
    """As ``sampled_operator``."""
    return _Sampled.apply(a, b, indices, indptr, blocksize)


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> torch.Tensor:
        return matmul_operator(*inputs, None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        values, indices, indptr, dense, bias, *ctx.options = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(values, indices, indptr, dense)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        shape, transposed, dense_left = ctx.options
        wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
        of_values, of_dense = matmul_gradients(
            wanted, *ctx.saved_tensors, gradient, shape, transposed, dense_left, (matmul, sampled)
        )
        of_bias = None
        if ctx.has_bias and ctx.needs_input_grad[4]:
            of_bias = gradient.sum(0 if dense_left else 1)
        return of_values, None, None, of_dense, of_bias, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        values: torch.Tensor,
        indices: torch.Tensor,
        indptr: torch.Tensor,
        dense: torch.Tensor,
        bias: torch.Tensor | None,
        *options: Any,
    ) -> tuple[torch.Tensor, int]:
        _check_pattern(in_dims[1:3])
        count, dense_left = info.batch_size, options[-1]
        if in_dims[0] is None and in_dims[4] is None:  # one product of all rows, or columns
            at = 0 if dense_left else 1
            dense = dense.movedim(in_dims[3], at)
            each = dense.shape[1 if dense_left else 2]
            y = _Matmul.apply(values, indices, indptr, dense.flatten(at, at + 1), bias, *options)
            return y.unflatten(at, (count, each)), at
        parts = [
            _Matmul.apply(
                _entry(values, in_dims[0], i),
                indices,
                indptr,
                _entry(dense, in_dims[3], i),
                _entry(bias, in_dims[4], i),
                *options,
            )
            for i in range(count)
        ]
        shape, transposed, _ = options
        outer = shape[1] if transposed != dense_left else shape[0]
        others = [size for dim, size in enumerate(dense.shape) if dim != in_dims[3]]
        each = (others[0], outer) if dense_left else (outer, others[1])
        return _stacked(parts, dense, each), 0


class _Sampled(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> torch.Tensor:
        return sampled_operator(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        a, b, indices, indptr, _ = inputs
        ctx.save_for_backward(a, b, indices, indptr)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[:2]
        of_a, of_b = sampled_gradients(wanted, *ctx.saved_tensors, gradient, matmul)
        return of_a, of_b, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        a: torch.Tensor,
        b: torch.Tensor,
        *pattern: Any,
    ) -> tuple[torch.Tensor, int]:
        _check_pattern(in_dims[2:4])
        parts = [
            _Sampled.apply(_entry(a, in_dims[0], i), _entry(b, in_dims[1], i), *pattern)
            for i in range(info.batch_size)
        ]
        indices, _, blocksize = pattern
        return _stacked(parts, a, (indices.shape[0], *blocksize)), 0


def _check_pattern(dims: tuple[int | None, ...]) -> None:
    if any(dim is not None for dim in dims):
        raise TypeError(
            "indices or indptr are batched by vmap; accepted: one pattern for all entries"
        )


def _stacked(parts: list[torch.Tensor], like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Of entries of that shape, of which there may be none."""
    return torch.stack(parts) if parts else like.new_empty((0, *shape))


def _entry(x: Any, dim: int | None, i: int) -> Any:
    return x if dim is None else x.select(dim, i)
