// Copies of tensors of batches and heads between any strides: of attention's operands and results, and of matrices of a batch
// that a product takes side by side.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"
#include "sm80/copy_tile.cuh"

namespace {

// A CTA has some rows of a head.
template <typename T>
__device__ __forceinline__ void copy(const bsrg_tensor_copy_params &p) {
  constexpr int kSize = 64;
  using Tile = bsrg::CopyTile<T, BSRG_TENSOR_COPY_THREADS, kSize>;
  static_assert(Tile::kRows == BSRG_TENSOR_COPY_ROWS);
  __shared__ typename Tile::Shared shared;
  const int number = blockIdx.x / p.row_tiles, batch = number / p.heads, head = number % p.heads;
  const int64_t row = static_cast<int64_t>(blockIdx.x % p.row_tiles) * Tile::kRows;
  const auto side = [&](const bsrg_tensor_operand &of, int64_t element) {
    T *const data = static_cast<T *>(of.data) + batch * of.batch_stride + head * of.head_stride;
    return typename Tile::Side{data + row * of.row_stride + element * of.element_stride, of.row_stride,
                               of.element_stride};
  };
  for (int64_t first = 0; first < p.target_size; first += kSize)
    Tile::copy(side(p.source, first), side(p.target, first), p.rows - row, p.size - first,
               p.target_size - first, shared);
}

}  // namespace

#define BSRG_TENSOR_COPY_KERNEL(SIZE, T)                                      \
  extern "C" __global__ void __launch_bounds__(BSRG_TENSOR_COPY_THREADS)      \
      tensor_copy_##SIZE(const __grid_constant__ bsrg_tensor_copy_params p) { \
    bsrg::ptx::follow_grid_before();                                          \
    copy<T>(p);                                                               \
  }

BSRG_TENSOR_COPY_KERNEL(1, uint8_t)
BSRG_TENSOR_COPY_KERNEL(2, uint16_t)
BSRG_TENSOR_COPY_KERNEL(4, uint32_t)
BSRG_TENSOR_COPY_KERNEL(8, unsigned long long)
