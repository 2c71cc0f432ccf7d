"""Malformed inputs: each raises the expected exception, and its message names what is wrong.

The tables are those of tests/malformed_*.py. Two libraries' own inputs are in test_interop.py, and
those of pieces that have more to them in the tests of these.
"""

from __future__ import annotations

import re

import bsrgemm
import malformed_table
import numpy as np
import pytest
from bsrgemm import attention, matmul
from malformed_inputs import Bad, build, x
from malformed_table import caught, tables
from spaces import import_torch

ROWS = [(function, bad) for function, rows in tables(False).items() for bad in rows]


def check(bad: Bad) -> None:
    message = str(caught(bad))
    print(message)
    for fragment in bad.fragments:
        assert fragment in message, f"{fragment!r} is not in the message"
    assert "\n" not in message


@pytest.mark.parametrize(("function", "bad"), ROWS, ids=[f"{f}: {bad.name}" for f, bad in ROWS])
def test_raises(function: str, bad: Bad) -> None:
    check(bad)


def test_torch_raises() -> None:
    import_torch()
    for function, rows in tables().items():
        if function.startswith("torch."):
            for bad in rows:
                check(bad)


def test_every_public_function_is_there() -> None:
    """And at least 60 kinds."""
    import_torch()
    named = {function.split(",")[0] for function in tables()}
    public = set(bsrgemm.__all__) | {f"torch.{name}" for name in bsrgemm.torch.__all__}
    takes_nothing = {"__version__", "get_num_threads", "DeviceUnavailableError", "Plan"}
    assert named - public == {"_core.attention"}
    assert public - named == takes_nothing | {"torch.Replacement"}
    kinds = {(function, bad.name) for function, bad in ROWS}
    assert len(kinds) == len(ROWS) >= 60


def test_messages_are_those_of_the_document() -> None:
    """`python tests/malformed_table.py` writes docs/errors.md."""
    import_torch()
    assert malformed_table.document() == malformed_table.DOCUMENT.read_text()


def test_messages_say_what_is_accepted() -> None:
    """In one of the forms of words that the package has for it."""
    forms = r"accepted|must|but|only|use |needed|lacks|overlaps|at one address|aligned|missing"
    for function, bad in ROWS:
        if not bad.varies:
            message = str(caught(bad))
            assert re.search(forms, message), f"{function}, {bad.name}: {message}"


def test_the_valid_matrix_is_valid() -> None:
    """So that each input above fails for its one defect."""
    assert np.array_equal(build() @ x(6, 3), [[4, 4, 4]] * 2 + [[2, 2, 2]] * 2)


def test_failed_products_leave_out_alone() -> None:
    out = np.full((4, 3), np.nan, np.float32)
    with pytest.raises(ValueError, match="beta"):
        matmul(build(), x(6, 3), beta=1, out=out)
    with pytest.raises(TypeError, match="c"):
        matmul(build(), x(6, 3), x(4, 3, dtype=np.float64), out=out)
    assert np.isnan(out).all()


def test_gradients_of_attention_are_refused() -> None:
    torch = import_torch()
    q = torch.ones(1, 1, 2, 4, requires_grad=True)
    k = torch.ones(1, 1, 3, 4)
    with pytest.raises(TypeError, match="q requires grad, and autograd is not supported"):
        attention(q, k, k)
    with torch.no_grad():
        assert attention(q, k, k).shape == (1, 1, 2, 4)
