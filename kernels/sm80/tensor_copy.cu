// Copies of tensors of batches and heads between any strides: of attention's operands and results, and of matrices of a batch that
// a product takes side by side.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"
#include "sm80/copy_tile.cuh"

namespace {

constexpr int kColumns = BSRG_TENSOR_COPY_COLUMNS;

// Heads that have few elements a row may lie side by side, or their rows one behind the other.
__device__ __forceinline__ bsrg::TileWalk walk_of(const bsrg_tensor_operand &side, int shift) {
  const bool of_rows = (1 << shift) < kColumns && llabs(side.element_stride) <= llabs(side.row_stride) &&
                       llabs(side.row_stride) < llabs(side.head_stride);
  return of_rows ? bsrg::walk_groups(threadIdx.x % 32, threadIdx.x / 32, shift)
                 : bsrg::walk_closer(side.row_stride, side.element_stride);
}

// Where a thread's places of a tile are on one side: steps of its walk are steps in memory, as groups of columns are.
template <typename T>
class Places {
 public:
  __device__ __forceinline__ Places(const bsrg_tensor_operand &side, const bsrg::TileWalk &walk, int shift)
      : side_(side),
        shift_(shift),
        first_(offset(walk.row, walk.column)),
        step_(offset(walk.row + walk.row_step, walk.column + walk.column_step) - first_),
        far_step_(offset(walk.row + walk.far_row_step, walk.column + walk.far_column_step) - first_) {}

  // From the tile's first element.
  __device__ __forceinline__ T *at(T *tile, int i) const {
    return tile + first_ + i % 4 * step_ + i / 4 * far_step_;
  }

 private:
  const bsrg_tensor_operand &side_;
  const int shift_;
  const int64_t first_, step_, far_step_;

  __device__ __forceinline__ int64_t offset(int row, int column) const {
    return row * side_.row_stride + (column >> shift_) * side_.head_stride +
           (column & ((1 << shift_) - 1)) * side_.element_stride;
  }
};

// A CTA has some rows of a head, or of as many heads as fit side by side; those along grid.y take turns with their elements.
template <typename T>
__device__ __forceinline__ void copy(const bsrg_tensor_copy_params &p) {
  using Tile = bsrg::CopyTile<T, kColumns>;
  static_assert(Tile::kRows == BSRG_TENSOR_COPY_ROWS && Tile::kThreads == BSRG_TENSOR_COPY_THREADS);
  __shared__ typename Tile::Shared shared;
  const int shift = __ffs(p.group) - 1, heads = kColumns >> shift, groups = (p.heads + heads - 1) / heads;
  const int number = blockIdx.x / p.row_tiles, batch = number / groups, head = number % groups * heads;
  const int64_t row = static_cast<int64_t>(blockIdx.x % p.row_tiles) * Tile::kRows;
  const int rows = static_cast<int>(min(p.rows - row, int64_t{Tile::kRows}));
  const auto begin_of = [&](const bsrg_tensor_operand &of) {
    return static_cast<T *>(of.data) + batch * of.batch_stride + head * of.head_stride + row * of.row_stride;
  };
  const bsrg::TileWalk source_walk = walk_of(p.source, shift), target_walk = walk_of(p.target, shift);
  const Places<T> sources(p.source, source_walk, shift), targets(p.target, target_walk, shift);
  for (int64_t first = int64_t{blockIdx.y} * kColumns; first < p.target_size;
       first += int64_t{gridDim.y} * kColumns) {
    T *const source = begin_of(p.source) + first * p.source.element_stride;
    T *const target = begin_of(p.target) + first * p.target.element_stride;
    const int size = static_cast<int>(min(p.size - first, int64_t{kColumns}));
    const int target_size = static_cast<int>(min(p.target_size - first, int64_t{kColumns}));
    const auto exists = [&](int r, int column, int elements) {
      return r < rows && head + (column >> shift) < p.heads && (column & (p.group - 1)) < elements;
    };
    Tile::copy(
        source_walk,
        [&](int i, int r, int column) {
          return exists(r, column, size) ? __ldg(sources.at(source, i)) : T{};
        },
        target_walk,
        [&](int i, int r, int column, T value) {
          if (exists(r, column, target_size)) *targets.at(target, i) = value;
        },
        shared);
  }
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
BSRG_TENSOR_COPY_KERNEL(16, uint4)
