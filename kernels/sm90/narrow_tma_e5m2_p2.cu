#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS_8(narrow_tma_e5m2_p2, __nv_fp8_e5m2, 2, 32)
BSRG_NARROW_TMA_KERNELS_8(narrow_tma_e5m2_p2, __nv_fp8_e5m2, 2, 64)
