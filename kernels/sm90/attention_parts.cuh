// What a part of a query tile leaves for sm80/attention_parts.cu, which joins them.
#pragma once

#include <cfloat>
#include <cstdint>

#include "params.h"

namespace bsrg::attention {

// By a warp, of its 16 rows: `sums` as they lie in accumulators, 512 bytes a store, relative to exponentials with this
// shift and of this sum. A row that sees no key has the sum 0: zeros, whatever is in V. slab: slot * 8 + warp.
template <int kSums>
__device__ __forceinline__ void store_part(const bsrg_attention_parts &parts, int64_t slab,
                                           const float (&sums)[kSums], const float (&factor)[2],
                                           const float (&shift)[2], const float (&sum)[2]) {
  const int lane = threadIdx.x % 32;
  float4 *to = reinterpret_cast<float4 *>(parts.sums) + slab * (kSums / 4 * 32) + lane;
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = sum[j / 2] == 0.f ? 0.f : sums[4 * i + j] * factor[j / 2];
    to[i * 32] = make_float4(v[0], v[1], v[2], v[3]);
  }
  if (lane % 4 != 0) return;
  float2 *stats = reinterpret_cast<float2 *>(parts.stats) + slab * 16 + lane / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) stats[8 * r] = make_float2(sum[r] == 0.f ? -FLT_MAX : shift[r], sum[r]);
}

}  // namespace bsrg::attention
