#include "sm90/pairs.cuh"

BSRG_PAIRS_KERNELS(pairs_bf16, __nv_bfloat16, 2)
BSRG_PAIRS_KERNELS(pairs_bf16, __nv_bfloat16, 4)
