#include "sm90/tall.cuh"

BSRG_TALL_KERNELS(tall_bf16, __nv_bfloat16)
