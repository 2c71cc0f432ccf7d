// What the portable kernels share: which rows a CTA computes, and the ring of stages in which it walks the
// flattened K of their block row (bsrg_portable_params).
//
// Grid: x = row tile, y = column tile; y strides over the column tiles because it is limited to 65535. CTAs
// start in order of x, so the row tiles of one column tile run together and their panel of X stays in L2.
#pragma once

#include "params.h"
#include "ptx/cp_async.cuh"

namespace bsrg::portable {

template <int kStageK, bool kTransposed>
class KWalker;

struct RowTile {
  template <int kStageK, bool kTransposed>
  using Walker = KWalker<kStageK, kTransposed>;  // gives walk_k the entries of its blocks

  int64_t first_block;  // position of the block row's first block in indices and values
  int64_t y_row;        // first output row
  int blocks;           // in the block row
  int row;              // first row within the block row
  int rows;             // rows of the tile that exist
};

__device__ __forceinline__ RowTile row_tile(const bsrg_portable_params &p, int tile_rows) {
  const unsigned tiles = p.tiles_per_block_row;
  const int64_t block_row = p.row_order[blockIdx.x / tiles];
  RowTile tile;
  tile.first_block = p.indptr[block_row];
  tile.blocks = static_cast<int>(p.indptr[block_row + 1] - tile.first_block);
  tile.row = static_cast<int>(blockIdx.x % tiles) * tile_rows;
  tile.rows = min(tile_rows, p.block_height - tile.row);
  tile.y_row = block_row * p.block_height + tile.row;
  return tile;
}

// Where the operands of one k lie, in elements: row k of X starts at x, and row r of the tile has its
// element k of A at a + r * block_width, in a transposed view at a + r. a is negative beyond the block row's K.
struct KEntry {
  int64_t x, a;
};

// Computes the entries k, k + kStageK, k + 2 * kStageK, ... of a block row, with the block column of the
// next one already under way. Subtracting widths instead of dividing keeps three registers less alive; it
// loops only where blocks are narrower than a stage.
template <int kStageK, bool kTransposed>
class KWalker {
 public:
  __device__ __forceinline__ KWalker(const bsrg_portable_params &p, const RowTile &tile, int k)
      : p_(p), tile_(tile), offset_(k) {
    settle();
  }

  __device__ __forceinline__ KEntry next() {
    KEntry entry = {0, -1};
    if (block_ < tile_.blocks) {
      entry.x = (static_cast<int64_t>(column_) * p_.block_width + offset_) * p_.x_row_stride;
      if constexpr (kTransposed)
        entry.a = (stored_ * p_.block_width + offset_) * p_.block_height + tile_.row;
      else
        entry.a = ((tile_.first_block + block_) * p_.block_height + tile_.row) * p_.block_width + offset_;
    }
    offset_ += kStageK;
    settle();
    return entry;
  }

 private:
  __device__ __forceinline__ void settle() {
#pragma unroll 1
    for (; offset_ >= p_.block_width; ++block_) offset_ -= p_.block_width;
    column_ = block_ < tile_.blocks ? __ldg(p_.indices + tile_.first_block + block_) : 0;
    if constexpr (kTransposed)
      stored_ = block_ < tile_.blocks ? __ldg(p_.order + tile_.first_block + block_) : 0;
  }

  const bsrg_portable_params &p_;
  const RowTile &tile_;
  int block_ = 0, offset_, column_;
  int64_t stored_ = 0;  // the block's index in the values of a transposed view
};

// Calls multiply(slot) for each of `steps` stages, with load(slot, entries), which starts the copies of a stage, running
// kStages - 1 stages ahead. A stage has kEntries entries, one of each of the first threads' walkers. tables: two of them in
// shared memory, one read by the loads while the next is written.
template <int kStages, int kEntries, typename Walker, typename Entry, typename Load, typename Multiply>
__device__ __forceinline__ void walk_stages(int steps, Walker &walker, Entry *tables, const Load &load,
                                            const Multiply &multiply) {
  static_assert(kStages >= 2, "a stage is loaded while another is multiplied");
  const int thread = threadIdx.x;
  const auto write_table = [&](int step) {
    if (thread < kEntries) tables[step % 2 * kEntries + thread] = walker.next();
  };
  const auto start_load = [&](int step, int slot) {
    if (step < steps) load(slot, tables + step % 2 * kEntries);
    write_table(step + 1);
    ptx::cp_async_commit();
  };

  // A thread that still multiplies the previous column tile is safe: nobody reads tables there any more,
  // and slots are written behind the next barrier.
  write_table(0);
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) {
    __syncthreads();
    start_load(step, step);
  }
  int slot = 0, free_slot = kStages - 1;
  for (int step = 0; step < steps; ++step) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();  // stage `step` is there for all, and nobody reads the one before it any more
    start_load(step + kStages - 1, free_slot);
    multiply(slot);
    free_slot = slot;
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
}

// The same for the kStageK k of each stage of the tile's block row. Tile: a RowTile, or what has a Walker of its own.
template <int kStages, int kStageK, bool kTransposed, typename Tile, typename Load, typename Multiply>
__device__ __forceinline__ void walk_k(const bsrg_portable_params &p, const Tile &tile, KEntry *tables,
                                       const Load &load, const Multiply &multiply) {
  const int steps =
      static_cast<int>((static_cast<int64_t>(tile.blocks) * p.block_width + kStageK - 1) / kStageK);
  typename Tile::template Walker<kStageK, kTransposed> walker(p, tile, threadIdx.x);
  walk_stages<kStages, kStageK>(steps, walker, tables, load, multiply);
}

}  // namespace bsrg::portable
