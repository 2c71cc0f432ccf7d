// A block-sparse matrix as a dense one: its blocks, in memory that is zero.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"

namespace {

// The places of a part of a block, row by row, that one lane comes to.
struct Places {
  int row, col;

  __device__ __forceinline__ Places(int first_row, int width)
      : row(first_row + static_cast<int>(threadIdx.x % 32) / width),
        col(static_cast<int>(threadIdx.x % 32) % width),
        rows_(32 / width),
        cols_(32 % width),
        width_(width) {}

  __device__ __forceinline__ void next() {
    row += rows_;
    col += cols_;
    if (col < width_) return;
    col -= width_;
    ++row;
  }

 private:
  const int rows_, cols_, width_;
};

// A block row, or a share of the parts of its blocks: one a warp. A lane has several loads under way.
template <typename Chunk>
__device__ __forceinline__ void spread(const bsrg_spread_params &p) {
  bsrg::ptx::follow_grid_before();
  constexpr int kWarps = BSRG_SPREAD_THREADS / 32, kLoads = 8;
  const int64_t block_row = blockIdx.x, first_row = block_row * p.block_height;
  const int64_t begin = __ldg(p.indptr + block_row);
  const int64_t parts = (__ldg(p.indptr + block_row + 1) - begin) * p.parts;
  for (int64_t i = blockIdx.y * kWarps + threadIdx.x / 32; i < parts; i += gridDim.y * kWarps) {
    const int64_t k = begin + i / p.parts;
    const int64_t block = p.order != nullptr ? __ldg(p.order + k) : k;
    const int64_t column = static_cast<int64_t>(__ldg(p.indices + k)) * p.block_width;
    const int first = static_cast<int>(i % p.parts) * p.part_rows;
    const int last =
        static_cast<int>(min(min(int64_t{first} + p.part_rows, int64_t{p.block_height}), p.rows - first_row));
    const int cols = static_cast<int>(min(int64_t{p.block_width}, p.cols - column));
    const auto *from =
        static_cast<const Chunk *>(p.values) + block * p.block_height * static_cast<int64_t>(p.block_width);
    auto *to = static_cast<Chunk *>(p.target) + first_row * p.target_row_stride + column;
    Places reads(first, p.block_width), writes = reads;
    while (reads.row < last) {
      Chunk chunks[kLoads];
#pragma unroll
      for (int load = 0; load < kLoads; ++load, reads.next())
        if (reads.row < last && reads.col < cols)
          chunks[load] = __ldg(from + reads.row * p.row_stride + reads.col * p.col_stride);
#pragma unroll
      for (int load = 0; load < kLoads; ++load, writes.next())
        if (writes.row < last && writes.col < cols)
          to[writes.row * p.target_row_stride + writes.col] = chunks[load];
    }
  }
}

}  // namespace

#define SPREAD(BYTES, Chunk)                                         \
  extern "C" __global__ void __launch_bounds__(BSRG_SPREAD_THREADS)  \
      spread_##BYTES(const __grid_constant__ bsrg_spread_params p) { \
    spread<Chunk>(p);                                                \
  }
SPREAD(2, uint16_t)
SPREAD(4, uint32_t)
SPREAD(8, uint2)
SPREAD(16, uint4)
