"""Derivatives of torch's forward mode, tangents: nothing here carries them on, so they are refused.

Like ``_interop``, this finds torch where it has been imported, and imports nothing.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

_imported = sys.modules.get
_forward_ad: Any = None  # torch's module once it has been imported


def in_dual_level() -> bool:
    """Whether tensors may have tangents, the derivatives of torch's forward mode."""
    global _forward_ad
    if _forward_ad is None:
        found = _imported("torch.autograd.forward_ad")
        if found is None or not hasattr(found, "_current_level"):  # which is being imported
            return False
        _forward_ad = found
    return _forward_ad._current_level >= 0


def check_tangent(x: Any, name: str) -> None:
    """Raise TypeError if a tensor has a tangent, which the result would silently lack."""
    try:
        found = _has_tangent(x)
    except RuntimeError:  # below autograd, in compiled graphs, which have dropped tangents before
        return
    if found:
        raise TypeError(
            f"{name} has a tangent, and forward-mode derivatives are not supported; accepted: "
            f"{name}.detach()"
        )


def _has_tangent(x: Any) -> bool:
    torch = sys.modules["torch"]
    functorch, unpack_dual = torch._C._functorch, torch.autograd.forward_ad.unpack_dual
    is_compiling = torch.compiler.is_compiling()
    with ExitStack() as left:
        while True:
            while functorch.is_batchedtensor(x):  # which has no rule for what is asked next
                x = functorch.get_unwrapped(x)
            if not is_compiling:
                _leave_levels_above(functorch.maybe_get_level(x), functorch, left)
            if unpack_dual(x).tangent is not None:
                return True
            if is_compiling or not functorch.is_functorch_wrapped_tensor(x):
                return False
            x = functorch.get_unwrapped(x)


def _leave_levels_above(level: int, functorch: Any, left: ExitStack) -> None:
    """The innermost transformation answers what is asked, and knows no tangents of those around it;
    so it is left, until ``left`` is closed."""
    pyfunctorch = sys.modules["torch._functorch.pyfunctorch"]
    while (functorch.maybe_current_level() or 0) > max(level, 0):
        left.enter_context(pyfunctorch.temporarily_pop_interpreter_stack())
