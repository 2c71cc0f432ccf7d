#include "sm80/simt.cuh"

#define KERNEL(...) BSRG_SIMT_TRANSPOSED(simt_transposed_f64, double, __VA_ARGS__)
BSRG_SIMT_F64_TILES(KERNEL)
