#include "sm80/sampled_simt.cuh"

#define KERNEL(...) BSRG_SAMPLED_SIMT_KERNEL(sampled_f64, double, __VA_ARGS__)
BSRG_SAMPLED_F64_TILES(KERNEL)
