// What the portable kernels of sampled products share: where the rows and columns of a tile lie, and the ring of stages
// in which it walks along K.
#pragma once

#include "params.h"
#include "ptx/cp_async.cuh"

namespace bsrg::sampled {

struct Rows {
  int64_t first;  // of A
  int in_block;   // the same, counted in the block row
  int count;      // rows of the tile that exist
};

// For each column of a tile: which of B it is, negative where there is none, and where the tile's first row of it goes in
// out.
struct Columns {
  int64_t *b, *out;
};

// Items of patterns that the host does not know may be empty.
__device__ __forceinline__ bool has_columns(const bsrg_sampled_portable_params &p) {
  return p.items[blockIdx.x / static_cast<unsigned>(p.row_tiles)].count > 0;
}

template <int kTileM>
__device__ __forceinline__ Rows tile_rows(const bsrg_sampled_portable_params &p) {
  const int in_block = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.row_tiles)) * kTileM;
  const int64_t block_row = p.items[blockIdx.x / static_cast<unsigned>(p.row_tiles)].block_row;
  return {block_row * p.block_height + in_block, in_block, min(kTileM, p.block_height - in_block)};
}

// By all threads, which may read the columns behind the next barrier.
template <int kTileN>
__device__ __forceinline__ void find_columns(const bsrg_sampled_portable_params &p, const Rows &rows,
                                             const Columns &columns) {
  const bsrg_sampled_item item = p.items[blockIdx.x / static_cast<unsigned>(p.row_tiles)];
  for (int n = threadIdx.x; n < kTileN; n += blockDim.x) {
    int64_t column = -1, out = 0;
    if (n < item.count) {
      const int64_t block = item.block + (item.offset + n) / p.block_width;
      const int offset = (item.offset + n) % p.block_width;
      column = static_cast<int64_t>(__ldg(p.indices + block)) * p.block_width + offset;
      out = (block * p.block_height + rows.in_block) * p.block_width + offset;
    }
    columns.b[n] = column;
    columns.out[n] = out;
  }
}

// Calls multiply(slot) for each of `steps` stages, with load(step, slot), which starts the copies of a stage, running
// kStages - 1 stages ahead.
template <int kStages, typename Load, typename Multiply>
__device__ __forceinline__ void walk_k(int64_t steps, const Load &load, const Multiply &multiply) {
  static_assert(kStages >= 2, "a stage is loaded while another is multiplied");
  __syncthreads();  // the columns are there for all
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) load(step, step);
    ptx::cp_async_commit();
  }
  int slot = 0, free_slot = kStages - 1;
  for (int64_t step = 0; step < steps; ++step) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();  // stage `step` is there for all, and nobody reads the one before it any more
    if (step + kStages - 1 < steps) load(step + kStages - 1, free_slot);
    ptx::cp_async_commit();
    multiply(slot);
    free_slot = slot;
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
}

}  // namespace bsrg::sampled
