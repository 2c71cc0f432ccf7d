#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS(narrow_tma_ta_f16, __half, 1, 64, true)
