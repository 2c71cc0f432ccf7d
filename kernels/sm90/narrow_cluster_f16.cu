#include "sm90/narrow_cluster.cuh"

BSRG_NARROW_CLUSTER_KERNELS(narrow_cluster_f16, __half)
