#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS(narrow_tma_p2_f16, __half, 2, 32, false)
BSRG_NARROW_TMA_KERNELS(narrow_tma_p2_f16, __half, 2, 64, false)
