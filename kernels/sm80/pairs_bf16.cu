#include "sm80/pairs.cuh"
#include "sm80/portable.cuh"

#define KERNEL(...) \
  BSRG_PAIRS_KERNEL_OF(pairs_bf16, bsrg::portable::Kernel, __nv_bfloat16, false, __VA_ARGS__)
BSRG_PAIRS_MMA_TILES(KERNEL)
