#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS_GAPLESS(narrow_tma_gapless_f16, __half, 32, false)
BSRG_NARROW_TMA_KERNELS_GAPLESS(narrow_tma_gapless_f16, __half, 64, false)
