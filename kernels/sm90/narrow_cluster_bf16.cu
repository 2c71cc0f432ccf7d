#include "sm90/narrow_cluster.cuh"

BSRG_NARROW_CLUSTER_KERNELS(narrow_cluster_bf16, __nv_bfloat16)
