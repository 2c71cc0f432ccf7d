#include "sm80/attention_decode.cuh"

#define KERNEL(...) BSRG_MASKED_DECODE_KERNEL(attention_decode_mask_bf16, __nv_bfloat16, __VA_ARGS__)
BSRG_DECODE_TILES(KERNEL)
