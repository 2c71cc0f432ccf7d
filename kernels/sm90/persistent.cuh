// Rings of slots with mbarriers, and what persistent kernels share: the order in which tiles are handed out.
#pragma once

#include <cstdint>

#include "ptx/sync.cuh"

namespace bsrg {

// A position in a ring, of which the launch may choose the number of slots, and the parity its barriers have there.
struct OpenRingPosition {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Where a ring of so many slots is after `count` of them.
__device__ __forceinline__ OpenRingPosition position_after(int count, int slots) {
  return {count % slots, static_cast<uint32_t>(count / slots & 1)};
}

// The same in a ring of kSlots slots.
template <int kSlots>
struct RingPosition : OpenRingPosition {
  __device__ void advance() { OpenRingPosition::advance(kSlots); }
};

// Waits until a ring, whose next slot to fill is `next`, has been released all over. Nobody else waits for the
// last releases, and one from another CTA that lands after this one's exit would hit the barriers of whatever
// runs here next.
template <int kSlots>
__device__ __forceinline__ void wait_until_released(uint32_t barriers, RingPosition<kSlots> next) {
  for (int i = 0; i < kSlots; ++i, next.advance()) ptx::barrier_wait(barriers + 8 * next.slot, next.parity);
}

// How many of so many things fall to worker `worker` of `workers`, who take them in turn.
__device__ __forceinline__ int share_of(int count, int worker, int workers) {
  return (count - worker + workers - 1) / workers;
}

// Of a tile that X has so many columns for, those that are loaded, in units of a panel or of one: TMA takes 24 cycles for each row of
// a box that lies behind the last column.
template <int kUnit>
__device__ __forceinline__ int loaded_columns(int columns) {
  return (columns + kUnit - 1) / kUnit * kUnit;
}

struct TilePosition {
  int row, column;
};

// Tile t of the order in which the chip works. The first `lead` row tiles, much longer than others, pass over all
// columns one after the other. Then come groups of column tiles, all other row tiles down a group, back up the next, so
// that the panel of X in use stays in L2; down the last one, since the longest row tiles come first in a sorted list.
__device__ __forceinline__ TilePosition tile_position(int t, int rows, int columns, int group_size,
                                                      int lead) {
  if (t < lead * columns) return {t / columns, t % columns};
  t -= lead * columns;
  rows -= lead;
  const int per_group = rows * group_size;
  const int group = t / per_group, within = t % per_group;
  const int width = min(group_size, columns - group * group_size);
  const int row = within / width;
  const bool up = (columns - 1) / group_size - group & 1;
  return {lead + (up ? rows - 1 - row : row), group * group_size + within % width};
}

// The tile that a worker does after tile t: the next that nobody has drawn. Without a counter tiles are dealt, forth and
// back: who has the longest of a round has the shortest of the next.
__device__ __forceinline__ int next_tile(uint32_t *counter, int t, int workers, int tiles) {
  if (counter == nullptr) return t + 2 * (workers - t % workers) - 1;
  const uint32_t ticket = atomicAdd(counter, 1u);
  // Each worker draws until its ticket is past the end: `tiles` draws in all, and the last one leaves the
  // counter as the next launch expects it.
  if (ticket == static_cast<uint32_t>(tiles) - 1) *counter = 0;
  return static_cast<int>(ticket) + workers;
}

}  // namespace bsrg
