"""Attention of float8_e4m3fn on the CPU against the float64 reference, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attention_cases as table
import bsrgemm
import fake_cuda
import numpy as np
import pytest
from attention_cases import Case, masked
from attention_fp8 import DTYPE, check
from bsrgemm import attention
from cases import normal, numpy_dtype
from spaces import CPU_SPACES, Space, import_torch

FACTORS = ("none", "numbers", "shared", "each")


@pytest.mark.parametrize("name", table.PLAIN)
@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_plain(name: str, space: Space, rng: np.random.Generator) -> None:
    space.check()
    check(space, table.PLAIN[name], rng)


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_masks(space: Space, rng: np.random.Generator) -> None:
    space.check()
    for case in table.masks(rng).values():
        check(space, case, rng)


@pytest.mark.parametrize("how", FACTORS)
@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_factors(how: str, space: Space, rng: np.random.Generator) -> None:
    space.check()
    check(space, Case(90, 100, batch=3, heads=8, kv_heads=4), rng, how)
    check(space, Case(90, 100, batch=2, heads=4, kv_heads=2, softcap=3.0), rng, how)


def test_strided_factors(rng: np.random.Generator) -> None:
    check(CPU_SPACES[0], Case(90, 100, batch=3, heads=8, kv_heads=4), rng, "strided")


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_every_number_comes_through(space: Space) -> None:
    """All weight on one key: its value is the result, whatever its bits are."""
    space.check()
    every = np.arange(256, dtype=np.uint8).view(numpy_dtype(DTYPE)).reshape(1, 1, 1, 256)
    one = np.ones((1, 1, 1, 16), every.dtype)
    found = attention(*map(space.array, (one, one, every)))
    expected = every.astype(np.float32)
    assert np.array_equal(space.host(found).astype(np.float32), expected, equal_nan=True)


def test_result_is_new_and_bfloat16(rng: np.random.Generator) -> None:
    for space in CPU_SPACES:
        space.check()
        q, k, v = (space.array(normal(rng, (2, 2, n, 16), DTYPE)) for n in (20, 30, 30))
        out, lse = attention(q, k, v, return_lse=True)
        assert type(out) is type(q) and space.host(out).dtype == numpy_dtype("bfloat16")
        assert space.host(lse).dtype == np.float32


def test_factors_may_be_zero(rng: np.random.Generator) -> None:
    q, k, v = (normal(rng, (1, 1, 30, 16), DTYPE) for _ in range(3))
    mean = v.astype(np.float64).mean(axis=2)
    found = attention(q, k, v, q_descale=0.0).astype(np.float64)
    assert np.abs(found - mean[:, :, None]).max() <= 2.0**-8
    assert not attention(q, k, v, v_descale=0).any()


def x(*shape: int, dtype: str = DTYPE) -> np.ndarray:
    return np.ones(shape, numpy_dtype(dtype))


def call(dtype: str = DTYPE, **options: Any) -> Any:
    """A call that is right but for what is replaced: 2 batches, 4 heads, 2 of them of keys."""
    q, k = x(2, 4, 6, 16, dtype=dtype), x(2, 2, 8, 16, dtype=dtype)
    return attention(q, k, options.pop("v", k), enable_gqa=True, **options)


MALFORMED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "out of 8 bits": (
        lambda: call(out=x(2, 4, 6, 16)),
        TypeError,
        "out has dtype float8_e4m3fn, but must have dtype float16, bfloat16",
    ),
    "out of float32": (
        lambda: call(out=x(2, 4, 6, 16, dtype="float32")),
        TypeError,
        "out has dtype float32, but must have dtype bfloat16, as q has dtype float8_e4m3fn",
    ),
    "v of another dtype": (
        lambda: call(v=x(2, 2, 8, 16, dtype="bfloat16")),
        TypeError,
        "v has dtype bfloat16, but q has dtype float8_e4m3fn",
    ),
    "factor of another dtype": (
        lambda: call(dtype="float32", q_descale=2.0),
        TypeError,
        "q_descale is given, but q has dtype float32",
    ),
    "factors of float64": (
        lambda: call(k_descale=np.ones((2, 2))),
        ValueError,
        "k_descale has dtype float64 and shape",
    ),
    "factors of each head of q": (
        lambda: call(v_descale=np.ones((2, 4), np.float32)),
        ValueError,
        r"shape \(\) or \(batch, key heads\) = \(2, 2\)",
    ),
    "negative factor": (lambda: call(q_descale=-1.0), ValueError, "q_descale is -1, but must be"),
    "NaN as factor": (
        lambda: call(v_descale=float("nan")),
        ValueError,
        "v_descale is nan, but must be a float32 of at least 0",
    ),
    "string as factor": (lambda: call(k_descale="1"), TypeError, "k_descale is of type str"),
    "backend of GPUs": (lambda: call(backend="hopper"), ValueError, "operands are on cpu"),
    "product": (
        lambda: bsrgemm.bsr_array(np.eye(8, dtype=np.float32), blocksize=(4, 4)) @ x(8, 2),
        TypeError,
        "b has dtype float8_e4m3fn, but a.data has dtype float32",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str) -> None:
    run, error, text = MALFORMED[name]
    with pytest.raises(error, match=text):
        run()


def test_factors_share_no_memory_with_the_result() -> None:
    torch = import_torch()
    memory = torch.zeros(4096)
    out = memory.view(torch.bfloat16)[: 2 * 4 * 6 * 16].view(2, 4, 6, 16)
    q, k = (torch.zeros(2, h, n, 16).to(torch.float8_e4m3fn) for h, n in ((4, 6), (2, 8)))
    with pytest.raises(ValueError, match="out overlaps v_descale in memory"):
        attention(q, k, k, enable_gqa=True, out=out, v_descale=memory[:4].view(2, 2))


def test_random_masks(rng: np.random.Generator) -> None:
    for density in (0.1, 0.5, 0.9):
        case = masked(rng, Case(200, 300, heads=2, causal=True), (32, 64), density, lead=(1, 2))
        check(CPU_SPACES[0], case, rng)


@fake_cuda.needs_kernels
def test_kernels_of_calls_without_keys() -> None:
    """Those that calls of 16 bits have; named ones refuse it as with keys or with 16 bits."""
    script = """
        import ml_dtypes
        import numpy as np
        from bsrgemm import DeviceArray, attention
        from fake_cuda import driver

        for queries in (3, 300):
            shapes = (1, 2, queries, 32), (1, 2, 0, 32), (1, 2, 0, 16)
            arrays = [
                DeviceArray.from_host(np.zeros(shape, ml_dtypes.float8_e4m3fn)) for shape in shapes
            ]
            attention(*arrays)
            print(driver().fake_last_kernel().decode())
        for backend in ("hopper", "portable"):
            try:
                attention(*arrays, backend=backend)
            except ValueError as error:
                print(error)
    """
    few, many, *refused = fake_cuda.run(script, arch=90).splitlines()
    assert (few, many) == ("attention_decode_bf16_d64_r16", "portable_attention_bf16_d32")
    assert [line.rpartition("needs ")[2] for line in refused] == [
        "at least one key",
        "float16 or bfloat16; float8_e4m3fn is computed by 'hopper' and 'cpu'",
    ]
