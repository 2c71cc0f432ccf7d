// Copies of matrices of 8-bit floats as 16-bit floats, which have all of their values. Rows of the target are contiguous and
// begin at multiples of 16 bytes; those of the source have any strides.
//
// A thread has eight neighbours of a row, of kRows rows with all loads in flight. As many threads as a row needs lie side by
// side, others have further rows.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"
#include "ptx/widen.cuh"

namespace {

using bsrg::ptx::widen_four;

constexpr int kElements = BSRG_WIDEN_ELEMENTS, kRows = BSRG_WIDEN_ROWS;

__device__ __forceinline__ int64_t cols_of(const bsrg_widen_params &p, int64_t row) {
  return row + 1 < p.rows ? p.cols : row < p.rows ? p.last_cols : 0;
}

__device__ __forceinline__ uint2 load(const bsrg_widen_params &p, int64_t row, int64_t col) {
  const uint8_t *from =
      static_cast<const uint8_t *>(p.source) + row * p.source_row_stride + col * p.source_col_stride;
  const int64_t cols = cols_of(p, row);
  if (p.vectors && col + kElements <= cols) return __ldg(reinterpret_cast<const uint2 *>(from));
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    if (col + i < cols)
      words[i / 4] |= static_cast<uint32_t>(__ldg(from + i * p.source_col_stride)) << i % 4 * 8;
  return make_uint2(words[0], words[1]);
}

template <typename From, typename To>
__device__ __forceinline__ void copy(const bsrg_widen_params &p) {
  bsrg::ptx::follow_grid_before();
  const int threads = 1 << p.thread_bits;  // side by side
  const int64_t col = (blockIdx.x * int64_t{threads} + (threadIdx.x & (threads - 1))) * kElements;
  const int rows = kRows << (BSRG_WIDEN_THREAD_BITS - p.thread_bits);  // of a CTA
  if (col >= p.cols) return;
  for (int64_t first = blockIdx.y * int64_t{rows} + (threadIdx.x >> p.thread_bits); first < p.rows;
       first += int64_t{rows} * gridDim.y) {
    uint2 found[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r * (rows / kRows);
      if (col < cols_of(p, row)) found[r] = load(p, row, col);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r * (rows / kRows);
      if (col >= cols_of(p, row)) continue;
      uint16_t *to = static_cast<uint16_t *>(p.target) + row * p.target_row_stride + col;
      const uint2 low = widen_four<From, To>(found[r].x), high = widen_four<From, To>(found[r].y);
      __stcg(reinterpret_cast<uint4 *>(to), make_uint4(low.x, low.y, high.x, high.y));
    }
  }
}

}  // namespace

#define BSRG_WIDEN_KERNEL(NAME, FROM, TO)                                   \
  extern "C" __global__ void __launch_bounds__(1 << BSRG_WIDEN_THREAD_BITS) \
      NAME(const __grid_constant__ bsrg_widen_params p) {                   \
    copy<FROM, TO>(p);                                                      \
  }
BSRG_WIDEN_KERNEL(widen_e4m3_f16, __nv_fp8_e4m3, __half)
BSRG_WIDEN_KERNEL(widen_e4m3_bf16, __nv_fp8_e4m3, __nv_bfloat16)
BSRG_WIDEN_KERNEL(widen_e5m2_f16, __nv_fp8_e5m2, __half)
BSRG_WIDEN_KERNEL(widen_e5m2_bf16, __nv_fp8_e5m2, __nv_bfloat16)
