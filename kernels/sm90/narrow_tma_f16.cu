#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS(narrow_tma_f16, __half, 32, false)
BSRG_NARROW_TMA_KERNELS(narrow_tma_f16, __half, 64, false)
