// Rows of mma.sync accumulators to and from memory, 16 bytes a lane: the four lanes of a quad hold two neighbours each of
// four fragments' rows, and exchange them so that each lane has one whole row of a fragment.
#pragma once

#include <cstdint>

namespace bsrg::quad {

// Element j of lane i goes to element i of lane j, among the four lanes that share lane / 4.
__device__ __forceinline__ void transpose(uint32_t (&r)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const bool upper = lane & bit;
      const uint32_t received = __shfl_xor_sync(~0u, upper ? r[i] : r[i | bit], bit);
      r[i] = upper ? received : r[i];
      r[i | bit] = upper ? r[i | bit] : received;
    }
  }
}

// Eight 16-bit elements, or the first `count` of them.
template <typename T>
__device__ __forceinline__ void load_chunk(uint32_t (&r)[4], const T *source, int64_t count) {
  if (count >= 8) {
    const uint4 v = *reinterpret_cast<const uint4 *>(source);
    r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
  } else {
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (e < count)
        r[e / 2] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t *>(source)[e]) << e % 2 * 16;
  }
}

template <typename T>
__device__ __forceinline__ void store_chunk(T *destination, const uint32_t (&r)[4], int64_t count) {
  if (count >= 8) {
    *reinterpret_cast<uint4 *>(destination) = make_uint4(r[0], r[1], r[2], r[3]);
  } else {
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (e < count)
        reinterpret_cast<uint16_t *>(destination)[e] = static_cast<uint16_t>(r[e / 2] >> e % 2 * 16);
  }
}

}  // namespace bsrg::quad
