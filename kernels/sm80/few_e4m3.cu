#include "sm80/few.cuh"

BSRG_FEW_KERNELS_OF_8_BITS(few_e4m3, __nv_fp8_e4m3)
