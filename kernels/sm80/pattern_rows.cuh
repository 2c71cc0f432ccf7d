// Where block rows begin and in which order they are computed: by one CTA, which walks over the rows.
#pragma once

#include <cstdint>

#include "params.h"
#include "sm80/pattern_bits.cuh"

namespace bsrg::pattern {

class Rows {
 public:
  static constexpr int kThreads = BSRG_PATTERN_ROWS_THREADS, kWarps = kThreads / 32;
  static constexpr int kDigits = 256;
  static_assert(kWarps == 32, "a warp scans the sums of the warps");

  struct Shared {
    int of_warp[kWarps]
               [kDigits];  // items of a digit, then the place of the first; or where runs of rows begin
    int start[kDigits];    // the place of the next item of a digit
    int sums[kWarps];
    int longest;
  };

  __device__ __forceinline__ Rows(const bsrg_pattern_rows_params &p, Shared &shared)
      : p_(p), side_(p.side), shared_(shared), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void make() const {
    const int stored = place();
    const bool skewed = static_cast<int64_t>(shared_.longest) * side_.rows > 2 * static_cast<int64_t>(stored);
    if (skewed)
      sort();
    else if (side_.entries != nullptr && side_.strips % 2 == 1 && side_.rows <= kThreads)
      order_pairs();
    else
      for (int row = threadIdx.x; row < side_.rows; row += kThreads) side_.row_order[row] = row;
    __syncthreads();
    scan_rows([&](int i) { return length(side_.row_order[i]); },
              [&](int i, int before, int) { side_.order_begin[i] = before; });
  }

 private:
  const bsrg_pattern_rows_params &p_;
  const bsrg_pattern_side &side_;
  Shared &shared_;
  const int warp_, lane_;

  __device__ __forceinline__ int length(int row) const {
    return static_cast<int>(side_.indptr[row + 1] - side_.indptr[row]);
  }

  // The sum of the values of the threads before; total: of all. By all threads.
  __device__ __forceinline__ int scan(int value, int *total) const {
    const int through = sum_through(value);
    if (lane_ == 31) shared_.sums[warp_] = through;
    __syncthreads();
    const int warps_through = sum_through(shared_.sums[lane_]);
    __syncthreads();  // before the sums are written again
    *total = __shfl_sync(~0u, warps_through, 31);
    const int warps_before = __shfl_sync(~0u, warps_through, (warp_ + 31) % 32);
    return (warp_ > 0 ? warps_before : 0) + through - value;
  }

  // use(i, sum of value(0) .. value(i - 1), value(i)) for all rows; returns the sum of all.
  template <typename Value, typename Use>
  __device__ __forceinline__ int scan_rows(const Value &value, const Use &use) const {
    int before = 0;
    for (int64_t first = 0; first < side_.rows; first += kThreads) {
      const int64_t i = first + threadIdx.x;
      const bool exists = i < side_.rows;
      const int own = exists ? value(static_cast<int>(i)) : 0;
      int total;
      const int of_threads = scan(own, &total);
      if (exists) use(static_cast<int>(i), before + of_threads, own);
      before += total;
    }
    return before;
  }

  // indptr, the longest row and the counts; returns the number of blocks. Rows beyond the capacity are cut.
  __device__ __forceinline__ int place() const {
    if (threadIdx.x == 0) shared_.longest = 0;
    __syncthreads();
    int longest = 0;
    const int wanted = scan_rows([&](int row) { return side_.count[row]; },
                                 [&](int row, int before, int count) {
                                   const int begin = min(before, p_.capacity);
                                   side_.indptr[row] = begin;
                                   longest = max(longest, min(p_.capacity - begin, count));
                                 });
    longest = __reduce_max_sync(~0u, longest);
    if (lane_ == 0) atomicMax(&shared_.longest, longest);
    const int stored = min(wanted, p_.capacity);
    if (threadIdx.x == 0) {
      side_.indptr[side_.rows] = stored;
      if (p_.counts != nullptr) {
        p_.counts[0] = stored;
        p_.counts[1] = wanted - stored;
      }
    }
    __syncthreads();
    return stored;
  }

  // Whether this row shares no column with the one before, as far as their extents tell.
  __device__ __forceinline__ bool begins_run(int row) const {
    if (row == 0) return true;
    const int32_t *before = side_.extent + 2 * (row - 1), *own = before + 2;
    return before[1] < own[0] || own[1] < before[0];
  }

  // Of up to kThreads rows. They go in pairs, and two without common columns cost as much as each alone. So those that are
  // left over at the end of a run of rows with common ones, such as the rows of one expert, come first, in pairs of their own,
  // which have the longest tiles; one without another comes last.
  __device__ __forceinline__ void order_pairs() const {
    const int row = threadIdx.x;
    const bool exists = row < side_.rows, begins = exists && begins_run(row);
    const bool ends = exists && (row + 1 == side_.rows || begins_run(row + 1));
    int total;
    const int run = scan(begins, &total) + begins - 1;
    int *const begin_of_run = shared_.of_warp[0];
    if (begins) begin_of_run[run] = row;
    __syncthreads();
    const bool is_left = ends && (row - begin_of_run[run]) % 2 == 0;
    const int before = scan(is_left, &total), paired = total - total % 2;
    if (!exists) return;
    const int place = !is_left ? paired + row - before : before < paired ? before : side_.rows - 1;
    side_.row_order[place] = row;
  }

  // Radix sort, eight bits of a length at a time from the lowest: stable, so equal lengths keep their order.
  __device__ __forceinline__ void sort() const {
    const int longest = shared_.longest;
    const int passes = (39 - __clz(longest)) / 8;  // longest is not 0
    const int32_t *from = nullptr;                 // the rows in their order
    for (int pass = 0; pass < passes; ++pass) {
      int32_t *const to = (passes - pass) % 2 == 1 ? side_.row_order : side_.spare_order;
      sort_digit(longest, 8 * pass, from, to);
      from = to;
    }
  }

  __device__ __forceinline__ int digit_of(int row, int longest, int shift) const {
    return (longest - length(row)) >> shift & (kDigits - 1);
  }

  __device__ __forceinline__ void sort_digit(int longest, int shift, const int32_t *from, int32_t *to) const {
    const int thread = threadIdx.x;
    if (thread < kDigits) shared_.start[thread] = 0;
    __syncthreads();
    for (int row = thread; row < side_.rows; row += kThreads)
      atomicAdd(&shared_.start[digit_of(row, longest, shift)], 1);
    __syncthreads();
    int total;
    const int before = scan(thread < kDigits ? shared_.start[thread] : 0, &total);
    if (thread < kDigits) shared_.start[thread] = before;
    for (int64_t first = 0; first < side_.rows; first += kThreads) {
      for (int d = lane_; d < kDigits; d += 32) shared_.of_warp[warp_][d] = 0;
      __syncwarp();
      const int64_t i = first + thread;
      const bool exists = i < side_.rows;
      const int row = !exists ? 0 : from == nullptr ? static_cast<int>(i) : from[i];
      const int digit = exists ? digit_of(row, longest, shift) : kDigits;
      const uint32_t peers = __match_any_sync(~0u, digit);
      const int rank = __popc(peers & below(lane_));
      if (exists && rank == 0) shared_.of_warp[warp_][digit] = __popc(peers);
      __syncthreads();
      if (thread < kDigits) {
        int next = shared_.start[thread];
#pragma unroll 8
        for (int w = 0; w < kWarps; ++w) {
          const int items = shared_.of_warp[w][thread];
          shared_.of_warp[w][thread] = next;
          next += items;
        }
        shared_.start[thread] = next;
      }
      __syncthreads();
      if (exists) to[shared_.of_warp[warp_][digit] + rank] = row;
      __syncthreads();  // `to` and the table are read and written again
    }
  }
};

}  // namespace bsrg::pattern
