#include "sm80/few.cuh"

BSRG_FEW_KERNELS_OF_8_BITS(few_e5m2, __nv_fp8_e5m2)
