#include "sm90/kmajor.cuh"

BSRG_KMAJOR_KERNELS(kmajor_e4m3, __nv_fp8_e4m3)
