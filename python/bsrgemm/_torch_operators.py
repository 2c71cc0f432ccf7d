"""The products as operators of PyTorch, with their gradients.

An operator's matrix is plain tensors, ``values``, ``indices`` and ``indptr`` as of a bsr_array, so
that compiled and exported graphs can hold it. What is planned from the last two is found again by
where they lie, see ``structure_of``.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch

from . import _core
from ._array import bsr_array
from ._convert import Parts
from ._forward_mode import check_tangent
from ._interop import TORCH
from ._kinds import a_kind_of
from ._matmul import matmul

forward_ad = torch.autograd.forward_ad
_ON_CPU = torch.empty(0, device="cpu")

# More matrices than a large model has, and more blocks and block rows of all of them. Beyond, those
# that were used longest ago are forgotten.
MAX_STRUCTURES = 1024
MAX_BLOCKS = 1 << 24

# Under where index tensors lie, see _key.
_structures: OrderedDict[tuple[Any, ...], _Known] = OrderedDict()
_blocks = 0  # and block rows of all of them
_lock = Lock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)

# The same by the identity of the first index tensor, which its entry keeps: what eager calls pay.
_recent: dict[int, _Recent] = {}

# What indices had when the structure was made, what they have now, and the same of indptr. None
# where a tensor is on a GPU, to look at which would wait, and nothing where both are.
_Contents = tuple[Any, memoryview | None, Any, memoryview | None] | None


class _Known(NamedTuple):
    structure: _core.Structure
    indices: torch.Tensor
    indptr: torch.Tensor
    versions: tuple[int, int]  # of both
    contents: _Contents


class _Recent(NamedTuple):
    indices: torch.Tensor
    indptr: torch.Tensor
    state: tuple[Any, ...]  # of both, see _state
    shape: tuple[int, int]
    blocksize: tuple[int, int]
    structure: _core.Structure
    contents: _Contents


def _state(indices: torch.Tensor, indptr: torch.Tensor) -> tuple[Any, ...]:
    """What changes where a tensor gets other contents, but for those copied into its ``data``."""
    return (
        indices._version,
        indices.data_ptr(),
        indices.shape,
        indices.dtype,
        indptr._version,
        indptr.data_ptr(),
        indptr.shape,
        indptr.dtype,
    )


def _contents(indices: torch.Tensor, indptr: torch.Tensor, structure: _core.Structure) -> _Contents:
    if not (indices.is_cpu or indptr.is_cpu):
        return None
    pairs: list[Any] = []
    # As bytes: compilers that come here fail at arrays that are read-only.
    copies = structure.contents(indices.itemsize, indptr.itemsize)
    for x, had in zip((indices, indptr), copies, strict=True):
        if x.is_cpu:
            has = memoryview(x.numpy())
            # A bytearray is compared at once, and elements of memoryviews one by one.
            whole = x.is_contiguous()
            pairs += bytearray(had) if whole else memoryview(had).cast(has.format), has
        else:
            pairs += None, None
    return tuple(pairs)


def _unchanged(contents: _Contents) -> bool:
    """To be asked only of tensors that are still where they were."""
    if contents is None:
        return True
    had_indices, indices, had_indptr, indptr = contents
    return had_indices == indices and had_indptr == indptr


def structure_of(
    indices: torch.Tensor,
    indptr: torch.Tensor,
    shape: tuple[int, int],
    blocksize: tuple[int, int],
) -> _core.Structure:
    """The structure of index tensors, made when they are first seen: that may wait for a GPU.

    An entry keeps its tensors, so that their memory is no other tensor's as long as it is found by
    it. On the CPU their contents are compared. On a GPU changes in place are seen by the version
    that torch counts, which copies into ``data`` do not change and inference tensors do not have.
    """
    recent = _recent.get(id(indices))
    if (
        recent is not None
        and recent.indptr is indptr
        and recent.shape == shape
        and recent.blocksize == blocksize
        and recent.state == _state(indices, indptr)
        and (recent.contents is None or _unchanged(recent.contents))
    ):
        return recent.structure
    with _lock:
        found = _find(indices, indptr, shape, blocksize)
        if found is not None:
            _remember(indices, indptr, found)
            return found.structure
    structure = _core.Structure(indices.detach(), indptr.detach(), shape, blocksize, True)
    keep_structure(indices, indptr, structure)
    return structure


def keep_structure(
    indices: torch.Tensor, indptr: torch.Tensor, structure: _core.Structure
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lets ``structure_of`` find the structure that has been made of these tensors.

    Returns them or, where they have been written to since, others of its pattern, which is fixed.
    """
    shape, blocksize = structure.shape, structure.blocksize
    with _lock:
        known = _find(indices, indptr, shape, blocksize)
        if known is not None and known.structure is structure:
            return known.indices, known.indptr
    contents = _contents(indices, indptr, structure)
    if not _unchanged(contents):
        arrays = structure.indices, structure.indptr
        indices, indptr = (torch.tensor(x, device="cpu") for x in arrays)
        contents = _contents(indices, indptr, structure)
    key, versions = _key(indices, indptr, shape, blocksize), _versions(indices, indptr)
    known = _Known(structure, indices.detach(), indptr.detach(), versions, contents)
    # Structures are given up outside of the lock: their memory on a GPU may wait for kernels.
    given_up = []
    global _blocks
    with _lock:
        given_up.append(_forget(key))
        _structures[key] = known
        _blocks += _size_of(known)
        while len(_structures) > MAX_STRUCTURES or (_blocks > MAX_BLOCKS and len(_structures) > 1):
            given_up.append(_forget(next(iter(_structures))))
            given_up += _recent.values()
            _recent.clear()
        _remember(indices, indptr, known)
    return indices, indptr


def _find(
    indices: torch.Tensor,
    indptr: torch.Tensor,
    shape: tuple[int, int],
    blocksize: tuple[int, int],
) -> _Known | None:
    """The entry of index tensors that have not changed since; the lock is held."""
    key = _key(indices, indptr, shape, blocksize)
    known = _structures.get(key)
    if known is None or known.versions != _versions(indices, indptr):
        return None
    if not _unchanged(known.contents):
        return None
    _structures.move_to_end(key)
    return known


def _size_of(known: _Known) -> int:
    return known.structure.nnzb + known.structure.shape[0] // known.structure.blocksize[0]


def _forget(key: tuple[Any, ...]) -> Any:
    """The entry of a key, if there was one; the lock is held."""
    global _blocks
    known = _structures.pop(key, None)
    if known is not None:
        _blocks -= _size_of(known)
    return known


def forget_structure(
    indices: torch.Tensor,
    indptr: torch.Tensor,
    shape: tuple[int, int],
    blocksize: tuple[int, int],
) -> None:
    """Before tensors are written to: ``structure_of`` does not see that of all by itself."""
    if not (indices.is_inference() or indptr.is_inference()):
        return
    with _lock:
        given_up = _forget(_key(indices, indptr, shape, blocksize))
    del given_up  # outside of the lock


def _remember(indices: torch.Tensor, indptr: torch.Tensor, known: _Known) -> None:
    """For ``_recent``; the lock is held."""
    if indices.is_inference() or indptr.is_inference():  # without versions
        return
    if len(_recent) >= MAX_STRUCTURES:
        _recent.clear()
    state, structure = _state(indices, indptr), known.structure
    _recent[id(indices)] = _Recent(
        indices, indptr, state, structure.shape, structure.blocksize, structure, known.contents
    )


def _key(
    indices: torch.Tensor,
    indptr: torch.Tensor,
    shape: tuple[int, int],
    blocksize: tuple[int, int],
) -> tuple[Any, ...]:
    return (*_place(indices), *_place(indptr), shape, blocksize)


def _place(x: torch.Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.device


def _versions(indices: torch.Tensor, indptr: torch.Tensor) -> tuple[int, int]:
    first, second = (-1 if x.is_inference() else x._version for x in (indices, indptr))
    return first, second


def matrix_of(
    values: torch.Tensor, indices: torch.Tensor, indptr: torch.Tensor, shape: Any, transposed: bool
) -> bsr_array:
    rows, cols = shape
    blocksize = values.shape[1], values.shape[2]
    structure = structure_of(indices, indptr, (rows, cols), blocksize)
    parts = Parts(values, indices, indptr, structure.shape, structure)
    matrix = bsr_array._from_parts(parts)
    return matrix.T if transposed else matrix


def check_tensor(x: Any, name: str, other: str = "") -> None:
    """Raise TypeError of anything else, which arrays of other libraries are, too."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} is {a_kind_of(x)}; accepted: a torch.Tensor{other}")


def check_layout(x: torch.Tensor, name: str) -> None:
    """Raise TypeError of a sparse or nested tensor."""
    if x.is_nested or x.layout is not torch.strided:
        TORCH.check_layout(x, name)


def new_result(x: torch.Tensor, shape: tuple[Any, ...]) -> torch.Tensor:
    """What products of ``x`` return, uninitialised."""
    return x.new_empty(shape, dtype=torch.bfloat16 if x.dtype.itemsize == 1 else x.dtype)


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """(..., K) as a matrix of rows, of which there may be none, or none with elements."""
    if x.ndim == 2:
        return x
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])  # flatten has no rule for batches


def in_memory(x: torch.Tensor) -> torch.Tensor:
    """As one behind the other in memory, in which zeros may not lie."""
    return x.clone() if x._is_zerotensor() else x.contiguous()


def as_tensor(x: Any) -> torch.Tensor:
    """An array of the host as a tensor: itself, its memory, or a copy of read-only memory."""
    return x if isinstance(x, torch.Tensor) else TORCH.from_host(np.asarray(x), _ON_CPU)


class _Writable:
    """Read-only memory as torch takes it, which has no read-only tensors. Nobody writes to it."""

    def __init__(self, x: np.ndarray) -> None:
        self.__array_interface__ = x.__array_interface__ | {"data": (x.ctypes.data, False)}
        self.array = x


def index_tensor(x: Any) -> torch.Tensor:
    """Indices or indptr as a tensor of the same memory, by which its structure is found again."""
    if isinstance(x, torch.Tensor):
        return x
    if torch.compiler.is_compiling():  # which sees no flags of arrays
        return torch.as_tensor(x, device="cpu")
    x = np.asarray(x)
    return torch.from_numpy(x if x.flags.writeable else np.asarray(_Writable(x)))


def precision_of(x: torch.Tensor) -> str:
    """What torch's settings permit for products of ``x``: "tf32" of float32 on a GPU, or "ieee"."""
    if x.dtype is not torch.float32 or not x.is_cuda:
        return "ieee"
    settings = torch.backends.cuda.matmul
    allowed = getattr(settings, "fp32_precision", None)  # older than PyTorch 2.9: None
    if allowed is None:
        return "tf32" if settings.allow_tf32 else "ieee"
    return "tf32" if allowed == "tf32" else "ieee"


def refuse_tangents(tensors: dict[str, Any]) -> None:
    """Raise TypeError if one has a tangent.

    To be called where a level is open, which is all that other calls pay to find out.
    """
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor):
            check_tangent(x, name)


# ---- A @ X and X @ A ---------------------------------------------------------------------------


@torch.library.custom_op("bsrgemm::matmul", mutates_args=())
def matmul_operator(
    values: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    dense: torch.Tensor,
    bias: torch.Tensor | None,
    shape: list[int],
    transposed: bool,
    dense_left: bool,
    activation: str | None,
) -> torch.Tensor:
    """``activation(A @ dense + bias)`` or ``activation(dense @ A + bias)``; A is (values, indices,
    indptr) of ``shape`` or its transpose. ``bias`` has an element for each of A's outer side."""
    if forward_ad._current_level >= 0:
        refuse_tangents({"values": values, "dense": dense, "bias": bias})
    if bias is not None and not dense_left:
        bias = bias[:, None]
    rows, cols = shape
    structure = structure_of(indices, indptr, (rows, cols), (values.shape[1], values.shape[2]))
    result = _core.try_matmul(
        *(structure.transposed() if transposed else structure, values, dense, dense_left),
        *(None, 1.0, None, bias, activation, None, None, None, precision_of(dense)),
    )
    if result is not NotImplemented:
        return result
    a = matrix_of(values.detach(), indices, indptr, shape, transposed)
    left, right = (dense.detach(), a) if dense_left else (a, dense.detach())
    options: dict[str, Any] = {"activation": activation, "precision": precision_of(dense)}
    return matmul(left, right, bias=None if bias is None else bias.detach(), **options)


@matmul_operator.register_fake
def _(
    values: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    dense: torch.Tensor,
    bias: torch.Tensor | None,
    shape: list[int],
    transposed: bool,
    dense_left: bool,
    activation: str | None,
) -> torch.Tensor:
    outer = shape[1] if transposed != dense_left else shape[0]
    return new_result(dense, (dense.shape[0], outer) if dense_left else (outer, dense.shape[1]))


def save_matmul(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    values, indices, indptr, dense, bias, *ctx.options = inputs
    ctx.has_bias = bias is not None
    # Of frozen values nobody reads it.
    ctx.save_for_backward(values, indices, indptr, dense if ctx.needs_input_grad[0] else None)


def factors_of_values(
    dense: torch.Tensor, gradient: torch.Tensor, transposed: bool, dense_left: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of which product the stored blocks are the gradient of a matrix: ``gradient @ dense^T`` or
    ``dense^T @ gradient`` or, of a matrix that was multiplied transposed, the transpose."""
    left, right = (dense.T, gradient) if dense_left else (gradient, dense.T)
    return (right.T, left.T) if transposed else (left, right)


def matmul_gradients(
    wanted: tuple[bool, bool],
    values: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    dense: torch.Tensor | None,
    gradient: torch.Tensor,
    shape: list[int],
    transposed: bool,
    dense_left: bool,
    functions: tuple[Any, Any] | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """By operators, or functions in their place, of the values and the dense operand of a product,
    those that are wanted. ``dense`` is needed for the values."""
    matmul, sampled = functions or (matmul_operator, sampled_operator)
    of_values = of_dense = None
    if wanted[0]:
        assert dense is not None
        left, right = factors_of_values(dense, gradient, transposed, dense_left)
        of_values = sampled(left, right, indices, indptr, list(values.shape[1:]))
    if wanted[1]:
        of_dense = matmul(
            values, indices, indptr, gradient, None, shape, not transposed, dense_left, None
        )
    return of_values, of_dense


def matmul_backward(
    ctx: Any, gradient: torch.Tensor, functions: tuple[Any, Any] | None = None
) -> tuple[Any, ...]:
    *tensors, dense = ctx.saved_tensors
    shape, transposed, dense_left, activation = ctx.options
    if activation is not None:  # not before: what was exported for inference has it and may be run
        raise RuntimeError(
            "activation is applied by the operator, which has no gradient for it; accepted: None "
            "where gradients are wanted, and the activation as a function of the result. What was "
            "exported without gradients is compiled again under torch.no_grad()"
        )
    wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
    of_values, of_dense = matmul_gradients(
        wanted, *tensors, dense, gradient, shape, transposed, dense_left, functions
    )
    of_bias = None
    if ctx.has_bias and ctx.needs_input_grad[4]:
        of_bias = gradient.sum(0 if dense_left else 1)
    return of_values, None, None, of_dense, of_bias, None, None, None, None


matmul_operator.register_autograd(matmul_backward, setup_context=save_matmul)


# ---- blocks of a dense product -------------------------------------------------------------------


@torch.library.custom_op("bsrgemm::sampled_matmul", mutates_args=())
def sampled_operator(
    a: torch.Tensor,
    b: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    blocksize: list[int],
) -> torch.Tensor:
    """The blocks of ``a @ b`` at the places that (indices, indptr) name: [nnzb, bh, bw]."""
    if forward_ad._current_level >= 0:
        refuse_tangents({"a": a, "b": b})
    height, width = blocksize
    shape = (a.shape[0], b.shape[1])
    return sampled(structure_of(indices, indptr, shape, (height, width)), a, b)


def sampled(structure: _core.Structure, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The blocks of ``a @ b`` that a matrix stores, not recorded."""
    values = a.new_empty((structure.nnzb, *structure.blocksize))
    left, right = TORCH.importable(a.detach(), "a"), TORCH.importable(b.detach(), "b")
    _core.sampled_matmul(
        structure, left, right, values, None, 1.0, 0.0, TORCH.stream_of_work(a, None)
    )
    return values


@sampled_operator.register_fake
def _(
    a: torch.Tensor,
    b: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    blocksize: list[int],
) -> torch.Tensor:
    return a.new_empty((indices.shape[0], *blocksize))


def save_sampled(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, indices, indptr, _ = inputs
    ctx.save_for_backward(a, b, indices, indptr)


def sampled_gradients(
    wanted: tuple[bool, bool],
    a: torch.Tensor,
    b: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    gradient: torch.Tensor,
    function: Any = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """By operators, or a function in place of ``matmul_operator``, of ``a``: G @ b^T, and of ``b``:
    a^T @ G, with G the block-sparse matrix of ``gradient``; those that are wanted."""
    matmul = function or matmul_operator
    shape = [a.shape[0], b.shape[1]]
    of_a = of_b = None
    gradient = in_memory(gradient)
    if wanted[0]:
        of_a = matmul(gradient, indices, indptr, b.T, None, shape, False, False, None)
    if wanted[1]:
        of_b = matmul(gradient, indices, indptr, a.T, None, shape, False, True, None)
    return of_a, of_b


def sampled_backward(ctx: Any, gradient: torch.Tensor, function: Any = None) -> tuple[Any, ...]:
    wanted = ctx.needs_input_grad[:2]
    of_a, of_b = sampled_gradients(wanted, *ctx.saved_tensors, gradient, function)
    return of_a, of_b, None, None, None


sampled_operator.register_autograd(sampled_backward, setup_context=save_sampled)
