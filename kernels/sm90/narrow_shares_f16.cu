#include "sm90/narrow_shares.cuh"

BSRG_NARROW_SHARES_KERNELS(narrow_shares_f16, __half)
