// Panels of 32 columns for sampled products at a pattern that a GPU has made, where strips of 64 rows are two parts of 32: what
// sampled_parts.c does for other patterns, without its search for rows that have columns in common.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"

namespace {

constexpr int kPart = BSRG_SAMPLED_UNION_PART;

// A strip, by a warp.
class Union {
 public:
  __device__ __forceinline__ Union(const bsrg_sampled_unions_params &params, int strip)
      : p(params), lane(threadIdx.x % 32) {
    const int pair = strip / p.parts, local = strip % p.parts, rows = min(2, p.rows - 2 * pair);
    const int count = rows * p.parts;
    const int first = 2 * local, second = min(first + 1, count - 1);
    upper = row_of(pair, first), lower = row_of(pair, second), alone = first == second;
    begin = p.parts * (p.indptr[2 * pair] * (p.block_width / kPart) + pair) +
            local * ((p.indptr[2 * pair + rows] - p.indptr[2 * pair]) * (p.block_width / kPart) + 1);
    // The parts of the second row come backwards, so that one that is left over meets one of its like.
    out = {upper * p.block_height + part_of(first) * kPart, lower * p.block_height + part_of(second) * kPart};
    target = &p.unions[strip];
  }

  __device__ __forceinline__ void make() const {
    const int across = p.block_width / kPart;
    int made = 0;  // block columns
    for (int word = lane; word - lane < p.words; word += 32) {
      const bool inside = word < p.words;
      const Word above = inside ? look(upper, word) : Word{};
      const Word below = alone ? Word{} : upper == lower ? above : inside ? look(lower, word) : Word{};
      const uint32_t either = above.bits | below.bits;
      int before = __popc(either);
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, before, step);
        if (lane >= step) before += other;
      }
      const int all = __shfl_sync(~0u, before, 31);
      before -= __popc(either);
      for (uint32_t left = either; left != 0; left &= left - 1, ++before) {
        const int bit = __ffs(static_cast<int>(left)) - 1;
        const int column = (32 * word + bit) * p.block_width;
        for (int i = 0; i < across; ++i)
          write((made + before) * across + i, column + i * kPart, i * kPart, above.block(bit),
                below.block(bit));
      }
      made += all;
    }
    // An even number: the last one again, for nobody.
    const int count = made * across;
    __syncwarp();
    if (lane != 0) return;
    if (count % 2) write(count, p.panels[begin + count - 1].column, 0, -1, -1);
    *target = {out.upper, out.lower, static_cast<int32_t>(begin), (count + 1) / 2};
  }

 private:
  // 32 places of a row that are stored, and the block of the first one.
  struct Word {
    uint32_t bits = 0;
    int first = 0;
    __device__ __forceinline__ int block(int bit) const {
      return bits >> bit & 1 ? first + __popc(bits & ((1u << bit) - 1)) : -1;
    }
  };
  struct Rows {
    int upper, lower;
  };

  const bsrg_sampled_unions_params &p;
  const int lane;
  int upper, lower;
  bool alone;
  int64_t begin;
  Rows out;
  bsrg_sampled_union *target;

  __device__ __forceinline__ int row_of(int pair, int index) const { return 2 * pair + index / p.parts; }
  __device__ __forceinline__ int part_of(int index) const {
    return index < p.parts ? index : 2 * p.parts - 1 - index;
  }

  // Without those that the capacity does not admit.
  __device__ __forceinline__ Word look(int row, int word) const {
    const int64_t at = static_cast<int64_t>(row) * p.words + word;
    const int rank = p.rank[at], stored = static_cast<int>(p.indptr[row + 1] - p.indptr[row]);
    Word found{p.bits[at], static_cast<int>(p.indptr[row]) + rank};
    for (int beyond = __popc(found.bits) - max(0, stored - rank); beyond > 0; --beyond)
      found.bits &= ~(0x80000000u >> __clz(static_cast<int>(found.bits)));
    return found;
  }

  __device__ __forceinline__ void write(int i, int column, int offset, int above, int below) const {
    reinterpret_cast<int4 *>(p.panels)[begin + i] = make_int4(column, offset, above, below);
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(BSRG_SAMPLED_LISTS_THREADS)
    sampled_unions(const __grid_constant__ bsrg_sampled_unions_params p) {
  bsrg::ptx::follow_grid_before();
  const int strip = static_cast<int>(blockIdx.x * BSRG_SAMPLED_LISTS_THREADS + threadIdx.x) / 32;
  if (strip < p.strips) Union(p, strip).make();
}
