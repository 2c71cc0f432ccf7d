#include "sm90/attention.cuh"

#define KERNEL(...) BSRG_ATTENTION_KERNEL(attention_f16, __half, __VA_ARGS__)
BSRG_ATTENTION_TILES(KERNEL)
