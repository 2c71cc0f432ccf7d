#include "sm90/pairs.cuh"

BSRG_PAIRS_KERNELS(pairs_f16, __half, 2)
BSRG_PAIRS_KERNELS(pairs_f16, __half, 4)
