// As tall_add.cu, for products with a transposed X: the sums of a slot are [n][128 rows], and the rows of a column of Y
// are adjacent in memory.
#include "output.cuh"
#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/sync.cuh"

namespace {

constexpr int kRows = 2 * BSRG_TALL_STRIP;  // of a tile
constexpr int kUnits = kRows / 8;           // threads that share a column, eight rows each

// sum[i] = step(i, sum[i]) in a loop, for which the sums wait in shared memory: unrolled, long steps would take registers
// that the loads of the parts need.
template <typename Step>
__device__ __forceinline__ void one_by_one(float (&waiting)[8][BSRG_TALL_ADD_THREADS], float (&sum)[8],
                                           Step step) {
#pragma unroll
  for (int i = 0; i < 8; ++i) waiting[i][threadIdx.x] = sum[i];
#pragma unroll 1
  for (int i = 0; i < 8; ++i) waiting[i][threadIdx.x] = step(i, waiting[i][threadIdx.x]);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = waiting[i][threadIdx.x];
}

// CTAs of a tile share its columns. The order of the sum is that of the parts.
template <typename T>
__device__ __forceinline__ void add_parts(const bsrg_tall_add_params &p) {
  __shared__ float waiting[8][BSRG_TALL_ADD_THREADS];
  const bsrg_tall_cut cut = p.cuts[blockIdx.x];
  const int row_in_tile = threadIdx.x % kUnits * 8, strip = cut.strip[row_in_tile / BSRG_TALL_STRIP];
  const int row = strip * BSRG_TALL_STRIP + row_in_tile % BSRG_TALL_STRIP;
  if (strip < 0) return;
  const int64_t slot = static_cast<int64_t>(kRows) * p.n;
  const int columns = BSRG_TALL_ADD_THREADS / kUnits;  // of a CTA, at once
  for (int column = blockIdx.y * columns + threadIdx.x / kUnits; column < p.n;
       column += gridDim.y * columns) {
    const float *first =
        p.partial + cut.first_slot * slot + static_cast<int64_t>(column) * kRows + row_in_tile;
    float sum[8] = {};
#pragma unroll 4
    for (int part = 0; part < cut.slot_count; ++part) {
      const float4 *source = reinterpret_cast<const float4 *>(first + part * slot);
      const float4 low = source[0], high = source[1];
      const float add[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += add[i];
    }
    if (p.output.scaled)
      one_by_one(waiting, sum, [&](int i, float v) {
        return v * bsrg::output::scale<T, float>(p.output, row + i, column);
      });
    const T *c = static_cast<const T *>(p.c) + row * p.c_row_stride + column * p.c_col_stride;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum[i] *= p.alpha;
      if (p.beta != 0.f) sum[i] = fmaf(p.beta, static_cast<float>(c[i * p.c_row_stride]), sum[i]);
    }
    if (p.output.given)
      one_by_one(waiting, sum,
                 [&](int i, float v) { return bsrg::output::finish<T>(p.output, row + i, column, v); });
    *reinterpret_cast<int4 *>(static_cast<T *>(p.y) + column * p.y_col_stride + row) =
        make_int4(bsrg::ptx::pack<T>(sum[0], sum[1]), bsrg::ptx::pack<T>(sum[2], sum[3]),
                  bsrg::ptx::pack<T>(sum[4], sum[5]), bsrg::ptx::pack<T>(sum[6], sum[7]));
  }
}

}  // namespace

#define BSRG_TALL_ADD_TRANSPOSED_KERNEL(NAME, T)                          \
  extern "C" __global__ void __launch_bounds__(BSRG_TALL_ADD_THREADS, 10) \
      NAME(const __grid_constant__ bsrg_tall_add_params p) {              \
    bsrg::ptx::follow_grid_before();                                      \
    add_parts<T>(p);                                                      \
  }
BSRG_TALL_ADD_TRANSPOSED_KERNEL(tall_add_transposed_f16, __half)
BSRG_TALL_ADD_TRANSPOSED_KERNEL(tall_add_transposed_bf16, __nv_bfloat16)
