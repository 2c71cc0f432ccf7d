#include "sm90/narrow_tma.cuh"

BSRG_NARROW_TMA_KERNELS_8(narrow_tma_e4m3_p4, __nv_fp8_e4m3, 4, 32)
BSRG_NARROW_TMA_KERNELS_8(narrow_tma_e4m3_p4, __nv_fp8_e4m3, 4, 64)
