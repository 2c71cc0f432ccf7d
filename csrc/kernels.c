#include "kernels.h"

const bsrg_kernel bsrg_kernels[BSRG_KERNEL_COUNT] = {
#define BSRG_KERNEL(id, image, name, threads, shared_bytes, cluster) \
  {image, name, threads, shared_bytes, cluster},
#include "kernels.def"
#undef BSRG_KERNEL
};
