// float32 as tf32, with an X whose columns are contiguous, fused output or not.
#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH) BSRG_STREAM_KERNEL(stream_tf32, float, true, true, HEIGHT, WIDTH)
BSRG_STREAM_WIDE_SHAPES(KERNEL)
