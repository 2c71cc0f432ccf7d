#include "sm90/kmajor.cuh"

BSRG_KMAJOR_KERNELS(kmajor_tf32, bsrg::ptx::Tf32)
