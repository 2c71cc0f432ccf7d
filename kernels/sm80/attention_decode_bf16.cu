#include "sm80/attention_decode.cuh"

#define KERNEL(...) BSRG_DECODE_KERNEL(attention_decode_bf16, __nv_bfloat16, __VA_ARGS__)
BSRG_DECODE_TILES(KERNEL)
