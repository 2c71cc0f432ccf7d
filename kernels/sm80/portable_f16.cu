#include "sm80/portable.cuh"

#define KERNEL(...) BSRG_MMA_KERNEL(portable_f16, __half, __VA_ARGS__)
BSRG_MMA_TILES(KERNEL)
