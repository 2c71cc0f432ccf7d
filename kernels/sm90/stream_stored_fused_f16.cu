// Blocks as they are stored, with fused output.
#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH) \
  BSRG_STREAM_STORED_KERNEL(stream_stored_fused_f16, __half, true, false, HEIGHT, WIDTH)
BSRG_STREAM_WIDE_SHAPES(KERNEL)
