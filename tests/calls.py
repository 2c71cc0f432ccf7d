"""One call of every operation that computes or makes a matrix, for tests that ask not what comes
out but whether it is the same each time, and whether anything stays behind.

``calls`` prepares the operands once. Each call gives back an array, or a list of them.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import bsrgemm
import cases
import numpy as np
from bsrgemm import BlockMask, bsr_array, matmul
from spaces import Space

Call = Callable[[], Any]

# Of each block size one family of kernels: "tall", "stream" and "portable", where there is a GPU.
BLOCKSIZES = ((64, 64), (16, 16), (12, 20))
ROWS, COLS = 6, 5  # in blocks


def calls(
    space: Space,
    rng: np.random.Generator,
    dtype: str = "float16",
    blocksize: tuple[int, int] = (64, 64),
    n: int = 40,
    length: int = 96,
) -> dict[str, Call]:
    """Those that any library and device has; ``n`` columns, and ``length`` queries of attention."""

    def array(*shape: int) -> Any:
        return space.array(cases.normal(rng, shape, dtype))

    def matrix(mask: np.ndarray) -> bsr_array:
        p = cases.problem(rng, mask, blocksize, n, dtype)
        return bsr_array((space.array(p.data), p.indices, p.indptr), p.shape)

    uniform = cases.uniform(0.5)
    a = matrix(uniform(rng, ROWS, COLS))
    b = matrix(uniform(rng, ROWS, COLS))
    (m, k), x, y = a.shape, array(a.shape[1], n), array(a.shape[0], n)
    c, column, left, below = array(m, n), array(k), array(n, m), array(n, k)
    bias, scale = array(n), array(m)
    data, arrays = a.data, (a._structure.indices, a._structure.indptr)

    def into_c() -> Any:
        out = space.array(np.zeros((m, n), cases.numpy_dtype(dtype)))
        return matmul(a, x, c, alpha=0.5, beta=2.0, out=out)

    def new_structure() -> Any:
        """Of which the plan, and what a GPU holds of it, is made anew."""
        made = bsr_array((data, *arrays), a.shape)
        return [made @ x, made.T @ y]

    found: dict[str, Call] = {
        "matmul": lambda: a @ x,
        "matmul, transposed": lambda: a.T @ y,
        "matmul, one column": lambda: a @ column,
        "matmul, dense on the left": lambda: left @ a,
        "matmul, c and out": into_c,
        "matmul, fused": lambda: matmul(a, x, bias=bias, row_scale=scale, activation="gelu"),
        "matmul, two block-sparse": lambda: a.T @ b,
        "matmul, new structure": new_structure,
        "sampled_matmul": lambda: bsrgemm.sampled_matmul(y, below, a).data,
        "softmax": lambda: bsrgemm.softmax(a, 0.25).data,
        "softmax, transposed": lambda: bsrgemm.softmax(a.T).T.data,
    }
    return found | _attention(space, rng, dtype, length) | _dynamic(space, rng, dtype, blocksize)


def _attention(space: Space, rng: np.random.Generator, dtype: str, length: int) -> dict[str, Call]:
    """GPUs have it in 16 bits."""
    if space.device != "cpu" and dtype not in ("float16", "bfloat16"):
        return {}
    attention = bsrgemm.attention
    keys = length + 64
    q, k, v = (space.array(cases.normal(rng, (1, 2, s, 32), dtype)) for s in (length, keys, keys))
    one = space.array(cases.normal(rng, (1, 2, 1, 32), dtype))
    mask = BlockMask.from_dense(rng.random((length // 32, keys // 32)) < 0.6, (32, 32))
    packed = [space.array(cases.normal(rng, (200, 2, 32), dtype)) for _ in range(3)]
    ends = space.array(np.array([0, 30, 30, 200], np.int32))

    def new_mask() -> Any:
        blocks = np.eye(length // 32, keys // 32, dtype=bool)
        return attention(q, k, v, block_mask=BlockMask.from_dense(blocks, (32, 32)))

    return {
        "attention": lambda: list(attention(q, k, v, is_causal=True, return_lse=True)),
        "attention, mask": lambda: attention(q, k, v, block_mask=mask),
        "attention, new mask": new_mask,
        "attention, one query": lambda: attention(one, k, v),
        "attention, sequences": lambda: attention(*packed, cu_seqlens_q=ends, cu_seqlens_k=ends),
    }


def _dynamic(
    space: Space, rng: np.random.Generator, dtype: str, blocksize: tuple[int, int]
) -> dict[str, Call]:
    shape = (3 * blocksize[0], 4 * blocksize[1])
    mask = space.array(rng.random((3, 4)) < 0.5)
    scores = space.array(cases.normal(rng, (3, 4), "float32"))
    dense = space.array(cases.normal(rng, shape, dtype))
    x = space.array(cases.normal(rng, (shape[1], 24), dtype))
    pattern = bsrgemm.DynamicPattern(shape, blocksize, 9, space.device)

    def product() -> Any:
        pattern.update(mask)
        return pattern.array(pattern.gather(dense)) @ x

    def chosen() -> Any:
        new = bsrgemm.DynamicPattern(shape, blocksize, 9, space.device)
        new.update_topk(scores, 2)
        return new.array(new.gather(dense)) @ x

    return {"DynamicPattern": product, "DynamicPattern, new": chosen}


def host_calls(
    space: Space, rng: np.random.Generator, dtype: str = "float32", blocksize=(8, 4)
) -> dict[str, Call]:
    """Those that need values in arrays of NumPy, torch or CuPy."""
    p = cases.problem(rng, cases.uniform(0.5)(rng, ROWS, COLS), blocksize, 1, dtype)
    q = cases.problem(rng, cases.uniform(0.5)(rng, ROWS, COLS), blocksize, 1, dtype)
    a, b = (bsr_array((space.array(r.data), r.indices, r.indptr), r.shape) for r in (p, q))
    dense = space.array(cases.normal(rng, p.shape, dtype))
    mask = rng.random((ROWS, COLS)) < 0.5
    height, width = blocksize

    def saved() -> Any:
        file = io.BytesIO()
        a.save(file)
        file.seek(0)
        return bsrgemm.load(file).data

    found: dict[str, Call] = {
        "from dense": lambda: bsr_array(dense, blocksize=blocksize).data,
        "from_block_mask": lambda: bsr_array.from_block_mask(dense, mask, blocksize).data,
        "prune": lambda: bsrgemm.prune(dense, blocksize, 0.3).data,
        "todense": lambda: a.todense(),
        "astype": lambda: a.astype("float64").data,
        "T.copy": lambda: a.T.copy().data,
        "add": lambda: (a + b - 2 * b).data,
        "multiply": lambda: (a * b / 3).data,
        "sum": lambda: [a.sum(0), a.sum(1)],
        "part": lambda: a[height : 4 * height, width:].data,
        "reblock": lambda: a.reblock((2 * height, width)).data,
        "vstack": lambda: bsrgemm.vstack([a, b]).data,
        "hstack": lambda: bsrgemm.hstack([a, b.T.copy().T]).data,
        "block_diag": lambda: bsrgemm.block_diag([a, b]).data,
    }
    if space.name == "numpy":
        found["save and load"] = saved
        found["plan"] = lambda: np.array([a.plan(512).tflops])
        found["BlockMask"] = lambda: BlockMask.prefix(300, 400, 70, (64, 32)).to_dense()
    return found


def bits(space: Space, result: Any) -> list[bytes]:
    """What a call gave, bit for bit."""
    parts = result if isinstance(result, list) else [result]
    return [np.ascontiguousarray(space.host(part)).tobytes() for part in parts]


def together(work: Callable[[int], None], count: int) -> None:
    """``work(number)`` in each of ``count`` threads, all begun at one time. The first failure is
    raised."""
    barrier, failures = threading.Barrier(count), []

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
