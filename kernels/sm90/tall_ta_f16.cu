#include "sm90/tall_transposed.cuh"

BSRG_TALL_TRANSPOSED_KERNELS(tall_ta_f16, __half, true, false)
