// Blocks as they are stored, with an X whose columns are contiguous, fused output or not.
#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH) \
  BSRG_STREAM_STORED_KERNEL(stream_stored_tx_f16, __half, true, true, HEIGHT, WIDTH)
BSRG_STREAM_WIDE_SHAPES(KERNEL)
