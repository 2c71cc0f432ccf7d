#include "sm80/simt.cuh"

#define KERNEL(...) BSRG_TF32_KERNEL(simt_tf32, __VA_ARGS__)
BSRG_SIMT_TF32_TILES(KERNEL)
