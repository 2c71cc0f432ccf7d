// Blocks as they are stored.
#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH) \
  BSRG_STREAM_STORED_KERNEL(stream_stored_f16, __half, false, false, HEIGHT, WIDTH)
BSRG_STREAM_WIDE_SHAPES(KERNEL)
