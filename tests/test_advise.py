"""``python -m bsrgemm advise``, and what a pattern says of itself: plans, balance, pictures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bsrgemm
import numpy as np
import pytest
from bsrgemm import __main__, _advise, _core, _demo, _pattern
from cases import banded, problem, uniform
from partial_cases import SHAPES, make

H200 = {"name": "NVIDIA H200", "sm_arch": 90, "sm_count": 132}


def saved(path: Path, block: int = 32, dtype: str = "float16", density: float = 0.1) -> Path:
    rng = np.random.default_rng(3)
    _demo.random_blocks(rng, 1024, block, density, dtype).save(path / "a.npz")
    return path / "a.npz"


def advise(capsys: pytest.CaptureFixture, *arguments: Any) -> str:
    assert __main__.main(["advise", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def row(text: str, block: str) -> list[str]:
    found = [line.lstrip("* ").split() for line in text.splitlines() if f" {block} " in line]
    return next(cells for cells in found if cells[0] == block)


def test_advice_on_a_matrix_of_blocks(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = saved(tmp_path)
    text = advise(capsys, path, "--n", 512, "--no-measure")
    a = bsrgemm.load(path)
    own = row(text, "32x32")
    assert int(own[1]) == a.nnzb and float(own[3]) == 1.0 and "as in the file" in text
    plan = a.plan(512)
    assert abs(float(own[4]) - plan.seconds * 1e6) < 0.1 and own[6] == plan.choice
    wide = row(text, "128x128")
    assert int(wide[1]) == a.reblock((128, 128)).nnzb
    # Zeros fill up the larger blocks: the same density times the fill-in.
    assert float(wide[3]) == pytest.approx(float(wide[2]) / a.density, rel=1e-2)
    for fragment in ("at a density of 0.", "block rows of", "assumed:", "dense product"):
        assert fragment in text


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "dia", "bsr"])
def test_every_format_of_scipy_is_read(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.diags_array([np.ones(100), np.ones(97)], offsets=[0, 3]).asformat(kind)
    sparse.save_npz(tmp_path / "a.npz", matrix)
    text = advise(capsys, tmp_path / "a.npz", "--no-measure", "--dtype", "float32")
    mask = np.zeros((7, 7), bool)
    rows, cols = matrix.todense().nonzero()
    mask[rows // 16, cols // 16] = True
    found = row(text, "16x16")
    assert int(found[1]) == mask.sum() and found[6] == "portable"
    assert float(found[3]) == pytest.approx(mask.sum() * 256 / 197, abs=0.01)


def test_entries_that_are_stored_twice_count_once(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    rows, cols = np.repeat([0, 1, 20], 40), np.repeat([1, 2, 3], 40)
    values = np.ones(120)
    values[80::2] = -1  # these add up to 0
    sparse.save_npz(tmp_path / "a.npz", sparse.coo_array((values, (rows, cols)), (32, 32)))
    text = advise(capsys, tmp_path / "a.npz", "--no-measure")
    assert row(text, "16x16")[1] == "1" and row(text, "16x16")[3] == "128.00"


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex128"])
def test_blocks_of_types_that_products_do_not_take(
    dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_array(np.eye(64, dtype=dtype)).tobsr((8, 8))
    sparse.save_npz(tmp_path / "a.npz", matrix)
    text = advise(capsys, tmp_path / "a.npz")
    assert row(text, "16x16")[1] == "4" and row(text, "16x16")[3] == "2.00"


def test_zeros_in_stored_blocks_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A block of 64x64 whose upper left quarter alone has values."""
    data = np.zeros((1, 64, 64), np.float32)
    data[0, :32, :32] = 1
    bsrgemm.bsr_array((data, [1], [0, 1, 1]), (128, 128)).save(tmp_path / "a.npz")
    text = advise(capsys, tmp_path / "a.npz", "--no-measure")
    assert row(text, "64x64")[3] == "4.00"
    assert row(text, "32x32")[1] == "1" and row(text, "16x16")[1] == "4"


def test_what_is_measured_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = advise(capsys, saved(tmp_path, dtype="float32"), "--n", 16, "--device", "cpu")
    assert "measured on cpu, 32x32 blocks" in text and "dense product (NumPy's BLAS)" in text


def test_what_is_too_long_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_advise, "CPU_SECONDS", 0.0)
    assert "not measured" in advise(capsys, saved(tmp_path), "--device", "cpu")


def test_advice_for_8_bits(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = advise(capsys, saved(tmp_path), "--dtype", "float8_e4m3fn", "--no-measure")
    assert row(text, "16x16")[6] == "portable" and row(text, "64x64")[6] == "kmajor"


def test_a_matrix_of_zeros(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    zeros = bsrgemm.bsr_array(np.zeros((64, 64), np.float32), blocksize=(32, 32))
    zeros.save(tmp_path / "a.npz")
    assert "without a single non-zero" in advise(capsys, tmp_path / "a.npz")


def test_wrong_arguments_of_advise(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "a.npy", np.ones(3))
    path = str(saved(tmp_path))
    whole = Path(path).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "broken.npz").write_bytes(whole[:2000] + b"????" + whole[2004:])
    np.savez(tmp_path / "csr.npz", format=np.array(b"csr"), shape=np.array(3))
    for arguments, text in (
        ([str(tmp_path / "cut.npz")], "is no .npz file"),
        ([str(tmp_path / "broken.npz")], "an entry data that cannot be read"),
        ([str(tmp_path / "csr.npz")], "holds no matrix of format 'csr'"),
        ([str(tmp_path / "none.npz")], "No such file"),
        ([str(tmp_path / "text.npz")], "is no .npz file"),
        ([str(tmp_path / "a.npy")], "is a .npy file"),
        ([path, "--n", "0"], "accepted: at least 1"),
        ([path, "--device", "gpu"], "accepted: 'cpu'"),
    ):
        assert __main__.main(["advise", *arguments]) == 2
        shown = capsys.readouterr().err
        assert text in shown and shown.count("\n") == 1


def test_other_formats_need_scipy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", format=np.array(b"csr"))
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ImportError, match="pip install scipy"):
        _advise.read(str(tmp_path / "a.npz"))


def test_break_even_is_where_both_take_as_long() -> None:
    even = _advise.break_even((8192, 8192), (128, 128), 8192, "float16", None)
    assert even is not None and 0.5 < even <= 1
    # Kernels that take a few columns at a time are no match for a dense product.
    low = _advise.break_even((2048, 2048), (32, 32), 4096, "float8_e4m3fn", None)
    assert low is None or low < 0.05
    # Few columns: reading the blocks alone takes the time, and a dense matrix has no fewer.
    few = _advise.break_even((8192, 8192), (64, 64), 1, "float16", None)
    assert few is not None and few > 0.8


# ---- patterns ------------------------------------------------------------------------------------


def test_cells_are_regrouped_as_blocks_are(rng: np.random.Generator) -> None:
    p = problem(rng, uniform(0.2)(rng, 16, 12), (24, 40), 0, "float32")
    a = bsrgemm.bsr_array((p.data, p.indices, p.indptr), p.shape)
    cells = _pattern.cells_of_blocks(a._structure)
    assert cells.size == (8, 8) and cells.elements == a.data.size
    for block in ((48, 80), (16, 16), (32, 32)):
        indices, indptr, shape = cells.regrouped(block)
        dense = np.zeros(shape)
        dense[: p.shape[0], : p.shape[1]] = p.dense != 0
        mask = dense.reshape(shape[0] // block[0], block[0], -1, block[1]).any(axis=(1, 3))
        assert np.array_equal(indices, mask.nonzero()[1])
        assert np.array_equal(np.diff(indptr), mask.sum(axis=1))


@pytest.mark.parametrize("name", SHAPES)
def test_partial_blocks_are_regrouped_as_reblock_does(
    name: str, rng: np.random.Generator, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    p = make(SHAPES[name], rng, "float32")
    a = bsrgemm.bsr_array((p.data, p.indices, p.indptr), p.shape)
    for of in (a, a.T):
        cells, copy = _pattern.cells_of_blocks(of._structure), of.copy()
        stored = np.kron(copy.block_mask(), np.ones(copy.blocksize))
        assert cells.elements == stored[: of.shape[0], : of.shape[1]].sum()
        for block in ((48, 80), (16, 16), (32, 32), (256, 256)):
            other = copy.reblock(block)
            indices, indptr, _ = cells.regrouped(block)
            assert np.array_equal(indices, other.indices) and np.array_equal(indptr, other.indptr)
        text = of.plan(8).explain()
        fill = copy.reblock((256, 256)).nnzb * 256 * 256 / max(a.data.size, 1)
        assert not a.nnzb or f"256x256 {fill:.2f}" in text
    if a.nnzb:
        a.save(tmp_path / "a.npz")
        text = advise(capsys, tmp_path / "a.npz", "--no-measure")
        own = next(line.lstrip("* ").split() for line in text.splitlines() if "as in" in line)
        assert float(own[2]) == pytest.approx(a.density, abs=1e-4)


def test_balance_of_rows() -> None:
    assert _pattern.busiest(np.full(264, 7), 256, 132) == 1.0
    assert _pattern.busiest(np.full(133, 7), 256, 132) == pytest.approx(2 * 132 / 133)
    assert _pattern.busiest(np.array([100, 1, 1, 1]), 256, 2) == pytest.approx(100 / 51.5)
    assert _pattern.busiest(np.zeros(4), 256, 132) == 1.0
    many = np.ones(1 << 17)
    many[0] = 1 << 17
    assert _pattern.busiest(many, 256, 4) == pytest.approx(2, rel=0.01)
    rows = _pattern.rows_of(np.array([0, 1, 1, 6]))
    assert rows == (4, 0, 1.0, 2.0, 6, 1) and rows.skew == 3.0


def test_explain_says_what_the_pattern_is_like() -> None:
    rng = np.random.default_rng(0)
    a = _demo.random_blocks(rng, 1024, 32, 0.25, "float16")
    text = a.plan(512).explain()
    lengths = np.diff(a.indptr)
    assert f"block rows: {lengths.min()} to {lengths.max()} blocks" in text
    assert "work over 132 SMs" in text and "in host memory the CPU computes it" in text
    fill = a.reblock((64, 64)).nnzb * 4 / a.nnzb
    assert f"64x64 {fill:.2f}" in text
    small = a.plan(512, chip={"name": "half of it", "sm_count": 66}).explain()
    assert "work over 66 SMs" in small and "predicted for one half of it" in small


def test_explain_of_long_rows_says_that_they_are_divided() -> None:
    mask = np.zeros((64, 64), bool)
    mask[3], mask[:, 0] = True, True
    p = problem(np.random.default_rng(0), mask, (128, 64), 0, "float16")
    text = bsrgemm.bsr_array((p.data, p.indices, p.indptr), p.shape).plan(512).explain()
    assert "long rows are divided" in text and " parts" in text


def test_plans_of_two_sparse_matrices_and_of_sampled_products() -> None:
    rng = np.random.default_rng(0)
    a = _demo.random_blocks(rng, 1024, 64, 0.25, "float16")
    plan = a.plan(a.T)
    mask = a.block_mask().astype(int)
    assert plan.useful_flops == 2 * (mask @ mask.T).sum() * 64**3
    assert plan.choice == "pairs" and 0 < plan.seconds < 1e-3
    assert a.plan(a.T, chip={"sm_arch": 80}).choice == "portable"
    sampled = a.plan_sampled(256)
    assert sampled.useful_flops == 2 * a.data.size * 256 and sampled.choice == "sampled"
    assert a.T.plan_sampled(256).useful_flops == sampled.useful_flops
    assert a.plan_sampled(255).choice == "portable", "rows of 510 bytes are nothing for TMA"
    for text in (plan.explain(), sampled.explain()):
        assert "* is taken" in text
    empty = bsrgemm.bsr_array(np.zeros((64, 64), np.float16), blocksize=(64, 64))
    assert empty.plan_sampled(8).seconds == 0 and empty.plan(empty).useful_flops == 0


def test_plans_refuse_what_does_not_fit() -> None:
    rng = np.random.default_rng(0)
    a, b = (_demo.random_blocks(rng, 128, block, 0.5, "float32") for block in (64, 32))
    with pytest.raises(ValueError, match="blocks 32 high, but a has 128 columns in blocks 64 wide"):
        a.plan(b)
    with pytest.raises(ValueError, match="k is 0"):
        a.plan_sampled(0)
    with pytest.raises(TypeError, match="n has dtype float16 and A float32"):
        a.plan(a.astype("float16"))
    batch = bsrgemm.bsr_array((np.stack([a.data] * 2), a.indices, a.indptr), a.shape)
    with pytest.raises(ValueError, match="n has shape .* a batch of matrices"):
        a.plan(batch)
    eight = a.astype("float8_e4m3fn")
    for call in (lambda: eight.plan(eight), lambda: eight.plan_sampled(8)):
        with pytest.raises(TypeError, match="dtype is float8_e4m3fn"):
            call()
    with pytest.raises(ValueError, match="compute capability 70"):
        a.plan_sampled(8, chip={"sm_arch": 70})
    with pytest.raises(ValueError, match="compute capability"):
        a.plan(a, chip={"sm_arch": 70})
    pattern = bsrgemm.DynamicPattern((128, 128), (64, 64), 1, "cpu")
    with pytest.raises(TypeError, match="accepted: an integer or a bsr_array"):
        a.plan(pattern.array(np.zeros((1, 64, 64), np.float32)))


def test_products_by_columns_are_planned_without_copies() -> None:
    rng = np.random.default_rng(0)
    for block, chosen in ((64, "tall"), (32, "stream"), (8, "regroup")):
        structure = _demo.random_blocks(rng, 2048, block, 0.25, "float16")._structure
        by_rows = structure.explain(4096, "float16", H200)
        by_columns = structure.explain(4096, "float16", H200, "ieee", True)
        assert by_rows["chosen"] == by_columns["chosen"] == chosen


def test_hopper_predictions_agree_with_brute_force_counts() -> None:
    """L2 traffic of pairs: a stage wherever a tile of 128 rows and one of 256 columns meet."""
    rng = np.random.default_rng(1)
    p, q = (problem(rng, uniform(0.2)(rng, 10, 10), (64, 64), 0, "float16") for _ in range(2))
    a, b = (bsrgemm.bsr_array((x.data, x.indices, x.indptr), x.shape) for x in (p, q))
    left = a.block_mask().reshape(5, 2, 10).any(axis=1)
    right = np.concatenate([b.block_mask(), np.zeros((10, 2), bool)], axis=1)
    right = right.reshape(10, 3, 4).any(axis=2)
    stages = (left.astype(int) @ right.astype(int)).sum()
    found = a.plan(b).candidates[0]
    assert found["supported"] and found["l2_bytes"] == 2 * stages * 64 * (128 + 256)


# ---- pictures ------------------------------------------------------------------------------------


def test_spy_prints(capsys: pytest.CaptureFixture) -> None:
    rng = np.random.default_rng(0)
    p = problem(rng, banded(rng, 8, 8), (4, 4), 0, "float32")
    a = bsrgemm.bsr_array((p.data, p.indices, p.indptr), p.shape)
    assert a.spy(text=True) is None
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == repr(a) and lines[1] == "+" + "-" * 8 + "+"
    assert "@" in lines[2][1:3] and lines[2][8] == " ", "a band along the diagonal"
    a[4:].spy(text=True, width=8)
    bsrgemm.bsr_array(np.zeros((0, 8), np.float32), blocksize=(2, 2)).spy(text=True)
    capsys.readouterr()
    bsrgemm.bsr_array(np.eye(50, 100), blocksize=(16, 32)).spy(text=True)
    assert capsys.readouterr().out.splitlines()[2:-1] == ["|++  |"], "four rows in one"


def test_one_block_of_many_shows(capsys: pytest.CaptureFixture) -> None:
    mask = np.zeros((1000, 1000), bool)
    mask[700, 300] = True
    p = problem(np.random.default_rng(0), mask, (1, 1), 0, "float32")
    bsrgemm.bsr_array((p.data, p.indices, p.indptr), p.shape).spy(text=True)
    inner = [line[1:-1] for line in capsys.readouterr().out.splitlines()[2:-1]]
    assert sum(line.count(".") for line in inner) == 1 and set("".join(inner)) == {" ", "."}


def test_spy_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    a = bsrgemm.bsr_array(np.ones((4, 4), np.float32), blocksize=(2, 2))
    with pytest.raises(ValueError, match="accepted: one of both"):
        a.spy(object(), text=True)
    with pytest.raises(ValueError, match="at least 8"):
        a.spy(width=7)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        a.spy(text=False)


def test_spy_draws_on_what_it_is_given() -> None:
    """Whatever library draws: the calls and the data."""
    a = bsrgemm.bsr_array(np.kron(np.eye(2), np.ones((2, 3))).astype("f"), blocksize=(2, 3))
    drawn: dict[str, Any] = {}

    class Axes:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **options: drawn.setdefault(name, (args, options))

    axes = Axes()
    assert a.spy(axes) is axes
    assert np.array_equal(drawn["imshow"][0][0], np.eye(2))
    assert drawn["imshow"][1]["extent"] == (0, 6, 4, 0)


def test_spy_with_matplotlib() -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    a = bsrgemm.bsr_array(np.ones((4, 4), np.float32), blocksize=(2, 2))
    axes = a.spy(text=False)
    assert axes.images[0].get_array().shape == (2, 2)
    axes.figure.clf()
    axes = bsrgemm.bsr_array(np.ones((5, 9), np.float32), blocksize=(2, 4)).spy(text=False)
    assert axes.images[0].get_array().shape == (3, 3)
    assert tuple(axes.images[0].get_extent()) == (0, 12, 6, 0), "of the blocks"
    assert axes.get_xlim() == (0, 9) and axes.get_ylim() == (5, 0), "of the matrix"
    axes.figure.clf()


def test_structure_methods_check_their_arguments() -> None:
    structure = _core.Structure(np.array([0]), np.array([0, 1]), (64, 64), (64, 64))
    with pytest.raises(TypeError):
        structure.explain_sparse("b", "float16")
    with pytest.raises(ValueError, match="chip has an entry"):
        structure.explain_sampled(8, "float16", {"speed": 1})
