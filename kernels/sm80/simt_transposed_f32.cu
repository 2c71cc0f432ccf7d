#include "sm80/simt.cuh"

#define KERNEL(...) BSRG_SIMT_TRANSPOSED(simt_transposed_f32, float, __VA_ARGS__)
BSRG_SIMT_F32_TILES(KERNEL)
