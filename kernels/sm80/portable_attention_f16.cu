#include "sm80/attention.cuh"

#define KERNEL(...) BSRG_ATTENTION_KERNEL(portable_attention_f16, __half, __VA_ARGS__)
BSRG_ATTENTION_SIZES(KERNEL)
#undef KERNEL
#define KERNEL(...) BSRG_ATTENTION_SEQUENCE_KERNEL(portable_attention_f16, __half, __VA_ARGS__)
BSRG_ATTENTION_SEQUENCE_SIZES(KERNEL)
