/* Every kernel of the library. A new kernel is one .cu file and one row here. */
#ifndef BSRG_KERNELS_H
#define BSRG_KERNELS_H

#include "../kernels/params.h"

/* X(ID, image, kernel name, threads, dynamic shared memory in bytes, CTAs in a cluster) */
#define BSRG_TALL_ROWS(X, ID, file, kind)                                                                \
  X(TALL_##ID##_K64_C1, "sm90/" file, file kind "_k64_c1", BSRG_TALL_THREADS, BSRG_TALL_SHARED_BYTES, 1) \
  X(TALL_##ID##_K64_C2, "sm90/" file, file kind "_k64_c2", BSRG_TALL_THREADS, BSRG_TALL_SHARED_BYTES, 2) \
  X(TALL_##ID##_K32_C1, "sm90/" file, file kind "_k32_c1", BSRG_TALL_THREADS, BSRG_TALL_SHARED_BYTES, 1) \
  X(TALL_##ID##_K32_C2, "sm90/" file, file kind "_k32_c2", BSRG_TALL_THREADS, BSRG_TALL_SHARED_BYTES, 2) \
  X(TALL_##ID##_K16_C1, "sm90/" file, file kind "_k16_c1", BSRG_TALL_THREADS, BSRG_TALL_SHARED_BYTES, 1) \
  X(TALL_##ID##_K16_C2, "sm90/" file, file kind "_k16_c2", BSRG_TALL_THREADS, BSRG_TALL_SHARED_BYTES, 2)

#define BSRG_PROBE_ROWS(X, ID, name)                            \
  X(PROBE_##ID##_A0_B0, "sm90/probe", name "_a0_b0", 128, 0, 1) \
  X(PROBE_##ID##_A0_B1, "sm90/probe", name "_a0_b1", 128, 0, 1) \
  X(PROBE_##ID##_A1_B0, "sm90/probe", name "_a1_b0", 128, 0, 1) \
  X(PROBE_##ID##_A1_B1, "sm90/probe", name "_a1_b1", 128, 0, 1)

/* Launchers count on the order of rows inside each group. */
#define BSRG_KERNEL_TABLE(X)                           \
  BSRG_TALL_ROWS(X, F16_WHOLE, "tall_f16", "_whole")   \
  BSRG_TALL_ROWS(X, F16_UNION, "tall_f16", "_union")   \
  BSRG_TALL_ROWS(X, BF16_WHOLE, "tall_bf16", "_whole") \
  BSRG_TALL_ROWS(X, BF16_UNION, "tall_bf16", "_union") \
  BSRG_PROBE_ROWS(X, F16, "probe_f16")                 \
  BSRG_PROBE_ROWS(X, BF16, "probe_bf16")

typedef enum bsrg_kernel_id {
#define BSRG_KERNEL_ID(id, image, name, threads, shared_bytes, cluster) BSRG_KERNEL_##id,
  BSRG_KERNEL_TABLE(BSRG_KERNEL_ID)
#undef BSRG_KERNEL_ID
      BSRG_KERNEL_COUNT
} bsrg_kernel_id;

typedef struct bsrg_kernel {
  const char *image, *name;
  int threads, shared_bytes, cluster;
} bsrg_kernel;

extern const bsrg_kernel bsrg_kernels[BSRG_KERNEL_COUNT];

#endif
