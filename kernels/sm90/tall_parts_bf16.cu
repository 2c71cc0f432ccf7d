#include "sm90/tall_parts.cuh"

BSRG_TALL_PARTS_KERNELS(tall_parts_bf16, __nv_bfloat16)
