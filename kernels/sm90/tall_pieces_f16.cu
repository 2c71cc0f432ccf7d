#include "sm90/tall_pieces.cuh"

BSRG_TALL_PIECES_KERNELS(tall_pieces_f16, __half)
