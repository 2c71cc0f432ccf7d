// The block columns with the highest scores of each block row, ascending: one CTA a row.
//
// Scores become unsigned keys that order as they do. A radix select finds the key of the last one that is kept, eight
// bits at a time: a histogram of the keys that agree in the bits found so far, and the digit in which the count from
// above reaches k. A last pass over the row keeps what lies above that key, and of what equals it the first ones. Scores
// are read again in every pass, from L1, so rows may have any length. Counts alone go through atomics, so that the
// result does not depend on their order.
#pragma once

#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"
#include "sm80/topk_ranks.cuh"

namespace bsrg::topk {

// Sign and magnitude as they lie in memory. kInfinity: its bits; magnitudes above are NaN.
template <typename Bits, Bits kInfinity>
struct Key {
  using Stored = Bits;
  static constexpr int kBits = 8 * sizeof(Bits);
  static constexpr uint32_t kSign = 1u << (kBits - 1), kAll = kSign | (kSign - 1);

  // NaN is 0, below -infinity; both zeros are one.
  static __device__ __forceinline__ uint32_t of(Bits stored) {
    const uint32_t bits = stored, magnitude = bits & (kSign - 1);
    if (magnitude > kInfinity) return 0;
    if (magnitude == 0) return kSign;
    return bits & kSign ? bits ^ kAll : bits | kSign;
  }
};
using KeyF16 = Key<uint16_t, 0x7c00>;
using KeyBf16 = Key<uint16_t, 0x7f80>;
using KeyF32 = Key<uint32_t, 0x7f800000>;

constexpr int kDigits = 256;

// The digit that holds the wanted-th highest key, and how many of its keys are among the wanted ones. For one warp.
struct Digit {
  int digit, wanted;
};

__device__ __forceinline__ void find_digit(const int *histogram, int wanted, Digit *found) {
  constexpr int kOfLane = kDigits / 32;
  const int lane = threadIdx.x, top = kDigits - 1 - lane * kOfLane;  // higher digits in lower lanes
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) mine += histogram[top - i];
  int through = mine;  // of this lane and those below
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(~0u, through, step);
    if (lane >= step) through += below;
  }
  int above = through - mine;
  if (above >= wanted || through < wanted) return;  // another lane's
  int i = 0;
  for (; above + histogram[top - i] < wanted; ++i) above += histogram[top - i];
  *found = {top - i, wanted - above};
}

template <typename Key>
class Row {
 public:
  __device__ __forceinline__ explicit Row(const bsrg_topk_params &p)
      : row(blockIdx.x % p.shape.block_rows),
        candidates(bsrg_topk_candidates(&p.shape, row)),
        count(min(candidates, p.shape.most)),
        step(p.column_stride),
        out(p.columns + static_cast<int64_t>(blockIdx.x) * p.shape.most) {
    const int pattern = blockIdx.x / p.shape.block_rows;
    scores = static_cast<const typename Key::Stored *>(p.scores) + pattern / p.heads * p.batch_stride +
             pattern % p.heads * p.head_stride + row * p.row_stride;
  }

  __device__ __forceinline__ void choose() const {
    if (count == candidates) {
      for (int i = threadIdx.x; i < count; i += BSRG_TOPK_THREADS) out[i] = i;
      return;
    }
    __shared__ int histogram[kDigits];
    __shared__ Digit found;
    uint32_t known = 0;  // the bits of the last kept key that have been found, others 0
    int wanted = count;  // of the keys that agree in those
    for (int shift = Key::kBits - 8; shift >= 0; shift -= 8) {
      for (int i = threadIdx.x; i < kDigits; i += BSRG_TOPK_THREADS) histogram[i] = 0;
      __syncthreads();
      const uint32_t higher = static_cast<uint32_t>(~uint64_t{0} << (shift + 8));
      for (int i = threadIdx.x; i < candidates; i += BSRG_TOPK_THREADS) {
        const uint32_t key = key_of(i);
        if (((key ^ known) & higher) == 0) atomicAdd(&histogram[key >> shift & (kDigits - 1)], 1);
      }
      __syncthreads();
      if (threadIdx.x < 32) find_digit(histogram, wanted, &found);
      __syncthreads();
      known |= static_cast<uint32_t>(found.digit) << shift;
      wanted = found.wanted;
    }
    keep(known, wanted);
  }

 private:
  const int row, candidates, count;
  const int64_t step;
  int32_t *const out;
  const typename Key::Stored *scores;

  __device__ __forceinline__ uint32_t key_of(int column) const { return Key::of(scores[column * step]); }

  // The columns above the last kept key, and the first `ties` that equal it.
  __device__ __forceinline__ void keep(uint32_t last, int ties) const {
    __shared__ uint32_t totals[BSRG_TOPK_THREADS / 32];
    int above_before = 0, equal_before = 0;
    for (int first = 0; first < candidates; first += BSRG_TOPK_THREADS) {
      const int column = first + threadIdx.x;
      const bool exists = column < candidates;
      const uint32_t key = exists ? key_of(column) : 0;
      const bool above = exists && key > last, equal = exists && key == last;
      const Ranks ranks = rank(above, equal, false, totals);
      const int equal_rank = equal_before + ranks.before(1);
      const int at = above_before + ranks.before(0) + min(equal_rank, ties);
      // Always below count, unless the scores change meanwhile: not even then is anything else overwritten.
      if ((above || (equal && equal_rank < ties)) && at < count) out[at] = column;
      above_before += ranks.total(0);
      equal_before += ranks.total(1);
    }
  }
};

}  // namespace bsrg::topk

#define BSRG_TOPK_KERNEL(NAME, KEY)                               \
  extern "C" __global__ void __launch_bounds__(BSRG_TOPK_THREADS) \
      topk_##NAME(const __grid_constant__ bsrg_topk_params p) {   \
    bsrg::ptx::follow_grid_before();                              \
    bsrg::topk::Row<bsrg::topk::KEY>(p).choose();                 \
  }
