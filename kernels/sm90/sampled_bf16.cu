#include "sm90/sampled.cuh"

BSRG_SAMPLED_KERNELS(sampled_bf16, __nv_bfloat16)
