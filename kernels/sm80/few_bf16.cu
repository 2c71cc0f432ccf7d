#include "sm80/few.cuh"

BSRG_FEW_KERNELS(few_bf16, __nv_bfloat16)
