// The values of a pattern's blocks out of a dense matrix. Grid: x = block, y = piece of it.
#pragma once

#include <cstdint>

#include "params.h"

namespace bsrg::pattern {

template <typename Unit>
__device__ __forceinline__ void gather(const bsrg_gather_params &p) {
  const int64_t block = blockIdx.x, units = static_cast<int64_t>(p.block_height) * p.width;
  Unit *const to = static_cast<Unit *>(p.values) + block * units;
  const bool stored = block < p.counts[0];
  const Unit *from = static_cast<const Unit *>(p.dense);
  if (stored)
    from += static_cast<int64_t>(p.block_row[block]) * p.block_height * p.row_stride +
            static_cast<int64_t>(p.indices[block]) * p.width * p.col_stride;
  constexpr int kStep = BSRG_PATTERN_THREADS * BSRG_GATHER_UNITS;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * kStep + threadIdx.x; first < units;
       first += static_cast<int64_t>(gridDim.y) * kStep) {
    Unit found[BSRG_GATHER_UNITS];
#pragma unroll
    for (int i = 0; i < BSRG_GATHER_UNITS; ++i) {
      const int64_t unit = first + i * BSRG_PATTERN_THREADS;
      found[i] = Unit{};
      if (stored && unit < units) {  // a block has fewer than 2^31 units
        const uint32_t row = static_cast<uint32_t>(unit) / p.width,
                       column = static_cast<uint32_t>(unit) % p.width;
        found[i] = from[row * p.row_stride + column * p.col_stride];
      }
    }
#pragma unroll
    for (int i = 0; i < BSRG_GATHER_UNITS; ++i) {
      const int64_t unit = first + i * BSRG_PATTERN_THREADS;
      if (unit < units) to[unit] = found[i];
    }
  }
}

}  // namespace bsrg::pattern
