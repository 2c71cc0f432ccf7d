// A block-sparse matrix as a dense one: its blocks, in memory that is zero.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"

namespace {

// A block row, or a share of its blocks: one a warp.
template <typename Chunk>
__device__ __forceinline__ void spread(const bsrg_spread_params &p) {
  bsrg::ptx::follow_grid_before();
  constexpr int kWarps = BSRG_SPREAD_THREADS / 32;
  const int64_t block_row = blockIdx.x, first_row = block_row * p.block_height;
  const int64_t end = __ldg(p.indptr + block_row + 1), elements = int64_t{p.block_height} * p.block_width;
  const int64_t first = __ldg(p.indptr + block_row) + blockIdx.y * kWarps + threadIdx.x / 32;
  for (int64_t k = first; k < end; k += gridDim.y * kWarps) {
    const int64_t block = p.order != nullptr ? __ldg(p.order + k) : k;
    const int64_t column = static_cast<int64_t>(__ldg(p.indices + k)) * p.block_width;
    const auto *from = static_cast<const Chunk *>(p.values) + block * elements;
    auto *to = static_cast<Chunk *>(p.target) + first_row * p.target_row_stride + column;
#pragma unroll 4
    for (int64_t i = threadIdx.x % 32; i < elements; i += 32) {
      const int row = static_cast<int>(i / p.block_width), col = static_cast<int>(i % p.block_width);
      if (first_row + row < p.rows && column + col < p.cols)
        to[row * p.target_row_stride + col] = __ldg(from + row * p.row_stride + col * p.col_stride);
    }
  }
}

}  // namespace

#define SPREAD(BYTES, Chunk)                                         \
  extern "C" __global__ void __launch_bounds__(BSRG_SPREAD_THREADS)  \
      spread_##BYTES(const __grid_constant__ bsrg_spread_params p) { \
    spread<Chunk>(p);                                                \
  }
SPREAD(2, uint16_t)
SPREAD(4, uint32_t)
SPREAD(8, uint2)
SPREAD(16, uint4)
