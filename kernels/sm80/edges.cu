// What stored blocks have beyond the matrix becomes zeros: columns of those in a partial last block column, rows of those in
// a partial last block row. All blocks are looked at, since a column may be stored more than once, and anywhere in a row.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"

namespace {

constexpr int kWarps = BSRG_EDGES_THREADS / 32;

// Bits of the 32 blocks that a warp has looked at.
struct Found {
  uint32_t in_column, in_row;
};

// By a warp.
template <typename T>
__device__ __forceinline__ void clear(const bsrg_edges_params &p, int64_t block, bool in_column,
                                      bool in_row) {
  const int lane = threadIdx.x % 32, area = p.block_height * p.block_width;
  T *const values = static_cast<T *>(p.values) + block * area;
  if (in_column) {
    const int beyond = p.block_width - p.cols;
    for (int i = lane; i < p.block_height * beyond; i += 32)
      values[i / beyond * p.block_width + p.cols + i % beyond] = 0;
  }
  if (in_row)
    for (int i = p.rows * p.block_width + lane; i < area; i += 32) values[i] = 0;
}

// Each warp looks at 32 blocks, and all share what is found.
template <typename T>
__device__ __forceinline__ void clear_edges(const bsrg_edges_params &p) {
  __shared__ Found found[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * BSRG_EDGES_THREADS;
  const int64_t block = first + threadIdx.x;
  const bool exists = block < p.nnzb;
  const uint32_t in_column = __ballot_sync(~0u, exists && __ldg(p.indices + block) == p.last_column);
  const uint32_t in_row = __ballot_sync(~0u, exists && block >= p.first);
  if (lane == 0) found[warp] = {in_column, in_row};
  __syncthreads();
  int number = 0;
  for (int w = 0; w < kWarps; ++w) {
    const Found own = found[w];
    for (uint32_t left = own.in_column | own.in_row; left != 0; left &= left - 1) {
      if (number++ % kWarps != warp) continue;
      const int i = __ffs(static_cast<int>(left)) - 1;
      clear<T>(p, first + w * 32 + i, own.in_column >> i & 1, own.in_row >> i & 1);
    }
  }
}

}  // namespace

#define BSRG_EDGES_KERNEL(SIZE, T)                                 \
  extern "C" __global__ void __launch_bounds__(BSRG_EDGES_THREADS) \
      edges_##SIZE(const __grid_constant__ bsrg_edges_params p) {  \
    bsrg::ptx::follow_grid_before();                               \
    clear_edges<T>(p);                                             \
  }

BSRG_EDGES_KERNEL(2, uint16_t)
BSRG_EDGES_KERNEL(4, uint32_t)
BSRG_EDGES_KERNEL(8, uint64_t)
