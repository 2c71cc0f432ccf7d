/* Names and launch shapes of all kernels, from the table in kernels.def. */
#ifndef BSRG_KERNELS_H
#define BSRG_KERNELS_H

#include "../kernels/params.h"

typedef enum bsrg_kernel_id {
#define BSRG_KERNEL(id, image, name, threads, shared_bytes, cluster) BSRG_KERNEL_##id,
#include "kernels.def"
#undef BSRG_KERNEL
  BSRG_KERNEL_COUNT
} bsrg_kernel_id;

typedef struct bsrg_kernel {
  const char *image, *name;
  int threads, shared_bytes, cluster;
} bsrg_kernel;

extern const bsrg_kernel bsrg_kernels[BSRG_KERNEL_COUNT];

#endif
