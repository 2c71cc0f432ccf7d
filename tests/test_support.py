"""docs/support.md is what the library says; that what it refuses, it refuses with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

import bsrgemm
import numpy as np
import pytest
from bsrgemm import _check_cases, _core
from cases import numpy_dtype, problem, uniform
from operations import matrix
from spaces import CPU_SPACES, import_torch

pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
import_torch()

import support  # noqa: E402, of tools/; it needs torch


@pytest.fixture(scope="module")
def document() -> str:
    return support.document()


def cells(document: str) -> Iterator[str]:
    for line in document.splitlines():
        if line.startswith("| "):
            yield from line.split(" | ")[1:]


def test_is_up_to_date(document: str) -> None:
    written = support.OUTPUT.read_text()
    assert written == document, "docs/support.md is out of date: run python tools/support.py"


class PretendedGPU(_check_cases.Place):
    """Of a rehearsal."""

    def __init__(self, chip: dict) -> None:
        super().__init__("cpu")
        self.gpu = chip

    def array(self, x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(x)


def test_hopper_gives_check_the_families_that_it_asks_for(rng: np.random.Generator) -> None:
    """`python -m bsrgemm check` names kernels, which may refuse operands, results or options."""
    chip = support.CHIPS["Hopper"] | {"hbm_bytes_per_s": 4.2e12}  # as a GPU says it
    asked = set()
    with support.rehearsal(chip) as stage:
        for case in _check_cases.product_cases(PretendedGPU(chip)):
            if case.group == "kernel families" and case.run is not None:
                stage.families.clear()
                case.run(rng)  # which computes nothing here
                assert stage.families[-1] in case.name, case
                asked.add(stage.families[-1])
    assert asked >= {"tall", "align", "widen", "kstream", "sampled", "pairs", "portable"}


def test_every_error_names_what_is_accepted(document: str) -> None:
    notes = re.findall(r"^- \[\d+\] (.*)", document, flags=re.MULTILINE)
    assert len(notes) > 20
    for note in notes:
        assert re.match("(Type|Value)Error: ", note), note
        assert support.NAMES_WHAT_IS_ACCEPTED.search(note), note


def test_every_family_serves_something(document: str) -> None:
    found = {name for cell in cells(document) for name in re.findall(r"\w+", cell)}
    families = {
        "tall",
        "stream",
        "regroup",
        "align",
        "narrow",
        "portable",
        "kmajor",
        "widen",
        "kstream",
        "pairs",
    }
    assert families | {"sampled", "hopper", "decode", "cpu", "yes"} <= found


def test_agrees_with_plans(rng: np.random.Generator) -> None:
    """A question about contiguous operands is what a plan is of."""
    seen = set()
    whole, cut = (0, 0), (2, 1)
    cases = ((128, 128), whole), ((64, 16), whole), ((32, 32), whole), ((8, 16), whole)
    for blocksize, less in (*cases, ((3, 5), whole), ((128, 128), cut), ((3, 5), cut)):
        for n in (1, 8, 264, 1001):
            p = problem(rng, uniform(0.3)(rng, 20, 24), blocksize, n, "float16", cut=less)
            a = matrix(CPU_SPACES[0], p)
            x, y = np.empty((p.shape[1], n), np.float16), np.empty((p.shape[0], n), np.float16)
            for arch in (80, 90):
                chip = {"sm_arch": arch}
                arguments = (a._structure, a.data, x, y)
                family = _core.matmul(*arguments, chip=chip)
                assert family == a.plan(n, chip=chip).choice
                seen.add(family)
    assert len(seen) > 3


def test_computes_nothing(rng: np.random.Generator) -> None:
    p = problem(rng, np.ones((2, 2), bool), (4, 4), 3, "float32")
    a, out = matrix(CPU_SPACES[0], p), np.full((8, 3), 7, np.float32)
    x = np.ones((8, 3), np.float32)
    assert _core.matmul(a._structure, a.data, x, out, chip={}) == "portable"
    assert (out == 7).all()
    with support.rehearsal(support.CHIPS["Hopper"]) as stage:
        pattern = bsrgemm.DynamicPattern((4096, 4096), (128, 128), 256, device="cuda")
        array = pattern.array(np.zeros((256, 128, 128), np.float16))
        bsrgemm.matmul(array, np.zeros((4096, 1024), np.float16))
        assert stage.families == ["tall"]
    with pytest.raises(ValueError, match="takes calls with a question only"):
        x = np.zeros((4096, 8), np.float16)
        _core.matmul(pattern._structure, array.data, x, x.copy())


def test_old_gpus_are_refused() -> None:
    p = problem(np.random.default_rng(0), np.ones((2, 2), bool), (4, 4), 3, "float32")
    a = matrix(CPU_SPACES[0], p)
    x = np.ones((8, 8), np.float32)
    old = {"sm_arch": 75}
    with pytest.raises(bsrgemm.DeviceUnavailableError, match="8.0 or later"):
        _core.matmul(a._structure, a.data, x, x.copy(), chip=old)
    with pytest.raises(bsrgemm.DeviceUnavailableError, match="8.0 or later"):
        _core.matmul_sparse(a._structure, a.data, a._structure, a.data, x, chip=old)
    with pytest.raises(bsrgemm.DeviceUnavailableError, match="8.0 or later"):
        _core.sampled_matmul(a._structure, x, x, a.data.copy(), chip=old)
    with pytest.raises(bsrgemm.DeviceUnavailableError, match="8.0 or later"):
        _core.softmax(a._structure, a.data, a.data.copy(), chip=old)
    q = np.zeros((1, 1, 4, 8), np.float16)
    with pytest.raises(bsrgemm.DeviceUnavailableError, match="8.0 or later"):
        _core.attention(q, q, q, q.copy(), chip=old)


def test_copies_of_attention_say_what_they_lack() -> None:
    """Head sizes are no obstacle where rows are copied and filled up: what remains one is named."""
    q = np.zeros((1, 1, 40, 12), numpy_dtype("float8_e4m3fn"))
    mask = bsrgemm.BlockMask.from_dense(np.ones((5, 5), bool), (8, 8))
    with (
        support.rehearsal(support.CHIPS["Hopper"]) as stage,
        pytest.raises(ValueError, match="needs a block_mask whose blocks have sides that are mult"),
    ):
        bsrgemm.attention(q, q, q, block_mask=mask)
    with support.rehearsal(support.CHIPS["Hopper"]) as stage:
        bsrgemm.attention(q, q, q)
        assert stage.families == ["hopper"]


def test_large_softcaps_take_the_exact_tanh() -> None:
    """Beyond what the Hopper kernels compute to the bits of the result."""
    q = np.zeros((1, 2, 128, 64), np.float16)
    assert _core.attention(q, q, q, q.copy(), softcap=4096.0, chip={}) == "hopper"
    assert _core.attention(q, q, q, q.copy(), softcap=4097.0, chip={}) == "portable"
    with pytest.raises(ValueError, match="'hopper' needs a softcap of at most 4096"):
        _core.attention(q, q, q, q.copy(), softcap=4097.0, family="hopper", chip={})
    x, out = (np.zeros(q.shape, numpy_dtype(name)) for name in ("float8_e4m3fn", "bfloat16"))
    assert _core.attention(x, x, x, out, softcap=65536.0, chip={}) == "hopper"
    with pytest.raises(ValueError, match="needs a softcap of at most 65536 for float8_e4m3fn"):
        _core.attention(x, x, x, out, softcap=65537.0, chip={})


@pytest.mark.parametrize("shape", [(0, 2, 8, 16), (1, 2, 0, 16)])
def test_dtypes_are_refused_without_elements_too(shape: tuple[int, ...]) -> None:
    nothing = np.empty(shape, np.float32)
    assert bsrgemm.attention(nothing, nothing, nothing).shape == shape
    with (
        support.rehearsal(support.CHIPS["Hopper"]),
        pytest.raises(TypeError, match="needs float16, bfloat16 or, on Hopper, float8_e4m3fn"),
    ):
        bsrgemm.attention(nothing, nothing, nothing)
