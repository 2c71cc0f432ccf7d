"""Malformed calls of bsrgemm.torch. Imports torch, so it is imported by tests alone."""

from __future__ import annotations

from typing import Any

import bsrgemm.torch
import numpy as np
import torch
from bsrgemm import bsr_array
from bsrgemm.torch import BSRLinear, linear, sparsify_
from malformed_inputs import Bad, build


def weight() -> bsr_array:
    return bsr_array(torch.ones(4, 6), blocksize=(2, 2))


def layer(change: Any = None, like: Any = None, **options: Any) -> Any:
    given = torch.ones(3, 6) if change is None else change
    return linear(given, weight() if like is None else like, **options)


def attend(**changes: Any) -> Any:
    q = torch.ones(1, 2, 4, 8)
    return bsrgemm.torch.attention(**({"query": q, "key": q, "value": q} | changes))


def from_linear(linear: Any = None, blocksize: Any = (4, 4)) -> BSRLinear:
    linear = torch.nn.Linear(8, 4) if linear is None else linear
    return BSRLinear.from_linear(linear, blocksize=blocksize, density=0.5)


def sparse(module: Any = None, blocksize: Any = (4, 4), density: Any = 0.5) -> Any:
    module = torch.nn.Sequential(torch.nn.Linear(8, 4)) if module is None else module
    return sparsify_(module, blocksize=blocksize, density=density)


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
        ("input is a ndarray", "Tensor"),
    ),
    Bad("input is a list", lambda: layer([[1.0] * 6]), TypeError, ("input is a list", "Tensor")),
    Bad(
        "bias of NumPy", lambda: layer(bias=np.ones(4)), TypeError, ("bias is a ndarray", "Tensor")
    ),
    Bad("bias is a list", lambda: layer(bias=[1.0] * 4), TypeError, ("bias is a list", "Tensor")),
    Bad(
        "activation is no string",
        lambda: layer(activation=["relu"]),
        TypeError,
        ("activation is ['relu']", "accepted: None, 'relu'"),
    ),
    Bad("bias of another size", lambda: layer(bias=torch.ones(5)), ValueError, ("bias", "(4,)")),
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
        ("bias is a ndarray", "accepted: a torch.Tensor or None"),
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
        ("input is a ndarray", "accepted: a torch.Tensor"),
    ),
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
    Bad("no module", lambda: sparse(np.ones(3)), TypeError, ("module is a ndarray",)),
    Bad("density", lambda: sparse(density=1.5), ValueError, ("density is 1.5", "0 to 1")),
    Bad("blocksize", lambda: sparse(blocksize=4), TypeError, ("blocksize is 4", "pair")),
)

ATTENTION = (
    Bad(
        "query of NumPy",
        lambda: attend(query=np.ones((1, 2, 4, 8))),
        TypeError,
        ("query is a ndarray", "accepted: a torch.Tensor"),
    ),
    Bad("value is a list", lambda: attend(value=[1.0]), TypeError, ("value is a list", "Tensor")),
    Bad(
        "sequences of NumPy",
        lambda: attend(cu_seqlens_q=np.array([0, 4])),
        TypeError,
        ("cu_seqlens_q is a ndarray", "accepted: a torch.Tensor or None"),
    ),
    Bad(
        "factor is a string",
        lambda: attend(q_descale="1"),
        TypeError,
        ("q_descale is a str", "accepted: a torch.Tensor, a real number or None"),
    ),
    Bad("mask", lambda: attend(block_mask=3), TypeError, ("block_mask is a int", "accepted")),
    Bad("window", lambda: attend(window=3), TypeError, ("window is 3", "accepted: a pair")),
    Bad("layout", lambda: attend(layout="sd"), ValueError, ("layout is 'sd'",)),
    Bad("backend of GPUs", lambda: attend(backend="hopper"), ValueError, ("operands are on cpu",)),
    Bad("key of another size", lambda: attend(key=torch.ones(1, 2, 4, 7)), ValueError, ("size",)),
)

TABLES = {
    "torch.linear": LINEAR,
    "torch.BSRLinear": MODULE,
    "torch.sparsify_": SPARSIFY,
    "torch.attention": ATTENTION,
}
