"""The benchmark harness for attention: cases, the suite on small ones, and its tables."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from test_benchmarks import ROOT, HostTimer
from test_benchmarks_tables import write_run

from benchmarks import attention_peers, attention_suite, cpu_attention, records, report
from benchmarks.__main__ import main
from benchmarks.attention_cases import (
    AttentionCase,
    SparseDecodeCase,
    cpu_attention_cases,
    gpu_attention_cases,
)
from benchmarks.attention_suite import AttentionSuite
from benchmarks.cases import select

# ---- cases ---------------------------------------------------------------------------------------


def test_cases_are_consistent() -> None:
    cases = [*gpu_attention_cases(), *cpu_attention_cases(["float32", "float16"])]
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.fields == json.loads(json.dumps(case.fields))
        if case.block is None or isinstance(case, SparseDecodeCase):
            continue
        blocks = case.make_blocks()
        heads = case.heads if case.pattern == "random" else 1
        assert blocks.shape[-2:] == case.grid and blocks.size == heads * np.prod(case.grid)
        assert blocks.sum() == case.nnzb * heads, case.name
        assert np.array_equal(blocks, case.make_blocks())
        assert (case.grid[0] * case.block[0], case.grid[1] * case.block[1]) == (case.keys,) * 2
    masks = select(cases, "^masks/")
    for pattern in ("uniform", "random"):
        wanted = sorted(case.density for case in select(masks, f"32768.*{pattern}"))
        assert wanted == pytest.approx([0.05, 0.125, 0.25, 0.5], rel=0.02)


def test_useful_work() -> None:
    full, causal = select(gpu_attention_cases(), "^dense/bfloat16/4x16x4096x128/")
    assert full.useful_flops == 2 * causal.useful_flops == 4 * 64 * 4096**2 * 128
    (decode,) = select(gpu_attention_cases(), "^decode/")
    assert decode.useful_flops == 4 * 16 * 32 * 8192 * 128
    assert decode.fields["bytes"] == 2 * 2 * 16 * 8 * 8192 * 128
    full, causal = select(gpu_attention_cases(), "^varlen/bfloat16/32x16x256-8192x128/")
    pairs = sum(n * n for n in full.lengths)
    assert full.useful_flops == 2 * causal.useful_flops == pytest.approx(4 * 16 * pairs * 128)
    assert full.q_shape == full.k_shape == (1, 16, sum(full.lengths), 128)
    (mask,) = select(gpu_attention_cases(), "^masks/.*16384x128/128x128/d0.125/uniform")
    assert mask.useful_flops == 4 * 16 * 128 * 16 * 128**2 * 128


def test_few_queries_read_some_blocks() -> None:
    cases = select(gpu_attention_cases(), "^sparse_decode/")
    assert [case.queries for case in cases] == [4, 1, 8, 4, 4]
    for case in cases:
        blocks = case.make_blocks()
        # One query, or four, are a row of blocks of 16.
        assert case.grid == (1, case.keys // 64) and case.grid[1] * 64 == case.keys
        assert blocks.shape == (case.batch, 8, *case.grid)
        assert set(blocks.sum(axis=3).flat) == {case.count}
        assert case.density == case.count / case.grid[1] in (1 / 4, 1 / 8, 1 / 16)
        assert case.fields["bytes"] == case.density * case.cache_bytes
        assert case.useful_flops == 4 * case.queries * case.batch * 32 * case.count * 64 * 128
        assert len(np.unique(blocks.reshape(-1, case.grid[1]), axis=0)) == case.batch * 8
    chosen, given = cases[4], cases[0]
    assert chosen.is_chosen and np.array_equal(chosen.make_blocks(), given.make_blocks())
    assert chosen.name.endswith("/topk/q4/m8") and given.name.endswith("/uniform/q4/m8")


def test_few_queries_read_what_any_of_them_needs() -> None:
    """By keys that a mask names for each head of q."""
    for mask_heads in (1, 2, 6):
        case = small_decode(heads=6, mask_heads=mask_heads, queries=17)
        blocks = case.make_blocks()
        assert blocks.shape == (2, mask_heads, 2, 8)
        needed = blocks.repeat(6 // mask_heads, axis=1).reshape(2, 2, 6, 8).any(axis=2)
        assert case.needed_bytes == needed.sum() * 32 * 2 * 32 * 4


def test_random_mask_differs_between_heads_and_rows() -> None:
    (case,) = select(gpu_attention_cases(), "^masks/.*16384x128/.*/d0.125/random")
    counts = case.make_blocks().sum(axis=2)
    assert counts.shape == (16, 128) and counts.min() < 10 < 22 < counts.max()
    # Of a binomial distribution, to five deviations of the mean of 2,048 rows.
    assert abs(counts.mean() - 16) < 5 * (16 * 0.875 / counts.size) ** 0.5
    assert counts.var() == pytest.approx(16 * 0.875, rel=0.2)
    assert case.useful_flops == 4 * 128**3 * counts.sum()


def test_random_masks_have_the_density_that_was_asked_for() -> None:
    cases = select(gpu_attention_cases(), "^masks/.*/random$")
    expected = [0.05, 0.125, 0.25, 0.5] * 2
    assert [case.count / case.grid[1] for case in cases] == pytest.approx(expected)
    assert [case.make_blocks().mean() for case in cases] == pytest.approx(expected, rel=0.02)


def test_causal_mask_has_the_diagonal_and_nothing_after_it() -> None:
    whole, case = select(gpu_attention_cases(), "^masks/.*/(diagonal|causal)$")
    blocks = case.make_blocks()
    assert case.causal and not whole.causal and np.array_equal(blocks, whole.make_blocks())
    assert whole.visible - case.visible == 128 * 128**2 / 2
    assert blocks.diagonal().all() and not np.triu(blocks, 1).any()
    assert set(blocks.sum(axis=1)[16:]) == {16}
    seen = np.kron(blocks, np.ones((8, 8))) * np.tri(1024)
    # What lies on the diagonal itself counts half.
    assert (seen.sum() - 512) / 64 * 128**2 == case.visible


def test_no_baseline_with_too_many_scores() -> None:
    cases = {case.name: attention_peers.wanted(case) for case in gpu_attention_cases()}
    assert "composed" in cases["dense/bfloat16/1x8x16384x256/full"]
    assert "composed" not in cases["dense/bfloat16/1x16x16384x128/full"]
    assert cases["masks/bfloat16/1x16x16384x128/64x64/d0.5/uniform"] == ["bsrgemm_dense", "flex"]


# ---- suite ---------------------------------------------------------------------------------------


def small(**changes: Any) -> AttentionCase:
    case = {"group": "dense", "dtype": "float32", "batch": 2, "heads": 2, "keys": 256, "size": 32}
    return AttentionCase(**(case | changes))


def small_mask(pattern: str = "uniform", **changes: Any) -> AttentionCase:
    mask = {"group": "masks", "block": (32, 32), "count": 3, "pattern": pattern}
    return small(**(mask | {"causal": pattern == "causal"} | changes))


def small_decode(**changes: Any) -> SparseDecodeCase:
    case = {"group": "sparse_decode", "dtype": "float32", "batch": 2, "heads": 4, "keys": 256}
    case |= {"size": 32, "queries": 3, "kv_heads": 2, "block": (16, 32), "count": 3}
    return SparseDecodeCase(**(case | {"mask_heads": 2} | changes))


def small_packed(**changes: Any) -> AttentionCase:
    packed = {"group": "varlen", "batch": 3, "lengths": (30, 256, 77)}
    return small(**(packed | changes))


def host_suite(**changes: Any) -> AttentionSuite:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return AttentionSuite(torch, "cpu", HostTimer(), **changes)


def flash3_of_torch(torch: Any) -> ModuleType:
    """Stands in for FlashAttention-3, in its layout."""

    def flash_attn_func(
        q: Any, k: Any, v: Any, causal: bool, num_splits: int = 1, **factors: Any
    ) -> Any:
        assert num_splits == (0 if q.shape[1] == 1 else 1)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if q.dtype == torch.float8_e4m3fn:
            shared = [x[..., None, None] for x in factors.values()]
            shared[0] = shared[0].repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            q, k, v = (x.float() * y for x, y in zip((q, k, v), shared, strict=True))
        else:
            assert not factors
        attend = torch.nn.functional.scaled_dot_product_attention
        out = attend(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2)

    def flash_attn_varlen_func(
        q: Any,
        k: Any,
        v: Any,
        ends_q: Any,
        ends_k: Any,
        longest_q: int,
        longest_k: int,
        causal: bool,
    ) -> Any:
        assert ends_q.dtype == torch.int32 and torch.equal(ends_q, ends_k)
        assert longest_q == longest_k == int(ends_q.diff().max())
        rows = [slice(a, b) for a, b in itertools.pairwise(ends_q.tolist())]
        found = [flash_attn_func(q[None, i], k[None, i], v[None, i], causal)[0] for i in rows]
        return torch.cat(found)

    module = ModuleType("fa3_fwd_interface")
    module.flash_attn_func = flash_attn_func
    module.flash_attn_varlen_func = flash_attn_varlen_func
    return module


def test_reference_is_attention_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = host_suite()
    torch = suite.torch
    monkeypatch.setattr(attention_suite, "SCORES_AT_A_TIME", 4 * 100 * 256)  # in three parts
    for case in (
        small(),
        small(causal=True, dtype="bfloat16"),
        small(heads=4, kv_heads=2, queries=1),
        small(heads=4, kv_heads=2, queries=100, causal=True),
        small_mask("zipf_rows"),
        small_mask("causal"),
        small_mask("diagonal"),
        small_mask("random"),
        small_mask("two_full_rows", count=2),
        small_decode(),
        small_decode(queries=1, mask_heads=1),
        small_decode(queries=17, mask_heads=4, dtype="bfloat16"),
    ):
        p = suite._problem(case)
        found = suite._reference(p)
        q, k, v = p.q.double(), p.k.double(), p.v.double()
        k, v = (x.repeat_interleave(case.heads // x.shape[1], dim=1) for x in (k, v))
        seen = torch.ones(q.shape[2], case.keys, dtype=torch.bool)
        if case.causal:
            seen = seen.tril(case.keys - q.shape[2])
        if p.blocks is not None:
            blocks = p.blocks
            if blocks.ndim == 4:
                blocks = blocks.repeat(case.heads // blocks.shape[1], axis=1)
            height, width = case.block
            blocks = blocks.repeat(height, axis=-2)[..., : q.shape[2], :].repeat(width, axis=-1)
            seen = seen & torch.from_numpy(blocks)
        scores = (q @ k.mT / 32**0.5).masked_fill(~seen, float("-inf"))
        expected = torch.nan_to_num(scores.softmax(dim=3)) @ v
        assert torch.allclose(found.expected, expected, rtol=1e-12, atol=1e-14), case.name
        least, most = (1e-8, 1e-6) if case.dtype == "float32" else (5e-4, 1e-2)
        assert least < found.dense_error < most, case.name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_suite_measures_and_leaves_out(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = host_suite()
    results = records.Results(tmp_path / "attention.json", records.facts("abc", None))
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", flash3_of_torch(suite.torch))
    decode = small(group="decode", dtype=dtype, heads=4, kv_heads=2, queries=1)
    for case in (small(dtype=dtype), small(dtype=dtype, causal=True), decode):
        outcome = suite.run(case)
        assert not outcome.wrong, outcome.notes
        assert any("cudnn left out: " in note for note in outcome.notes)
        results.add(outcome.rows)
    rows = json.loads((tmp_path / "attention.json").read_text())["rows"]
    assert {row["who"] for row in rows} == {"bsrgemm", "flash3", "flash2", "composed"}
    assert not any("error" in row or "wrong" in row for row in rows)
    ours = [row for row in rows if row["who"] == "bsrgemm"]
    assert [row["timing"] for row in ours] == ["sustained", "burst"] * 3
    assert [row["seen"] for row in ours[::2]] == ["full", "causal", "decode"]
    assert ours[0]["tflops"] == pytest.approx(4 * 4 * 256**2 * 32 / ours[0]["us"] / 1e6, rel=1e-3)
    assert "TB/s" in outcome.notes[0] and "bytes" not in ours[0] and ours[4]["bytes"] > 0

    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", None)
    outcome = suite.run(small(dtype=dtype))
    assert any("flash3 left out: ModuleNotFoundError" in note for note in outcome.notes)
    assert not outcome.wrong and "flash3" not in {row["who"] for row in outcome.rows}


def test_suite_measures_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = host_suite()
    torch = suite.torch
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", flash3_of_torch(torch))
    for case in (
        small_packed(),
        small_packed(causal=True, dtype="bfloat16"),
        small_packed(causal=True, heads=4, kv_heads=2),
    ):
        outcome = suite.run(case)
        assert not outcome.wrong, outcome.notes
        assert {row["who"] for row in outcome.rows} == {"bsrgemm", "flash3"}
        assert not any("wrong" in row for row in outcome.rows)
        # The reference is that of each sequence alone.
        p = suite._problem(case)
        assert attention_peers.packed(p.q).is_contiguous()
        found, first = suite._reference(p), 0
        for n in case.lengths:
            one = suite._problem(small(batch=1, keys=n, heads=case.heads, kv_heads=case.kv_heads))
            one = replace(one, case=replace(one.case, dtype=case.dtype, causal=case.causal))
            one.q, one.k, one.v = (x[:, :, first : first + n] for x in (p.q, p.k, p.v))
            expected = suite._reference(one).expected
            assert torch.equal(found.expected[:, :, first : first + n], expected), case.name
            first += n


def test_suite_measures_eight_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = host_suite()
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", flash3_of_torch(suite.torch))
    fp8 = {"group": "fp8", "dtype": "float8_e4m3fn"}
    for case in (small(**fp8), small(heads=4, kv_heads=2, causal=True, **fp8)):
        outcome = suite.run(case)
        assert not outcome.wrong, outcome.notes
        assert {row["who"] for row in outcome.rows} == {"bsrgemm", "flash3"}
        assert not any("wrong" in row for row in outcome.rows)
        ours = outcome.rows[0]
        # Weights of the reference are rounded to 8 bits, those of the CPU are not.
        assert 0.01 < ours["dense_rel_err"] < 0.05 and ours["rel_err"] < 0.004
    outcome = suite.run(small_mask(**fp8))
    assert not outcome.wrong and {row["who"] for row in outcome.rows} == {"bsrgemm"}

    # Factors count in the reference.
    p = suite._problem(small(**fp8))
    before = suite._reference(p).expected
    p.factors["v_descale"] *= 2
    assert suite.torch.allclose(suite._reference(p).expected, 2 * before)


def test_suite_measures_masks() -> None:
    suite = host_suite(families=["auto", "cpu"])
    from torch.nn.attention.flex_attention import flex_attention

    suite.cache["flex"] = flex_attention  # not compiled, which takes long
    for case in (small_mask(), small_mask("zipf_rows"), small_mask("causal"), small_mask("random")):
        outcome = suite.run(case)
        assert not outcome.wrong, outcome.notes
        who = [row["who"] for row in outcome.rows[::2]]
        assert who == ["bsrgemm", "bsrgemm:cpu", "bsrgemm_dense", "flex"], outcome.notes
        assert outcome.rows[4]["tflops"] > 0
        assert not any("wrong" in row for row in outcome.rows)
        assert outcome.rows[0]["plan_us"] >= 0 and outcome.rows[0]["nnzb"] == case.nnzb


def test_suite_measures_masks_from_scores() -> None:
    case = small_mask(group="topk")
    outcome = host_suite().run(case)
    assert not outcome.wrong, outcome.notes
    who = [row["who"] for row in outcome.rows[::2]]
    assert who == ["bsrgemm", "bsrgemm mask alone", "bsrgemm_dense"], outcome.notes
    assert "mask alone" in outcome.notes[0] and outcome.rows[2]["tflops"] == 0


def flex_over_lists(torch: Any) -> Any:
    """Stands in for FlexAttention's compiled kernels, which look at keys of listed blocks alone."""

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        height, width = mask.BLOCK_SIZE
        seen = mask.to_dense().bool().repeat_interleave(width, dim=3)
        seen = seen.repeat_interleave(height, dim=2)[:, :, : q.shape[2]]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    return attend


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_suite_measures_few_queries_under_masks(dtype: str) -> None:
    suite = host_suite(l2_bytes=1e5)
    suite.cache["flex_decode"] = flex_over_lists(suite.torch)
    others = ["bsrgemm_dense", "flex_decode", "torch_sdpa"]
    for case in (
        small_decode(dtype=dtype),
        small_decode(dtype=dtype, queries=1, mask_heads=1),
        small_decode(dtype=dtype, batch=1, heads=2),
    ):
        outcome = suite.run(case)
        assert not outcome.wrong, outcome.notes
        assert [row["who"] for row in outcome.rows] == ["bsrgemm", *others], outcome.notes
        assert not any("wrong" in row for row in outcome.rows)
        assert {row["timing"] for row in outcome.rows} == {"cold"}
        ours, dense, flex, sdpa = (row["bytes"] for row in outcome.rows)
        assert ours == flex == case.needed_bytes and dense == sdpa == ours * 8 // 3
        assert any("bsrgemm_hopper left out: " in note for note in outcome.notes)
        assert " TB/s" in outcome.notes[0] and " us " in outcome.notes[0]
        copies = suite._copies(suite._problem(case))
        assert (len(copies) - 1) * ours >= 3e5 > (len(copies) - 2) * ours
        assert len({copy.k.data_ptr() for copy in copies}) == len(copies)
    # Heads of q that share keys see different blocks, as do queries of two block rows.
    for case in (small_decode(dtype=dtype, mask_heads=4), small_decode(dtype=dtype, queries=17)):
        outcome = suite.run(case)
        assert not outcome.wrong and len(outcome.rows) == 2, outcome.notes
        assert "torch_sdpa left out: ValueError: queries that share" in outcome.notes[-1]


def test_suite_measures_few_queries_under_masks_from_scores() -> None:
    case = small_decode(pattern="topk")
    outcome = host_suite(l2_bytes=1e5).run(case)
    assert not outcome.wrong, outcome.notes
    who = [row["who"] for row in outcome.rows]
    assert who == ["bsrgemm", "bsrgemm mask alone", "bsrgemm_dense"], outcome.notes


def test_suite_finds_wrong_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention_suite.attention

    def one_element_missing(*arguments: Any, out: Any, **options: Any) -> Any:
        right(*arguments, out=out, **options)
        out[-1, -1, -1, -1] = float("nan")
        return out

    def without_its_mask(*arguments: Any, block_mask: Any, **options: Any) -> Any:
        return right(*arguments, **options)

    monkeypatch.setattr(attention_suite, "attention", one_element_missing)
    outcome = host_suite(peers=[]).run(small())
    assert outcome.wrong and outcome.rows[0]["wrong"] and outcome.rows[0]["rel_err"] is None
    monkeypatch.setattr(attention_suite, "attention", without_its_mask)
    assert host_suite(peers=[]).run(small_mask()).wrong
    assert host_suite(peers=[]).run(small_decode()).wrong
    # What ours raises is an error, not something to leave out.
    outcome = host_suite(peers=[], families=["hopper"]).run(small())
    assert outcome.wrong and "hopper" in outcome.rows[0]["error"]


def test_cpu_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    case = small(timings=("rounds",))
    rows = cpu_attention.measure(case, ["numpy_dense", "torch_sdpa"], 2)
    assert [row["who"] for row in rows] == ["bsrgemm", "torch_sdpa"]
    assert all(row["rel_err"] < 1e-6 and row["runs"] == 2 for row in rows)
    assert not any("wrong" in row for row in rows)
    monkeypatch.setattr(attention_suite, "attention", lambda *_, out, **options: out)
    assert cpu_attention.measure(case, [], 1)[0]["wrong"]


# ---- tables --------------------------------------------------------------------------------------


def result(
    case: AttentionCase, who: str, timing: str | None, us: float | None, **extra: Any
) -> Any:
    return records.make_row(case, who, timing, us and us * 1e-6, case.useful_flops, **extra)


def test_tables(tmp_path: Path) -> None:
    cases = list(gpu_attention_cases())
    full, causal = select(cases, "^dense/bfloat16/1x16x16384x128/")
    (decode,) = select(cases, "^decode/")
    (mask,) = select(cases, "^masks/.*16384x128/128x128/d0.125/zipf")
    (long,) = select(cases, "^masks/.*32768x128/128x128/d0.5/uniform")
    packed, _ = select(cases, "^varlen/")
    (eight,) = select(cases, "^fp8/.*/128x128/")
    (dense_eight,) = select(cases, "^fp8/.*/1x16x16384x128/full")
    write_run(
        tmp_path,
        "h200",
        "attention",
        "2026-01-01",
        [
            result(full, "bsrgemm", "sustained", 4000.0),
            result(full, "bsrgemm", "burst", 3200.0),
            result(full, "flash3", "sustained", 3000.0),
            result(full, "cudnn", "sustained", 5000.0, wrong=True),
            result(causal, "bsrgemm", "sustained", 2000.0),
            result(causal, "flash3", "burst", 1700.0),
            result(decode, "bsrgemm", "sustained", 268.0),
            result(packed, "bsrgemm", "sustained", packed.useful_flops / 500e6),
            result(packed, "flash3", "sustained", packed.useful_flops / 625e6),
            result(mask, "bsrgemm", "sustained", 625.0, plan_us=1234.0),
            result(mask, "bsrgemm", "burst", 500.0, plan_us=1234.0),
            result(mask, "bsrgemm_dense", "sustained", 4000.0) | {"tflops": 550.0},
            result(mask, "flex", "sustained", 750.0),
            # Its dense time is that of the case without a mask.
            result(eight, "bsrgemm", "sustained", eight.useful_flops / 500e6),
            result(dense_eight, "bsrgemm", "sustained", dense_eight.useful_flops / 1000e6),
            result(long, "bsrgemm", None, None, error="OutOfMemoryError: no"),
        ],
    )
    folder = tmp_path / report.RESULTS
    assert report.table(folder, "gpu-attention").splitlines()[:6] == [
        "| batch × heads × length × size | dtype | seen | TF/s (burst) | of FlashAttention-3 | "
        "of cuDNN | K and V, TB/s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 1 × 16 × 16384 × 128 | bfloat16 | full | 550 (687) | 0.75 | wrong | - |",
        "| 1 × 16 × 16384 × 128 | bfloat16 | causal | 550 (-) | - | - | - |",
        "| 16 × 32 (8 of K and V) × 8192 × 128 | bfloat16 | decode | 8.01 (-) | - | - | 2.00 |",
        "| 32 × 16 × 256 to 8192 × 128 | bfloat16 | full | 500 (-) | 0.80 | - | - |",
    ]
    shape = "| 1 × 16 × 16384 × 128 |"
    lines = report.table(folder, "gpu-attention-masks").splitlines()
    assert lines[4] == (
        "| 1 × 16 × 32768 × 128 | bfloat16 | 128×128 | uniform | 0.5 | fails (fails) | - | - | - |"
    )
    assert lines[:4] == [
        "| batch × heads × length × size | dtype | block | pattern | density | TF/s (burst) | "
        "of own dense rate | times faster than own dense | of FlexAttention |",
        f"| --- |{' ---: |' * 8}",
        f"{shape} bfloat16 | 128×128 | zipf rows | 0.125 | 440 (550) | 0.80 | 6.40 | 1.20 |",
        f"{shape} float8_e4m3fn | 128×128 | uniform | 0.125 | 500 (-) | 0.50 | 4.00 | - |",
    ]
    few = select(cases, "^sparse_decode/.*32768.*q4")
    rows = [
        result(few[0], "bsrgemm", "cold", 105.0),
        result(few[0], "bsrgemm_dense", "cold", 704.0),
        result(few[0], "bsrgemm_hopper", "cold", 369.0),
        result(few[0], "torch_sdpa", "cold", 2100.0, wrong=True),
        result(few[1], "bsrgemm", "cold", 112.0),
        result(few[1], "bsrgemm mask alone", "cold", 4.0),
        result(few[1], "bsrgemm_portable", "cold", 448.0),
    ]
    write_run(tmp_path, report.GPU_SLUG, "sparse-decode", "2026-01-02", rows)
    shape = "| 16 × 32 (8 of K and V) × 32768 × 128 | 4 | 16×64 | 0.125 |"
    assert report.table(folder, "gpu-attention-sparse-decode").splitlines()[:4] == [
        "| batch × heads × keys × size | queries | block | density | heads of the mask | "
        "K and V read, MB | µs | TB/s | times faster than all keys | "
        "times faster than Hopper's kernels | times faster than portable kernels | "
        "times faster than FlexAttention | times faster than PyTorch, boolean mask |",
        f"| --- |{' ---: |' * 12}",
        f"{shape} 8 | 268 | 105 | 2.56 | 6.70 | 3.51 | - | - | wrong |",
        f"{shape} 8, top-k, made at each call | 268 | 112 | 2.40 | - | - | 4.00 | - | - |",
    ]
    # The tables of products pass over these rows.
    for name in ("gpu-float16", "gpu-bfloat16", "gpu-patterns", "gpu-columns", "gpu-crossover"):
        assert report.table(folder, name).startswith("*No committed measurement yet")
    (on_cpu,) = cpu_attention_cases(["float32"])
    rows = [result(on_cpu, "bsrgemm", "rounds", 150e3)]
    write_run(tmp_path, "cpu", "cpu", "2026-01-01", rows)
    assert report.table(folder, "cpu") == (
        "*No committed measurement yet; `python -m benchmarks cpu` makes one.*\n"
    )
    nothing = report.table(tmp_path, "gpu-attention-masks")
    assert (
        nothing == "*No committed measurement yet; `python -m benchmarks attention` makes one.*\n"
    )


def test_command_line() -> None:
    command = [sys.executable, "-m", "benchmarks", "attention"]
    done = subprocess.run(
        [*command, "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "dense/bfloat16/4x16x4096x128/full: 550 GF; flash3 cudnn flash2 composed" in done.stdout
    assert "16384x128/128x128/d0.125/zipf_rows: 275 GF; bsrgemm_dense flex" in done.stdout
    done = subprocess.run(
        [*command, "--peers", "nobody"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and "nobody" in done.stderr


def test_dry_run_of_few_queries_under_masks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attention", "--dry-run", "--select", "^sparse_decode/"]) == 0
    lines = capsys.readouterr().out.splitlines()
    own = "bsrgemm_dense bsrgemm_hopper bsrgemm_portable"
    assert lines[0].endswith(f"/d0.125/uniform/q4/m8: 4 GF; {own} flex_decode torch_sdpa")
    assert lines[4].endswith(f"/d0.125/topk/q4/m8: 4 GF; {own}")


def test_windows_are_sustained(capsys: pytest.CaptureFixture[str]) -> None:
    case = ["attention", "--dry-run", "--select", "^decode/"]
    assert main([*case, "--sustained", ".3,.2"]) == 0
    assert "1 cases" in capsys.readouterr().out
    for text in ("0.05,0.06", "0.1,0.05", "1", "a,b"):
        with pytest.raises(SystemExit):
            main([*case, "--sustained", text])
        assert "--sustained" in capsys.readouterr().err
