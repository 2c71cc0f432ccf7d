// Blocks as they are stored.
#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH) \
  BSRG_STREAM_STORED_KERNEL(stream_stored_bf16, __nv_bfloat16, false, false, HEIGHT, WIDTH)
BSRG_STREAM_WIDE_SHAPES(KERNEL)
