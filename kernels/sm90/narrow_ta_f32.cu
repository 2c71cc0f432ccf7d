#include "sm90/narrow_f32.cuh"

#define KERNEL(...) BSRG_NARROW_F32_KERNEL(narrow_ta_f32, true, __VA_ARGS__)
BSRG_NARROW_F32_TILES(KERNEL)
