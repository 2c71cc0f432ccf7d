#include "sm90/kmajor.cuh"

BSRG_KMAJOR_KERNELS(kmajor_e5m2, __nv_fp8_e5m2)
