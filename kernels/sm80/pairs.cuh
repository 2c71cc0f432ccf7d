// BSR x BSR for any block shapes, strides and dtype: the portable kernels, with a block column of B as their X. A CTA
// computes a tile of one output block. Its threads look up the blocks of A's block row in B's block column, and walk
// over the k of those that meet.
#pragma once

#include "ptx/sync.cuh"
#include "sm80/pipeline.cuh"

namespace bsrg::portable {

template <int kStageK, bool kTransposed>
class MeetingWalker;

// A tile whose blocks are those of its block row that meet a block of B: these begin at found[i].a and .x.
struct MeetingTile : RowTile {
  template <int kStageK, bool kTransposed>
  using Walker = MeetingWalker<kStageK, kTransposed>;

  const KEntry *found;
};

// Computes the entries k, k + kStageK, ... of such a tile.
template <int kStageK, bool kTransposed>
class MeetingWalker {
 public:
  __device__ __forceinline__ MeetingWalker(const bsrg_portable_params &p, const MeetingTile &tile, int k)
      : p_(p), tile_(tile), offset_(k) {}

  __device__ __forceinline__ KEntry next() {
#pragma unroll 1
    for (; offset_ >= p_.block_width; ++at_) offset_ -= p_.block_width;
    KEntry entry = {0, -1};
    if (at_ < tile_.blocks) {
      const KEntry meeting = tile_.found[at_];
      entry.x = meeting.x + offset_ * p_.x_row_stride;
      if constexpr (kTransposed)
        entry.a = meeting.a + static_cast<int64_t>(offset_) * p_.block_height + tile_.row;
      else
        entry.a = meeting.a + static_cast<int64_t>(tile_.row) * p_.block_width + offset_;
    }
    offset_ += kStageK;
    return entry;
  }

 private:
  const bsrg_portable_params &p_;
  const MeetingTile &tile_;
  int at_ = 0, offset_;
};

// The meetings of a block row of A with a block column of B, some at a time.
class Meetings {
 public:
  __device__ __forceinline__ Meetings(const bsrg_pairs_portable_params &p, int64_t block_col, KEntry *found,
                                      int *warp_counts)
      : p_(p),
        begin_(p.b_indptr[block_col]),
        end_(p.b_indptr[block_col + 1]),
        found_(found),
        warp_counts_(warp_counts) {}

  // Looks up blocks of A, one a thread, until some meet. false: there are no more.
  template <int kThreads>
  __device__ __forceinline__ bool find(const RowTile &tile) {
    while (next_ < tile.blocks) {
      const int64_t at = tile.first_block + next_ + threadIdx.x;
      const bool exists = next_ + static_cast<int>(threadIdx.x) < tile.blocks;
      const int64_t partner = exists ? look_up(p_.product.indices[at]) : -1;
      next_ += kThreads;
      const unsigned votes = __ballot_sync(~0u, partner >= 0);
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      __syncthreads();  // nobody reads what was found before any more
      if (lane == 0) warp_counts_[warp] = __popc(votes);
      __syncthreads();
      int before = __popc(votes & ((1u << lane) - 1));
      int count = 0;
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) {
        if (w == warp) before += count;
        count += warp_counts_[w];
      }
      if (partner >= 0) found_[before] = meeting(at, partner);
      __syncthreads();
      if (count == 0) continue;
      static_cast<RowTile &>(tile_) = tile;
      tile_.blocks = count;
      tile_.found = found_;
      return true;
    }
    return false;
  }

  // What find has found.
  __device__ __forceinline__ const MeetingTile &tile() const { return tile_; }

 private:
  // Where block row k is in the block column, or -1.
  __device__ __forceinline__ int64_t look_up(int k) const {
    int64_t low = begin_, high = end_;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (__ldg(p_.b_indices + middle) < k)
        low = middle + 1;
      else
        high = middle;
    }
    return low < end_ && __ldg(p_.b_indices + low) == k ? low : -1;
  }

  __device__ __forceinline__ KEntry meeting(int64_t a, int64_t b) const {
    const bsrg_portable_params &p = p_.product;
    const int64_t a_block = p.order ? p.order[a] : a, b_block = p_.b_order ? p_.b_order[b] : b;
    return {b_block * p.block_width * p.n, a_block * p.block_height * p.block_width};
  }

  const bsrg_pairs_portable_params &p_;
  const int64_t begin_, end_;
  KEntry *const found_;
  int *const warp_counts_;
  MeetingTile tile_;
  int next_ = 0;
};

// All tiles of a CTA: grid.x is the row tile, grid.y strides over column tiles, which are those of one block column after
// the other.
template <typename T, typename Kernel, int kTileN, int kThreads>
__device__ __forceinline__ void run_pairs(const bsrg_pairs_portable_params &params, unsigned char *shared) {
  __shared__ KEntry found[kThreads];
  __shared__ int warp_counts[kThreads / 32];
  const int64_t column_tiles = params.b_block_cols * params.tiles_per_block_column;
  for (int64_t tile = blockIdx.y; tile < column_tiles; tile += gridDim.y) {
    const int64_t block_col = tile / params.tiles_per_block_column;
    const int column = static_cast<int>(tile % params.tiles_per_block_column) * kTileN;
    bsrg_portable_params product = params.product;
    product.y = static_cast<T *>(product.y) + block_col * product.n * product.y_col_stride;
    product.c = static_cast<const T *>(product.c) + block_col * product.n * product.c_col_stride;
    Meetings meetings(params, block_col, found, warp_counts);
    Kernel(product, shared).run_pairs(meetings, column);
  }
}

}  // namespace bsrg::portable

// One kernel, <prefix>_m<rows>n<columns>, of a class of kernels: a row of BSRG_PAIRS_MMA_TILES and so on.
#define BSRG_PAIRS_KERNEL_OF(prefix, class, type, transposed, rows, columns, warps_m, warps_n, stage_k,  \
                             stages, ctas)                                                               \
  extern "C" __global__ void __launch_bounds__(32 * (warps_m) * (warps_n), ctas)                         \
      prefix##_m##rows##n##columns(const __grid_constant__ bsrg_pairs_portable_params params) {          \
    bsrg::ptx::follow_grid_before();                                                                     \
    extern __shared__ __align__(128) unsigned char shared_memory[];                                      \
    bsrg::portable::run_pairs<type,                                                                      \
                              class<type, rows, columns, warps_m, warps_n, stage_k, stages, transposed>, \
                              columns, 32 * (warps_m) * (warps_n)>(params, shared_memory);               \
  }
