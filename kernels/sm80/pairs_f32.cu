#include "sm80/pairs.cuh"
#include "sm80/simt.cuh"

#define KERNEL(...) BSRG_PAIRS_KERNEL_OF(pairs_f32, bsrg::simt::Kernel, float, false, __VA_ARGS__)
BSRG_PAIRS_F32_TILES(KERNEL)
