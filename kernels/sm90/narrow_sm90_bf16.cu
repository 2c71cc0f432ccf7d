#include "sm80/narrow.cuh"

#define KERNEL(...) BSRG_NARROW_SM90_KERNEL(narrow_sm90_bf16, __nv_bfloat16, false, __VA_ARGS__)
BSRG_NARROW_SM90_TILES(KERNEL)
