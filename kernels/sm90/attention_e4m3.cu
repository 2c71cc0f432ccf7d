#include "sm90/attention.cuh"

#define KERNEL(...) BSRG_ATTENTION_KERNEL(attention_e4m3, __nv_fp8_e4m3, __VA_ARGS__)
BSRG_ATTENTION_TILES_8(KERNEL)
