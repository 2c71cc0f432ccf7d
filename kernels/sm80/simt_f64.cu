#include "sm80/simt.cuh"

#define KERNEL(...) BSRG_SIMT_KERNEL(simt_f64, double, __VA_ARGS__)
BSRG_SIMT_F64_TILES(KERNEL)
