"""The table of operations on the GPU, over libraries, dtypes and patterns; random structures."""

from __future__ import annotations

import cases
import numpy as np
import operations
import pytest
from cases import DTYPES, problem
from device_cases import reduced
from spaces import GPU_SPACES, Space

pytestmark = pytest.mark.gpu

# name: (pattern, block rows, block columns, block shape, columns of the dense operand)
SHAPES = {
    "odd": (cases.uniform(0.4), 5, 7, (3, 5), 11),
    "scalar blocks": (cases.uniform(0.3), 37, 23, (1, 1), 9),
    "16": (cases.uniform(0.25), 9, 11, (16, 16), 33),
    "32": (cases.uniform(0.25), 6, 5, (32, 32), 72),
    "64": (cases.uniform(0.4), 5, 6, (64, 64), 264),
    "128": (cases.uniform(0.5), 2, 3, (128, 128), 256),
    "one column": (cases.uniform(0.4), 8, 8, (16, 16), 1),
    "empty rows": (cases.empty_rows, 5, 6, (64, 32), 40),
    "one block": (cases.one_block, 6, 7, (5, 9), 21),
    "all blocks": (cases.uniform(1.1), 4, 5, (64, 16), 24),
    "no blocks": (cases.uniform(0.0), 3, 4, (64, 16), 8),
    "one long row": (cases.one_long_row, 12, 40, (4, 4), 19),
}


@pytest.mark.parametrize("operation", operations.OPERATIONS, ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
def test_operation(
    operation: operations.Operation, dtype: str, space: Space, rng: np.random.Generator
) -> None:
    space.check()
    if operation.strided and not space.strided:
        pytest.skip(f"{space!r} has no strided views")
    for name, (pattern, rows, cols, blocksize, n) in SHAPES.items():
        print(f"shape {name!r}")
        p = problem(rng, pattern(rng, rows, cols), blocksize, n, dtype)
        operations.check(operation, space, p, rng)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("space", GPU_SPACES, ids=repr)
@pytest.mark.parametrize(
    ("rows", "cols", "n"), [(0, 3, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0), (0, 0, 4)]
)
def test_zero_sizes(
    space: Space, dtype: str, rows: int, cols: int, n: int, rng: np.random.Generator
) -> None:
    space.check()
    p = problem(rng, np.ones((rows, cols), bool), (64, 16), n, dtype)
    for operation in operations.OPERATIONS:
        if space.strided or not operation.strided:
            print(operation.name)
            operations.check(operation, space, p, rng)


def test_structures() -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    from hypothesis import given
    from hypothesis import strategies as st
    from strategies import GPU_EXAMPLES, check_product, problems, profile

    heights = st.one_of(st.integers(1, 20), st.sampled_from((32, 48, 64, 65, 128, 192)))
    widths = st.one_of(st.integers(1, 20), st.sampled_from((16, 32, 48, 64, 80, 112, 128)))
    columns = st.one_of(st.integers(0, 40), st.sampled_from((64, 65, 72, 100, 256, 264)))
    scalars = st.sampled_from((0.0, 1.0, -1.0, 0.5, 3.0))

    @profile(reduced(GPU_EXAMPLES))
    @given(problems(heights, widths, columns), scalars, scalars)
    def run(drawn: tuple, alpha: float, beta: float) -> None:
        check_product(GPU_SPACES[-1], *drawn, alpha, beta)

    run()
