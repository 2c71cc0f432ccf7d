#include "sm80/few.cuh"

BSRG_FEW_KERNELS(few_f16, __half)
