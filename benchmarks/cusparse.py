"""cuSPARSE's Blocked-ELL product, called through ctypes from the library that torch has loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

# Values of cusparse.h and library_types.h.
_INDEX_32I, _INDEX_BASE_ZERO, _ORDER_ROW, _NON_TRANSPOSE = 2, 0, 2, 0
_ALG_BLOCKED_ELL_1 = 13
_REAL_32F = 0
_VALUE_TYPES = {"float16": 2, "bfloat16": 14}

_POINTER, _INT64, _ENUM = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_SPMM = (_POINTER, _ENUM, _ENUM, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _ENUM, _ENUM)
_SIGNATURES = {
    "cusparseCreate": (_POINTER,),
    "cusparseSetStream": (_POINTER, _POINTER),
    "cusparseCreateBlockedEll": (
        *(_POINTER, _INT64, _INT64, _INT64, _INT64),
        *(_POINTER, _POINTER, _ENUM, _ENUM, _ENUM),
    ),
    "cusparseCreateDnMat": (_POINTER, _INT64, _INT64, _INT64, _POINTER, _ENUM, _ENUM),
    "cusparseSpMM_bufferSize": (*_SPMM, _POINTER),
    "cusparseSpMM": (*_SPMM, _POINTER),
}


class CusparseError(RuntimeError):
    """A call into cuSPARSE failed."""


class Cusparse:
    """The functions that a product needs, and a handle."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        try:
            self.library = ctypes.CDLL("libcusparse.so.12")
        except OSError as error:
            raise CusparseError(str(error)) from None
        self.library.cusparseGetErrorString.restype = ctypes.c_char_p
        for name, arguments in _SIGNATURES.items():
            getattr(self.library, name).argtypes = arguments
        self.handle = ctypes.c_void_p()
        self._call("cusparseCreate", ctypes.byref(self.handle))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            text = self.library.cusparseGetErrorString(status).decode()
            raise CusparseError(f"{name}: {text}")

    def blocked_ell(
        self, dtype: str, values: Any, columns: Any, k: int, x: Any, out: Any
    ) -> Callable[[], Any]:
        """The product as a call, which returns out.

        ``values``: [block rows, b, blocks a row, b], the matrix without its empty blocks, row by
        row; ``columns``: int32 [block rows, blocks a row]; both on the GPU, as x [K, N] and out.
        """
        block_rows, block, per_row, _ = values.shape
        kind = _VALUE_TYPES[dtype]
        a, b, c = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call(
            "cusparseCreateBlockedEll",
            *(ctypes.byref(a), block_rows * block, k, block, per_row * block),
            *(columns.data_ptr(), values.data_ptr(), _INDEX_32I, _INDEX_BASE_ZERO, kind),
        )
        for descriptor, dense in ((b, x), (c, out)):
            rows, cols = dense.shape
            self._call(
                "cusparseCreateDnMat",
                *(ctypes.byref(descriptor), rows, cols, cols, dense.data_ptr(), kind, _ORDER_ROW),
            )
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        problem = (
            *(self.handle, _NON_TRANSPOSE, _NON_TRANSPOSE, ctypes.byref(one), a, b),
            *(ctypes.byref(zero), c, _REAL_32F, _ALG_BLOCKED_ELL_1),
        )
        size = ctypes.c_size_t()
        self._call("cusparseSpMM_bufferSize", *problem, ctypes.byref(size))
        buffer = self.torch.empty(max(size.value, 1), dtype=self.torch.uint8, device=x.device)

        def product() -> Any:
            stream = self.torch.cuda.current_stream().cuda_stream
            self._call("cusparseSetStream", self.handle, stream)
            self._call("cusparseSpMM", *problem, buffer.data_ptr())
            return out

        # The descriptors hold bare addresses: the call has to keep their owners alive.
        product.operands = (values, columns, x, one, zero)  # type: ignore[attr-defined]
        return product
