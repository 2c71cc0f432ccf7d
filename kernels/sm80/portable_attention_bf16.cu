#include "sm80/attention.cuh"

#define KERNEL(...) BSRG_ATTENTION_KERNEL(portable_attention_bf16, __nv_bfloat16, __VA_ARGS__)
BSRG_ATTENTION_SIZES(KERNEL)
#undef KERNEL
#define KERNEL(...) BSRG_ATTENTION_SEQUENCE_KERNEL(portable_attention_bf16, __nv_bfloat16, __VA_ARGS__)
BSRG_ATTENTION_SEQUENCE_SIZES(KERNEL)
