"""The one table of operations that the generic tests run over, on every library and device.

An operation makes its operands from a problem, runs, and gives back what it found together with
what the reference is computed from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import bsrgemm
import numpy as np
from cases import Problem, allowed_error, assert_close, is_partial, mask_of, normal, problem
from spaces import Space


class Outcome(NamedTuple):
    """``found`` is to be ``alpha * dense @ x + beta * c``."""

    found: np.ndarray
    dense: np.ndarray
    x: np.ndarray
    c: np.ndarray | None = None
    alpha: float = 1.0
    beta: float = 0.0


class Operation(NamedTuple):
    name: str
    run: Callable[[Space, Problem, np.random.Generator], Outcome]
    strided: bool = False  # needs a library with strided views


def matrix(space: Space, p: Problem) -> bsrgemm.bsr_array:
    return bsrgemm.bsr_array((space.array(p.data), p.indices, p.indptr), p.shape)


def right(p: Problem, rng: np.random.Generator) -> np.ndarray:
    return normal(rng, (p.shape[1], p.n), p.dtype)


def added(p: Problem, rng: np.random.Generator) -> np.ndarray:
    return normal(rng, (p.shape[0], p.n), p.dtype)


def _operator(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x = right(p, rng)
    return Outcome(space.host(matrix(space, p) @ space.array(x)), p.dense, x)


def _out(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x = right(p, rng)
    out = space.poisoned((p.shape[0], p.n), p.dtype)
    assert bsrgemm.matmul(matrix(space, p), space.array(x), out=out) is out
    return Outcome(space.host(out), p.dense, x)


def _alpha(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x = right(p, rng)
    found = bsrgemm.matmul(matrix(space, p), space.array(x), alpha=-1.75)
    return Outcome(space.host(found), p.dense, x, alpha=-1.75)


def _add(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """beta is 1 when c is given without it."""
    x, c = right(p, rng), added(p, rng)
    found = bsrgemm.matmul(matrix(space, p), space.array(x), space.array(c))
    return Outcome(space.host(found), p.dense, x, c, beta=1.0)


def _alpha_beta_out(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x, c = right(p, rng), added(p, rng)
    out = space.poisoned(c.shape, p.dtype)
    given = space.array(c)
    bsrgemm.matmul(matrix(space, p), space.array(x), given, alpha=0.5, beta=-2.0, out=out)
    assert np.array_equal(space.host(given).view(np.uint8), c.view(np.uint8)), "c was written to"
    return Outcome(space.host(out), p.dense, x, c, alpha=0.5, beta=-2.0)


def _in_place(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """out is c."""
    x, c = right(p, rng), added(p, rng)
    out = space.array(c.copy())
    bsrgemm.matmul(matrix(space, p), space.array(x), out, beta=0.75, out=out)
    return Outcome(space.host(out), p.dense, x, c, beta=0.75)


def _beta_zero(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """c is not read when beta is 0, so its NaN does not matter."""
    x = right(p, rng)
    c = space.poisoned((p.shape[0], p.n), p.dtype)
    found = bsrgemm.matmul(matrix(space, p), space.array(x), c, beta=0)
    return Outcome(space.host(found), p.dense, x)


def _fused(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """Scales and a bias of columns: the product of scaled operands, and a c of equal rows."""
    x, bias = right(p, rng), normal(rng, (p.n,), p.dtype)
    rows, columns = normal(rng, (p.shape[0],), p.dtype), normal(rng, (p.n,), p.dtype)
    out = space.poisoned((p.shape[0], p.n), p.dtype)
    bsrgemm.matmul(
        matrix(space, p),
        space.array(x),
        bias=space.array(bias),
        row_scale=space.array(rows),
        col_scale=space.array(columns),
        out=out,
    )
    dense = p.dense * rows.astype(np.float64)[:, None]
    scaled = x.astype(np.float64) * columns.astype(np.float64)
    c = np.broadcast_to(bias, (p.shape[0], p.n))
    return Outcome(space.host(out), dense, scaled, c, beta=1.0)


def _right_fused(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """A bias of rows, and zeros where its sum with the product is negative: there is none."""
    x, _ = _left(p, rng)
    x = np.abs(x)
    positive = Problem(np.abs(p.data), p.indices, p.indptr, p.shape, p.n, p.dtype)
    bias = np.abs(normal(rng, (p.n, 1), p.dtype))
    found = bsrgemm.matmul(
        space.array(x), matrix(space, positive), bias=space.array(bias), activation="relu"
    )
    c = np.broadcast_to(bias, (p.n, p.shape[1]))
    return _turned(space.host(found), positive.dense, x, c, beta=1.0)


def _transposed(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x = added(p, rng)
    found = matrix(space, p).T @ space.array(x)
    return Outcome(space.host(found), p.dense.T, x)


def _transposed_alpha_beta_out(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x, c = added(p, rng), right(p, rng)
    out = space.poisoned(c.shape, p.dtype)
    a = matrix(space, p).T
    bsrgemm.matmul(a, space.array(x), space.array(c), alpha=0.5, beta=-2.0, out=out)
    return Outcome(space.host(out), p.dense.T, x, c, alpha=0.5, beta=-2.0)


def _left(p: Problem, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Dense operands of products with the matrix on the right: N x M, and N x K for the result."""
    return normal(rng, (p.n, p.shape[0]), p.dtype), normal(rng, (p.n, p.shape[1]), p.dtype)


def _turned(
    found: np.ndarray, dense: np.ndarray, x: np.ndarray, c: np.ndarray | None = None, **scalars: Any
) -> Outcome:
    """The outcome of x @ dense + c as that of its transpose."""
    return Outcome(found.T, dense.T, x.T, None if c is None else c.T, **scalars)


def _right_operator(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x, _ = _left(p, rng)
    return _turned(space.host(space.array(x) @ matrix(space, p)), p.dense, x)


def _right_transposed(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    _, x = _left(p, rng)
    return _turned(space.host(space.array(x) @ matrix(space, p).T), p.dense.T, x)


def _right_alpha_beta_out(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x, c = _left(p, rng)
    out = space.poisoned(c.shape, p.dtype)
    given = space.array(c)
    bsrgemm.matmul(space.array(x), matrix(space, p), given, alpha=0.5, beta=-2.0, out=out)
    assert np.array_equal(space.host(given).view(np.uint8), c.view(np.uint8)), "c was written to"
    return _turned(space.host(out), p.dense, x, c, alpha=0.5, beta=-2.0)


def _right_in_place(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    c, x = _left(p, rng)
    out = space.array(c.copy())
    bsrgemm.matmul(space.array(x), matrix(space, p).T, out, beta=0.75, out=out)
    return _turned(space.host(out), p.dense.T, x, c, beta=0.75)


def _right_vector(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x, c = normal(rng, (p.shape[0],), p.dtype), normal(rng, (p.shape[1],), p.dtype)
    out = space.poisoned(c.shape, p.dtype)
    bsrgemm.matmul(space.array(x), matrix(space, p), space.array(c), beta=2, out=out)
    return Outcome(space.host(out), p.dense.T, x, c, beta=2.0)


def _right_column_major(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x, c = _left(p, rng)
    out = space.column_major(np.full_like(c, np.nan))
    left, given = space.column_major(x), space.column_major(c)
    bsrgemm.matmul(left, matrix(space, p), given, beta=1, out=out)
    return _turned(space.host(out), p.dense, x, c, beta=1.0)


def _right_padded(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """Rows longer than they need be, those of out at multiples of 16 bytes of any dtype."""
    c, x = _left(p, rng)
    wide_x = normal(rng, (p.n, x.shape[1] + 3), p.dtype)
    wide_x[:, 1 : x.shape[1] + 1] = x
    width = -(-c.shape[1] // 8) * 8 + 8
    wide_out = space.poisoned((p.n + 1, width), p.dtype)
    out = wide_out[: p.n, : c.shape[1]]
    bsrgemm.matmul(space.array(wide_x)[:, 1 : x.shape[1] + 1], matrix(space, p).T, out=out)
    after = space.host(wide_out).astype(np.float64)
    found = after[: p.n, : c.shape[1]].copy()
    after[: p.n, : c.shape[1]] = np.nan
    assert np.isnan(after).all(), "something outside out was written to"
    return _turned(found, p.dense.T, x)


BATCH = (2, 3)


def _side_by_side(batch: np.ndarray) -> np.ndarray:
    """The matrices of a batch as one, each beside the one before."""
    matrices = batch.reshape(6, *batch.shape[-2:])
    return np.concatenate(list(matrices), axis=1)


def _batch(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """One launch a matrix; c is a row that all rows of the batch share."""
    x = normal(rng, (*BATCH, p.shape[1], p.n), p.dtype)
    c = normal(rng, (p.n,), p.dtype)
    out = space.poisoned((*BATCH, p.shape[0], p.n), p.dtype)
    bsrgemm.matmul(matrix(space, p), space.array(x), space.array(c), beta=0.5, out=out)
    rows = np.broadcast_to(c, (p.shape[0], p.n))
    return Outcome(
        _side_by_side(space.host(out)),
        p.dense,
        _side_by_side(x),
        np.concatenate([rows] * 6, axis=1),
        beta=0.5,
    )


def _batch_beside(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """A batch whose matrices lie beside one another in memory: one product."""
    x = normal(rng, (p.shape[1], 3, p.n), p.dtype)
    c = normal(rng, (p.shape[0], 3, p.n), p.dtype)
    memory = space.poisoned((p.shape[0], 3, p.n), p.dtype)
    b, given, out = (y.swapaxes(0, 1) for y in (space.array(x), space.array(c), memory))
    bsrgemm.matmul(matrix(space, p), b, given, alpha=2, out=out)
    flat = [y.reshape(len(y), 3 * p.n) for y in (space.host(memory), x, c)]
    return Outcome(flat[0], p.dense, flat[1], flat[2], alpha=2.0, beta=1.0)


def _right_batch(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """Contiguous rows, as in a linear layer: one product."""
    x = normal(rng, (*BATCH, p.n, p.shape[0]), p.dtype)
    found = space.host(space.array(x) @ matrix(space, p))
    assert found.shape == (*BATCH, p.n, p.shape[1])
    rows = 6 * p.n
    return _turned(found.reshape(rows, p.shape[1]), p.dense, x.reshape(rows, p.shape[0]))


def _matvec(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x = normal(rng, (p.shape[1],), p.dtype)
    found = matrix(space, p) @ space.array(x)
    return Outcome(space.host(found), p.dense, x)


def _matvec_out(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x, c = normal(rng, (p.shape[1],), p.dtype), normal(rng, (p.shape[0],), p.dtype)
    out = space.poisoned(c.shape, p.dtype)
    bsrgemm.matmul(matrix(space, p), space.array(x), space.array(c), beta=2, out=out)
    return Outcome(space.host(out), p.dense, x, c, beta=2.0)


def _other(p: Problem, rng: np.random.Generator, rows: int, depth: int) -> Problem:
    """A block-sparse right operand of so many rows and p.n columns, for blocks as wide as its are
    high. Where these are partial, so are its block columns."""
    across = 2 if p.n and p.n % 2 == 0 else min(p.n, 1)
    down = -(-rows // depth)
    mask = rng.random((down, across)) < 0.6
    width, less = max(1, p.n // max(1, across)), 0
    if down * depth != rows and p.n > 2:
        width, less = width + 1, across
    return problem(rng, mask, (depth, width), 0, p.dtype, cut=(down * depth - rows, less))


def _sparse(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    other = _other(p, rng, p.shape[1], p.data.shape[2])
    found = matrix(space, p) @ matrix(space, other)
    return Outcome(space.host(found), p.dense, other.dense)


def _sparse_alpha_beta_out(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    other, c = _other(p, rng, p.shape[1], p.data.shape[2]), added(p, rng)
    out = space.poisoned(c.shape, p.dtype)
    operands = matrix(space, p), matrix(space, other), space.array(c)
    bsrgemm.matmul(*operands, alpha=0.5, beta=-2.0, out=out)
    return Outcome(space.host(out), p.dense, other.dense, c, alpha=0.5, beta=-2.0)


def _sparse_transposed(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """Both operands are views, and the result replaces c."""
    other = _other(p, rng, p.shape[0], p.data.shape[1])
    order = np.argsort(other.indices, kind="stable")
    rows = np.repeat(np.arange(len(other.indptr) - 1), np.diff(other.indptr))
    across = -(-other.shape[1] // other.data.shape[2])
    turned = Problem(
        np.ascontiguousarray(other.data[order].transpose(0, 2, 1)),
        rows[order].astype(np.int32),
        np.searchsorted(other.indices[order], np.arange(across + 1)).astype(np.int32),
        other.shape[::-1],
        0,
        p.dtype,
    )
    b = matrix(space, turned)
    c = normal(rng, (p.shape[1], p.n), p.dtype)
    out = space.array(c.copy())
    bsrgemm.matmul(matrix(space, p).T, b.T, out, beta=0.75, out=out)
    return Outcome(space.host(out), p.dense.T, other.dense, c, beta=0.75)


def _sparse_column_major(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    other, c = _other(p, rng, p.shape[1], p.data.shape[2]), added(p, rng)
    out = space.column_major(np.full_like(c, np.nan))
    operands = matrix(space, p), matrix(space, other), space.column_major(c)
    bsrgemm.matmul(*operands, beta=1, out=out)
    return Outcome(space.host(out), p.dense, other.dense, c, beta=1.0)


def _column_major(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x, c = right(p, rng), added(p, rng)
    out = space.column_major(np.full_like(c, np.nan))
    bsrgemm.matmul(matrix(space, p), space.column_major(x), space.column_major(c), beta=1, out=out)
    return Outcome(space.host(out), p.dense, x, c, beta=1.0)


def _strided(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """b and out are every second column of wider arrays, from the third on."""
    x = right(p, rng)
    wide_x = normal(rng, (p.shape[1] + 3, 2 * p.n + 5), p.dtype)
    wide_x[1 : p.shape[1] + 1, 2 : 2 * p.n + 2 : 2] = x
    wide_out = space.poisoned((p.shape[0] + 3, 2 * p.n + 5), p.dtype)
    b = space.array(wide_x)[1 : p.shape[1] + 1, 2 : 2 * p.n + 2 : 2]
    out = wide_out[1 : p.shape[0] + 1, 2 : 2 * p.n + 2 : 2]
    bsrgemm.matmul(matrix(space, p), b, out=out)
    after = space.host(wide_out).astype(np.float64)
    found = after[1 : p.shape[0] + 1, 2 : 2 * p.n + 2 : 2].copy()
    after[1 : p.shape[0] + 1, 2 : 2 * p.n + 2 : 2] = np.nan
    assert np.isnan(after).all(), "something outside out was written to"
    return Outcome(found, p.dense, x)


def _padded(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    """Rows longer than N with unit column stride, not a multiple of 16 bytes."""
    x = right(p, rng)
    wide_x = normal(rng, (p.shape[1], p.n + 3), p.dtype)
    wide_x[:, 1 : p.n + 1] = x
    wide_out = space.poisoned((p.shape[0], p.n + 5), p.dtype)
    bsrgemm.matmul(
        matrix(space, p), space.array(wide_x)[:, 1 : p.n + 1], out=wide_out[:, 2 : p.n + 2]
    )
    after = space.host(wide_out).astype(np.float64)
    found = after[:, 2 : p.n + 2].copy()
    after[:, 2 : p.n + 2] = np.nan
    assert np.isnan(after).all(), "something outside out was written to"
    return Outcome(found, p.dense, x)


def dynamic_matrix(space: Space, p: Problem) -> Any:
    """The matrix with a pattern of its device and room for two blocks more, which are poison."""
    if is_partial(p):
        return matrix(space, p)
    if 0 in p.shape:
        return matrix(space, p)
    return changing_pattern(space, p).array(space.array(with_room(p, p.data)))


def _room(p: Problem) -> int:
    """For two blocks more, where there are places for them."""
    return min(len(p.data) + 2, mask_of(p).size)


def changing_pattern(space: Space, p: Problem) -> bsrgemm.DynamicPattern:
    pattern = bsrgemm.DynamicPattern(p.shape, p.data.shape[1:], _room(p), space.device)
    pattern.update(space.array(mask_of(p)))
    return pattern


def with_room(p: Problem, data: np.ndarray) -> np.ndarray:
    """Values for such a pattern, NaN behind those of the blocks."""
    values = np.full((_room(p), *data.shape[1:]), np.nan, data.dtype)
    values[: len(data)] = data
    return values


def _dynamic(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x, c = right(p, rng), added(p, rng)
    found = bsrgemm.matmul(dynamic_matrix(space, p), space.array(x), space.array(c), alpha=0.5)
    return Outcome(space.host(found), p.dense, x, c, alpha=0.5, beta=1.0)


def _dynamic_transposed(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x = added(p, rng)
    found = dynamic_matrix(space, p).T @ space.array(x)
    return Outcome(space.host(found), p.dense.T, x)


def _dynamic_right(space: Space, p: Problem, rng: np.random.Generator) -> Outcome:
    x, _ = _left(p, rng)
    return _turned(space.host(space.array(x) @ dynamic_matrix(space, p)), p.dense, x)


OPERATIONS = (
    Operation("operator", _operator),
    Operation("out", _out),
    Operation("alpha", _alpha),
    Operation("add", _add),
    Operation("alpha_beta_out", _alpha_beta_out),
    Operation("in_place", _in_place),
    Operation("beta_zero", _beta_zero),
    Operation("fused", _fused),
    Operation("right_fused", _right_fused),
    Operation("transposed", _transposed),
    Operation("transposed_alpha_beta_out", _transposed_alpha_beta_out),
    Operation("right_operator", _right_operator),
    Operation("right_transposed", _right_transposed),
    Operation("right_alpha_beta_out", _right_alpha_beta_out),
    Operation("right_in_place", _right_in_place),
    Operation("right_vector", _right_vector),
    Operation("batch", _batch),
    Operation("batch_beside", _batch_beside, strided=True),
    Operation("right_batch", _right_batch),
    Operation("matvec", _matvec),
    Operation("matvec_out", _matvec_out),
    Operation("sparse", _sparse),
    Operation("sparse_alpha_beta_out", _sparse_alpha_beta_out),
    Operation("sparse_transposed", _sparse_transposed),
    Operation("dynamic", _dynamic),
    Operation("dynamic_transposed", _dynamic_transposed),
    Operation("dynamic_right", _dynamic_right),
    Operation("column_major", _column_major, strided=True),
    Operation("sparse_column_major", _sparse_column_major, strided=True),
    Operation("strided", _strided, strided=True),
    Operation("padded", _padded, strided=True),
    Operation("right_column_major", _right_column_major, strided=True),
    Operation("right_padded", _right_padded, strided=True),
)


def check(operation: Operation, space: Space, p: Problem, rng: np.random.Generator) -> Any:
    """Run an operation and compare its whole result with the float64 reference."""
    outcome = operation.run(space, p, rng)
    expected, allowed = allowed_error(*outcome[1:], p.dtype)
    assert_close(outcome.found, expected, allowed)
