// Copies of matrices of 8-bit elements in chunks of 16 neighbours along k, for portable_eight.cuh and narrow.cuh: a chunk of all
// columns, then the next chunk.
//
// A CTA's tile is 1024 chunks. Where rows are contiguous, a thread reads a chunk's rows of four columns and turns them in
// registers; else neighbouring threads have neighbouring chunks of a column.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"

namespace {

constexpr int kChunk = BSRG_PANELS_CHUNK;

struct Chunk {
  int64_t row;  // the first
  int count;    // rows that are there
};

__device__ __forceinline__ Chunk chunk_at(const bsrg_panels_params &p, int64_t number) {
  const int64_t block = number / p.chunks_of_block, first = (number - block * p.chunks_of_block) * kChunk;
  const int64_t row = block * p.width + first;
  return {row, static_cast<int>(min(min(p.width - first, p.rows - row), int64_t{kChunk}))};
}

__device__ __forceinline__ const uint8_t *column_at(const bsrg_panels_params &p, int64_t column) {
  const int64_t matrix = column / p.cols;
  return static_cast<const uint8_t *>(p.source) + matrix * p.source_matrix_stride +
         (column - matrix * p.cols) * p.source_col_stride;
}

__device__ __forceinline__ uint4 *target_at(const bsrg_panels_params &p, int64_t number, int64_t column) {
  const int64_t in_group = column & ((1 << p.tile_bits) - 1);
  return static_cast<uint4 *>(p.target) + number * p.target_cols + in_group * 8 + (column >> p.tile_bits);
}

__device__ __forceinline__ void copy_chunk(const bsrg_panels_params &p, int64_t number, int64_t column) {
  const Chunk chunk = chunk_at(p, number);
  const uint8_t *from = column_at(p, column) + chunk.row * p.source_row_stride;
  uint32_t words[4] = {};
  if (p.whole && chunk.count == kChunk) {
    *target_at(p, number, column) = __ldg(reinterpret_cast<const uint4 *>(from));
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    if (i < chunk.count)
      words[i / 4] |= static_cast<uint32_t>(__ldg(from + i * p.source_row_stride)) << i % 4 * 8;
  *target_at(p, number, column) = make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ void turn_fours(const bsrg_panels_params &p, int64_t number, int64_t column) {
  const Chunk chunk = chunk_at(p, number);
  const uint8_t *from = column_at(p, column) + chunk.row * p.source_row_stride;
  uint32_t rows[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    rows[i] = i < chunk.count ? __ldg(reinterpret_cast<const uint32_t *>(from + i * p.source_row_stride)) : 0;
  uint32_t words[4][4];  // of each column
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t *const r = rows + 4 * w;
    const uint32_t low01 = __byte_perm(r[0], r[1], 0x5140), low23 = __byte_perm(r[2], r[3], 0x5140);
    const uint32_t high01 = __byte_perm(r[0], r[1], 0x7362), high23 = __byte_perm(r[2], r[3], 0x7362);
    words[0][w] = __byte_perm(low01, low23, 0x5410);
    words[1][w] = __byte_perm(low01, low23, 0x7632);
    words[2][w] = __byte_perm(high01, high23, 0x5410);
    words[3][w] = __byte_perm(high01, high23, 0x7632);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c)
    *target_at(p, number, column + c) = make_uint4(words[c][0], words[c][1], words[c][2], words[c][3]);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(BSRG_PANELS_THREADS)
    panels_8(const __grid_constant__ bsrg_panels_params p) {
  bsrg::ptx::follow_grid_before();
  const int columns = BSRG_PANELS_TILE >> p.chunk_bits;
  const int64_t first_column = blockIdx.x % p.col_tiles * columns;
  const int64_t first_chunk = static_cast<int64_t>(blockIdx.x / p.col_tiles) << p.chunk_bits;
  if (p.fours) {
    const int fours = columns / 4;
    const int64_t column = first_column + threadIdx.x % fours * 4, chunk = first_chunk + threadIdx.x / fours;
    if (column < p.all_cols && chunk < p.chunks) turn_fours(p, chunk, column);
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < BSRG_PANELS_TILE; i += BSRG_PANELS_THREADS) {
    const int64_t column = first_column + (i >> p.chunk_bits);
    const int64_t chunk = first_chunk + (i & ((1 << p.chunk_bits) - 1));
    if (column < p.all_cols && chunk < p.chunks) copy_chunk(p, chunk, column);
  }
}
