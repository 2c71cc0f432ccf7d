// What sampled products compute together at the blocks of a pattern that a GPU has made (DynamicPattern): tiles and panels for
// Hopper's kernels, or items for the portable ones, as sampled_plan.c makes them for other patterns. bsrg_sampled_lists_params
// says where they go. Values behind the last block become zeros, so that sums over all of them are right.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"

namespace {

constexpr int kWarps = BSRG_SAMPLED_LISTS_THREADS / 32;

// A block row, by a warp. Units: panels, or columns.
class Row {
 public:
  __device__ __forceinline__ Row(const bsrg_sampled_lists_params &params, int row)
      : p(params),
        row_(row),
        begin(params.indptr[row]),
        end(params.indptr[row + 1]),
        lane(threadIdx.x % 32) {}

  __device__ __forceinline__ void make() const {
    if (p.tiles == nullptr) {
      for_slots(p.block_width,
                [&](int64_t slot, int64_t first, int64_t count) { make_item(slot, first, count); });
      return;
    }
    const int across = p.block_width / BSRG_SAMPLED_STRIP;
    for (int64_t i = begin * across + lane; i < end * across; i += 32) make_panel(i, across);
    for_slots(across, [&](int64_t slot, int64_t first, int64_t count) {
      for (int list = 0; list < p.lists; ++list) make_tile(slot * p.lists + list, list, first, count);
    });
  }

 private:
  const bsrg_sampled_lists_params &p;
  const int row_;
  const int64_t begin, end;
  const int lane;

  // Calls take(slot, first unit, units) for each slot of the row; units of a slot without any: 0, or -1 where there are none
  // behind it either.
  template <typename Take>
  __device__ __forceinline__ void for_slots(int units_of_block, Take take) const {
    const bool last = row_ + 1 == p.rows;
    const int64_t before = begin * units_of_block, count = (end - begin) * units_of_block;
    const int64_t used = (count + p.most - 1) / p.most, first = before / p.most + row_;
    const int64_t next = last ? p.slots : (before + count) / p.most + row_ + 1;
    for (int64_t i = lane; first + i < next; i += 32) {
      // Tiles of a row are about equal.
      const int64_t from = i < used ? share(count, i, used) : 0;
      const int64_t to = i < used ? share(count, i + 1, used) : last ? -1 : 0;
      take(first + i, before + from, to - from);
    }
  }

  // Items fill up their columns, since the kernels compute all of them anyway.
  __device__ __forceinline__ int64_t share(int64_t count, int64_t i, int64_t parts) const {
    return p.tiles == nullptr ? min(i * p.most, count) : count * i / parts;
  }

  __device__ __forceinline__ void make_panel(int64_t i, int across) const {
    const int block = static_cast<int>(i / across),
              offset = static_cast<int>(i % across) * BSRG_SAMPLED_STRIP;
    reinterpret_cast<int4 *>(p.panels)[i] =
        make_int4(__ldg(p.indices + block) * p.block_width + offset, offset, block, -1);
  }

  __device__ __forceinline__ void make_tile(int64_t at, int list, int64_t first, int64_t count) const {
    const int top = row_ * p.block_height + list * p.strips * BSRG_SAMPLED_STRIP;
    reinterpret_cast<int4 *>(p.tiles)[at] = make_int4(top, p.strips == 2 ? top + BSRG_SAMPLED_STRIP : top,
                                                      static_cast<int>(first), static_cast<int>(count));
  }

  __device__ __forceinline__ void make_item(int64_t slot, int64_t first, int64_t count) const {
    bsrg_sampled_item item;
    item.block = first / p.block_width;
    item.block_row = row_;
    item.offset = static_cast<int>(first % p.block_width);
    item.count = static_cast<int>(max(count, int64_t{0}));
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
