"""What error messages call the class of an argument."""

from __future__ import annotations

from typing import Any

# Classes of ours, of which SciPy and PyTorch have some of the same name.
_OURS = {"bsr_array", "BlockMask", "BlockPattern", "BlockTensor", "DeviceArray", "DynamicArray"}


def a_kind_of(x: Any) -> str:
    """The name with its article."""
    name = kind_of(x)
    return f"{'an' if name.startswith((*'AEIOaeio', 'Un', 'nd')) else 'a'} {name}"


def kind_of(x: Any) -> str:
    """The name of the class, with the public part of its module's where one of ours has it, too."""
    kind = type(x)
    if kind.__name__ not in _OURS or kind.__module__.startswith("bsrgemm"):
        return kind.__name__
    public = [part for part in kind.__module__.split(".") if not part.startswith("_")]
    return ".".join([*public, kind.__name__])
