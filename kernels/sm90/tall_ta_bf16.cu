#include "sm90/tall_transposed.cuh"

BSRG_TALL_TRANSPOSED_KERNELS(tall_ta_bf16, __nv_bfloat16, true, false)
