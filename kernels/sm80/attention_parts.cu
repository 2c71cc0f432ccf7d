// The second pass of the attention kernels, for query tiles that were cut along the keys.
#include <cfloat>

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "ptx/sync.cuh"

namespace {

constexpr int kSlabs = BSRG_ATTENTION_LIST_ROWS / 16;  // of a query tile, one a warp of the attention kernel
constexpr int kChunks = 4;                             // of 8 elements, of a warp here

// A thread has two rows, as in the accumulators that the parts come from. The order of the sums is that of the parts, so
// bits do not depend on who computed them when.
template <typename T>
__device__ __forceinline__ void join(const bsrg_attention_join_params &p) {
  const int lane = threadIdx.x % 32, panels = p.size / (8 * kChunks);
  const int unit = blockIdx.x * BSRG_ATTENTION_JOIN_WARPS + bsrg::ptx::warp_index();
  const int panel = unit % panels, slab = unit / panels % kSlabs;
  const int tile = unit / panels / kSlabs;
  const bsrg_attention_cut cut =
      p.cuts != nullptr ? p.cuts[tile] : bsrg_attention_cut_of_tail(&p.tail, &p.order, tile);
  const int64_t first = static_cast<int64_t>(cut.first_slot) * kSlabs + slab;
  const int64_t stride = kSlabs * 4 * p.size;  // float4s from part to part
  const float4 *sums =
      reinterpret_cast<const float4 *>(p.parts.sums) + first * (4 * p.size) + panel * (kChunks * 32) + lane;
  const float2 *stats = reinterpret_cast<const float2 *>(p.parts.stats) + first * 16 + lane / 4;

  float maximum[2] = {-FLT_MAX, -FLT_MAX}, total[2] = {}, out[2][2 * kChunks] = {};
#pragma unroll 4
  for (int part = 0; part < cut.slot_count; ++part)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      maximum[r] = fmaxf(maximum[r], stats[part * BSRG_ATTENTION_LIST_ROWS + 8 * r].x);
#pragma unroll 4
  for (int part = 0; part < cut.slot_count; ++part) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 of_row = stats[part * BSRG_ATTENTION_LIST_ROWS + 8 * r];
      factor[r] = bsrg::ptx::exp2(of_row.x - maximum[r]);
      total[r] += factor[r] * of_row.y;
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const float4 v = sums[part * stride + i * 32];
      out[0][2 * i] += factor[0] * v.x;
      out[0][2 * i + 1] += factor[0] * v.y;
      out[1][2 * i] += factor[1] * v.z;
      out[1][2 * i + 1] += factor[1] * v.w;
    }
  }

  const int head = cut.head % p.heads, batch = cut.head / p.heads;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = cut.first_row + slab * 16 + lane / 4 + 8 * r;
    if (row >= p.queries) continue;
    const float inverse = total[r] == 0.f ? 0.f : 1.f / total[r];
    T *to = static_cast<T *>(p.out.data) + batch * p.out.batch_stride + head * p.out.head_stride +
            row * p.out.row_stride;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int element = (panel * kChunks + i) * 8 + lane % 4 * 2;
      if (element < p.value_size)
        *reinterpret_cast<uint32_t *>(to + element) =
            bsrg::ptx::pack<T>(bsrg::ptx::times_unless_zero(inverse, out[r][2 * i]),
                               bsrg::ptx::times_unless_zero(inverse, out[r][2 * i + 1]));
    }
    if (p.lse != nullptr && panel == 0 && lane % 4 == 0) {
      constexpr float kLn2 = 0.693147181f;
      p.lse[static_cast<int64_t>(cut.head) * p.queries + row] =
          total[r] == 0.f ? -INFINITY : (maximum[r] + bsrg::ptx::log2(total[r])) * kLn2;
    }
  }
}

}  // namespace

#define BSRG_ATTENTION_JOIN_KERNEL(NAME, T)                                    \
  extern "C" __global__ void __launch_bounds__(32 * BSRG_ATTENTION_JOIN_WARPS) \
      NAME(const __grid_constant__ bsrg_attention_join_params p) {             \
    bsrg::ptx::follow_grid_before();                                           \
    join<T>(p);                                                                \
  }
BSRG_ATTENTION_JOIN_KERNEL(attention_join_f16, __half)
BSRG_ATTENTION_JOIN_KERNEL(attention_join_bf16, __nv_bfloat16)
