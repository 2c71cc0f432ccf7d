#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH) BSRG_STREAM_KERNEL(stream_f16, __half, false, false, HEIGHT, WIDTH)
BSRG_STREAM_SHAPES(KERNEL)
