#include "kernels.h"

const bsrg_kernel bsrg_kernels[BSRG_KERNEL_COUNT] = {
#define BSRG_KERNEL_ROW(id, image, name, threads, shared_bytes, cluster) \
  {image, name, threads, shared_bytes, cluster},
    BSRG_KERNEL_TABLE(BSRG_KERNEL_ROW)
#undef BSRG_KERNEL_ROW
};
