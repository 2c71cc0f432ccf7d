// Copies of attention's operands and results between any strides.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"
#include "sm80/copy_tile.cuh"

namespace {

// A CTA has some rows of a head.
template <typename T>
__device__ __forceinline__ void copy(const bsrg_attention_copy_params &p) {
  constexpr int kSize = 64;
  using Tile = bsrg::CopyTile<T, BSRG_ATTENTION_COPY_THREADS, kSize>;
  static_assert(Tile::kRows == BSRG_ATTENTION_COPY_ROWS);
  __shared__ typename Tile::Shared shared;
  const int number = blockIdx.x / p.row_tiles, batch = number / p.heads, head = number % p.heads;
  const int64_t row = static_cast<int64_t>(blockIdx.x % p.row_tiles) * Tile::kRows;
  const auto side = [&](const bsrg_attention_operand &of, int element) {
    T *const data = static_cast<T *>(of.data) + batch * of.batch_stride + head * of.head_stride;
    return typename Tile::Side{data + row * of.row_stride + element * of.element_stride, of.row_stride,
                               of.element_stride};
  };
  for (int first = 0; first < p.target_size; first += kSize)
    Tile::copy(side(p.source, first), side(p.target, first), p.rows - row, p.size - first,
               p.target_size - first, shared);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(BSRG_ATTENTION_COPY_THREADS)
    attention_copy_1(const __grid_constant__ bsrg_attention_copy_params p) {
  bsrg::ptx::follow_grid_before();
  copy<uint8_t>(p);
}

extern "C" __global__ void __launch_bounds__(BSRG_ATTENTION_COPY_THREADS)
    attention_copy_2(const __grid_constant__ bsrg_attention_copy_params p) {
  bsrg::ptx::follow_grid_before();
  copy<uint16_t>(p);
}
