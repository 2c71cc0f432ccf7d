#include "sm90/sampled.cuh"

BSRG_SAMPLED_KERNELS(sampled_f16, __half)
