#include "sm80/pairs.cuh"
#include "sm80/simt.cuh"

#define KERNEL(...) BSRG_PAIRS_KERNEL_OF(pairs_transposed_f64, bsrg::simt::Kernel, double, true, __VA_ARGS__)
BSRG_PAIRS_F64_TILES(KERNEL)
