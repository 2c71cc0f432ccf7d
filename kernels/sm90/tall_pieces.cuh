// The tall kernels for blocks of 128 x 64 that are put together from smaller ones as they are loaded, with zeros where there
// are none: nothing is copied before. A box of TMA for each piece, which lies in shared memory as it does in its block, k
// along rows of 16, 32 or 64 elements; pieces with the same columns lie below one another. And for blocks of 128 x 80, of
// which each piece has 64 columns in one box and 16 in another.
#pragma once

#include "sm90/tall.cuh"

#define BSRG_TALL_PIECES_KERNEL(NAME, T, PIECE_K, SUFFIX, PAIRING)                         \
  extern "C" __global__ void __launch_bounds__(BSRG_TALL_THREADS, 1)                       \
      NAME##_k##PIECE_K##_##SUFFIX(const __grid_constant__ bsrg_tall_params p) {           \
    bsrg::tall::run<T, PIECE_K == BSRG_TALL_WIDE_PIECE ? PIECE_K : BSRG_TALL_STAGE_K,      \
                    bsrg::tall::Pairing::PAIRING, false, false, false, false, PIECE_K>(p); \
  }
// In the names the columns of a piece; the rest as in those of the tall kernels.
#define BSRG_TALL_PIECES_KERNELS_OF(NAME, T, PIECE_K)     \
  BSRG_TALL_PIECES_KERNEL(NAME, T, PIECE_K, c1, kNone)    \
  BSRG_TALL_PIECES_KERNEL(NAME, T, PIECE_K, c2, kColumns) \
  BSRG_TALL_PIECES_KERNEL(NAME, T, PIECE_K, r2, kRows)
#define BSRG_TALL_PIECES_KERNELS(NAME, T)  \
  BSRG_TALL_PIECES_KERNELS_OF(NAME, T, 64) \
  BSRG_TALL_PIECES_KERNELS_OF(NAME, T, 32) \
  BSRG_TALL_PIECES_KERNELS_OF(NAME, T, 16) \
  BSRG_TALL_PIECES_KERNELS_OF(NAME, T, 80)
