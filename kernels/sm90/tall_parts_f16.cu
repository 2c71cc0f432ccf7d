#include "sm90/tall_parts.cuh"

BSRG_TALL_PARTS_KERNELS(tall_parts_f16, __half)
