// A tile of 32 rows from one place to another, by way of shared memory: on each side in the order in which neighbours lie together.
#pragma once

#include <cstdint>

namespace bsrg {

// The places of a thread, of 256: its first one, steps to the three next ones and, of wide tiles, to four more.
struct TileWalk {
  int row, column;
  int row_step, column_step;
  int far_row_step, far_column_step;
};

// A warp at a row, or at a column.
__device__ __forceinline__ TileWalk walk_rows(int lane, int warp) { return {warp, lane, 8, 0, 0, 32}; }
__device__ __forceinline__ TileWalk walk_columns(int lane, int warp) { return {lane, warp, 0, 8, 0, 32}; }

// A warp at 1 << shift neighbouring columns, up to 8 or 32, and as many rows as it has lanes for.
__device__ __forceinline__ TileWalk walk_groups(int lane, int warp, int shift) {
  if (shift == 5) return walk_rows(lane, warp);
  const int last = (1 << shift) - 1, column = lane & last, row = lane >> shift;
  return {((warp & last) << (5 - shift)) + row, (warp & ~last) + column, 0, 8, 0, 32};
}

// Along rows or columns, whichever lie closer together.
__device__ __forceinline__ TileWalk walk_closer(int64_t row_stride, int64_t column_stride) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  return llabs(row_stride) < llabs(column_stride) ? walk_columns(lane, warp) : walk_rows(lane, warp);
}

// By a CTA of 256 threads.
template <typename T, int kColumns>
class CopyTile {
 public:
  static constexpr int kThreads = 256, kRows = 32;
  // Rows that begin 4 bytes further on, so that lanes with a row each meet different banks.
  using Shared = T[kRows][kColumns + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)];
  static_assert(kColumns == 32 || kColumns == 64, "as walks go");

  // load(i, row, column) is what store(i, row, column, value) gets, for every place of the tile: i counts those of a thread.
  template <typename Load, typename Store>
  static __device__ __forceinline__ void copy(const TileWalk &of_source, const Load &load,
                                              const TileWalk &of_target, const Store &store, Shared &shared) {
    T v[kEach];
    for_each(of_source, [&](int i, int row, int column) { v[i] = load(i, row, column); });
    for_each(of_source, [&](int i, int row, int column) { shared[row][column] = v[i]; });
    __syncthreads();
    for_each(of_target, [&](int i, int row, int column) { store(i, row, column, shared[row][column]); });
    __syncthreads();  // before the next tile
  }

 private:
  static constexpr int kEach = kRows * kColumns / kThreads;

  // Calls use(i, row, column) for the thread's places.
  template <typename Use>
  static __device__ __forceinline__ void for_each(const TileWalk &w, const Use &use) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      use(i, w.row + i % 4 * w.row_step + i / 4 * w.far_row_step,
          w.column + i % 4 * w.column_step + i / 4 * w.far_column_step);
  }
};

}  // namespace bsrg
