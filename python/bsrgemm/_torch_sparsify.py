"""``sparsify_``: block-sparse layers in place of the dense ones of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ._convert import pair_of
from ._dtypes import ACCEPTED_DTYPES
from ._kinds import a_kind_of
from ._torch_linear import BSRLinear, density_of

_DTYPES = {getattr(torch, name) for name in ACCEPTED_DTYPES}
# Kinds of what modules call besides forward, in attributes of torch.nn.Module. Legacy ways to
# normalize weights and torch's pruning are among the first of them.
_HOOKS = (
    "forward_pre",
    "forward",
    "backward_pre",
    "backward",
    "state_dict_pre",
    "state_dict",
    "load_state_dict_pre",
    "load_state_dict_post",
)

# By identity of a parameter: the modules that have it, and its name there.
_Owners = dict[int, list[tuple[torch.nn.Module, str]]]


@dataclass(frozen=True)
class Replacement:
    """What :func:`sparsify_` did with one ``torch.nn.Linear``.

    Attributes
    ----------
    name : str
        As in ``module.named_modules()``.
    shape : tuple of int
        (out_features, in_features).
    density : float or None
        Of the layer that took its place, None where it was left.
    reason : str or None
        Why it was left.
    """

    name: str
    shape: tuple[int, int]
    density: float | None
    reason: str | None


def sparsify_(
    module: torch.nn.Module,
    *,
    blocksize: tuple[int, int],
    density: float,
    filter: Callable[[str, torch.nn.Linear], bool] | None = None,
) -> list[Replacement]:
    """Replace every ``torch.nn.Linear`` in ``module`` by a :class:`BSRLinear`, in place.

    Layers are left that a :class:`BSRLinear` could not take the place of: those of a subclass, with
    hooks, parametrizations or a ``forward`` of their own, wrapped by ``torch.compile``, with a
    weight of several modules, or of another dtype than layers take. Where an error is raised,
    nothing has been replaced. Biases stay the parameters that they are, with all that shares them;
    weights become new ones, so make optimizers afterwards.

    ``torch.nn.TransformerEncoder`` and its layers then do without their ways around ``forward``,
    which read dense weights.

    Parameters
    ----------
    module : torch.nn.Module
        Not a ``torch.nn.Linear`` itself, which cannot be replaced in place.
    blocksize : (int, int)
        (bh, bw). Layers whose weight it does not divide are left as they are.
    density : float
        Share of the blocks of each weight that is kept, from 0 to 1.
    filter : callable, optional
        ``filter(name, linear)`` says whether to replace a layer; without it all are.

    Returns
    -------
    list of Replacement
        One for each ``torch.nn.Linear`` in the order of ``module.named_modules()``: replaced ones
        with their density, others with the reason. Layers that are one object in several places
        stay one.

    Raises
    ------
    TypeError
        If ``module`` is a ``torch.nn.Linear`` or no module, or an argument of a wrong kind.
    ValueError
        If ``blocksize`` or ``density`` is not accepted.
    """
    if isinstance(module, torch.nn.Linear):
        raise TypeError(
            "module is a Linear, which cannot be replaced in place; use BSRLinear.from_linear"
        )
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is {a_kind_of(module)}; accepted: a torch.nn.Module")
    blocksize, density = pair_of(blocksize, "blocksize", 1), density_of(density)
    made: dict[torch.nn.Linear, BSRLinear] = {}
    replaced = []
    report = []
    owners: _Owners = {}
    for name, parent in module.named_modules():
        for parameter_name, parameter in parent._parameters.items():
            full_name = f"{name}.{parameter_name}".lstrip(".")
            owners.setdefault(id(parameter), []).append((parent, full_name))
    places = [
        (f"{parent_name}.{child_name}".lstrip("."), parent, child_name, child)
        for parent_name, parent in module.named_modules()
        for child_name, child in parent._modules.items()  # named_children leaves out repeats
        if isinstance(child, torch.nn.Linear)
    ]
    compiled = {child for _, parent, _, child in places if _is_compiled(parent)}
    for name, parent, child_name, child in places:
        shape = (child.out_features, child.in_features)
        reason = _why_left(name, child, blocksize, filter, owners, compiled)
        if reason is None:
            if child not in made:
                made[child] = BSRLinear.from_linear(child, blocksize=blocksize, density=density)
                if isinstance(child.bias, torch.nn.Parameter):
                    made[child].bias = child.bias  # itself: others may hold it
            replaced.append((parent, child_name, made[child]))
            report.append(Replacement(name, shape, made[child].density, None))
        else:
            report.append(Replacement(name, shape, None, reason))
    for parent, child_name, layer in replaced:
        setattr(parent, child_name, layer)
    changed = set(made.values())
    for part in module.modules():
        if not changed.isdisjoint(part.modules()):
            if isinstance(part, torch.nn.TransformerEncoderLayer):
                part.activation_relu_or_gelu = 0
            elif isinstance(part, torch.nn.TransformerEncoder):
                part.use_nested_tensor = False
    return report


def _is_compiled(parent: torch.nn.Module) -> bool:
    """Whether it is what ``torch.compile`` makes of a module, of which it goes on to call the one
    it was made of. By name: the type is in a module that takes long to import."""
    return type(parent).__name__ == "OptimizedModule"


def _why_left(
    name: str,
    linear: torch.nn.Linear,
    blocksize: tuple[int, int],
    filter: Callable[[str, torch.nn.Linear], bool] | None,
    owners: _Owners,
    compiled: set[torch.nn.Linear],
) -> str | None:
    if filter is not None and not filter(name, linear):
        return "the filter refused it"
    if type(linear) is not torch.nn.Linear:
        return f"it is {a_kind_of(linear)}, which may do more than a Linear"
    if linear in compiled:
        return "torch.compile has wrapped it and would go on with it, so compile afterwards"
    if "forward" in vars(linear):
        return "its forward has been replaced"
    hooks = [kind for kind in _HOOKS if getattr(linear, f"_{kind}_hooks", None)]
    if hooks:
        return f"it has {hooks[0].replace('_', ' ')} hooks, which would be lost"
    for owner, weight_name in owners.get(id(linear.weight), []):
        if owner is not linear:
            return f"its weight is {weight_name}, too"
    if linear.weight.dtype not in _DTYPES:
        return f"its weight is {str(linear.weight.dtype).removeprefix('torch.')}"
    return _misfit(linear, blocksize)


def _misfit(linear: torch.nn.Linear, blocksize: tuple[int, int]) -> str | None:
    """Why a weight does not fall into whole blocks."""
    shape = (linear.out_features, linear.in_features)
    if any(size % block for size, block in zip(shape, blocksize, strict=True)):
        return f"its shape {shape} is no multiple of {tuple(blocksize)}"
    return None
