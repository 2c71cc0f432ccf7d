// With an X whose columns are contiguous, fused output or not.
#include "sm90/stream.cuh"

#define KERNEL(HEIGHT, WIDTH) BSRG_STREAM_KERNEL(stream_tx_f16, __half, true, true, HEIGHT, WIDTH)
BSRG_STREAM_SHAPES(KERNEL)
