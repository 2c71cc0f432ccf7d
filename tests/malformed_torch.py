"""Malformed calls of bsrgemm.torch. Imports torch, so it is imported by tests alone."""

from __future__ import annotations

import warnings
from typing import Any

import bsrgemm.torch
import numpy as np
import torch
from bsrgemm import bsr_array
from bsrgemm.torch import BlockPattern, BSRLinear, linear, matmul, sampled_matmul, sparsify_
from malformed_inputs import Bad, build


def weight() -> bsr_array:
    return bsr_array(torch.ones(4, 6), blocksize=(2, 2))


def layer(change: Any = None, like: Any = None, **options: Any) -> Any:
    given = torch.ones(3, 6) if change is None else change
    return linear(given, weight() if like is None else like, **options)


def nested(*shape: int) -> Any:
    with warnings.catch_warnings(action="ignore"):  # that they are new
        return torch.nested.nested_tensor([torch.ones(shape), torch.ones(shape)])


def attend(**changes: Any) -> Any:
    q = torch.ones(1, 2, 4, 8)
    return bsrgemm.torch.attention(**({"query": q, "key": q, "value": q} | changes))


def from_linear(linear: Any = None, blocksize: Any = (4, 4)) -> BSRLinear:
    linear = torch.nn.Linear(8, 4) if linear is None else linear
    return BSRLinear.from_linear(linear, blocksize=blocksize, density=0.5)


def sparse(module: Any = None, blocksize: Any = (4, 4), density: Any = 0.5) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(8, 4)) if module is None else module
    return sparsify_(module, blocksize=blocksize, density=density)


def pattern(mask: Any = None, blocksize: Any = (2, 2), **options: Any) -> BlockPattern:
    return BlockPattern.from_mask(
        torch.ones(2, 3, dtype=torch.bool) if mask is None else mask, blocksize, **options
    )


def best(k: Any = 1, scores: Any = None) -> BlockPattern:
    return BlockPattern.from_topk(torch.ones(2, 3) if scores is None else scores, k, (2, 2))


def changing() -> Any:
    """4 × 6."""
    return pattern().array(torch.ones(6, 2, 2))


def sampled(a: Any = None, b: Any = None, at: Any = None) -> Any:
    return sampled_matmul(
        torch.ones(4, 5) if a is None else a,
        torch.ones(5, 6) if b is None else b,
        pattern() if at is None else at,
    )


LINEAR = (
    Bad(
        "weight is dense", lambda: layer(like=torch.ones(4, 6)), TypeError, ("weight is a Tensor",)
    ),
    Bad("weight of NumPy", lambda: layer(like=build()), TypeError, ("weight",)),
    Bad("weight is a view", lambda: layer(like=weight().T), TypeError, ("weight is a transposed",)),
    Bad("input of another size", lambda: layer(torch.ones(3, 5)), ValueError, ("(..., 6)",)),
    Bad(
        "input of another dtype", lambda: layer(torch.ones(3, 6).double()), TypeError, ("float64",)
    ),
    Bad(
        "input of NumPy",
        lambda: layer(np.ones((3, 6))),
        TypeError,
        ("input is an ndarray", "Tensor"),
    ),
    Bad("input is a list", lambda: layer([[1.0] * 6]), TypeError, ("input is a list", "Tensor")),
    Bad(
        "bias of NumPy", lambda: layer(bias=np.ones(4)), TypeError, ("bias is an ndarray", "Tensor")
    ),
    Bad("bias is a list", lambda: layer(bias=[1.0] * 4), TypeError, ("bias is a list", "Tensor")),
    Bad(
        "activation is no string",
        lambda: layer(activation=["relu"]),
        TypeError,
        ("activation is ['relu']", "accepted: None, 'relu'"),
    ),
    Bad("bias of another size", lambda: layer(bias=torch.ones(5)), ValueError, ("bias", "(4,)")),
    Bad(
        "input is sparse",
        lambda: layer(torch.ones(3, 6).to_sparse()),
        TypeError,
        ("input is a torch tensor of layout torch.sparse_coo", "torch.strided"),
    ),
    Bad(
        "input is nested",
        lambda: layer(nested(3, 6)),
        TypeError,
        ("input is a nested tensor", "accepted: one that is not"),
    ),
    Bad("bias is nested", lambda: layer(bias=nested(4)), TypeError, ("bias is a nested tensor",)),
    Bad("activation", lambda: layer(activation="tanh"), ValueError, ("activation is 'tanh'",)),
)

MODULE = (
    Bad(
        "a view",
        lambda: BSRLinear(weight().T),
        TypeError,
        ("weight is a transposed view", "no transposed view"),
    ),
    Bad(
        "bias of NumPy",
        lambda: BSRLinear(weight(), np.ones(4)),
        TypeError,
        ("bias is an ndarray", "accepted: a torch.Tensor or None"),
    ),
    Bad(
        "activation of a module",
        lambda: BSRLinear(weight(), activation=["relu"]),
        TypeError,
        ("activation is ['relu']",),
    ),
    Bad(
        "called with NumPy",
        lambda: BSRLinear(weight())(np.ones((3, 6), np.float32)),
        TypeError,
        ("input is an ndarray", "accepted: a torch.Tensor"),
    ),
    Bad(
        "called with a sparse tensor",
        lambda: BSRLinear(weight())(torch.ones(3, 6).to_sparse()),
        TypeError,
        ("input is a torch tensor of layout torch.sparse_coo", "accepted: torch.strided"),
    ),
    Bad(
        "called with a nested tensor",
        lambda: BSRLinear(weight())(nested(3, 6)),
        TypeError,
        ("input is a nested tensor", "input.to_padded_tensor(0.0)"),
    ),
    Bad("bias is nested", lambda: BSRLinear(weight(), nested(4)), TypeError, ("bias is a nested",)),
    Bad(
        "of no linear",
        lambda: from_linear(torch.nn.ReLU()),
        TypeError,
        ("linear is a ReLU",),
    ),
    Bad(
        "blocks without rows",
        lambda: from_linear(blocksize=(0, 8)),
        ValueError,
        ("blocksize is (0, 8)", "accepted: integers that are at least 1"),
    ),
    Bad(
        "density", lambda: BSRLinear(weight()).prune_(1.5), ValueError, ("density is 1.5", "0 to 1")
    ),
)

SPARSIFY = (
    Bad("no module", lambda: sparse(np.ones(3)), TypeError, ("module is an ndarray",)),
    Bad("density", lambda: sparse(density=1.5), ValueError, ("density is 1.5", "0 to 1")),
    Bad("blocksize", lambda: sparse(blocksize=4), TypeError, ("blocksize is 4", "pair")),
)

ATTENTION = (
    Bad(
        "query of NumPy",
        lambda: attend(query=np.ones((1, 2, 4, 8))),
        TypeError,
        ("query is an ndarray", "accepted: a torch.Tensor"),
    ),
    Bad("value is a list", lambda: attend(value=[1.0]), TypeError, ("value is a list", "Tensor")),
    Bad(
        "sequences of NumPy",
        lambda: attend(cu_seqlens_q=np.array([0, 4])),
        TypeError,
        ("cu_seqlens_q is an ndarray", "accepted: a torch.Tensor or None"),
    ),
    Bad(
        "factor is a string",
        lambda: attend(q_descale="1"),
        TypeError,
        ("q_descale is a str", "accepted: a torch.Tensor, a real number or None"),
    ),
    Bad("key is nested", lambda: attend(key=nested(2, 4, 8)), TypeError, ("k is a nested tensor",)),
    Bad("mask", lambda: attend(block_mask=3), TypeError, ("block_mask is an int", "accepted")),
    Bad("window", lambda: attend(window=3), TypeError, ("window is 3", "accepted: a pair")),
    Bad("layout", lambda: attend(layout="sd"), ValueError, ("layout is 'sd'",)),
    Bad("backend of GPUs", lambda: attend(backend="hopper"), ValueError, ("operands are on cpu",)),
    Bad("key of another size", lambda: attend(key=torch.ones(1, 2, 4, 7)), ValueError, ("size",)),
)

PATTERN = (
    Bad(
        "mask of NumPy", lambda: pattern(np.ones((2, 3), bool)), TypeError, ("mask is an ndarray",)
    ),
    Bad("mask of floats", lambda: pattern(torch.ones(2, 3)), TypeError, ("float32", "bool, uint8")),
    Bad(
        "mask of one dimension",
        lambda: pattern(torch.ones(3, dtype=torch.bool)),
        ValueError,
        ("mask has shape (3,)", "(block rows, block columns)"),
    ),
    Bad("blocksize of one number", lambda: pattern(blocksize=2), TypeError, ("blocksize is 2",)),
    Bad("no capacity", lambda: pattern(capacity=0), ValueError, ("capacity is 0", "6 places")),
    Bad(
        "capacity of a fraction",
        lambda: pattern(capacity=2.5),
        TypeError,
        ("capacity is 2.5", "accepted: an integer"),
    ),
    Bad("no best blocks", lambda: best(0), ValueError, ("k is 0", "from 1 to the 3")),
    Bad("k of a fraction", lambda: best(1.5), TypeError, ("k is 1.5", "accepted: an integer")),
    Bad(
        "scores of integers",
        lambda: best(scores=torch.ones(2, 3, dtype=torch.int32)),
        TypeError,
        ("scores has dtype int32",),
    ),
    Bad(
        "dense of another shape",
        lambda: pattern().gather(torch.ones(4, 5)),
        ValueError,
        ("dense has shape (4, 5)", "accepted: (4, 6)"),
    ),
    Bad("mask is nested", lambda: pattern(nested(3)), TypeError, ("mask is a nested tensor",)),
    Bad("dense is nested", lambda: pattern().gather(nested(6)), TypeError, ("dense is a nested",)),
    Bad("dense of NumPy", lambda: pattern().gather(np.ones((4, 6))), TypeError, ("dense is a",)),
)

MATRIX = (
    Bad(
        "values of another shape",
        lambda: pattern().array(torch.ones(5, 2, 2)),
        ValueError,
        ("values have shape (5, 2, 2)", "accepted: (6, 2, 2)"),
    ),
    Bad(
        "values are nested",
        lambda: pattern().array(nested(2, 2)),
        TypeError,
        ("values is a nested tensor",),
    ),
    Bad("values of NumPy", lambda: pattern().array(np.ones((6, 2, 2))), TypeError, ("values is",)),
)

MATMUL = (
    Bad(
        "indices longer than memory",
        lambda: matmul(
            bsr_array((torch.ones(1, 1, 1), torch.zeros(1).long().expand(2**62), [0, 1]), (1, 1)),
            torch.ones(1, 1),
        ),
        ValueError,
        ("indices has shape (4611686018427387904,)", "no memory can have"),
    ),
    Bad(
        "two dense ones",
        lambda: matmul(torch.ones(4, 6), torch.ones(6, 5)),
        TypeError,
        ("a is a Tensor and b a Tensor", "in either order"),
    ),
    Bad(
        "two block-sparse ones",
        lambda: matmul(changing().T, changing()),
        TypeError,
        ("a is a BlockTensor and b a BlockTensor",),
    ),
    Bad("dense of NumPy", lambda: matmul(changing(), np.ones((6, 5))), TypeError, ("ndarray",)),
    Bad(
        "a bsr_array of NumPy",
        lambda: matmul(build(), torch.ones(build().shape[1], 2)),
        TypeError,
        ("a is a bsr_array of ndarrays", "torch tensors"),
    ),
    Bad(
        "dense of another shape",
        lambda: matmul(changing(), torch.ones(4, 5)),
        ValueError,
        ("b has shape (4, 5)", "accepted: (6, N)"),
    ),
    Bad(
        "dense of another shape on the left",
        lambda: matmul(torch.ones(4, 6), changing()),
        ValueError,
        ("a has shape (4, 6)", "accepted: (..., 4)"),
    ),
    Bad(
        "a batch on the right",
        lambda: matmul(changing(), torch.ones(2, 6, 5)),
        ValueError,
        ("b has shape (2, 6, 5)", "accepted: (6, N)"),
    ),
    Bad(
        "dense is nested",
        lambda: matmul(weight(), nested(6)),
        TypeError,
        ("b is a nested tensor", "b.to_padded_tensor(0.0)"),
    ),
    Bad(
        "dense is nested, by @",
        lambda: weight() @ nested(6),
        TypeError,
        ("b is a nested tensor", "b.to_padded_tensor(0.0)"),
    ),
    Bad(
        "dense of another dtype",
        lambda: matmul(changing(), torch.ones(6, 5).double()),
        TypeError,
        ("b is float64", "that of values, float32"),
    ),
)

SAMPLED = (
    Bad("a of NumPy", lambda: sampled(np.ones((4, 5))), TypeError, ("a is an ndarray",)),
    Bad("a is nested", lambda: sampled(nested(5)), TypeError, ("a is a nested tensor",)),
    Bad("b is a list", lambda: sampled(b=[1.0]), TypeError, ("b is a list",)),
    Bad(
        "b of another shape",
        lambda: sampled(b=torch.ones(4, 6)),
        ValueError,
        ("a has shape (4, 5) and b (4, 6)", "accepted: (4, K) and (K, 6)"),
    ),
    Bad(
        "b of another dtype",
        lambda: sampled(b=torch.ones(5, 6).double()),
        TypeError,
        ("a is float32", "that of b, float64"),
    ),
    Bad("pattern is dense", lambda: sampled(at=torch.ones(4, 6)), TypeError, ("pattern is a",)),
    Bad(
        "pattern is a view",
        lambda: sampled(torch.ones(6, 5), torch.ones(5, 4), weight().T),
        TypeError,
        ("pattern is a transposed view",),
    ),
)

TABLES = {
    "torch.BlockPattern": PATTERN,
    "torch.BlockTensor": MATRIX,
    "torch.matmul": MATMUL,
    "torch.sampled_matmul": SAMPLED,
    "torch.linear": LINEAR,
    "torch.BSRLinear": MODULE,
    "torch.sparsify_": SPARSIFY,
    "torch.attention": ATTENTION,
}
