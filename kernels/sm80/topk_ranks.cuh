// Places in order: which of the items that the threads of a CTA hold come before a thread's own.
#pragma once

#include <cstdint>

#include "params.h"

namespace bsrg::topk {

// Of three kinds of items, counts in fields of 10 bits: a CTA has no more than 2^10 - 1 threads.
struct Ranks {
  uint32_t packed_before, packed_total;
  __device__ __forceinline__ int before(int kind) const { return packed_before >> 10 * kind & 1023; }
  __device__ __forceinline__ int total(int kind) const { return packed_total >> 10 * kind & 1023; }
};

// Says which kinds of item the thread has. All threads of the CTA call it; totals has a word for each warp.
__device__ __forceinline__ Ranks rank(bool first, bool second, bool third, uint32_t *totals) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t lower = (1u << lane) - 1;
  const uint32_t has[3] = {__ballot_sync(~0u, first), __ballot_sync(~0u, second), __ballot_sync(~0u, third)};
  Ranks ranks = {0, 0};
  uint32_t of_warp = 0;
#pragma unroll
  for (int kind = 0; kind < 3; ++kind) {
    ranks.packed_before |= static_cast<uint32_t>(__popc(has[kind] & lower)) << 10 * kind;
    of_warp |= static_cast<uint32_t>(__popc(has[kind])) << 10 * kind;
  }
  if (lane == 0) totals[warp] = of_warp;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < BSRG_TOPK_THREADS / 32; ++w) {
    if (w < warp) ranks.packed_before += totals[w];
    ranks.packed_total += totals[w];
  }
  __syncthreads();  // before totals are written again
  return ranks;
}

}  // namespace bsrg::topk
