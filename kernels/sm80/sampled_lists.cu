// What sampled products compute together at the blocks of a pattern that a GPU has made (DynamicPattern): tiles and panels for
// Hopper's kernels, or items for the portable ones, as sampled_plan.c makes them for other patterns. bsrg_sampled_lists_params
// says where they go. Values behind the last block become zeros, so that sums over all of them are right.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"

namespace {

constexpr int kWarps = BSRG_SAMPLED_LISTS_THREADS / 32;

// A block row, by a warp. Units: panels, or columns, of which a row has fewer than 2^31.
class Row {
 public:
  __device__ __forceinline__ Row(const bsrg_sampled_lists_params &params, int row)
      : p(params), row_(row), begin(params.indptr[row]), blocks(length(row)), lane(threadIdx.x % 32) {}

  __device__ __forceinline__ void make() const {
    if (p.tiles == nullptr) {
      for_slots(p.block_width, [&](int64_t slot, int from, int count) { make_item(slot, from, count); });
      return;
    }
    const int across = p.block_width / BSRG_SAMPLED_STRIP;
    for (int i = lane; i < blocks * across; i += 32) make_panel(i, across);
    for_slots(across, [&](int64_t slot, int from, int count) {
      for (int list = 0; list < p.lists; ++list)
        make_tile(slot * p.lists + list, list, static_cast<int>(begin) * across + from, count);
    });
  }

 private:
  const bsrg_sampled_lists_params &p;
  const int row_;
  const int64_t begin;
  const int blocks;
  const int lane;

  __device__ __forceinline__ int length(int row) const {
    return static_cast<int>(p.indptr[row + 1] - p.indptr[row]);
  }

  __device__ __forceinline__ int slots_of(int units) const {
    return static_cast<int>((static_cast<uint32_t>(units) + p.most - 1) / static_cast<uint32_t>(p.most));
  }

  // Of the rows before.
  __device__ __forceinline__ int64_t slots_before(int units_of_block) const {
    int64_t sum = 0;
    for (int row = lane; row < row_; row += 32) sum += slots_of(length(row) * units_of_block);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
  }

  // Calls take(slot, first unit of the row, units) for each of the row's slots; units of a slot without any: 0, or -1 where
  // there are none behind it either.
  template <typename Take>
  __device__ __forceinline__ void for_slots(int units_of_block, Take take) const {
    const bool last = row_ + 1 == p.rows, counted = p.rows <= BSRG_SAMPLED_COUNTED_ROWS;
    const int count = blocks * units_of_block, used = slots_of(count);
    const int64_t before = begin * units_of_block;
    const int64_t first = counted ? slots_before(units_of_block) : before / p.most + row_;
    const int64_t next = last ? p.slots : counted ? first + used : (before + count) / p.most + row_ + 1;
    for (int i = lane; first + i < next; i += 32) {
      if (i < used)
        take(first + i, share(count, i, used), share(count, i + 1, used) - share(count, i, used));
      else
        take(first + i, 0, last ? -1 : 0);
    }
  }

  // Where share i begins: tiles of a row are about equal, and items fill up their columns, since the kernels compute all of
  // them anyway.
  __device__ __forceinline__ int share(int count, int i, int shares) const {
    if (p.tiles == nullptr) return i == shares ? count : i * p.most;
    return count / shares * i + min(i, count % shares);
  }

  __device__ __forceinline__ void make_panel(int i, int across) const {
    const int block = static_cast<int>(begin) + i / across, offset = i % across * BSRG_SAMPLED_STRIP;
    reinterpret_cast<int4 *>(p.panels)[begin * across + i] =
        make_int4(__ldg(p.indices + block) * p.block_width + offset, offset, block, -1);
  }

  __device__ __forceinline__ void make_tile(int64_t at, int list, int first, int count) const {
    const int top = row_ * p.block_height + list * p.strips * BSRG_SAMPLED_STRIP;
    reinterpret_cast<int4 *>(p.tiles)[at] =
        make_int4(top, p.strips == 2 ? top + BSRG_SAMPLED_STRIP : top, first, count);
  }

  __device__ __forceinline__ void make_item(int64_t slot, int from, int count) const {
    bsrg_sampled_item item;
    item.block = begin + from / p.block_width;
    item.block_row = row_;
    item.offset = from % p.block_width;
    item.count = max(count, 0);
    item.pad = 0;
    p.items[slot] = item;
  }
};

// By the threads of `ctas` CTAs, of which this is number `cta`.
template <typename T>
__device__ __forceinline__ void clear_rest(const bsrg_sampled_lists_params &p, int64_t cta, int64_t ctas) {
  const int64_t units = p.block_bytes / static_cast<int64_t>(sizeof(T));
  T *out = static_cast<T *>(p.out);
  for (int64_t i = p.counts[0] * units + cta * BSRG_SAMPLED_LISTS_THREADS + threadIdx.x;
       i < p.capacity * units; i += ctas * BSRG_SAMPLED_LISTS_THREADS)
    out[i] = T{};
}

}  // namespace

extern "C" __global__ void __launch_bounds__(BSRG_SAMPLED_LISTS_THREADS)
    sampled_lists(const __grid_constant__ bsrg_sampled_lists_params p) {
  bsrg::ptx::follow_grid_before();
  const int cta = static_cast<int>(blockIdx.x), row = cta * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (cta < p.list_ctas) {
    if (row < p.rows) Row(p, row).make();
    return;
  }
  const int64_t mine = cta - p.list_ctas, all = static_cast<int>(gridDim.x) - p.list_ctas;
  if (p.unit == 16)
    clear_rest<uint4>(p, mine, all);
  else if (p.unit == 8)
    clear_rest<uint64_t>(p, mine, all);
  else if (p.unit == 4)
    clear_rest<uint32_t>(p, mine, all);
  else
    clear_rest<uint16_t>(p, mine, all);
}
