// A tile of a matrix from any strides to any others, by way of shared memory: each side along whichever of its rows and columns
// lie closer together.
#pragma once

#include <cstdint>

namespace bsrg {

// By a CTA of kThreads.
template <typename T, int kThreads, int kColumns>
class CopyTile {
 public:
  static constexpr int kRows = 32;  // a lane each
  // Rows that begin 4 bytes further on, so that lanes with a row each meet different banks.
  using Shared = T[kRows][kColumns + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)];

  // From where the tile begins.
  struct Side {
    T *data;
    int64_t row_stride, col_stride;
  };

  // Columns from source_columns up to target_columns become zeros. What is beyond a tile's size does not count.
  static __device__ __forceinline__ void copy(const Side &source, const Side &target, int64_t rows,
                                              int64_t source_columns, int64_t target_columns,
                                              Shared &shared) {
    T v[kEach] = {};
    for_each(source, [&](int i, int row, int column) {
      if (row < rows && column < source_columns)
        v[i] = __ldg(source.data + row * source.row_stride + column * source.col_stride);
    });
    for_each(source, [&](int i, int row, int column) { shared[row][column] = v[i]; });
    __syncthreads();
    for_each(target, [&](int, int row, int column) {
      if (row < rows && column < target_columns)
        target.data[row * target.row_stride + column * target.col_stride] = shared[row][column];
    });
    __syncthreads();  // before the next tile
  }

 private:
  static constexpr int kWarps = kThreads / 32, kEach = kRows * kColumns / kThreads, kAcross = kColumns / 32;

  // Calls use(i, row, column) for the thread's share.
  template <typename Use>
  static __device__ __forceinline__ void for_each(const Side &side, const Use &use) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (llabs(side.row_stride) < llabs(side.col_stride)) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) use(i, lane, warp + i * kWarps);
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) use(i, warp + i / kAcross * kWarps, lane + i % kAcross * 32);
    }
  }
};

}  // namespace bsrg
