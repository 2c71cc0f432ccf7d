#include "sm80/narrow.cuh"

#define KERNEL(...) BSRG_NARROW_KERNEL(narrow_f16, __half, false, __VA_ARGS__)
BSRG_NARROW_TILES(KERNEL)
