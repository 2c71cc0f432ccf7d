#include "sm80/sampled.cuh"

#define KN(...) BSRG_SAMPLED_MMA_KERNEL(sampled_f16, __half, kn, false, false, __VA_ARGS__)
#define KK(...) BSRG_SAMPLED_MMA_KERNEL(sampled_f16, __half, kk, false, true, __VA_ARGS__)
#define MN(...) BSRG_SAMPLED_MMA_KERNEL(sampled_f16, __half, mn, true, false, __VA_ARGS__)
#define MK(...) BSRG_SAMPLED_MMA_KERNEL(sampled_f16, __half, mk, true, true, __VA_ARGS__)
BSRG_SAMPLED_MMA_TILES(KN)
BSRG_SAMPLED_MMA_TILES(KK)
BSRG_SAMPLED_MMA_TILES(MN)
BSRG_SAMPLED_MMA_TILES(MK)
