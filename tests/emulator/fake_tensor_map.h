/* What the driver of tests/c/fake_cuda.c writes into a tensor map, and tests/emulator/ptx/tma.cuh reads. */
#ifndef BSRG_FAKE_TENSOR_MAP_H
#define BSRG_FAKE_TENSOR_MAP_H

#include <stdint.h>

typedef struct fake_tensor_map {
  const void *data;
  uint64_t dims[4], strides[3]; /* strides in bytes */
  uint32_t box[4];
  uint32_t rank, item; /* item: bytes of an element */
  int32_t swizzle_bytes, is_tf32;
} fake_tensor_map;

#endif
