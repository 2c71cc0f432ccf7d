#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS_GAPLESS(narrow_tma_ta_gapless_f16, __half, 64, true)
