#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS(narrow_tma_bf16, __nv_bfloat16, 1, 32, false)
BSRG_NARROW_TMA_KERNELS(narrow_tma_bf16, __nv_bfloat16, 1, 64, false)
