#include "sm80/attention_decode.cuh"

#define KERNEL(...) BSRG_MASKED_DECODE_KERNEL(attention_decode_mask_f16, __half, __VA_ARGS__)
BSRG_DECODE_TILES(KERNEL)
