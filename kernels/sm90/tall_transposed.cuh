// The tall kernels for transposed operands. They take tiles of any two strips, whole or in parts, as those of
// tall_parts.cuh do: one kernel for each stage depth and pairing, where products of rows by columns have three.
#pragma once

#include "sm90/tall.cuh"

#define BSRG_TALL_TRANSPOSED_KERNEL(NAME, T, A, X, STEP_K, SUFFIX, PAIRING)        \
  extern "C" __global__ void __launch_bounds__(BSRG_TALL_THREADS, 1)               \
      NAME##_k##STEP_K##_##SUFFIX(const __grid_constant__ bsrg_tall_params p) {    \
    bsrg::tall::run<T, STEP_K, bsrg::tall::Pairing::PAIRING, true, true, A, X>(p); \
  }
// A, X: whether that operand is transposed. In the names as in those of the tall kernels.
#define BSRG_TALL_TRANSPOSED_KERNELS(NAME, T, A, X)            \
  BSRG_TALL_TRANSPOSED_KERNEL(NAME, T, A, X, 64, c1, kNone)    \
  BSRG_TALL_TRANSPOSED_KERNEL(NAME, T, A, X, 64, c2, kColumns) \
  BSRG_TALL_TRANSPOSED_KERNEL(NAME, T, A, X, 32, c1, kNone)    \
  BSRG_TALL_TRANSPOSED_KERNEL(NAME, T, A, X, 32, c2, kColumns) \
  BSRG_TALL_TRANSPOSED_KERNEL(NAME, T, A, X, 16, c1, kNone)    \
  BSRG_TALL_TRANSPOSED_KERNEL(NAME, T, A, X, 16, c2, kColumns)
