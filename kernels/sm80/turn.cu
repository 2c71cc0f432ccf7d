// Transposed copies of matrices of 8-bit and 32-bit elements, for kernels that read all operands K-major.
//
// A CTA's tile is 64 columns of the source times 128 bytes of them, which become 64 rows of the target. It passes through
// shared memory in words: four neighbours of a column, or one element of 32 bits. Elements of 8 bits may become 16-bit floats
// on the way out.
#include <cstdint>
#include <type_traits>

#include "params.h"
#include "ptx/sync.cuh"
#include "ptx/widen.cuh"

namespace {

constexpr int kWords = BSRG_TURN_ROW_BYTES / 4;  // of a row of the tile
constexpr int kPitch = kWords + 1;               // odd, so that columns of words are in different banks
constexpr int kWarps = BSRG_TURN_THREADS / 32;

// The source's elements that a tile has.
struct Extent {
  int rows, cols;
};

// Elements (row, col) to (row, col + 3) as a word, zeros where there are none.
__device__ __forceinline__ uint32_t load_four(const bsrg_turn_params &p, const uint8_t *source, Extent extent,
                                              int row, int col) {
  if (row >= extent.rows) return 0;
  const uint8_t *from = source + row * p.source_row_stride + col * p.source_col_stride;
  if (p.vector_source && col + 4 <= extent.cols) return __ldg(reinterpret_cast<const uint32_t *>(from));
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (col + i < extent.cols) word |= static_cast<uint32_t>(__ldg(from + i * p.source_col_stride)) << 8 * i;
  return word;
}

// Squares of four by four elements, transposed in registers.
__device__ __forceinline__ void load_tile(const bsrg_turn_params &p, const uint8_t *source, Extent extent,
                                          uint32_t *tile) {
  constexpr int kAcross = BSRG_TURN_COLUMNS / 4, kSquares = kAcross * kWords / BSRG_TURN_THREADS;
  uint32_t r[kSquares][4];
#pragma unroll
  for (int s = 0; s < kSquares; ++s) {
    const int square = threadIdx.x + s * BSRG_TURN_THREADS;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      r[s][i] = load_four(p, source, extent, square / kAcross * 4 + i, square % kAcross * 4);
  }
#pragma unroll
  for (int s = 0; s < kSquares; ++s) {
    const int square = threadIdx.x + s * BSRG_TURN_THREADS;
    // Bytes 0 and 1 of all rows, then 2 and 3.
    const uint32_t low01 = __byte_perm(r[s][0], r[s][1], 0x5140),
                   low23 = __byte_perm(r[s][2], r[s][3], 0x5140);
    const uint32_t high01 = __byte_perm(r[s][0], r[s][1], 0x7362),
                   high23 = __byte_perm(r[s][2], r[s][3], 0x7362);
    uint32_t *to = tile + square % kAcross * 4 * kPitch + square / kAcross;
    to[0] = __byte_perm(low01, low23, 0x5410);
    to[kPitch] = __byte_perm(low01, low23, 0x7632);
    to[2 * kPitch] = __byte_perm(high01, high23, 0x5410);
    to[3 * kPitch] = __byte_perm(high01, high23, 0x7632);
  }
}

__device__ __forceinline__ void load_tile(const bsrg_turn_params &p, const uint32_t *source, Extent extent,
                                          uint32_t *tile) {
  constexpr int kCount = BSRG_TURN_COLUMNS * kWords / BSRG_TURN_THREADS;
  uint32_t r[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int at = threadIdx.x + i * BSRG_TURN_THREADS, row = at / BSRG_TURN_COLUMNS,
              col = at % BSRG_TURN_COLUMNS;
    r[i] = row < extent.rows && col < extent.cols
               ? __ldg(source + row * p.source_row_stride + col * p.source_col_stride)
               : 0;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int at = threadIdx.x + i * BSRG_TURN_THREADS;
    tile[at % BSRG_TURN_COLUMNS * kPitch + at / BSRG_TURN_COLUMNS] = r[i];
  }
}

// T: of the source, To: of the target, whose words become what convert makes of the tile's.
template <typename T, typename To, typename Convert>
__device__ __forceinline__ void turn(const bsrg_turn_params &p, Convert convert) {
  bsrg::ptx::follow_grid_before();
  constexpr int kRows = BSRG_TURN_ROW_BYTES / sizeof(T), kPerWord = 4 / sizeof(T);
  __shared__ uint32_t tile[BSRG_TURN_COLUMNS * kPitch];
  const int64_t col = blockIdx.x % p.col_tiles * BSRG_TURN_COLUMNS;
  const int64_t row = blockIdx.x / p.col_tiles % p.row_tiles * kRows;
  const int64_t matrix = blockIdx.x / p.col_tiles / p.row_tiles;
  const Extent extent = {static_cast<int>(min(p.rows - row, int64_t{kRows})),
                         static_cast<int>(min(p.cols - col, int64_t{BSRG_TURN_COLUMNS}))};
  load_tile(p,
            static_cast<const T *>(p.source) + matrix * p.source_matrix_stride + row * p.source_row_stride +
                col * p.source_col_stride,
            extent, tile);
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  To *target =
      static_cast<To *>(p.target) + matrix * p.target_matrix_stride + col * p.target_row_stride + row;
  if (lane * kPerWord >= extent.rows) return;
#pragma unroll
  for (int i = 0; i < BSRG_TURN_COLUMNS / kWarps; ++i) {
    const int c = warp + i * kWarps;
    if (c >= extent.cols) continue;
    const auto words = convert(tile[c * kPitch + lane]);
    reinterpret_cast<std::remove_const_t<decltype(words)> *>(target + c * p.target_row_stride)[lane] = words;
  }
}

}  // namespace

#define BSRG_TURN_KERNEL(NAME, FROM, TO, CONVERT)                   \
  extern "C" __global__ void __launch_bounds__(BSRG_TURN_THREADS)   \
      NAME(const __grid_constant__ bsrg_turn_params p) {            \
    turn<FROM, TO>(p, [](uint32_t word) { return CONVERT(word); }); \
  }
#define BSRG_TURN_WIDEN(NAME, FROM, TO) \
  BSRG_TURN_KERNEL(NAME, uint8_t, uint16_t, (bsrg::ptx::widen_four<FROM, TO>))
BSRG_TURN_KERNEL(turn_8, uint8_t, uint8_t, uint32_t)
BSRG_TURN_KERNEL(turn_32, uint32_t, uint32_t, uint32_t)
BSRG_TURN_WIDEN(turn_e4m3_f16, __nv_fp8_e4m3, __half)
BSRG_TURN_WIDEN(turn_e4m3_bf16, __nv_fp8_e4m3, __nv_bfloat16)
BSRG_TURN_WIDEN(turn_e5m2_f16, __nv_fp8_e5m2, __half)
BSRG_TURN_WIDEN(turn_e5m2_bf16, __nv_fp8_e5m2, __nv_bfloat16)
