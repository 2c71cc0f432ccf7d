"""What ``python -m bsrgemm check`` computes: every operation and kernel family on random data.

A case makes its operands, runs on one device and gives back what it found beside the float64
reference and the error that rounding explains. Nothing here needs more than NumPy: on a GPU
operands are :class:`bsrgemm.DeviceArray`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._arguments import gpu_of
from ._array import bsr_array
from ._dtypes import ACCEPTED_DTYPES, EIGHT_BIT_DTYPES, numpy_dtype
from ._dynamic import DynamicPattern
from ._matmul import product
from ._planning import chip_of
from ._sampled import sampled
from ._softmax import softmax

# Unit roundoff of the result, of sums in float32 and float64 too.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
# Operands of 11 significant bits, both of a product.
TF32_ERROR = 2.0**-10
# Tensor cores cut the products of 8 bits that they add to 14 bits of the largest.
EIGHT_BIT_ERROR = 6 * 2.0**-13

BLOCK = (64, 64)
GRID = (6, 7)  # block rows and columns
COLUMNS = 136


class Outcome(NamedTuple):
    """``allowed``: the relative error, in the Frobenius norm, that rounding explains."""

    found: np.ndarray
    expected: np.ndarray
    allowed: float


class Case(NamedTuple):
    """A cell of the table: row ``name``, column ``dtype``. ``missing``: why this device or this
    environment cannot compute it, in place of ``run``."""

    group: str
    name: str
    dtype: str
    run: Callable[[np.random.Generator], Outcome] | None
    missing: str | None = None


class Place:
    """Where operands lie: in NumPy arrays, or on a GPU."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.gpu = gpu_of(device)

    @property
    def chip(self) -> dict[str, Any] | None:
        """What the driver says that a plan can use."""
        return chip_of(self.gpu) if self.gpu else None

    def array(self, x: np.ndarray) -> Any:
        x = np.ascontiguousarray(x)
        return x if self.gpu is None else _core.DeviceArray.from_host(x, self.device)

    def host(self, x: Any) -> np.ndarray:
        return x if isinstance(x, np.ndarray) else x.to_host()

    def poison(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.array(np.full(shape, np.nan, numpy_dtype(dtype)))


class Matrix(NamedTuple):
    """A block-sparse matrix as arrays, and in float64."""

    mask: np.ndarray
    data: np.ndarray
    dense: np.ndarray

    def on(self, place: Place) -> bsr_array:
        indptr = np.concatenate([[0], self.mask.sum(axis=1).cumsum()]).astype(np.int32)
        indices = np.nonzero(self.mask)[1].astype(np.int32)
        return bsr_array((place.array(self.data), indices, indptr), self.dense.shape)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.standard_normal(shape, np.float32).astype(numpy_dtype(dtype))


def random_matrix(
    rng: np.random.Generator, dtype: str, block: tuple[int, int] = BLOCK, grid: Any = GRID
) -> Matrix:
    """A third of the blocks; one block row has none and one has all."""
    mask = rng.random(grid) < 1 / 3
    mask[1], mask[-1] = False, True
    data = normal(rng, (int(mask.sum()), *block), dtype)
    dense = np.zeros((grid[0] * block[0], grid[1] * block[1]))
    rows, cols = np.nonzero(mask)
    dense.reshape(grid[0], block[0], grid[1], block[1])[rows, :, cols, :] = data
    return Matrix(mask, data, dense)


def judged(
    found: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    dtype: str,
    then: Callable[[np.ndarray], np.ndarray] = lambda y: y,
    least: float = 0.0,
) -> Outcome:
    """``found`` beside ``then(left @ right)``: twice what the dense product of the same precision
    loses is allowed."""
    expected = then(left.astype(np.float64) @ right.astype(np.float64))
    work = np.float64 if dtype == "float64" else np.float32
    same = then(left.astype(work) @ right.astype(work)).astype(numpy_dtype(dtype))
    lost = relative_error(same, expected)
    growth = np.sqrt(left.shape[1]) / 4 if dtype in ("float32", "float64") else 0.0
    floor = (8 if growth else 1.1) + growth
    return Outcome(found, expected, max(2 * lost, floor * ROUNDOFF[dtype], least))


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """In the Frobenius norm; infinite where anything is not finite."""
    size = float(np.linalg.norm(expected)) or 1.0
    error = float(np.linalg.norm(found.astype(np.float64) - expected)) / size
    return error if np.isfinite(error) else float("inf")


# ---- products of a matrix and a dense operand ----------------------------------------------------


def _multiply(
    place: Place,
    rng: np.random.Generator,
    dtype: str,
    *,
    transposed: bool = False,
    right: bool = False,
    block: tuple[int, int] = BLOCK,
    n: int = COLUMNS,
    family: str = "auto",
    precision: str = "ieee",
    least: float = 0.0,
) -> Outcome:
    """Into poisoned memory: ``A`` or ``A.T``, on the left or on the ``right``."""
    m = random_matrix(rng, dtype, block)
    a, dense = m.on(place), m.dense
    if transposed:
        a, dense = a.T, dense.T
    x = normal(rng, (n, dense.shape[0]) if right else (dense.shape[1], n), dtype)
    result = dtype
    if dtype in EIGHT_BIT_DTYPES:
        result = "bfloat16" if family == "widen" else "float32"  # what the family's results may be
    operands, matrices = [a, place.array(x)], [dense, x]
    if right:
        operands, matrices = operands[::-1], matrices[::-1]
    out = place.poison((matrices[0].shape[0], matrices[1].shape[1]), result)
    more = {"out_dtype": result} if dtype in EIGHT_BIT_DTYPES else {}
    product(*operands, None, 1.0, None, out, None, family, precision=precision, **more)
    least = EIGHT_BIT_ERROR if dtype in EIGHT_BIT_DTYPES else least
    return judged(place.host(out), *matrices, result, least=least)


def _added(place: Place, rng: np.random.Generator, dtype: str) -> Outcome:
    """0.5 * A @ X - 2 * C, over C itself."""
    m = random_matrix(rng, dtype)
    x, c = (normal(rng, (rows, COLUMNS), dtype) for rows in m.dense.shape[::-1])
    out = place.array(c.copy())
    product(m.on(place), place.array(x), out, 0.5, -2.0, out, None)

    def then(y: np.ndarray) -> np.ndarray:
        return y * y.dtype.type(0.5) - y.dtype.type(2) * c.astype(y.dtype)

    return judged(place.host(out), m.dense, x, dtype, then)


def _fused(place: Place, rng: np.random.Generator, dtype: str) -> Outcome:
    """silu(row_scale * col_scale * A @ X + bias)."""
    m = random_matrix(rng, dtype)
    rows, columns = m.dense.shape[0], COLUMNS
    x = normal(rng, (m.dense.shape[1], columns), dtype)
    row_scale, bias = normal(rng, (rows, 1), dtype), normal(rng, (columns,), dtype)
    col_scale = normal(rng, (columns,), dtype)
    out = place.poison((rows, columns), dtype)
    product(
        m.on(place), place.array(x), None, 1.0, None, out, None,
        bias=place.array(bias), activation="silu",
        row_scale=place.array(row_scale), col_scale=place.array(col_scale),
    )  # fmt: skip

    def then(y: np.ndarray) -> np.ndarray:
        y = y * row_scale.astype(y.dtype) * col_scale.astype(y.dtype) + bias.astype(y.dtype)
        with np.errstate(over="ignore"):  # exp(-x) of large -x, of which 1 / (1 + inf) is right
            return y / (1 + np.exp(-y))

    return judged(place.host(out), m.dense, x, dtype, then)


def _batch(place: Place, rng: np.random.Generator, dtype: str) -> Outcome:
    m = random_matrix(rng, dtype)
    x = normal(rng, (3, m.dense.shape[1], 40), dtype)
    out = place.poison((3, m.dense.shape[0], 40), dtype)
    product(m.on(place), place.array(x), None, 1.0, None, out, None)
    beside = [np.concatenate(list(y), axis=1) for y in (place.host(out), x)]
    return judged(beside[0], m.dense, beside[1], dtype)


def _dynamic(
    place: Place, rng: np.random.Generator, dtype: str, transposed: bool = False
) -> Outcome:
    """A pattern that the device makes, with room for three blocks more than there are."""
    m = random_matrix(rng, dtype)
    pattern = DynamicPattern(m.dense.shape, BLOCK, int(m.mask.sum()) + 3, place.device)
    pattern.update(place.array(m.mask))
    meant = m.dense.astype(m.data.dtype)
    a = pattern.array(pattern.gather(place.array(meant)))
    dense = m.dense
    if transposed:
        a, dense = a.T, dense.T
    x = normal(rng, (dense.shape[1], COLUMNS), dtype)
    out = place.poison((dense.shape[0], COLUMNS), dtype)
    product(a, place.array(x), None, 1.0, None, out, None)
    return judged(place.host(out), dense, x, dtype)


# ---- other products ------------------------------------------------------------------------------


def _sparse(
    place: Place,
    rng: np.random.Generator,
    dtype: str,
    *,
    transposed: bool = False,
    family: str = "auto",
) -> Outcome:
    """Two block-sparse operands, a dense result."""
    m = random_matrix(rng, dtype)
    a, dense = (m.on(place).T, m.dense.T) if transposed else (m.on(place), m.dense)
    other = random_matrix(rng, dtype, grid=(dense.shape[1] // BLOCK[0], 5))
    out = place.poison((dense.shape[0], other.dense.shape[1]), dtype)
    product(a, other.on(place), None, 1.0, None, out, None, family)
    return judged(place.host(out), dense, other.dense, dtype)


def _sampled(
    place: Place,
    rng: np.random.Generator,
    dtype: str,
    *,
    transposed: bool = False,
    dynamic: bool = False,
    family: str = "auto",
) -> Outcome:
    """Two dense operands, the result at stored blocks only."""
    m = random_matrix(rng, dtype)
    mask = m.mask.T if transposed else m.mask
    poison = place.poison(m.data.shape, dtype)
    if dynamic:
        made = DynamicPattern(m.dense.shape, BLOCK, len(m.data), place.device)
        made.update(place.array(m.mask))
        pattern: Any = made.array(poison).T if transposed else made.array(poison)
        out = pattern
    else:
        pattern = m.on(place).T if transposed else m.on(place)
        out = pattern.T._with_values(poison).T if transposed else pattern._with_values(poison)
    rows, cols = pattern.shape
    a, b = normal(rng, (rows, 200), dtype), normal(rng, (200, cols), dtype)
    sampled(place.array(a), place.array(b), pattern, out=out, family=family)
    found = np.zeros((rows, cols), place.host(poison).dtype)
    blocks = place.host(poison).transpose(0, 2, 1) if transposed else place.host(poison)
    where = np.nonzero(m.mask)[::-1] if transposed else np.nonzero(m.mask)
    found.reshape(mask.shape[0], BLOCK[0], mask.shape[1], BLOCK[1])[where[0], :, where[1], :] = (
        blocks
    )
    stored = mask.repeat(BLOCK[0], axis=0).repeat(BLOCK[1], axis=1)
    return judged(found, a, b, dtype, lambda y: y * stored.astype(y.dtype))


def _softmax(place: Place, rng: np.random.Generator, dtype: str) -> Outcome:
    """Over the stored elements of each row. The error of an exponential grows with its argument,
    which here is below 16."""
    m = random_matrix(rng, dtype)
    found = place.host(softmax(m.on(place), 1.5).data)
    stored = m.mask.repeat(BLOCK[0], axis=0).repeat(BLOCK[1], axis=1)
    weights = np.where(stored, np.exp(1.5 * m.dense), 0)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    tiles = weights.reshape(GRID[0], BLOCK[0], GRID[1], BLOCK[1]).transpose(0, 2, 1, 3)
    sums = ROUNDOFF["float64" if dtype == "float64" else "float32"]
    return Outcome(found, tiles[m.mask], 1.1 * ROUNDOFF[dtype] + 16 * 16 * sums)


# ---- the list ------------------------------------------------------------------------------------

Run = Callable[..., Outcome]

# Row of the table, what computes it, its options, dtypes beside the usual ones.
OPERATIONS: tuple[tuple[str, Run, dict[str, Any], tuple[str, ...]], ...] = (
    ("A @ X", _multiply, {}, EIGHT_BIT_DTYPES),
    ("A.T @ X", _multiply, {"transposed": True}, EIGHT_BIT_DTYPES),
    ("X @ A", _multiply, {"right": True}, EIGHT_BIT_DTYPES),
    ("X @ A.T", _multiply, {"right": True, "transposed": True}, EIGHT_BIT_DTYPES),
    ("A @ x, a vector", _multiply, {"n": 1}, EIGHT_BIT_DTYPES),
    ("alpha, beta and C", _added, {}, ()),
    ("fused output", _fused, {}, ()),
    ("batch", _batch, {}, ()),
    ("A @ B, both sparse", _sparse, {}, ()),
    ("A.T @ B, both sparse", _sparse, {"transposed": True}, ()),
    ("sampled", _sampled, {}, ()),
    ("sampled, transposed", _sampled, {"transposed": True}, ()),
    ("sampled, dynamic pattern", _sampled, {"dynamic": True}, ()),
    ("dynamic pattern", _dynamic, {}, ()),
    ("dynamic, transposed", _dynamic, {"transposed": True}, ()),
    ("softmax", _softmax, {}, ()),
)

HALF = ("float16", "bfloat16")
# Of the GPU: family, block, columns, dtypes. Those of the planner, which says what they lack.
FAMILIES: tuple[tuple[str, tuple[int, int], int, tuple[str, ...]], ...] = (
    ("tall", (128, 64), 256, HALF),
    ("tall", (64, 48), 520, HALF),
    ("stream", (16, 16), 256, HALF),
    ("stream", (32, 32), 264, HALF),
    ("regroup", (24, 40), 256, HALF),
    ("align", (64, 64), 333, HALF),
    ("align", (12, 20), 101, ("float16", "float32", "float64")),
    ("narrow", (32, 32), 16, HALF),
    ("narrow", (64, 32), 24, EIGHT_BIT_DTYPES),
    ("narrow", (16, 16), 40, EIGHT_BIT_DTYPES),
    ("narrow", (16, 16), 24, ("float32", "float64")),
    ("portable", (20, 12), 100, ACCEPTED_DTYPES),
    ("kmajor", (64, 32), 200, EIGHT_BIT_DTYPES),
    ("widen", (32, 32), 264, EIGHT_BIT_DTYPES),
)
# Likewise of float32 with precision "tf32".
TF32_FAMILIES: tuple[tuple[str, tuple[int, int]], ...] = (
    ("kmajor", (64, 40)),
    ("kstream", (16, 24)),
)
NOT_HOPPER = "needs a Hopper GPU (compute capability 9.0)"
NO_ML_DTYPES = "NumPy has it only with the package ml_dtypes: pip install ml_dtypes"


def product_cases(place: Place) -> Iterator[Case]:
    for name, run, options, more in OPERATIONS:
        for dtype in (*ACCEPTED_DTYPES, *more):
            missing = _missing(place, dtype, dtype in EIGHT_BIT_DTYPES)
            yield _case("operations", name, dtype, place, run, options, missing)
    if place.gpu is None:
        return
    for family, block, n, dtypes in FAMILIES:
        for dtype in dtypes:
            options = {"family": family, "block": block, "n": n}
            name = f"{family} {block[0]}x{block[1]}"
            missing = _missing(place, dtype, dtype in EIGHT_BIT_DTYPES)
            missing = missing or family_obstacle(place.chip, family, block, n, dtype)
            yield _case("kernel families", name, dtype, place, _multiply, options, missing)
    missing = _missing(place, "float32", hopper=True)
    for family, block in TF32_FAMILIES:
        options = {"family": family, "block": block, "precision": "tf32", "least": TF32_ERROR}
        name = f"{family} tf32 {block[0]}x{block[1]}"
        yield _case("kernel families", name, "float32", place, _multiply, options, missing)
    for run, family in ((_sparse, "pairs"), (_sampled, "sampled")):
        for dtype in HALF:
            missing = _missing(place, dtype, hopper=True)
            options = {"family": family}
            yield _case("kernel families", family, dtype, place, run, options, missing)
        for dtype in ACCEPTED_DTYPES:
            missing = _missing(place, dtype)
            options = {"family": "portable"}
            yield _case(
                "kernel families", f"portable, {family}", dtype, place, run, options, missing
            )


def _case(
    group: str,
    name: str,
    dtype: str,
    place: Place,
    run: Run,
    options: dict[str, Any],
    missing: str | None,
) -> Case:
    if missing:
        return Case(group, name, dtype, None, missing)
    return Case(group, name, dtype, lambda rng: run(place, rng, dtype, **options))


def _missing(place: Place, dtype: str, hopper: bool = False) -> str | None:
    """What this environment lacks for the dtype, or the GPU for kernels of Hopper alone."""
    try:
        numpy_dtype(dtype)
    except TypeError:
        return NO_ML_DTYPES
    return NOT_HOPPER if hopper and place.gpu and place.gpu["sm_arch"] != 90 else None


def family_obstacle(
    chip: dict[str, Any] | None, family: str, block: tuple[int, int], n: int, dtype: str
) -> str | None:
    """Why the planner does not give such a product to the family."""
    rows, cols = GRID
    indices = np.arange(rows, dtype=np.int32) % np.int32(cols)
    indptr = np.arange(rows + 1, dtype=np.int32)
    shape = (rows * block[0], cols * block[1])
    structure = _core.Structure(indices, indptr, shape, block)
    found = structure.explain(n, dtype, chip)["candidates"]
    candidate = next(c for c in found if c["family"] == family)
    return None if candidate["supported"] else candidate["reason"]
