// What products read: the blocks of the transposed, and the tall kernels' entries and tiles.
#pragma once

#include <cstdint>

#include "params.h"
#include "sm80/pattern_bits.cuh"

namespace bsrg::pattern {

// A CTA has one place in the order of the rows, its warps a run of the row's words each. With an odd strip, every other
// CTA also joins the columns of its row and the next.
template <bool kTransposed>
class Lists {
 public:
  __device__ __forceinline__ explicit Lists(const bsrg_pattern_params &p)
      : p_(p), side_(kTransposed ? p.transposed : p.matrix), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void make() const {
    const int place = blockIdx.x;
    if (place >= side_.rows || (!kTransposed && side_.entries == nullptr)) return;
    const int of_warp = (side_.words + kWarps - 1) / kWarps;
    const int first = min(static_cast<int>(threadIdx.x) / 32 * of_warp, side_.words);
    const int end = min(first + of_warp, side_.words);
    const int row = side_.row_order[place];
    list_row(row, first, end);
    if (side_.entries == nullptr) return;
    write_tiles(row, place);
    if (side_.strips % 2 == 1 && place % 2 == 0)
      join_rows(row, place + 1 < side_.rows ? side_.row_order[place + 1] : -1, place, first, end);
  }

 private:
  const bsrg_pattern_params &p_;
  const bsrg_pattern_side &side_;
  const int lane_;

  __device__ __forceinline__ uint32_t word_at(int row, int word) const {
    return row >= 0 ? side_.bits[static_cast<size_t>(row) * side_.words + word] : 0;
  }

  // Where the lane's block of a word stands among the blocks of this side.
  __device__ __forceinline__ int position(int row, int word, uint32_t bits) const {
    const size_t at = static_cast<size_t>(row) * side_.words + word;
    return static_cast<int>(side_.indptr[row]) + side_.rank[at] + __popc(bits & below(lane_));
  }

  // The same among the blocks of the matrix, which values have the order of.
  __device__ __forceinline__ int stored(int row, int column, int position) const {
    if (!kTransposed) return position;
    const bsrg_pattern_side &a = p_.matrix;
    const size_t at = static_cast<size_t>(column) * a.words + row / 32;
    return static_cast<int>(a.indptr[column]) + a.rank[at] + __popc(a.bits[at] & below(row % 32));
  }

  __device__ __forceinline__ void list_row(int row, int first, int end) const {
    const bool has_pairs = side_.entries != nullptr && side_.strips > 1;
    if (!kTransposed && !has_pairs) return;  // the blocks of the matrix are listed already
#pragma unroll 2
    for (int word = first; word < end; ++word) {
      const uint32_t bits = word_at(row, word);
      if ((bits >> lane_ & 1) == 0) continue;
      const int column = word * 32 + lane_, at = position(row, word, bits);
      const int block = stored(row, column, at);
      if constexpr (kTransposed) {
        side_.indices[at] = column;
        side_.order[at] = block;
      }
      if (has_pairs) write_entry(at, column, block, block);
    }
  }

  // Blocks of the upper and the lower strip; -1: none.
  __device__ __forceinline__ void write_entry(int at, int column, int upper, int lower) const {
    reinterpret_cast<int4 *>(side_.entries)[at] =
        make_int4(column * side_.width, upper < 0 ? -1 : upper * p_.block_height,
                  lower < 0 ? -1 : lower * p_.block_height, 0);
  }

  __device__ __forceinline__ void write_tile(int64_t tile, int strip0, int strip1, int begin,
                                             int count) const {
    reinterpret_cast<int4 *>(side_.tiles)[tile] = make_int4(strip0, strip1, begin, count);
  }

  // The first tile of a place's row or, with an odd strip, of two rows: that of their odd strips.
  __device__ __forceinline__ int64_t first_tile(int place) const {
    return side_.strips % 2 == 1 ? static_cast<int64_t>(place / 2) * side_.strips
                                 : static_cast<int64_t>(place) * (side_.strips / 2);
  }

  __device__ __forceinline__ void write_tiles(int row, int place) const {
    const int pairs = side_.strips / 2, begin = static_cast<int>(side_.indptr[row]);
    const int count = static_cast<int>(side_.indptr[row + 1]) - begin;
    const int64_t tile = first_tile(place) + (side_.strips % 2 == 1 ? 1 + place % 2 * pairs : 0);
    for (int i = threadIdx.x; i < pairs; i += BSRG_PATTERN_THREADS)
      write_tile(tile + i, row * side_.strips + 2 * i, row * side_.strips + 2 * i + 1, begin, count);
  }

  // Blocks that two rows have in words [first, end), columns in common counted once. By a warp.
  __device__ __forceinline__ int count_joined(int row0, int row1, int first, int end) const {
    int count = 0;
    for (int word = first + lane_; word < end; word += 32)
      count += __popc(word_at(row0, word) | word_at(row1, word));
    return __reduce_add_sync(~0u, count);
  }

  __device__ __forceinline__ void join_rows(int row0, int row1, int place, int first, int end) const {
    // Two rows have no more columns than blocks, so there is room from where the blocks of the first begin.
    const int begin = side_.order_begin[place] + (side_.strips > 1 ? p_.capacity : 0);
    if (threadIdx.x < 32) {
      const int count = count_joined(row0, row1, 0, side_.words), odd = side_.strips - 1;
      if (lane_ == 0)
        write_tile(first_tile(place), row0 * side_.strips + odd, row1 < 0 ? -1 : row1 * side_.strips + odd,
                   begin, count);
    }
    int before = begin + count_joined(row0, row1, 0, first);
    for (int word = first; word < end; ++word) {
      const uint32_t bits0 = word_at(row0, word), bits1 = word_at(row1, word), bits = bits0 | bits1;
      if (bits >> lane_ & 1) {
        const int column = word * 32 + lane_;
        int block0 = -1, block1 = -1;
        if (bits0 >> lane_ & 1) block0 = stored(row0, column, position(row0, word, bits0));
        if (bits1 >> lane_ & 1) block1 = stored(row1, column, position(row1, word, bits1));
        write_entry(before + __popc(bits & below(lane_)), column, block0, block1);
      }
      before += __popc(bits);
    }
  }
};

}  // namespace bsrg::pattern
