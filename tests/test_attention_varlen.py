"""Packed sequences on the CPU against the float64 reference of each."""

from __future__ import annotations

from typing import Any

import bsrgemm
import numpy as np
import pytest
import varlen_cases as table
from bsrgemm import BlockMask, attention
from cases import DTYPES, numpy_dtype
from spaces import CPU_SPACES, Space, import_torch
from varlen_cases import Packed, check, offsets


@pytest.mark.parametrize("name", table.CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cases(name: str, dtype: str, rng: np.random.Generator) -> None:
    check(CPU_SPACES[0], table.CASES[name], dtype, rng)


@pytest.mark.parametrize("name", ["causal", "rest", "strided", "int64"])
@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_libraries(name: str, space: Space, rng: np.random.Generator) -> None:
    space.check()
    check(space, table.CASES[name], "float32", rng)


def test_same_bits_as_each_sequence_alone(rng: np.random.Generator) -> None:
    case = table.CASES["grouped"]
    given = table.make(rng, case, "float32")
    before = bsrgemm.get_num_threads()
    try:
        for threads in (1, 2, 5):
            bsrgemm.set_num_threads(threads)
            found, lse = table.call(CPU_SPACES[0], case, given.packed, return_lse=True)
            for i, (q, k, v) in enumerate(given.single):
                out, sums = attention(q, k, v, is_causal=True, enable_gqa=True, return_lse=True)
                rows = slice(sum(case.queries[:i]), sum(case.queries[: i + 1]))
                assert np.array_equal(found[rows].swapaxes(0, 1), out[0])
                assert np.array_equal(lse[:, rows], sums[0])
    finally:
        bsrgemm.set_num_threads(before)


def test_sequences_do_not_see_one_another(rng: np.random.Generator) -> None:
    """NaN in one of them stays there."""
    case = Packed((70, 50, 3, 80), (70, 60, 3, 90), {"causal": True})
    arrays = table.make(rng, case, "float32").packed
    expected = table.call(CPU_SPACES[0], case, arrays)
    for x, begin, end in zip(arrays, (70, 70, 70), (120, 130, 130), strict=True):
        x[begin:end] = np.nan
    found = table.call(CPU_SPACES[0], case, arrays)
    assert np.isnan(found[70:120]).all()
    for rows in (slice(0, 70), slice(120, None)):
        assert np.array_equal(found[rows], expected[rows])


@pytest.mark.parametrize("space", CPU_SPACES, ids=repr)
def test_eight_bits(space: Space, rng: np.random.Generator) -> None:
    """As each sequence alone, whose checks are test_attention_fp8's; factors are those of heads."""
    space.check()
    case = table.CASES["grouped"]
    given = table.make(rng, case, "float8_e4m3fn")
    factors = {
        f"{name}_descale": space.array(rng.uniform(0.3, 2.0, (1, 2)).astype(np.float32))
        for name in "qkv"
    }
    arrays = [space.array(x) for x in given.packed]
    found, lse = (
        space.host(x) for x in table.call(space, case, arrays, return_lse=True, **factors)
    )
    assert found.dtype == numpy_dtype("bfloat16")
    first = 0
    for single, queries in zip(given.single, case.queries, strict=True):
        out, sums = attention(
            *map(space.array, single),
            is_causal=True,
            enable_gqa=True,
            return_lse=True,
            **factors,
        )
        rows = slice(first, first + queries)
        first += queries
        assert np.array_equal(found[rows].swapaxes(0, 1), space.host(out)[0])
        assert np.array_equal(lse[:, rows], space.host(sums)[0])


def test_no_sequences() -> None:
    x = np.ones((0, 2, 8), np.float32)
    zero = np.zeros(1, np.int32)
    out, lse = attention(x, x, x, cu_seqlens_q=zero, cu_seqlens_k=zero, return_lse=True)
    assert out.shape == (0, 2, 8) and lse.shape == (2, 0)


def test_random() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    from hypothesis import given
    from hypothesis import strategies as st
    from strategies import CPU_EXAMPLES, profile

    length = st.integers(0, 150) | st.sampled_from([0, 1, 24, 48, 64])
    bound = st.integers(-1, 160)

    @profile(CPU_EXAMPLES)
    @given(
        st.lists(st.tuples(length, length), min_size=1, max_size=12),
        st.booleans(),
        st.sampled_from(["bottom_right", "top_left"]),
        st.none() | st.tuples(bound, bound),
        st.none() | st.just(5.0),
        st.sampled_from([(1, None), (3, None), (4, 2)]),
        st.sampled_from(DTYPES),
        st.integers(0, 2**32 - 1),
    )
    def run(
        lengths: list[tuple[int, int]],
        causal: bool,
        alignment: str,
        window: tuple[int, int] | None,
        softcap: float | None,
        heads: tuple[int, int | None],
        dtype: str,
        seed: int,
    ) -> None:
        options = {
            "size": 16,
            "causal": causal,
            "alignment": alignment,
            "window": window,
            "softcap": softcap,
            "heads": heads[0],
            "kv_heads": heads[1],
        }
        queries, keys = zip(*lengths, strict=True)
        check(CPU_SPACES[0], Packed(queries, keys, options), dtype, np.random.default_rng(seed))

    run()


# ---- malformed ----------------------------------------------------------------------------------


def call(**changes: Any) -> Any:
    x = np.ones((10, 4, 8), np.float32)
    lengths = np.array([0, 4, 10], np.int32)
    given = {"q": x, "k": x, "v": x, "cu_seqlens_q": lengths, "cu_seqlens_k": lengths}
    return attention(**(given | changes))


MALFORMED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "one of them": ({"cu_seqlens_k": None}, TypeError, "cu_seqlens_k is None; accepted: an array"),
    "bound alone": (
        {"cu_seqlens_k": None, "cu_seqlens_q": None, "max_seqlen_q": 3},
        TypeError,
        "cu_seqlens_q is None; accepted",
    ),
    "four dimensions": (
        {"q": np.ones((1, 4, 10, 8), np.float32)},
        ValueError,
        r"q has shape \(1, 4, 10, 8\); accepted: with cu_seqlens_q three dimensions",
    ),
    "floats": (
        {"cu_seqlens_q": np.array([0.0, 10.0])},
        TypeError,
        "cu_seqlens_q has dtype float64, but must have dtype int32 or int64",
    ),
    "other number": (
        {"cu_seqlens_k": np.array([0, 10])},
        ValueError,
        r"cu_seqlens_k has shape \(2,\), but must have shape \(3,\), that of cu_seqlens_q",
    ),
    "strided": (
        {"cu_seqlens_k": np.zeros(6, int)[::2]},
        ValueError,
        "cu_seqlens_k has strides of 2 elements, but must be C-contiguous",
    ),
    "two dimensions": (
        {"cu_seqlens_q": np.array([[0, 10]])},
        ValueError,
        r"cu_seqlens_q has shape \(1, 2\)",
    ),
    "nothing": ({"cu_seqlens_q": np.zeros(0, int)}, ValueError, r"cu_seqlens_q has shape \(0,\)"),
    "descending": (
        {"cu_seqlens_q": np.array([0, 6, 4])},
        ValueError,
        r"cu_seqlens_q\[2\] is 4, but must be from 6",
    ),
    "negative": ({"cu_seqlens_k": np.array([-1, 6, 8])}, ValueError, r"cu_seqlens_k\[0\] is -1"),
    "beyond the rows": (
        {"cu_seqlens_k": np.array([0, 6, 11])},
        ValueError,
        r"cu_seqlens_k\[2\] is 11, but must be from 6, .* to 10",
    ),
    "too long": (
        {"max_seqlen_q": 5},
        ValueError,
        "max_seqlen_q is 5, but sequence 1 has 6 rows",
    ),
    "bound of a wrong kind": ({"max_seqlen_k": 5.5}, TypeError, "max_seqlen_k is 5.5, but must be"),
    "layout": ({"layout": "bshd"}, ValueError, "layout is 'bshd' and cu_seqlens_q is given"),
    "mask": (
        {"block_mask": BlockMask.from_dense([[True]], (16, 16))},
        ValueError,
        "block_mask and cu_seqlens_q are both given",
    ),
    "out in cu_seqlens_q": (
        {
            "out": (memory := np.zeros((10, 4, 8), np.float32)),
            "cu_seqlens_q": memory.view(np.int32)[0, 0, :3],
        },
        ValueError,
        "out overlaps cu_seqlens_q in memory",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str) -> None:
    changes, error, message = MALFORMED[name]
    with pytest.raises(error, match=message):
        call(**changes)


def test_bounds_may_be_left_out(rng: np.random.Generator) -> None:
    torch = import_torch()
    case = table.CASES["causal"]
    arrays = [torch.from_numpy(x) for x in table.make(rng, case, "float32").packed]
    lengths = torch.from_numpy(offsets(case.queries, "int64"))
    found = attention(*arrays, cu_seqlens_q=lengths, cu_seqlens_k=lengths, is_causal=True)
    assert torch.equal(found, table.call(CPU_SPACES[1], case, arrays))
