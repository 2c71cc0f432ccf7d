// Blocks as they are stored, with fused output.
#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH) \
  BSRG_STREAM_STORED_KERNEL(stream_stored_fused_bf16, __nv_bfloat16, true, false, HEIGHT, WIDTH)
BSRG_STREAM_WIDE_SHAPES(KERNEL)
