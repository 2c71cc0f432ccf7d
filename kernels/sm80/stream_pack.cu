// Copies stored blocks, cut into parts, into the order and layout in which the stream kernels read them.
#include <cstdint>

#include "params.h"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"

namespace {

constexpr int kTogether = 4;  // parts of a warp: keeps enough loads in flight to fill the memory's latency

// The first 16-byte unit of a part.
__device__ __forceinline__ int64_t first_unit(const bsrg_pack_params &p, int source) {
  const int column = source % p.columns, row = source / p.columns;
  return (static_cast<int64_t>(row) * p.height * p.columns + column) * (p.width / 8);
}

__device__ __forceinline__ uint32_t to_tf32(uint32_t bits) {
  return __float_as_uint(bsrg::ptx::round_to_tf32(__uint_as_float(bits)));
}

__device__ __forceinline__ uint4 to_tf32(uint4 unit) {
  return {to_tf32(unit.x), to_tf32(unit.y), to_tf32(unit.z), to_tf32(unit.w)};
}

}  // namespace

// Units are 16 bytes: 8 elements of one row.
extern "C" __global__ void __launch_bounds__(BSRG_PACK_THREADS)
    stream_pack(const __grid_constant__ bsrg_pack_params p) {
  bsrg::ptx::follow_grid_before();
  const int across_log2 = BSRG_PART_ACROSS_LOG2(p.width), across = 1 << across_log2;
  const int units = across * p.height, pitch = across * p.columns;
  const int lane = threadIdx.x % 32;
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * BSRG_PACK_THREADS + threadIdx.x) / 32;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (BSRG_PACK_THREADS / 32);
  const uint4 *values = static_cast<const uint4 *>(p.values);
  uint4 *packed = static_cast<uint4 *>(p.packed);
  const int64_t count = p.blocks != nullptr ? *p.blocks * p.rows * p.columns : p.count;
  for (int64_t first = warp * kTogether; first < count; first += warps * kTogether) {
    const uint4 *from[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      from[i] = first + i < count ? values + first_unit(p, __ldg(p.source + first + i)) : nullptr;
    for (int u = lane; u < units; u += 32) {
      const int by_rows = BSRG_UNIT_BY_ROWS(u, across_log2);
      const int offset = (by_rows >> across_log2) * pitch + (by_rows & (across - 1));
      uint4 unit[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (from[i] != nullptr) unit[i] = __ldg(from[i] + offset);
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (from[i] != nullptr) packed[(first + i) * units + u] = p.tf32 ? to_tf32(unit[i]) : unit[i];
    }
  }
}
