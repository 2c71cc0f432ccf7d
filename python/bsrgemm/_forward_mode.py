"""Derivatives of torch's forward mode, tangents: nothing here carries them on, so they are refused.

Like ``_interop``, this finds torch where it has been imported, and imports nothing.
"""

from __future__ import annotations

import sys
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
    torch = sys.modules["torch"]
    functorch = torch._C._functorch
    inner = x
    while functorch.is_batchedtensor(inner):  # which has no rule for what is asked next
        inner = functorch.get_unwrapped(inner)
    try:
        tangent = torch.autograd.forward_ad.unpack_dual(inner).tangent
    except RuntimeError:  # below autograd, in compiled graphs, which have dropped tangents before
        return
    if tangent is not None:
        raise TypeError(
            f"{name} has a tangent, and forward-mode derivatives are not supported; accepted: "
            f"{name}.detach()"
        )
