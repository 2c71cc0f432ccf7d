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
    forward_ad,
    in_memory,
    matmul_backward,
    matmul_operator,
    refuse_tangents,
    sampled_backward,
    sampled_operator,
    save_matmul,
    save_sampled,
)

are_transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active


def is_transformed() -> bool:
    """Whether the caller is within a function that is transformed, and not compiled as well."""
    return not torch.compiler.is_compiling() and are_transforms_active()


class _Matmul(torch.autograd.Function):
    """``matmul_operator``, of whose inputs the activation is None."""

    setup_context = staticmethod(save_matmul)

    @staticmethod
    def forward(*inputs: Any) -> torch.Tensor:
        return matmul_operator(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        _refuse_tangent(gradient)
        return matmul_backward(ctx, gradient, (matmul, sampled))

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
        shape, transposed, dense_left, _ = options
        count = info.batch_size
        if in_dims[0] is None and in_dims[4] is None:  # one product of all rows, or columns
            at = 0 if dense_left else 1
            dense = dense.movedim(in_dims[3], at)
            each = dense.shape[1 if dense_left else 2]
            y = _Matmul.apply(values, indices, indptr, dense.flatten(at, at + 1), bias, *options)
            return y.unflatten(at, (count, each)), at
        parts = [
            _Matmul.apply(
                in_memory(_entry(values, in_dims[0], i)),
                indices,
                indptr,
                _entry(dense, in_dims[3], i),
                _entry(bias, in_dims[4], i),
                *options,
            )
            for i in range(count)
        ]
        outer = shape[1] if transposed != dense_left else shape[0]
        others = [size for dim, size in enumerate(dense.shape) if dim != in_dims[3]]
        each = (others[0], outer) if dense_left else (outer, others[1])
        return _stacked(parts, dense, each), 0


class _Sampled(torch.autograd.Function):
    """``sampled_operator``."""

    setup_context = staticmethod(save_sampled)

    @staticmethod
    def forward(*inputs: Any) -> torch.Tensor:
        return sampled_operator(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        _refuse_tangent(gradient)
        return sampled_backward(ctx, gradient, matmul)

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


def _refuse_tangent(gradient: torch.Tensor) -> None:
    if forward_ad._current_level >= 0:
        refuse_tangents({"gradient": gradient})


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


# In place of the operators, with their arguments.
matmul, sampled = _Matmul.apply, _Sampled.apply
