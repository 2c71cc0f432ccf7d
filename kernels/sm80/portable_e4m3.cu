#include "sm80/portable_eight.cuh"

#define KERNEL(...) BSRG_EIGHT_KERNEL(portable_e4m3, __nv_fp8_e4m3, __VA_ARGS__)
BSRG_EIGHT_TILES(KERNEL)
