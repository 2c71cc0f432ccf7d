#include "sm80/portable.cuh"

#define KERNEL(...) BSRG_MMA_TRANSPOSED(portable_transposed_bf16, __nv_bfloat16, __VA_ARGS__)
BSRG_MMA_TILES(KERNEL)
