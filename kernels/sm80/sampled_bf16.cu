#include "sm80/sampled.cuh"

#define KN(...) BSRG_SAMPLED_MMA_KERNEL(sampled_bf16, __nv_bfloat16, kn, false, false, __VA_ARGS__)
#define KK(...) BSRG_SAMPLED_MMA_KERNEL(sampled_bf16, __nv_bfloat16, kk, false, true, __VA_ARGS__)
#define MN(...) BSRG_SAMPLED_MMA_KERNEL(sampled_bf16, __nv_bfloat16, mn, true, false, __VA_ARGS__)
#define MK(...) BSRG_SAMPLED_MMA_KERNEL(sampled_bf16, __nv_bfloat16, mk, true, true, __VA_ARGS__)
BSRG_SAMPLED_MMA_TILES(KN)
BSRG_SAMPLED_MMA_TILES(KK)
BSRG_SAMPLED_MMA_TILES(MN)
BSRG_SAMPLED_MMA_TILES(MK)
