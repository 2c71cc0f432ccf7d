// The tall kernels for products in which some tiles are cut along K (csrc/tall_cut.c). A part is a tile like others but
// for its sums, which go as float32 to memory of the launch's own; sm80/tall_add.cu adds them.
#pragma once

#include "sm90/tall.cuh"

#define BSRG_TALL_PARTS_KERNEL(NAME, T, STEP_K, SUFFIX, PAIRING)                \
  extern "C" __global__ void __launch_bounds__(BSRG_TALL_THREADS, 1)            \
      NAME##_k##STEP_K##_##SUFFIX(const __grid_constant__ bsrg_tall_params p) { \
    bsrg::tall::run<T, STEP_K, bsrg::tall::Pairing::PAIRING, true, true>(p);    \
  }
// In the names as in those of the tall kernels; all of them take tiles of any two strips.
#define BSRG_TALL_PARTS_KERNELS(NAME, T)            \
  BSRG_TALL_PARTS_KERNEL(NAME, T, 64, c1, kNone)    \
  BSRG_TALL_PARTS_KERNEL(NAME, T, 64, c2, kColumns) \
  BSRG_TALL_PARTS_KERNEL(NAME, T, 32, c1, kNone)    \
  BSRG_TALL_PARTS_KERNEL(NAME, T, 32, c2, kColumns) \
  BSRG_TALL_PARTS_KERNEL(NAME, T, 16, c1, kNone)    \
  BSRG_TALL_PARTS_KERNEL(NAME, T, 16, c2, kColumns)
