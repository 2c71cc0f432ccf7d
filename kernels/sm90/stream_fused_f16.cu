#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH) BSRG_STREAM_KERNEL(stream_fused_f16, __half, true, false, HEIGHT, WIDTH)
BSRG_STREAM_SHAPES(KERNEL)
