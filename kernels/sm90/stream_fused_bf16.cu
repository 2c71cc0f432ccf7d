#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH) BSRG_STREAM_KERNEL(stream_fused_bf16, __nv_bfloat16, true, false, HEIGHT, WIDTH)
BSRG_STREAM_SHAPES(KERNEL)
