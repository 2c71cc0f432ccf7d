"""The rivals on a GPU. Each takes a problem and gives back its product as a call.

What a rival raises is a result too: it is recorded with its message.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bsrgemm import bsr_array, matmul

from .cases import FORMS, Case, order_operands
from .cusparse import Cusparse
from .patterns import Pattern
from .timing import DeviceTimer


@dataclass
class Problem:
    """Operands of a case as torch tensors on one device."""

    torch: Any
    case: Case
    pattern: Pattern
    values: Any  # [nnzb, bh, bw]
    dense: Any  # [M, K], the same matrix with its zeros
    x: Any  # [K, N]
    out: Any  # [M, N]
    cache: dict[Any, Any] = field(default_factory=dict)  # of the whole run, for rivals

    @property
    def indices(self) -> tuple[Any, Any]:
        """indptr and indices on the device."""
        return tuple(
            self.torch.as_tensor(array, device=self.x.device)
            for array in (self.pattern.indptr, self.pattern.indices)
        )

    def bsr_tensor(self) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse .* tensor support is in beta")
            return self.torch.sparse_bsr_tensor(
                *self.indices, self.values, size=(self.case.m, self.case.k), check_invariants=False
            )


Call = Callable[[], Any]


class Product(NamedTuple):
    call: Call  # returns the tensor that has the result
    flops: float  # useful work of a call
    expected: Call | None = None  # what it is compared with, where that is not the problem's
    bytes: int | None = None  # that it has to read, where these are not the case's


def cublas_dense(p: Problem) -> Product:
    """torch's dense product of the whole matrix."""
    flops = 2.0 * p.case.m * p.case.n * p.case.k
    left, right = order_operands(p.case, p.dense, p.x)
    return Product(lambda: p.torch.mm(left, right, out=p.out), flops)


def cublas_layer(p: Problem) -> Product:
    """torch's dense product with a random matrix of the same shape: what a layer takes before it is
    pruned. With zeros in it, a product takes less power, and so less time."""
    a = p.torch.randn(p.case.m, p.case.k, device=p.x.device).to(p.x.dtype)
    left, right = order_operands(p.case, a, p.x)
    return Product(
        lambda: p.torch.mm(left, right, out=p.out),
        2.0 * p.case.m * p.case.n * p.case.k,
        lambda: left.double() @ right.double(),
    )


def cublas_equal_flop(p: Problem) -> Product:
    """torch's dense product whose inner dimension is density * K: as much useful work."""
    k = p.case.equal_flop_k
    left = p.torch.randn(p.case.m, k, device=p.x.device).to(p.x.dtype)
    right = p.x[:k].contiguous()
    return Product(
        lambda: p.torch.mm(left, right, out=p.out),
        2.0 * p.case.m * p.case.n * k,
        lambda: left.double() @ right.double(),
    )


# By block height, the (columns a tile, stages, warps) that PyTorch's Triton kernel is tried with
# besides its own choice. It ships tuned settings for the A100 only.
_TRITON_SETTINGS = {
    16: ((128, 4, 4), (256, 4, 4)),
    32: ((128, 4, 4), (256, 4, 4)),
    64: ((128, 3, 4), (256, 3, 8)),
    128: ((128, 3, 8), (256, 2, 8)),
    256: ((64, 1, 8), (128, 1, 8)),
}


def torch_triton(p: Problem) -> Product:
    """PyTorch's Triton kernel with the fastest of a few settings, chosen once a block shape,
    number of columns and density: one search is for all dtypes, for which it would compile anew."""
    from torch.sparse._triton_ops import bsr_dense_addmm

    matrix = p.bsr_tensor()

    def call(meta: dict[str, int] | None) -> Call:
        return lambda: bsr_dense_addmm(p.out, matrix, p.x, beta=0, out=p.out, meta=meta)

    key = ("torch_triton", p.case.block, p.case.n, f"{p.case.density:.2g}")
    if key not in p.cache:
        metas: list[dict[str, int] | None] = [None]
        for columns, stages, warps in _TRITON_SETTINGS.get(p.case.block[0], ()):
            if p.case.n % columns == 0:
                sizes = {"SPLIT_N": p.case.n // columns, "GROUP_SIZE_ROW": 4}
                metas.append({**sizes, "num_stages": stages, "num_warps": warps})
        p.cache[key] = _fastest(p.torch, [call(meta) for meta in metas], metas)
    return Product(call(p.cache[key]), p.case.useful_flops)


def stk(p: Problem) -> Product:
    """MegaBlocks' kernel, for float16 blocks of 128x128. It has none for two sparse matrices: these
    are multiplied as a sparse and a dense one."""
    import stk.ops

    short = p.torch.int16
    indptr, indices = p.indices
    rows = p.torch.as_tensor(p.pattern.rows, device=p.x.device)
    matrix = stk.Matrix(
        (p.case.m, p.case.k), p.values, rows.to(short), indices.to(short), indptr.int()
    )
    return Product(lambda: stk.ops.dsd(matrix, p.x), p.case.useful_flops)


def cusparse(p: Problem) -> Product:
    """Blocked-ELL, for square blocks and as many in every row."""
    if "cusparse" not in p.cache:
        p.cache["cusparse"] = Cusparse(p.torch)
    rows = p.values.view(p.case.grid[0], -1, *p.case.block)
    values = rows.transpose(1, 2).contiguous()
    columns = p.indices[1].view(p.case.grid[0], -1)
    call = p.cache["cusparse"].blocked_ell(p.case.dtype, values, columns, p.case.k, p.x, p.out)
    return Product(call, p.case.useful_flops)


def torch_bsr(p: Problem) -> Product:
    """``torch.mm`` with a BSR tensor: cuSPARSE's bsrmm on a GPU, MKL on the CPU."""
    matrix = p.bsr_tensor()
    return Product(lambda: p.torch.mm(matrix, p.x), p.case.useful_flops)


def bsrgemm_plain(p: Problem) -> Product:
    """Ours, as ``A @ X``: what other forms of the product are compared with."""
    matrix = bsr_array((p.values, p.pattern.indices, p.pattern.indptr), (p.case.m, p.case.k))
    x = p.torch.randn(p.case.k, p.case.n, device=p.x.device).to(p.x.dtype)
    out = p.torch.empty(p.case.m, p.case.n, dtype=p.x.dtype, device=p.x.device)
    return Product(
        lambda: matmul(matrix, x, out=out),
        p.case.useful_flops,
        lambda: p.dense.double() @ x.double(),
    )


def _fused(activation: str | None) -> Callable[[Problem], Product]:
    """Our product with a bias of columns and an activation in its output stage."""

    def make(p: Problem) -> Product:
        matrix, bias = _with_bias(p)
        return Product(
            lambda: matmul(matrix, p.x, bias=bias, activation=activation, out=p.out),
            p.case.useful_flops,
            lambda: _activate(p, p.dense.double() @ p.x.double() + bias.double(), activation),
        )

    return make


def _separate(activation: str | None) -> Callable[[Problem], Product]:
    """The same by our product and torch's kernels behind it."""

    def make(p: Problem) -> Product:
        matrix, bias = _with_bias(p)
        return Product(
            lambda: _activate(p, matmul(matrix, p.x, out=p.out).add_(bias), activation),
            p.case.useful_flops,
            lambda: _activate(p, p.dense.double() @ p.x.double() + bias.double(), activation),
        )

    return make


def _with_bias(p: Problem) -> tuple[bsr_array, Any]:
    arrays = (p.values, p.pattern.indices, p.pattern.indptr)
    bias = p.torch.randn(p.case.n, device=p.x.device).to(p.x.dtype)
    return bsr_array(arrays, (p.case.m, p.case.k)), bias


def _activate(p: Problem, x: Any, activation: str | None) -> Any:
    functional = p.torch.nn.functional
    if activation is None:
        return x
    return x.relu_() if activation == "relu" else getattr(functional, activation)(x)


# Of the group "fused", beside the plain product.
FUSED: dict[str, Callable[[Problem], Product]] = {
    f"{name}_bias" + (f"_{activation}" if activation else ""): make(activation)
    for activation in (None, "relu", "gelu", "silu")
    for name, make in (("fused", _fused), ("separate", _separate))
}

RIVALS: dict[str, Callable[[Problem], Product]] = {
    f.__name__: f
    for f in (
        cublas_dense,
        cublas_layer,
        cublas_equal_flop,
        torch_triton,
        stk,
        cusparse,
        torch_bsr,
        bsrgemm_plain,
    )
} | FUSED


def wanted(case: Case) -> list[str]:
    """The rivals that can compute a case, and are worth the time."""
    if case.group == "linear":
        return ["cublas_layer", "cublas_dense"]
    if case.group in FORMS:
        return ["bsrgemm_plain"]
    if case.group == "bsr_bsr":
        has_stk = case.dtype == "float16" and case.block == (128, 128)
        return ["cublas_dense", "cublas_equal_flop", *(["stk"] if has_stk else [])]
    if case.group == "fused":
        return list(FUSED)
    if case.group == "columns":
        return ["cublas_dense", "torch_triton"]
    if case.group == "crossover":
        return ["cublas_dense"]
    if case.group == "sizes":
        return ["cublas_dense", "cublas_equal_flop"]
    names = ["cublas_dense", "cublas_equal_flop"]
    if case.dtype in ("float32", "float64"):
        return [*names, "torch_bsr"]
    uniform, half = case.pattern == "uniform", case.dtype == "float16"
    if (half and case.pattern in ("uniform", "zipf_rows")) or (uniform and case.density == 0.125):
        names.append("torch_triton")
    if half and uniform and case.block == (128, 128):
        names.append("stk")
    if half and uniform and case.block[0] == case.block[1]:
        names.append("cusparse")
    return names


def _fastest(torch: Any, calls: list[Call], settings: list[Any]) -> Any:
    """The setting of the fastest call, by the median of three. Raises what the first one raised
    when none works."""
    timer = DeviceTimer(torch)
    best, best_seconds, failure = None, float("inf"), None
    for call, setting in zip(calls, settings, strict=True):
        try:
            call()
            seconds = statistics.median(timer.alone(call) for _ in range(3))
        except Exception as error:  # a setting that does not compile is no candidate
            failure = failure or error
            continue
        if seconds < best_seconds:
            best, best_seconds = setting, seconds
    if failure is not None and best_seconds == float("inf"):
        raise failure
    return best
