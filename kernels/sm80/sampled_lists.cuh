// What sampled products compute together at the blocks of a pattern that a GPU has made (DynamicPattern): tiles and panels (or
// those of sampled_unions) for Hopper's kernels, or items for the portable ones, as sampled_plan.c does for other patterns.
// bsrg_sampled_lists_params says where they go.
#pragma once

#include <cstdint>

#include "params.h"

namespace bsrg::sampled_lists {

// A block row or a strip of unions, by a warp. Units: panels, pairs of those of a strip, or columns, fewer than 2^31.
class Row {
 public:
  __device__ __forceinline__ Row(const bsrg_sampled_lists_params &params, int row)
      : p(params),
        row_(row),
        across(params.unions != nullptr  ? 1
               : params.tiles != nullptr ? params.block_width / BSRG_SAMPLED_STRIP
                                         : params.block_width),
        lane(threadIdx.x % 32),
        count(units(row)),
        most(params.workers == 0 ? params.most : choose_width()) {}

  __device__ __forceinline__ void make() const {
    if (p.unions != nullptr) {
      const bsrg_sampled_union strip = p.unions[row_];
      for_slots([&](int64_t slot, int from, int units) {
        put_tile(slot, strip.row[0], strip.row[1], strip.panel_begin + 2 * from, 2 * units);
      });
      return;
    }
    const int64_t begin = p.indptr[row_];
    if (p.tiles == nullptr) {
      for_slots([&](int64_t slot, int from, int units) { make_item(slot, begin, from, units); });
      return;
    }
    for (int i = lane; i < count; i += 32) make_panel(begin, i);
    for_slots([&](int64_t slot, int from, int units) {
      for (int list = 0; list < p.lists; ++list)
        make_tile(slot * p.lists + list, list, static_cast<int>(begin) * across + from, units);
    });
  }

 private:
  const bsrg_sampled_lists_params &p;
  const int row_;
  const int across;  // units of a block
  const int lane;
  const int count;  // of units
  const int most;   // of a slot

  // As bsrg_sampled_choose_width.
  __device__ __forceinline__ int choose_width() const {
    constexpr int kWidest = BSRG_SAMPLED_PANELS(1, BSRG_SAMPLED_STRIP);
    const int overhead = p.strips == 2 ? 1 : 2;
    int slots[kWidest + 1] = {};
    for (int row = lane; row < p.rows; row += 32) {
      const uint32_t all = units(row);
#pragma unroll
      for (uint32_t i = 1; i <= kWidest; ++i) slots[i] += (all + i - 1) / i;
    }
    int best = p.most, least = INT32_MAX;
#pragma unroll
    for (int i = kWidest; i > 0; --i) {
      const int tiles = __reduce_add_sync(~0u, slots[i]) * p.lists;
      const int cost = (tiles + p.workers - 1) / p.workers * (i + overhead);
      if (i > p.most || cost >= least) continue;
      least = cost;
      best = i;
    }
    return best;
  }

  __device__ __forceinline__ int units(int row) const {
    if (p.unions != nullptr) return p.unions[row].panel_pairs;
    return static_cast<int>(p.indptr[row + 1] - p.indptr[row]) * across;
  }

  // Of the rows before, or more.
  __device__ __forceinline__ int64_t units_before(int row) const {
    if (p.unions != nullptr) return (p.unions[row].panel_begin + 1) / 2;
    return p.indptr[row] * across;
  }

  // Of a row that has any.
  __device__ __forceinline__ int first_column(int row) const {
    if (p.unions != nullptr) return p.panels[p.unions[row].panel_begin].column;
    return __ldg(p.indices + p.indptr[row]);
  }

  __device__ __forceinline__ int slots_of(int units) const {
    return static_cast<int>((static_cast<uint32_t>(units) + most - 1) / static_cast<uint32_t>(most));
  }

  // Of the rows before this one.
  __device__ __forceinline__ int64_t slots_before(int end) const {
    int64_t sum = 0;
    for (int row = lane; row < end; row += 32) sum += slots_of(units(row));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
  }

  // Where the group of rows from this one on begins.
  __device__ __forceinline__ int64_t slots_at(int row) const {
    if (p.rows <= BSRG_SAMPLED_COUNTED_ROWS) return slots_before(row);
    return units_before(row) / most + row;
  }

  // Whether most of these rows begin with the same column as the next one.
  __device__ __forceinline__ bool are_alike(int head, int rows) const {
    const bool stores = lane < rows && units(head + lane) > 0;
    const int column = stores ? first_column(head + lane) : -1;
    const int next = __shfl_down_sync(~0u, column, 1);
    const bool same = stores && lane + 1 < rows && column == next;
    return 2 * __popc(__ballot_sync(~0u, same)) >= rows;
  }

  // Calls take(slot, first unit of the row, units) for each of the row's slots, the last row of a group also for those that
  // stay empty: with 0 units, or -1 for the first ones behind all others.
  template <typename Take>
  __device__ __forceinline__ void for_slots(Take take) const {
    const int head = row_ / p.group * p.group, rows = min(p.group, p.rows - head), mine = row_ - head;
    const int used = slots_of(count);
    const int of_lane = lane < rows ? slots_of(units(head + lane)) : 0;
    const int64_t first = slots_at(head);
    const int turn = are_alike(head, rows) ? 1 : max(1, BSRG_SAMPLED_TURN / most);
    for (int i = lane; i - lane < used; i += 32) {
      const int in_turn = i % turn, begun = i - in_turn;
      const bool back = begun / turn % 2;
      int64_t slot = first + in_turn;
      for (int row = 0; row < rows; ++row) {
        const int slots = __shfl_sync(~0u, of_lane, row);
        slot += min(slots, begun + ((back ? row > mine : row < mine) ? turn : 0));
      }
      if (i < used) take(slot, share(i, used), share(i + 1, used) - share(i, used));
    }
    if (mine + 1 < rows) return;
    const bool last = row_ + 1 == p.rows;
    const int64_t next = first + __reduce_add_sync(~0u, of_lane);
    const int64_t end = last ? min(p.slots, next + p.ends) : slots_at(head + rows);
    for (int64_t slot = next + lane; slot < end; slot += 32) take(slot, 0, last ? -1 : 0);
  }

  // Where share i begins: tiles of a row are about equal, and items fill up their columns, since the kernels compute all of
  // them anyway.
  __device__ __forceinline__ int share(int i, int shares) const {
    if (p.tiles == nullptr) return i == shares ? count : i * most;
    return count / shares * i + min(i, count % shares);
  }

  __device__ __forceinline__ void make_panel(int64_t begin, int i) const {
    const int block = static_cast<int>(begin) + i / across, offset = i % across * BSRG_SAMPLED_STRIP;
    reinterpret_cast<int4 *>(p.panels)[begin * across + i] =
        make_int4(__ldg(p.indices + block) * p.block_width + offset, offset, block, -1);
  }

  __device__ __forceinline__ void make_tile(int64_t at, int list, int first, int panels) const {
    const int top = row_ * p.block_height + list * p.strips * BSRG_SAMPLED_STRIP;
    put_tile(at, top, p.strips == 2 ? top + BSRG_SAMPLED_STRIP : top, first, panels);
  }

  __device__ __forceinline__ void put_tile(int64_t at, int upper, int lower, int first, int panels) const {
    reinterpret_cast<int4 *>(p.tiles)[at] = make_int4(upper, lower, first, panels);
  }

  __device__ __forceinline__ void make_item(int64_t slot, int64_t begin, int from, int columns) const {
    bsrg_sampled_item item;
    item.block = begin + from / p.block_width;
    item.block_row = row_;
    item.offset = from % p.block_width;
    item.count = max(columns, 0);
    item.pad = 0;
    p.items[slot] = item;
  }
};

}  // namespace bsrg::sampled_lists
