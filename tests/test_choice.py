"""A structure remembers the family of its last product, but only for products of the same kind."""

from __future__ import annotations

import fake_cuda
import numpy as np
import pytest

SCRIPT = """
    import itertools
    import numpy as np
    from bsrgemm import DeviceArray, bsr_array, matmul
    from fake_cuda import driver

    ORDER, ITEM = 512, 2

    class View:
        # Of a device's memory, at any address and with any strides.
        def __init__(self, rows, cols, shift, strides):
            size = shift + (rows - 1) * strides[0] + (cols - 1) * strides[1] + 1
            self.memory = DeviceArray.from_host(np.ones(size, np.float16))
            start = self.memory.__cuda_array_interface__["data"][0]
            self.__cuda_array_interface__ = {{
                "shape": (rows, cols), "strides": tuple(ITEM * s for s in strides),
                "typestr": "<f2", "data": (start + ITEM * shift, False), "version": 3,
            }}

    def views(rows, cols):
        return [
            View(rows, cols, 0, (cols, 1)),
            View(rows, cols, 1, (cols, 1)),
            View(rows, cols, 0, (cols + 3, 1)),
            View(rows, cols, 0, (1, rows)),
        ]

    def matrix(values):
        return bsr_array((values, indices, indptr), (ORDER, ORDER))

    rng = np.random.default_rng({seed})
    side = {side}
    blocks = rng.random((ORDER // side, ORDER // side)) < 0.3
    blocks[0, 0] = True
    indices = np.nonzero(blocks)[1].astype(np.int32)
    indptr = np.concatenate([[0], blocks.sum(1).cumsum()]).astype(np.int32)
    values = DeviceArray.from_host(np.ones((len(indices), side, side), np.float16))
    bias = DeviceArray.from_host(np.ones((ORDER, 1), np.float16))

    products = []
    for cols in (1, 8, 333, 512):
        for x, out, more in itertools.product(
            views(ORDER, cols), views(ORDER, cols), (False, True)
        ):
            options = dict(beta=1.0, c=out, bias=bias) if more else {{}}
            products.append((x, out, options))

    fake = driver()
    def kernel(a, product):
        x, out, options = product
        matmul(a, x, out=out, **options)
        return fake.fake_last_kernel()

    expected = [kernel(matrix(values), product) for product in products]
    a = matrix(values)
    for _ in range(5):
        for i in rng.permutation(len(products)):
            for _ in range(2):
                assert kernel(a, products[i]) == expected[i], (i, expected[i])
    print(len(set(expected)))
"""


@fake_cuda.needs_kernels
@pytest.mark.parametrize("side", [8, 16, 64])
def test_family_follows_every_product(side: int, rng: np.random.Generator) -> None:
    seed = int(rng.integers(1 << 30))
    kinds = fake_cuda.run(SCRIPT.format(side=side, seed=seed))
    assert int(kinds) >= 3, "of kernels: else nothing would have had to change"


SCRIPT_OF_8_BITS = """
    import itertools
    import ml_dtypes
    import numpy as np
    from bsrgemm import DeviceArray, bsr_array, matmul
    from fake_cuda import driver

    ORDER, E4M3 = 2048, ml_dtypes.float8_e4m3fn
    rng = np.random.default_rng({seed})
    blocks = rng.random((ORDER // {height}, ORDER // {width})) < 0.3
    blocks[0, 0] = True
    indices = np.nonzero(blocks)[1].astype(np.int32)
    indptr = np.concatenate([[0], blocks.sum(1).cumsum()]).astype(np.int32)

    def ones(*shape, dtype=np.float32):
        return DeviceArray.from_host(np.ones(shape, dtype))

    values = ones(len(indices), {height}, {width}, dtype=E4M3)
    x = {{cols: ones(ORDER, cols, dtype=E4M3) for cols in (8, 4096)}}
    y = {{
        (cols, dtype): DeviceArray.empty((ORDER, cols), dtype)
        for cols in x for dtype in ("float16", "float32")
    }}
    scales = None, 2.0, ones(1), ones(len(indices))
    choices = list(itertools.product(
        x, scales, (None, 2.0), (None, ones(ORDER)), (False, True), ("float16", "float32")
    ))
    products = [
        (x[cols], dict(a_scale=a, b_scale=b, row_scale=row, out=y[cols, dtype],
                       col_scale=ones(cols) if col else None))
        for cols, a, b, row, col, dtype in choices
    ]

    def matrix():
        return bsr_array((values, indices, indptr), (ORDER, ORDER))

    fake = driver()
    def kernel(a, product):
        matmul(a, product[0], **product[1])
        return fake.fake_last_kernel()

    expected = [kernel(matrix(), product) for product in products]
    a = matrix()
    # All that differ in one option, one behind the other.
    for i, j in itertools.permutations(range(len(products)), 2):
        if sum(one is not other for one, other in zip(choices[i], choices[j])) == 1:
            kernel(a, products[i])
            assert kernel(a, products[j]) == expected[j], (products[i][1], products[j][1])
    print(len(set(expected)))
"""

SCRIPT_OF_FLOAT32 = """
    import numpy as np
    from bsrgemm import DeviceArray, bsr_array, matmul
    from fake_cuda import driver

    rng = np.random.default_rng({seed})
    blocks = rng.random((32, 32)) < 0.5
    indices = np.nonzero(blocks)[1].astype(np.int32)
    indptr = np.concatenate([[0], blocks.sum(1).cumsum()]).astype(np.int32)
    values = DeviceArray.from_host(np.ones((len(indices), 64, 64), np.float32))
    x = DeviceArray.from_host(np.ones((2048, 4096), np.float32))

    def kernel(a, precision):
        matmul(a, x, precision=precision)
        return driver().fake_last_kernel()

    def matrix():
        return bsr_array((values, indices, indptr), (2048, 2048))

    expected = {{precision: kernel(matrix(), precision) for precision in ("tf32", "ieee")}}
    a = matrix()
    for precision in ("tf32", "ieee", "tf32"):
        assert kernel(a, precision) == expected[precision], precision
    print(len(set(expected.values())))
"""


@fake_cuda.needs_kernels
def test_family_follows_precision(rng: np.random.Generator) -> None:
    kinds = fake_cuda.run(SCRIPT_OF_FLOAT32.format(seed=int(rng.integers(1 << 30))))
    assert int(kinds) == 2


@fake_cuda.needs_kernels
@pytest.mark.parametrize(("height", "width"), [(16, 16), (16, 32), (32, 32), (64, 64)])
def test_family_follows_scales(height: int, width: int, rng: np.random.Generator) -> None:
    """Not all families take a scale of each block, or scales of rows beside one of the matrix."""
    pytest.importorskip("ml_dtypes", reason="NumPy has no 8-bit floats without ml_dtypes")
    seed = int(rng.integers(1 << 30))
    kinds = fake_cuda.run(SCRIPT_OF_8_BITS.format(height=height, width=width, seed=seed))
    assert int(kinds) >= 2, "of kernels: else nothing would have had to change"
