#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS_GAPLESS(narrow_tma_ta_gapless_bf16, __nv_bfloat16, 64, true)
