#include "sm90/tall_transposed.cuh"

BSRG_TALL_TRANSPOSED_KERNELS(tall_tx_bf16, __nv_bfloat16, false, true)
