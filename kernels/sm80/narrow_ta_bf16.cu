#include "sm80/narrow.cuh"

#define KERNEL(...) BSRG_NARROW_KERNEL(narrow_ta_bf16, __nv_bfloat16, true, __VA_ARGS__)
BSRG_NARROW_TILES(KERNEL)
