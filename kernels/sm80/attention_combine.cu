// The second pass of the decode kernels, for keys that were split over CTAs.
#include "sm80/attention_decode.cuh"

BSRG_COMBINE_KERNEL(attention_combine_f16, __half)
BSRG_COMBINE_KERNEL(attention_combine_bf16, __nv_bfloat16)
