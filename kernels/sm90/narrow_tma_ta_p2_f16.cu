#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS(narrow_tma_ta_p2_f16, __half, 2, 64, true)
