#include "sm90/attention.cuh"

#define KERNEL(...) BSRG_ATTENTION_KERNEL(attention_bf16, __nv_bfloat16, __VA_ARGS__)
BSRG_ATTENTION_TILES(KERNEL)
