#include "sm90/tall_transposed.cuh"

BSRG_TALL_TRANSPOSED_KERNELS(tall_tx_f16, __half, false, true)
