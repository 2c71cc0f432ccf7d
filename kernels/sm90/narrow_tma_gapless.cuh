// An X whose rows follow one another without a gap, for narrow_tma.cuh. TMA takes as long for a row of 16 elements as for one of
// 64, so stages come as they lie in memory, in lines of 64 elements, and a warp turns them.
#pragma once

#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_small.cuh"

namespace bsrg::narrow_tma {

// From `lines`, kStepK rows of kColumns elements, to `rows`, kStepK elements for each column, both swizzled: lines by 128 bytes, rows
// by their own length. Of kCount stages side by side, by a warp, and not in place.
template <int kStepK, int kColumns, int kCount>
__device__ __forceinline__ void turn_stages(const uint32_t (&lines)[kCount], const uint32_t (&rows)[kCount],
                                            int lane) {
  constexpr int kOctets = kStepK / 8, kRowBytes = 2 * kStepK;
  // Matrices of 8 × 8, four at a time: the last ones may be there twice.
  constexpr int kMatrices = kOctets * (kColumns / 8), kTimes = (kMatrices + 3) / 4;
  uint32_t words[kTimes][kCount][4];
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int matrix = min(4 * i + lane / 8, kMatrices - 1);
    const int element = (8 * (matrix % kOctets) + lane % 8) * kColumns + 8 * (matrix / kOctets);
    const int from = element / 64 * 128 + (element / 8 ^ element / 64) % 8 * 16;
#pragma unroll
    for (int j = 0; j < kCount; ++j) ptx::load_matrix_x4(words[i][j], lines[j] + from);
  }
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int matrix = min(4 * i + lane / 8, kMatrices - 1);
    const int to = (8 * (matrix / kOctets) + lane % 8) * kRowBytes + 16 * (matrix % kOctets);
    const int swizzled = to ^ (to / 128 & (kRowBytes / 16 - 1)) * 16;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const uint32_t (&of)[4] = words[i][j];
      ptx::store_matrix_x4_transposed(rows[j] + swizzled, of[0], of[1], of[2], of[3]);
    }
  }
}

}  // namespace bsrg::narrow_tma
