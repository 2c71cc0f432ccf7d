// The second pass of the tall kernels, for tiles that were cut along K.
#include "output.cuh"
#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/sync.cuh"

namespace {

constexpr int kRows = 2 * BSRG_TALL_STRIP;  // of a tile

// One CTA a row, or several that share its columns. The order of the sum is that of the parts, so bits do not depend on
// who computed them when.
template <typename T>
__device__ __forceinline__ void add_parts(const bsrg_tall_add_params &p) {
  const bsrg_tall_cut cut = p.cuts[blockIdx.x / kRows];
  const int row_in_tile = blockIdx.x % kRows, strip = cut.strip[row_in_tile / BSRG_TALL_STRIP];
  const int row = strip * BSRG_TALL_STRIP + row_in_tile % BSRG_TALL_STRIP;
  if (strip < 0 || row >= p.rows) return;
  const int64_t slot = static_cast<int64_t>(kRows) * p.n;
  const float *first = p.partial + cut.first_slot * slot + static_cast<int64_t>(row_in_tile) * p.n;
  for (int unit = blockIdx.y * blockDim.x + threadIdx.x; unit < p.n / 8; unit += gridDim.y * blockDim.x) {
    float sum[8] = {};
#pragma unroll 4
    for (int part = 0; part < cut.slot_count; ++part) {
      const float4 *source = reinterpret_cast<const float4 *>(first + part * slot) + 2 * unit;
      const float4 low = source[0], high = source[1];
      const float add[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += add[i];
    }
    const uint32_t *c =
        reinterpret_cast<const uint32_t *>(static_cast<const T *>(p.c) + row * p.c_row_stride) + 4 * unit;
    if (p.output.scaled) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] *= bsrg::output::scale<T, float>(p.output, row, 8 * unit + i);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[2 * i] *= p.alpha;
      sum[2 * i + 1] *= p.alpha;
      if (p.beta != 0.f) {
        const float2 old = bsrg::ptx::unpack<T>(c[i]);
        sum[2 * i] = fmaf(p.beta, old.x, sum[2 * i]);
        sum[2 * i + 1] = fmaf(p.beta, old.y, sum[2 * i + 1]);
      }
    }
    if (p.output.given) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += bsrg::output::bias<T, float>(p.output, row, 8 * unit + i);
      bsrg::output::activate(p.output, sum);
    }
    reinterpret_cast<int4 *>(static_cast<T *>(p.y) + row * p.y_row_stride)[unit] =
        make_int4(bsrg::ptx::pack<T>(sum[0], sum[1]), bsrg::ptx::pack<T>(sum[2], sum[3]),
                  bsrg::ptx::pack<T>(sum[4], sum[5]), bsrg::ptx::pack<T>(sum[6], sum[7]));
  }
}

}  // namespace

#define BSRG_TALL_ADD_KERNEL(NAME, T)                                     \
  extern "C" __global__ void __launch_bounds__(BSRG_TALL_ADD_THREADS, 10) \
      NAME(const __grid_constant__ bsrg_tall_add_params p) {              \
    bsrg::ptx::follow_grid_before();                                      \
    add_parts<T>(p);                                                      \
  }
BSRG_TALL_ADD_KERNEL(tall_add_f16, __half)
BSRG_TALL_ADD_KERNEL(tall_add_bf16, __nv_bfloat16)
