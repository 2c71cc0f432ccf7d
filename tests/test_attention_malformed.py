"""Malformed calls of attention: each raises the expected exception, which names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bsrgemm
import numpy as np
import pytest
from bsrgemm import BlockMask, _core, attention
from spaces import import_torch


def x(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def call(q: Any = None, k: Any = None, v: Any = None, **options: Any) -> Any:
    """A call that is right but for what is replaced: 2 batches, 4 heads, 6 queries, 8 keys."""
    q = x(2, 4, 6, 16) if q is None else q
    k = x(2, 4, 8, 16) if k is None else k
    return attention(q, k, x(2, 4, 8, 5) if v is None else v, **options)


def read_only() -> np.ndarray:
    out = x(2, 4, 6, 5)
    out.flags.writeable = False
    return out


def inside_q() -> Any:
    q = x(2, 4, 6, 16)
    return call(q, out=q[..., :5])


def core(**changes: Any) -> Any:
    arguments = {"q": x(1, 2, 3, 4), "k": x(1, 2, 5, 4), "v": x(1, 2, 5, 4), "out": x(1, 2, 3, 4)}
    return _core.attention(**(arguments | changes))


BSR = bsrgemm.bsr_array(np.ones((8, 8), np.float32), blocksize=(4, 4))
STRUCTURE = BSR._structure

CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "q is a list": (lambda: call([[1.0]]), TypeError, "q is of type list, but must be an array"),
    "q is a bsr_array": (lambda: call(BSR), TypeError, r"q is a bsr_array; accepted: a dense"),
    "q of three dimensions": (lambda: call(x(4, 6, 16)), ValueError, r"q has shape \(4, 6, 16\)"),
    "k of two": (lambda: call(k=x(8, 16)), ValueError, r"k has shape \(8, 16\); accepted: four"),
    "integers": (lambda: call(x(2, 4, 6, 16, dtype=int)), TypeError, "q has dtype int64, but"),
    "k of another dtype": (
        lambda: call(k=x(2, 4, 8, 16, dtype=np.float64)),
        TypeError,
        "k has dtype float64, but q has dtype float32",
    ),
    "k of another size": (lambda: call(k=x(2, 4, 8, 15)), ValueError, "one batch and one size"),
    "k of another batch": (lambda: call(k=x(1, 4, 8, 16)), ValueError, "one batch and one size"),
    "v of other keys": (lambda: call(v=x(2, 4, 7, 5)), ValueError, "one of keys"),
    "size zero": (
        lambda: call(x(2, 4, 6, 0), x(2, 4, 8, 0)),
        ValueError,
        "the size must be at least 1",
    ),
    "fewer heads": (
        lambda: call(k=x(2, 2, 8, 16), v=x(2, 2, 8, 5)),
        ValueError,
        "q has 4 heads and k has 2; accepted: as many heads as k; with enable_gqa=True",
    ),
    "heads that do not divide": (
        lambda: call(k=x(2, 3, 8, 16), v=x(2, 3, 8, 5), enable_gqa=True),
        ValueError,
        "q has 4 heads and k has 3; accepted: a multiple of the heads of k",
    ),
    "layout": (lambda: call(layout="bdsh"), ValueError, "layout is 'bdsh'; accepted: 'bhsd'"),
    "layout no string": (lambda: call(layout=3), ValueError, "layout is 3"),
    "scale": (lambda: call(scale="1"), TypeError, "scale is a str; accepted: a real number"),
    "infinite scale": (lambda: call(scale=float("inf")), ValueError, "scale is inf"),
    "softcap of zero": (
        lambda: call(softcap=0),
        ValueError,
        "softcap is 0.0; accepted: a positive",
    ),
    "negative softcap": (lambda: call(softcap=-2), ValueError, "softcap is -2.0"),
    "softcap nan": (lambda: call(softcap=float("nan")), ValueError, "softcap is nan"),
    "window": (lambda: call(window=5), TypeError, "window is 5; accepted: a pair"),
    "window below -1": (lambda: call(window=(-2, 0)), ValueError, r"window is \(-2, 0\)"),
    "alignment": (lambda: call(causal_alignment="x"), ValueError, "causal_alignment is 'x'"),
    "backend": (lambda: call(backend="cuda"), ValueError, "backend is 'cuda'; accepted: 'hopper'"),
    "backend of a GPU": (lambda: call(backend="portable"), ValueError, "operands are on cpu"),
    "stream": (lambda: call(stream="s"), TypeError, "stream is a str; accepted"),
    "mask of a wrong kind": (
        lambda: call(block_mask=np.ones((2, 2), bool)),
        TypeError,
        "block_mask is a ndarray; accepted: a BlockMask, a bsr_array or None",
    ),
    "mask of other lengths": (
        lambda: call(block_mask=BlockMask.from_dense([[True]], (4, 4))),
        ValueError,
        r"block_mask has \(1, 1\) blocks of \(4, 4\), but 6 queries and 8 keys.* \(2, 2\)",
    ),
    "mask of other heads": (
        lambda: call(block_mask=BlockMask.from_dense(np.ones((1, 3, 2, 2), bool), (4, 4))),
        ValueError,
        r"leading dimensions \(1, 3\), but must have \(1 or 2, 1 or 4\)",
    ),
    "out of another shape": (lambda: call(out=x(2, 4, 6, 6)), ValueError, "out has shape"),
    "out of another dtype": (
        lambda: call(out=x(2, 4, 6, 5, dtype=np.float16)),
        TypeError,
        "out has dtype float16",
    ),
    "out is read-only": (lambda: call(out=read_only()), ValueError, "out is read-only"),
    "out in q": (inside_q, ValueError, "out overlaps q in memory"),
    "out repeats itself": (
        lambda: call(out=np.lib.stride_tricks.as_strided(x(5), (2, 4, 6, 5), (0, 0, 0, 4))),
        ValueError,
        "which put several elements at one address",
    ),
    "core: lse shape": (lambda: core(lse=x(1, 2, 4)), ValueError, r"must have dtype float32 and"),
    "core: lse dtype": (
        lambda: core(lse=x(1, 2, 3, dtype=np.float64)),
        ValueError,
        "lse has dtype float64",
    ),
    "core: masks no tuple": (lambda: core(masks=[STRUCTURE]), TypeError, "masks is"),
    "core: masks without shape": (lambda: core(masks=(STRUCTURE,)), TypeError, "beside mask_shape"),
    "core: mask count": (
        lambda: core(masks=(STRUCTURE,), mask_shape=(1, 2)),
        ValueError,
        r"mask_shape is \(1, 2\), but masks has 1 entries",
    ),
    "core: mask type": (
        lambda: core(masks=(3,), mask_shape=(1, 1)),
        TypeError,
        r"masks\[0\] is 3, but must be a Structure",
    ),
    "core: layout": (lambda: core(layout=b"bhsd"), TypeError, "layout is b'bhsd'"),
    "core: left": (lambda: core(left=1.5), TypeError, "left is 1.5, but must be an integer"),
    "core: diagonal": (lambda: core(diagonal=2**70), ValueError, "fits in 64 bits"),
    "core: family": (lambda: core(family="tall"), ValueError, "attention has 'auto', 'hopper'"),
    "core: missing": (lambda: _core.attention(x(1)), TypeError, "missing the argument 'k'"),
}


@pytest.mark.parametrize("name", CASES)
def test_malformed(name: str) -> None:
    function, error, message = CASES[name]
    with pytest.raises(error, match=message):
        function()


def test_gradients_are_refused() -> None:
    torch = import_torch()
    q = torch.ones(1, 1, 2, 4, requires_grad=True)
    k = torch.ones(1, 1, 3, 4)
    with pytest.raises(TypeError, match="q requires grad, and autograd is not supported"):
        attention(q, k, k)
    with torch.no_grad():
        assert attention(q, k, k).shape == (1, 1, 2, 4)
