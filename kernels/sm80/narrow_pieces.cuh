// The second pass of products with few columns: strips of long rows, in pieces.
#pragma once

#include "params.h"
#include "ptx/sync.cuh"
#include "sm80/narrow_output.cuh"

namespace bsrg::narrow {

// Adds the pieces of a split strip in their order. As many CTAs a strip as let a thread have one element: to add
// one after the other takes L2's time for each.
template <typename T>
__device__ __forceinline__ void add_pieces(const bsrg_narrow_params &p) {
  const bsrg_narrow_split split = p.splits[blockIdx.x];
  const int64_t slot = static_cast<int64_t>(p.strip) * p.padded_n;
  for (int e = blockIdx.y * blockDim.x + threadIdx.x; e < split.rows * p.n; e += gridDim.y * blockDim.x) {
    const int row = e / p.n, column = e % p.n;
    using S = output::SumOf<T>;
    const S *partial =
        static_cast<const S *>(p.partial) + split.first_slot * slot + row * p.padded_n + column;
    S sum = 0;
    for (int i = 0; i < split.slot_count; ++i) sum += partial[i * slot];
    if (p.output.given)
      store_element<T, true>(p, static_cast<int64_t>(split.y_row) + row, column, sum);
    else
      store_element<T, false>(p, static_cast<int64_t>(split.y_row) + row, column, sum);
  }
}

}  // namespace bsrg::narrow

#define BSRG_PIECES_KERNEL(name, type)                              \
  extern "C" __global__ void __launch_bounds__(BSRG_PIECES_THREADS) \
      name(const __grid_constant__ bsrg_narrow_params params) {     \
    bsrg::ptx::wait_for_grid_before();                              \
    bsrg::narrow::add_pieces<type>(params);                         \
  }
