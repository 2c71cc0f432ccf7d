#include "sm80/portable_eight.cuh"

#define KERNEL(...) BSRG_EIGHT_KERNEL(portable_e5m2, __nv_fp8_e5m2, __VA_ARGS__)
BSRG_EIGHT_TILES(KERNEL)
