"""Linear layers with block-sparse weights, for PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import _core, _torch_func
from ._array import bsr_array
from ._batch import check_single
from ._convert import grid_of, pair_of, pattern_of
from ._kinds import a_kind_of
from ._matmul import real_number
from ._stack import count_of, prune
from ._torch_eager import RecordedLinear, general_linear, is_plain, try_linear
from ._torch_operators import (
    as_tensor,
    check_layout,
    check_tensor,
    forget_structure,
    forward_ad,
    index_tensor,
    keep_structure,
    matmul_operator,
    matrix_of,
    refuse_tangents,
    rows_of,
    structure_of,
)
from ._values import block_norms

ACTIVATIONS: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
    None: lambda y: y,
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def linear(
    input: torch.Tensor,
    weight: bsr_array,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
) -> torch.Tensor:
    """``activation(input @ weight.T + bias)`` with a block-sparse weight.

    As ``torch.nn.functional.linear``. Gradients flow to ``input``, ``weight.data`` and ``bias``,
    all computed from the stored blocks. Under autocast all operands are cast to its dtype.
    Without gradients, bias and activation are part of the product. On a GPU products of float32
    with the weight use TensorFloat-32 where ``torch.backends.cuda.matmul`` permits it; gradients of
    the blocks do not.

    Parameters
    ----------
    input : torch.Tensor
        Shape (..., in_features).
    weight : bsr_array
        Shape (out_features, in_features), its values torch tensors; no transposed view.
    bias : torch.Tensor, optional
        Shape (out_features,).
    activation : {None, "relu", "gelu", "gelu_tanh", "silu"}
        ``"gelu"`` is that of the error function.

    Returns
    -------
    torch.Tensor
        Shape (..., out_features), contiguous.

    Raises
    ------
    TypeError
        If ``weight`` is no bsr_array of torch tensors, another argument is no tensor or no string,
        dtypes or devices differ, or a tensor has a tangent of forward-mode differentiation.
    ValueError
        If shapes do not fit, or ``activation`` is another.
    """
    if not isinstance(weight, bsr_array):
        raise TypeError(f"weight is {a_kind_of(weight)}; accepted: a bsrgemm.bsr_array")
    structure, values = weight._structure, weight._data
    if forward_ad._current_level >= 0:
        refuse_tangents({"input": input, "weight.data": values, "bias": bias})
    plain = is_plain(input, values, bias)
    if plain and not is_cast(input):
        y = try_linear(structure, values, input, bias, activation)
        if y is not NotImplemented:
            return y
    if weight.is_transposed or not isinstance(values, torch.Tensor):
        held = "a transposed view" if weight.is_transposed else f"of {type(values).__name__}s"
        raise TypeError(
            f"weight is {held}; accepted: a bsr_array of shape (out_features, in_features) around "
            "torch tensors"
        )
    check_single(weight, "weight")
    indices, indptr = index_tensor(weight.indices), index_tensor(weight.indptr)
    if not plain:
        if not (torch.compiler.is_compiling() or _torch_func.is_transformed()):
            indices, indptr = keep_structure(indices, indptr, structure)
        structure = None
    return _linear(input, values, indices, indptr, weight.shape, structure, bias, activation)


def cast_for(x: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors as products take them: of autocast's dtype if that is in effect where ``x`` is, but
    float64, integers and complex numbers as they are."""
    if not is_cast(x):
        return tensors
    dtype = torch.get_autocast_dtype(x.device.type)
    return tuple(
        t.to(dtype) if t.is_floating_point() and t.dtype is not torch.float64 else t
        for t in tensors
    )


def is_cast(x: torch.Tensor) -> bool:
    """Whether autocast is in effect where ``x`` is."""
    kind = x.device.type
    return kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)  # which refuses "meta"


def _linear(
    x: torch.Tensor,
    values: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    shape: tuple[int, int],
    structure: _core.Structure | None,
    bias: torch.Tensor | None,
    activation: str | None,
) -> torch.Tensor:
    """Of any arguments, recorded by autograd where that is wanted. With a structure the call is
    plain; without one it is an operator."""
    if structure is None:
        check_tensor(x, "input")
        if bias is not None:
            check_tensor(bias, "bias", " or None")
    check_layout(x, "input")
    if bias is not None:
        check_layout(bias, "bias")
    _check(x, shape, bias, activation)
    if bias is None:
        x, values = cast_for(x, x, values)
    else:
        x, values, bias = cast_for(x, x, values, bias)
    if (x.dtype, x.device) != (values.dtype, values.device):
        has, wants = (f"{str(t.dtype).removeprefix('torch.')} on {t.device}" for t in (x, values))
        raise TypeError(f"input is {has}; accepted: that of weight, {wants}")
    recorded = torch.is_grad_enabled() and (
        x.requires_grad or values.requires_grad or (bias is not None and bias.requires_grad)
    )
    if structure is None:
        return _by_operator(x, values, indices, indptr, shape, bias, activation, recorded)
    if not recorded:
        y = try_linear(structure, values, x, bias, activation)
        if y is NotImplemented:
            y = general_linear(rows_of(x), x.shape[:-1], values, bias, structure, activation)
        return y
    relu = activation == "relu"  # of which the result has what the gradient needs
    y = RecordedLinear.apply(x, values, bias, structure, indices, indptr, relu)
    return y if relu else ACTIVATIONS[activation](y)


def _by_operator(
    x: torch.Tensor,
    values: torch.Tensor,
    indices: torch.Tensor,
    indptr: torch.Tensor,
    shape: tuple[int, int],
    bias: torch.Tensor | None,
    activation: str | None,
    recorded: bool,
) -> torch.Tensor:
    """By the operator that compilers, tracers, modes and subclasses of tensors see."""
    transformed = _torch_func.is_transformed()
    # A trace is run with gradients, too, even where it was made without.
    apart = recorded or transformed or torch.jit.is_tracing()
    product = _torch_func.matmul if transformed else matmul_operator
    options = (list(shape), True, True, None if apart else activation)
    y = product(values, indices, indptr, rows_of(x), bias, *options)
    if x.ndim != 2:
        y = y.view(*x.shape[:-1], shape[0])
    return ACTIVATIONS[activation](y) if apart else y


def _check(
    x: torch.Tensor, shape: tuple[int, int], bias: torch.Tensor | None, activation: str | None
) -> None:
    _check_activation(activation)
    if x.ndim == 0 or x.shape[-1] != shape[1]:
        raise ValueError(
            f"input has shape {tuple(x.shape)}; accepted: (..., {shape[1]}), for a weight of shape "
            f"{tuple(shape)}"
        )
    if bias is not None and tuple(bias.shape) != (shape[0],):
        raise ValueError(f"bias has shape {tuple(bias.shape)}; accepted: ({shape[0]},)")


def _check_activation(activation: Any) -> None:
    is_name = isinstance(activation, str)  # others may have no hash
    if not (activation in ACTIVATIONS if is_name else activation is None):
        names = ", ".join(map(repr, ACTIVATIONS))
        error = ValueError if is_name else TypeError
        raise error(f"activation is {activation!r}; accepted: {names}")


class BSRLinear(torch.nn.Module):
    """``torch.nn.Linear`` with a block-sparse weight.

    Parameters
    ----------
    weight : bsr_array
        Shape (out_features, in_features), around torch tensors or NumPy arrays, which are not
        copied unless they are read-only.
    bias : torch.Tensor, optional
        Shape (out_features,). A ``torch.nn.Parameter`` becomes the layer's own, another tensor the
        memory of one.
    activation : {None, "relu", "gelu", "gelu_tanh", "silu"}
        Applied to the result, as by :func:`linear`.

    Attributes
    ----------
    values : torch.nn.Parameter
        The stored blocks, (nnzb, bh, bw).
    indices, indptr : torch.Tensor
        Buffers, int32, part of the ``state_dict``: all plain tensors, which safetensors can hold.
    bias : torch.nn.Parameter or None

    Notes
    -----
    ``load_state_dict`` takes any pattern of the same block size, but says so where one has other
    block rows, or blocks beyond ``in_features``, and then changes nothing. One with another number
    of blocks replaces ``values`` and ``indices``, so make optimizers afterwards.

    Other writes to ``indices`` and ``indptr`` count from the next call on, too, but on a GPU two
    kinds of them are not seen: into their ``data``, and in place into tensors that were made in
    inference mode. Assign new tensors there.
    """

    values: torch.nn.Parameter
    indices: torch.Tensor
    indptr: torch.Tensor

    def __init__(
        self,
        weight: bsr_array,
        bias: torch.Tensor | None = None,
        *,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(weight, bsr_array) or weight.is_transposed:
            held = "a transposed view" if isinstance(weight, bsr_array) else a_kind_of(weight)
            raise TypeError(
                f"weight is {held}; accepted: a bsrgemm.bsr_array that is no transposed view"
            )
        check_single(weight, "weight")
        if not isinstance(weight._data, (torch.Tensor, np.ndarray)):
            raise TypeError(
                f"weight is a bsr_array of {type(weight._data).__name__}s; accepted: one around "
                "torch tensors or NumPy arrays"
            )
        values = as_tensor(weight._data).detach()
        indices, indptr = (
            torch.tensor(x, dtype=torch.int32, device=values.device)
            for x in pattern_of(weight._structure)
        )
        self._hold(values, indices, indptr, weight.shape, bias, activation)

    def _hold(
        self,
        values: torch.Tensor,
        indices: torch.Tensor,
        indptr: torch.Tensor,
        shape: tuple[int, int],
        bias: torch.Tensor | None,
        activation: str | None,
    ) -> None:
        _check_activation(activation)
        if bias is not None:
            check_tensor(bias, "bias", " or None")
            check_layout(bias, "bias")
        self.out_features, self.in_features = shape
        self.activation = activation
        self.values = torch.nn.Parameter(values)
        self.register_buffer("indices", indices)
        self.register_buffer("indptr", indptr)
        if bias is not None and not isinstance(bias, torch.nn.Parameter):
            bias = torch.nn.Parameter(bias.detach())
        self.register_parameter("bias", bias)

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        *,
        blocksize: tuple[int, int],
        density: float,
        activation: str | None = None,
    ) -> BSRLinear:
        """Of a dense layer: the blocks of its weight with the largest Frobenius norms.

        Parameters
        ----------
        linear : torch.nn.Linear
            The memory of its bias is shared, its weight copied. Of one on the device ``"meta"`` a
            layer is made that is there, too, for ``load_state_dict``: with ``assign=True`` or after
            ``to_empty``.
        blocksize : (int, int)
            (bh, bw). Where they do not divide out_features and in_features, the last blocks reach
            beyond the weight: their values are 0 there, and so are the gradients.
        density : float
            Share of the blocks that is kept, from 0 to 1.
        activation : {None, "relu", "gelu", "gelu_tanh", "silu"}
            Applied to the result, as by :func:`linear`.

        Returns
        -------
        BSRLinear
            With the ``training`` of the dense layer and the ``requires_grad`` of its parameters,
            without its hooks and parametrizations.

        Raises
        ------
        TypeError, ValueError
            As :func:`bsrgemm.prune`, of ``linear.weight``.
        """
        if not isinstance(linear, torch.nn.Linear):
            raise TypeError(f"linear is {a_kind_of(linear)}; accepted: a torch.nn.Linear")
        blocksize, density = pair_of(blocksize, "blocksize", 1), density_of(density)
        with torch.enable_grad():  # in which parametrized ones require what their parameters do
            weight, bias = linear.weight, linear.bias
        if bias is not None:  # a parameter of its own, which `to` of one layer leaves to the other
            bias = torch.nn.Parameter(bias.detach(), bias.requires_grad)
        if weight.is_meta:
            shape = (linear.out_features, linear.in_features)
            rows, cols = grid_of(shape, blocksize)
            count = count_of(density, rows * cols)
            values = weight.detach().new_empty((count, *blocksize))
            indices, indptr = (values.new_empty(n, dtype=torch.int32) for n in (count, rows + 1))
            layer = cls.__new__(cls)
            torch.nn.Module.__init__(layer)
            layer._hold(values, indices, indptr, shape, bias, activation)
        else:
            layer = cls(prune(weight.detach(), blocksize, density), bias, activation=activation)
        layer.values.requires_grad_(weight.requires_grad)
        return layer.train(linear.training)

    @property
    def weight(self) -> bsr_array:
        """The weight around ``values``, which it shares."""
        shape = (self.out_features, self.in_features)
        return matrix_of(self.values, self.indices, self.indptr, shape, False)

    @property
    def blocksize(self) -> tuple[int, int]:
        """(bh, bw) in elements."""
        return self.values.shape[1], self.values.shape[2]

    @property
    def density(self) -> float:
        """Share of the blocks that is stored."""
        rows, cols = grid_of((self.out_features, self.in_features), self.blocksize)
        return self.values.shape[0] / max(1, rows * cols)

    @torch.no_grad()
    def prune_(self, density: float, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Keep the stored blocks of largest Frobenius norm, as :func:`bsrgemm.prune` does.

        The others are forgotten. ``values``, ``indices`` and ``indptr`` are replaced by shorter
        ones, so what was compiled or captured before does not see them. A gradient of the blocks
        that stay is kept; hooks of the old parameter do not see the new one.

        Parameters
        ----------
        density : float
            Share of all blocks that is stored afterwards, from 0 to 1. Nothing changes where as
            few are stored already.
        optimizer : torch.optim.Optimizer, optional
            It goes on with the new ``values`` in place of the old ones: its state of those blocks,
            such as moments, is kept. ``torch.optim.LBFGS``, whose state is of all parameters
            together, cannot go on.

        Raises
        ------
        ValueError
            If ``density`` is not from 0 to 1, if ``optimizer`` does not have ``values`` or is a
            ``torch.optim.LBFGS``, or if ``values`` is no parameter, but made from one as
            ``torch.nn.utils.prune`` does.
        """
        density = density_of(density)
        if "values" not in self._parameters:
            raise ValueError(
                "values is no parameter of this layer, but made from others for each call; "
                "accepted: a layer before torch.nn.utils.prune, or after its remove"
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "optimizer is an LBFGS, whose state is of all parameters together; accepted: one "
                "with a state of each. Prune without it, and make another LBFGS"
            )
        old = self.values
        rows, cols = grid_of((self.out_features, self.in_features), self.blocksize)
        places = rows * cols
        count = count_of(density, places)
        if count >= old.shape[0]:
            return
        blocks = old.detach()
        norms = block_norms(blocks.float() if blocks.itemsize == 1 else blocks, (1, 2), torch)
        kept = norms.sort(descending=True, stable=True).indices[:count].sort().values
        new = torch.nn.Parameter(blocks[kept], requires_grad=old.requires_grad)
        if old.grad is not None:
            new.grad = old.grad[kept]
        if optimizer is not None:
            _replace_parameter(optimizer, old, new, kept)
        rows = torch.bucketize(kept, self.indptr[1:], right=True)
        # Not bincount, for which the host waits, and which there is none of on meta.
        counts = kept.new_zeros(len(self.indptr) - 1).index_add_(0, rows, torch.ones_like(rows))
        self.indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)
        self.indices = self.indices[kept]
        self.values = new

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``linear(input, weight, bias, activation=activation)``, see :func:`linear`."""
        shape = (self.out_features, self.in_features)
        if torch.compiler.is_compiling():
            values, indices, indptr, bias = self.values, self.indices, self.indptr, self.bias
        else:
            values, indices, indptr, bias = self._tensors()
        if forward_ad._current_level >= 0:
            refuse_tangents({"input": input, "values": values, "bias": bias})
        structure = None
        if is_plain(input, values, bias):
            blocksize = values.shape[1], values.shape[2]
            structure = structure_of(indices, indptr, shape, blocksize)
            if not is_cast(input):
                y = try_linear(structure, values, input, bias, self.activation)
                if y is not NotImplemented:
                    return y
        return _linear(input, values, indices, indptr, shape, structure, bias, self.activation)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """As every module's, of any number of blocks. What does not fit changes nothing."""
        shape = (self.out_features, self.in_features)
        forget_structure(self.indices, self.indptr, shape, self.blocksize)
        found = {name: state_dict.get(prefix + name) for name in ("values", "indices", "indptr")}
        if all(isinstance(x, torch.Tensor) for x in found.values()):
            misfits = self._misfits(prefix, **found)
            if misfits:
                errors: list[str] = arguments[-1]
                errors += misfits
                return
            values = found["values"]
            if values.shape != self.values.shape:
                empty = self.values.detach().new_empty(values.shape)
                self.values = torch.nn.Parameter(empty, requires_grad=self.values.requires_grad)
                self.indices = self.indices.new_empty(values.shape[:1])
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _misfits(
        self, prefix: str, values: torch.Tensor, indices: torch.Tensor, indptr: torch.Tensor
    ) -> list[str]:
        """What a state has that this layer could not be."""
        rows, cols = grid_of((self.out_features, self.in_features), self.blocksize)
        count = values.shape[0] if values.ndim else 0
        wanted = (count, *self.blocksize), (count,), (rows + 1,)
        misfits = [
            f"size mismatch for {prefix}{name}, which has shape {tuple(x.shape)}; accepted: {shape}"
            for name, x, shape in zip(
                ("values", "indices", "indptr"), (values, indices, indptr), wanted, strict=True
            )
            if x.shape != shape
        ]
        last = int(indices.max()) if indices.numel() > 0 and not indices.is_meta else -1
        if last >= cols:
            misfits.append(
                f"{prefix}indices has block column {last}; accepted: less than {cols}, for "
                f"{self.in_features} in_features in blocks of {self.blocksize}"
            )
        return misfits

    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """values, indices, indptr and bias, without a Module's search for each where they are plain
        parameters and buffers, and not parametrized, say."""
        parameters, buffers = self._parameters, self._buffers
        try:
            return parameters["values"], buffers["indices"], buffers["indptr"], parameters["bias"]
        except KeyError:
            return self.values, self.indices, self.indptr, self.bias

    def extra_repr(self) -> str:
        text = (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, blocksize={self.blocksize}, density={self.density:.3g}"
        )
        return text if self.activation is None else f"{text}, activation={self.activation!r}"


def _replace_parameter(
    optimizer: torch.optim.Optimizer,
    old: torch.nn.Parameter,
    new: torch.nn.Parameter,
    kept: torch.Tensor,
) -> None:
    for group in optimizer.param_groups:
        for i, parameter in enumerate(group["params"]):
            if parameter is old:
                group["params"][i] = new
                state = optimizer.state.pop(old, {})
                if state:
                    optimizer.state[new] = {
                        key: value[kept] if _has_blocks(value, old) else value
                        for key, value in state.items()
                    }
                return
    raise ValueError("optimizer has no group with this layer's values; accepted: one that has")


def _has_blocks(value: object, parameter: torch.Tensor) -> bool:
    """Whether an optimizer's state has something of each block: moments, or Adafactor's sums of
    their rows."""
    return (
        isinstance(value, torch.Tensor)
        and value.ndim == parameter.ndim
        and value.shape[0] == parameter.shape[0]
    )


def density_of(density: Any) -> float:
    value = real_number(density, "density")
    if not 0 <= value <= 1:
        raise ValueError(f"density is {density}; accepted: 0 to 1")
    return value
