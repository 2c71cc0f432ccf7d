#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH)                           \
  BSRG_STREAM_KERNEL(stream_f16, __half, HEIGHT, WIDTH, 1) \
  BSRG_STREAM_KERNEL(stream_f16, __half, HEIGHT, WIDTH, 2)
BSRG_STREAM_SHAPES(KERNEL)
