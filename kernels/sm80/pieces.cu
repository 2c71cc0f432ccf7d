// The second pass of the narrow kernels, for rows whose blocks were shared out among CTAs.
#include "sm80/narrow_pieces.cuh"

BSRG_PIECES_KERNEL(pieces_f16, __half)
BSRG_PIECES_KERNEL(pieces_bf16, __nv_bfloat16)
BSRG_PIECES_KERNEL(pieces_f32, float)
BSRG_PIECES_KERNEL(pieces_f64, double)
