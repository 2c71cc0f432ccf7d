#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS(narrow_tma_ta_p4_f16, __half, 4, 64, true)
