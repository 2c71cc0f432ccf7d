#include "sm80/portable.cuh"

#define KERNEL(...) BSRG_MMA_TRANSPOSED(portable_transposed_f16, __half, __VA_ARGS__)
BSRG_MMA_TILES(KERNEL)
