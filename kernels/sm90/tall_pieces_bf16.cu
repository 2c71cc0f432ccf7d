#include "sm90/tall_pieces.cuh"

BSRG_TALL_PIECES_KERNELS(tall_pieces_bf16, __nv_bfloat16)
