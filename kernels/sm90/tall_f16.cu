#include "sm90/tall.cuh"

BSRG_TALL_KERNELS(tall_f16, __half)
