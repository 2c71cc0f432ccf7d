#include "sm90/narrow_fma.cuh"

#define KERNEL(...) BSRG_NARROW_FMA_KERNEL(narrow_ta_f64, double, true, __VA_ARGS__)
BSRG_NARROW_FMA_TILES(KERNEL)
