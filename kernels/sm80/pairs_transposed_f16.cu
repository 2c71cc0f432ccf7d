#include "sm80/pairs.cuh"
#include "sm80/portable.cuh"

#define KERNEL(...) \
  BSRG_PAIRS_KERNEL_OF(pairs_transposed_f16, bsrg::portable::Kernel, __half, true, __VA_ARGS__)
BSRG_PAIRS_MMA_TILES(KERNEL)
