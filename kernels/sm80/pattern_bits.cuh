// From a mask to bits, and from these to the blocks of the matrix and the bits of its transposed.
#pragma once

#include <cstdint>

#include "params.h"

namespace bsrg::pattern {

constexpr int kWarps = BSRG_PATTERN_THREADS / 32;

__device__ __forceinline__ uint32_t below(int bit) { return (1u << bit) - 1; }

__device__ __forceinline__ int sum_through(int value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// By a warp: a row's bits, ranks, count and extent. own_word(first) is the lane's of the 32 words from `first` on, for all
// lanes that have one.
template <typename OwnWord>
__device__ __forceinline__ void write_row(const bsrg_pattern_side &side, int row, const OwnWord &own_word) {
  const int lane = threadIdx.x % 32;
  const size_t begin = static_cast<size_t>(row) * side.words;
  int before = 0, first_column = INT32_MAX, last_column = -1;
  for (int first = 0; first < side.words; first += 32) {
    const uint32_t word = own_word(first);
    const bool exists = first + lane < side.words;
    const int count = exists ? __popc(word) : 0;
    const int through = sum_through(count);
    if (exists) {
      side.bits[begin + first + lane] = word;
      side.rank[begin + first + lane] = before + through - count;
    }
    if (count > 0) {
      const int column = (first + lane) * 32;
      first_column = min(first_column, column + __ffs(static_cast<int>(word)) - 1);
      last_column = column + 31 - __clz(static_cast<int>(word));
    }
    before += __shfl_sync(~0u, through, 31);
  }
  first_column = __reduce_min_sync(~0u, first_column);
  last_column = __reduce_max_sync(~0u, last_column);
  if (lane > 0) return;
  side.count[row] = before;
  side.extent[2 * row] = first_column;
  side.extent[2 * row + 1] = last_column;
}

__device__ __forceinline__ int row_of_warp() { return blockIdx.x * kWarps + threadIdx.x / 32; }

__device__ __forceinline__ void bits_of_mask(const bsrg_pattern_params &p) {
  const int row = row_of_warp(), lane = threadIdx.x % 32;
  if (row >= p.matrix.rows) return;
  const int columns = p.transposed.rows;
  const uint8_t *const mask = p.mask + row * p.mask_row_stride;
  write_row(p.matrix, row, [&](int first) {
    const int words = min(32, p.matrix.words - first);
    uint32_t own = 0;
#pragma unroll 8
    for (int w = 0; w < words; ++w) {
      const int column = (first + w) * 32 + lane;
      const uint32_t word = __ballot_sync(~0u, column < columns && mask[column * p.mask_col_stride] != 0);
      if (lane == w) own = word;
    }
    return own;
  });
}

// The same from lists of columns, ascending. Whatever they hold, no bit lies beyond the last column.
__device__ __forceinline__ void bits_of_columns(const bsrg_pattern_params &p) {
  const int row = row_of_warp(), lane = threadIdx.x % 32;
  if (row >= p.matrix.rows) return;
  const int32_t *const columns = p.columns + static_cast<int64_t>(row) * p.most;
  write_row(p.matrix, row, [&](int first) {
    const int begin = (first + lane) * 32;
    int low = 0, high = p.most;  // the first column that is no less than begin
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (columns[middle] < begin)
        low = middle + 1;
      else
        high = middle;
    }
    uint32_t word = 0;
    for (; low < p.most && columns[low] - begin < 32 && columns[low] < p.transposed.rows; ++low)
      word |= 1u << (columns[low] - begin);
    return word;
  });
}

// Ranks and counts of bits that are there.
__device__ __forceinline__ void ranks(const bsrg_pattern_side &side) {
  const int row = row_of_warp(), lane = threadIdx.x % 32;
  if (row >= side.rows) return;
  write_row(side, row, [&](int first) {
    return first + lane < side.words ? side.bits[static_cast<size_t>(row) * side.words + first + lane] : 0;
  });
}

__device__ __forceinline__ uint32_t lowest(uint32_t bits, int count) {
  while (bits != 0 && __popc(bits) > count) bits &= ~(0x80000000u >> __clz(bits));
  return bits;
}

// By a warp: 32 rows of one word become 32 words of the transposed. Where blocks lie is known already, so that those
// beyond the capacity go here, and what is left gets its column.
__device__ __forceinline__ void turn(const bsrg_pattern_params &p) {
  const bsrg_pattern_side &a = p.matrix, &t = p.transposed;
  const int job = row_of_warp(), lane = threadIdx.x % 32;
  if (job >= t.words * a.words) return;
  const int word = job % a.words, group = job / a.words;
  const int row = group * 32 + lane, column = word * 32 + lane;
  uint32_t bits = 0;
  int at = 0;
  if (row < a.rows) {
    const size_t here = static_cast<size_t>(row) * a.words + word;
    const uint32_t wanted = a.bits[here];
    at = static_cast<int>(a.indptr[row]) + a.rank[here];
    bits = lowest(wanted, p.capacity - at);
    if (bits != wanted) a.bits[here] = bits;
  }
  uint32_t turned = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const uint32_t of_column = __ballot_sync(~0u, bits >> i & 1);
    if (lane == i) turned = of_column;
  }
  if (column < t.rows) t.bits[static_cast<size_t>(column) * t.words + group] = turned;
#pragma unroll 8
  for (int i = 0; i < 32; ++i) {
    const uint32_t of_row = __shfl_sync(~0u, bits, i);
    const int first = __shfl_sync(~0u, at, i);
    if (of_row >> lane & 1) {
      const int to = first + __popc(of_row & below(lane));
      a.indices[to] = column;
      p.block_row[to] = group * 32 + i;
    }
  }
}

}  // namespace bsrg::pattern
