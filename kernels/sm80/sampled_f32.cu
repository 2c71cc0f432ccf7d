#include "sm80/sampled_simt.cuh"

#define KERNEL(...) BSRG_SAMPLED_SIMT_KERNEL(sampled_f32, float, __VA_ARGS__)
BSRG_SAMPLED_F32_TILES(KERNEL)
