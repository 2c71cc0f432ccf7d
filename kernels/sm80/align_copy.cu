// Copies of matrices between any strides and alignments, for the align and narrow families and others: of 16 bits
//
// align_copy_rows: both sides have adjacent elements in their rows, which may start anywhere. Stores are 16-byte
// vectors of the target; each is cut out of the two vectors of the source that cover it.
// align_copy_to_vectors: rows of few elements, to rows of whole vectors, in which anything comes behind the source's.
// align_copy_transposed: the source's adjacent elements are in its columns, the target's in its rows; through shared
// memory.
// align_copy_elements: rows of elements that are not adjacent on one side or both.
// align_copy_tiles_4, _8: elements of 4 and 8 bytes.
//
// Vectors are stored by __stcg: the compiler cuts plain assignments of them into words.
#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"
#include "sm80/copy_tile.cuh"

namespace {

constexpr int kWarps = BSRG_COPY_THREADS / 32;
constexpr int kRows = BSRG_COPY_ROWS / kWarps;  // of a warp: keeps enough loads in flight to fill the latency
static_assert(BSRG_COPY_COLUMNS == 32 * 8, "a vector a lane");

// Elements from the last multiple of 16 bytes up to the address.
__device__ __forceinline__ int elements_past_vector(const uint16_t *address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) / 2 % 8);
}

// The eight elements from a multiple of 16 bytes on, of which only those from begin up to end may be read.
__device__ __forceinline__ uint4 load_vector(const uint16_t *from, const uint16_t *begin,
                                             const uint16_t *end) {
  if (from >= begin && from + 8 <= end) return __ldg(reinterpret_cast<const uint4 *>(from));
  uint4 v = make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {  // each element enters at the top and moves down
    const uint32_t element = from + i >= begin && from + i < end ? __ldg(from + i) : 0;
    v.x = __funnelshift_r(v.x, v.y, 16);
    v.y = __funnelshift_r(v.y, v.z, 16);
    v.z = __funnelshift_r(v.z, v.w, 16);
    v.w = v.w >> 16 | element << 16;
  }
  return v;
}

// Where the matrix begins and ends, for vectors that reach beyond a row at its ends.
struct Bounds {
  const uint16_t *begin, *end;
};

__device__ __forceinline__ Bounds bounds_of_source(const bsrg_copy_params &p) {
  const int64_t reach = (p.rows - 1) * p.source_row_stride;
  const uint16_t *const source = static_cast<const uint16_t *>(p.source);
  return {source + min(reach, int64_t{0}), source + max(reach, int64_t{0}) + p.cols};
}

// Elements shift .. shift + 7 of the sixteen in low and high. Selects, since registers have no index.
__device__ __forceinline__ uint4 cut_out(uint4 low, uint4 high, int shift) {
  uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = shift & 4 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = shift & 2 ? w[i + 1] : w[i];
  const int bits = 16 * (shift & 1);
  return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                    __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
}

__device__ __forceinline__ uint16_t element_of(uint4 v, int i) {  // i must be a constant
  const uint32_t word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
  return static_cast<uint16_t>(word >> 16 * (i % 2));
}

// align_copy_transposed's tile: word (row, pair of columns) lies at an exclusive or of the pair. Lanes that have 32
// neighbouring rows of a column, every eighth row of four columns, or a row meet different banks.
__device__ __forceinline__ int swizzle(int row) { return (row >> 2 & 15) ^ (row & 3) << 3; }

__device__ __forceinline__ uint16_t *tile_element(uint32_t *tile, int row, int col) {
  uint32_t *word = tile + row * (BSRG_COPY_SIDE / 2) + (col / 2 ^ swizzle(row));
  return reinterpret_cast<uint16_t *>(word) + col % 2;
}

// Rows and columns of the matrix that a tile holds: less than a side at the last ones.
struct Extent {
  int rows, cols;
};

__device__ __forceinline__ void load_tile(const bsrg_copy_params &p, const uint16_t *source, Extent extent,
                                          uint32_t *tile) {
  if (p.vector_source) {
    const int row = threadIdx.x % 8 * 8, col = threadIdx.x / 8;
    uint4 v[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint16_t *column = source + (col + 32 * j) * p.source_col_stride;
      const uint16_t *end = column + (col + 32 * j < extent.cols ? extent.rows : 0);
      v[j] = load_vector(column + row, column, end);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < 8; ++i) *tile_element(tile, row + i, col + 32 * j) = element_of(v[j], i);
  } else {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint16_t v[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int row = lane + i % 2 * 32, col = warp + i / 2 * kWarps;
      v[i] = row < extent.rows && col < extent.cols
                 ? __ldg(source + row * p.source_row_stride + col * p.source_col_stride)
                 : uint16_t{0};
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) *tile_element(tile, lane + i % 2 * 32, warp + i / 2 * kWarps) = v[i];
  }
}

__device__ __forceinline__ void store_tile(const bsrg_copy_params &p, uint32_t *tile, Extent extent,
                                           uint16_t *target) {
  if (p.vector_target) {
    const int col = threadIdx.x % 16 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = static_cast<int>(threadIdx.x) / 16 + 16 * i;
      if (row >= extent.rows) continue;
      uint16_t *to = target + row * p.target_row_stride + col;
      // The swizzle keeps pairs of words together; an odd one exchanges the two.
      const int odd = swizzle(row) & 1;
      const uint2 found = *reinterpret_cast<const uint2 *>(tile + row * (BSRG_COPY_SIDE / 2) +
                                                           (col / 2 ^ swizzle(row) ^ odd));
      const uint2 v = odd ? make_uint2(found.y, found.x) : found;
      if (col + 4 <= extent.cols) {
        __stcg(reinterpret_cast<uint2 *>(to), v);
      } else {
        if (col < extent.cols) to[0] = static_cast<uint16_t>(v.x);
        if (col + 1 < extent.cols) to[1] = static_cast<uint16_t>(v.x >> 16);
        if (col + 2 < extent.cols) to[2] = static_cast<uint16_t>(v.y);
      }
    }
  } else {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int row = warp + i / 2 * kWarps, col = lane + i % 2 * 32;
      if (row < extent.rows && col < extent.cols)
        target[row * p.target_row_stride + col * p.target_col_stride] = *tile_element(tile, row, col);
    }
  }
}

template <typename T>
__device__ __forceinline__ void copy_tiles(const bsrg_copy_params &p) {
  constexpr int kSide = BSRG_COPY_TILE_SIDE;
  using Tile = bsrg::CopyTile<T, kSide>;
  static_assert(Tile::kRows == kSide && Tile::kThreads == BSRG_COPY_THREADS);
  __shared__ typename Tile::Shared shared;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kSide;
  const int64_t columns_of_grid = static_cast<int64_t>(gridDim.y) * kSide;
  for (int64_t col = static_cast<int64_t>(blockIdx.y) * kSide; col < p.cols; col += columns_of_grid) {
    const T *const source = static_cast<const T *>(p.source);
    T *const target = static_cast<T *>(p.target);
    const auto exists = [&](int r, int c) { return row + r < p.rows && col + c < p.cols; };
    Tile::copy(
        bsrg::walk_closer(p.source_row_stride, p.source_col_stride),
        [&](int, int r, int c) {
          return exists(r, c)
                     ? __ldg(source + (row + r) * p.source_row_stride + (col + c) * p.source_col_stride)
                     : T{};
        },
        bsrg::walk_closer(p.target_row_stride, p.target_col_stride),
        [&](int, int r, int c, T value) {
          if (exists(r, c)) target[(row + r) * p.target_row_stride + (col + c) * p.target_col_stride] = value;
        },
        shared);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(BSRG_COPY_THREADS)
    align_copy_tiles_4(const __grid_constant__ bsrg_copy_params p) {
  bsrg::ptx::follow_grid_before();
  copy_tiles<uint32_t>(p);
}

extern "C" __global__ void __launch_bounds__(BSRG_COPY_THREADS)
    align_copy_tiles_8(const __grid_constant__ bsrg_copy_params p) {
  bsrg::ptx::follow_grid_before();
  copy_tiles<unsigned long long>(p);
}

extern "C" __global__ void __launch_bounds__(BSRG_COPY_THREADS, 4)
    align_copy_rows(const __grid_constant__ bsrg_copy_params p) {
  bsrg::ptx::follow_grid_before();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * BSRG_COPY_COLUMNS + threadIdx.x % 32 * 8;
  const int64_t rows_of_grid = static_cast<int64_t>(gridDim.y) * BSRG_COPY_ROWS;
  const auto [begin, end] = bounds_of_source(p);
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * BSRG_COPY_ROWS + threadIdx.x / 32 * kRows;
       row < p.rows; row += rows_of_grid) {
    uint4 low[kRows], high[kRows];
    int shift[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // The lane's vector starts up to 7 elements before its column, so that it is one of the target's.
      const uint16_t *to = static_cast<const uint16_t *>(p.target) + (row + r) * p.target_row_stride;
      const int64_t first = column - elements_past_vector(to);
      if (row + r >= p.rows || first >= p.cols) continue;
      const uint16_t *from =
          static_cast<const uint16_t *>(p.source) + (row + r) * p.source_row_stride + first;
      shift[r] = elements_past_vector(from);
      low[r] = load_vector(from - shift[r], begin, end);
      high[r] = make_uint4(0, 0, 0, 0);  // not needed for a shift of 0
      if (shift[r] != 0) high[r] = load_vector(from - shift[r] + 8, begin, end);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      uint16_t *to = static_cast<uint16_t *>(p.target) + (row + r) * p.target_row_stride;
      const int64_t first = column - elements_past_vector(to);
      if (row + r >= p.rows || first >= p.cols) continue;
      const uint4 v = cut_out(low[r], high[r], shift[r]);
      if (first >= 0 && first + 8 <= p.cols) {
        __stcg(reinterpret_cast<uint4 *>(to + first), v);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (first + i >= 0 && first + i < p.cols) to[first + i] = element_of(v, i);
      }
    }
  }
}

// A vector of the target a thread.
extern "C" __global__ void __launch_bounds__(BSRG_COPY_THREADS, 4)
    align_copy_to_vectors(const __grid_constant__ bsrg_copy_params p) {
  bsrg::ptx::follow_grid_before();
  const int vectors = static_cast<int>(p.target_row_stride / 8);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * BSRG_COPY_THREADS + threadIdx.x, row = i / vectors;
  const int column = static_cast<int>(i % vectors) * 8;
  if (row >= p.rows || column >= p.cols) return;
  const auto [begin, end] = bounds_of_source(p);
  const uint16_t *from = static_cast<const uint16_t *>(p.source) + row * p.source_row_stride + column;
  const int shift = elements_past_vector(from);
  const uint4 low = load_vector(from - shift, begin, end);
  uint4 high = make_uint4(0, 0, 0, 0);  // not needed for a shift of 0
  if (shift != 0) high = load_vector(from - shift + 8, begin, end);
  uint16_t *to = static_cast<uint16_t *>(p.target) + row * p.target_row_stride + column;
  __stcg(reinterpret_cast<uint4 *>(to), cut_out(low, high, shift));
}

extern "C" __global__ void __launch_bounds__(BSRG_COPY_THREADS, 6)
    align_copy_elements(const __grid_constant__ bsrg_copy_params p) {
  bsrg::ptx::follow_grid_before();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * BSRG_COPY_COLUMNS + threadIdx.x % 32;
  const int64_t rows_of_grid = static_cast<int64_t>(gridDim.y) * BSRG_COPY_ROWS;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * BSRG_COPY_ROWS; first < p.rows;
       first += rows_of_grid)
    for (int64_t row = first + threadIdx.x / 32; row < min(first + BSRG_COPY_ROWS, p.rows); row += kWarps) {
      const uint16_t *from =
          static_cast<const uint16_t *>(p.source) + row * p.source_row_stride + column * p.source_col_stride;
      uint16_t *to =
          static_cast<uint16_t *>(p.target) + row * p.target_row_stride + column * p.target_col_stride;
      uint16_t v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (column + 32 * i < p.cols) v[i] = __ldg(from + 32 * i * p.source_col_stride);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (column + 32 * i < p.cols) to[32 * i * p.target_col_stride] = v[i];
    }
}

extern "C" __global__ void __launch_bounds__(BSRG_COPY_THREADS, 6)
    align_copy_transposed(const __grid_constant__ bsrg_copy_params p) {
  bsrg::ptx::follow_grid_before();
  __shared__ __align__(16) uint32_t tile[BSRG_COPY_SIDE * BSRG_COPY_SIDE / 2];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * BSRG_COPY_SIDE;
  const int64_t columns_of_grid = static_cast<int64_t>(gridDim.y) * BSRG_COPY_SIDE;
  for (int64_t col = static_cast<int64_t>(blockIdx.y) * BSRG_COPY_SIDE; col < p.cols;
       col += columns_of_grid) {
    const Extent extent = {static_cast<int>(min(p.rows - row, int64_t{BSRG_COPY_SIDE})),
                           static_cast<int>(min(p.cols - col, int64_t{BSRG_COPY_SIDE}))};
    load_tile(p,
              static_cast<const uint16_t *>(p.source) + row * p.source_row_stride + col * p.source_col_stride,
              extent, tile);
    __syncthreads();
    store_tile(p, tile, extent,
               static_cast<uint16_t *>(p.target) + row * p.target_row_stride + col * p.target_col_stride);
    __syncthreads();
  }
}
