"""For scripts under the emulated driver of tests/emulation.py: calls of all operations."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import Any

import attention_cases
import numpy as np
import operations
import pytest
import softmax_cases
import value_batch_cases
import view_cases
from cases import of_all_lengths, problem
from drawn_calls import Drawn, calls, check
from drawn_products import Target
from hypothesis import given
from hypothesis import strategies as st
from operations import matrix
from spaces import LentSpace, OwnDevice, Space, import_torch
from strategies import GPU_COLUMNS, GPU_SIDES, profile

NO_SUCH_KERNEL = "CUDA_ERROR_500"  # what tests/c/fake_cuda.c says of those that were not compiled


def any_calls(count: int) -> int:
    """Checks random calls of any operation; how many of them were computed or rightly refused."""
    import_torch()
    warnings.simplefilter("ignore")
    target = Target(on_gpu=True, hopper=os.environ["FAKE_CUDA_ARCH"] == "90", own=True)
    done = 0

    @profile(count)
    @given(calls(GPU_SIDES, GPU_SIDES, GPU_COLUMNS), st.sampled_from((OwnDevice(), LentSpace())))
    def run(drawn: Drawn, space: Space) -> None:
        nonlocal done
        if _is_emulated(lambda: check(drawn, space, target)):
            done += 1

    run()
    return done


def all_operations(rounds: int, dtypes: tuple[str, ...]) -> int:
    """Checks the operations of the table with strided operands; how many were computed."""
    rng = np.random.default_rng()
    blocks = ((64, 64), (16, 16), (32, 32), (12, 20), (128, 64), (8, 8), (64, 16), (48, 80))
    done = 0
    for _ in range(rounds):
        for operation in operations.OPERATIONS:
            p = problem(
                rng,
                rng.random((4, 5)) < 0.5,
                blocks[rng.integers(len(blocks))],
                int(rng.choice([1, 7, 33, 64, 200])),
                str(rng.choice(dtypes)),
                cut=(int(rng.integers(3)), int(rng.integers(3))),
            )
            print(operation.name, p.shape, p.data.shape, p.n, p.dtype)
            done += _is_emulated(lambda: operations.check(operation, LentSpace(), p, rng))  # noqa: B023
    return done


def batches_of_values() -> int:
    """Checks products of batches of matrices; how many sets of them were computed."""
    rng = np.random.default_rng()
    return sum(
        _is_emulated(lambda: value_batch_cases.products(LentSpace(), rng, "float16", batch))  # noqa: B023
        for batch in ((3,), (2, 3))
    )


def views() -> int:
    """Checks products of views of larger arrays; how many were computed."""
    rng = np.random.default_rng()
    done = 0
    for p, n, form in view_cases.product_cases(rng, "float16", 20):
        done += _is_emulated(lambda: view_cases.check_product(LentSpace(), rng, p, n, form))  # noqa: B023
    for cut in (0, 1, 2):
        done += _is_emulated(lambda: view_cases.check_pairs(LentSpace(), rng, "float16", 64, cut))  # noqa: B023
    return done


def rows_of_all_lengths() -> int:
    """Checks products that clusters of CTAs share evenly; how many of them did."""
    rng, done = np.random.default_rng(), 0
    shapes = (
        ((64, 64), (64, 24)),
        ((96, 48), (40, 24)),
        ((256, 80), (20, 8)),
        ((40, 112), (64, 8)),
    )
    for blocksize, grid in shapes:
        for cut in ((0, 0), (2, 3)):
            mask = of_all_lengths(rng, *grid)
            n = int(rng.choice([72, 75, 100, 128]))
            p = problem(rng, mask, blocksize, n, "float16", cut=cut)
            _is_emulated(lambda: view_cases.check_product(LentSpace(), rng, p, n, "A @ X"))  # noqa: B023
            done += "rows shared out" in matrix(LentSpace(), p).plan(n).explain()
    return done


def special_values() -> int:
    """Checks what infinities, NaN and large scores do to softmax and attention; how many of them
    were computed."""
    space, done, rng = OwnDevice(), 0, np.random.default_rng()
    for backend in ("hopper", "decode", "portable"):
        if backend == "hopper" and os.environ["FAKE_CUDA_ARCH"] != "90":
            continue
        done += _is_emulated(
            lambda: attention_cases.check_queries_without_keys(space, "float16", backend)  # noqa: B023
        )
        if backend == "portable":
            done += _is_emulated(
                lambda: attention_cases.check_largest_scales(space, "float16", "portable")
            )
        for size in (64, 192):
            case = attention_cases.Case(5, 500, size=size, scale=2.0**40)
            check = partial(attention_cases.check_far_scores, space, case, "float16", rng)
            done += _is_emulated(partial(check, backend=backend))
    done += _is_emulated(partial(attention_cases.check_no_keys, space, "float16", rng))
    for dtype in ("float16", "bfloat16"):
        done += _is_emulated(partial(softmax_cases.check_special, space, dtype))
        done += _is_emulated(partial(softmax_cases.check_largest, space, dtype))
    return done


def _is_emulated(call: Any) -> bool:
    try:
        call()
    except pytest.skip.Exception:
        return False
    except RuntimeError as error:
        if NO_SUCH_KERNEL not in str(error):
            raise
        return False
    return True
