#include "sm90/narrow_shares.cuh"

BSRG_NARROW_SHARES_KERNELS(narrow_shares_bf16, __nv_bfloat16)
