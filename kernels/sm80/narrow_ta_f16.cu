#include "sm80/narrow.cuh"

#define KERNEL(...) BSRG_NARROW_KERNEL(narrow_ta_f16, __half, true, __VA_ARGS__)
BSRG_NARROW_TILES(KERNEL)
