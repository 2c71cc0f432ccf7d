// How the stream kernels' sums leave the registers: to Y by way of shared memory and TMA. With a transposed X, Y lies as X
// does, the rows of a column adjacent in memory, and C in any way. float32 goes straight to Y, which lies in any way, too.
#pragma once

#include "output.cuh"
#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_small.cuh"
#include "sm90/stream_layout.cuh"

namespace bsrg::stream {

// kFused: with bsrg_stream_params.output. A kernel of its own, because the others have no registers left for it.
template <typename T, int kHeight, bool kFused, bool kTransposed>
struct Output {
  using L = Layout;
  static constexpr int kRows = BSRG_STREAM_ROWS_OF(kHeight);  // block rows of a warpgroup
  static constexpr int kSums = kHeight / 2;
  // TMA stores block rows, or halves of them: so many rows.
  static constexpr int kStored = BSRG_STREAM_STORED_ROWS(kHeight), kHalves = kHeight / kStored;
  // How many of these are stored together, of a panel, and for how many such pieces shared memory has a buffer.
  static constexpr int kPieceRows = kStored > 32 ? 1 : 32 / kStored;
  static constexpr int kBuffers = kStored > 32 ? 1 : 2;
  static constexpr int kBufferBytes = BSRG_STREAM_OUTPUT_BYTES / kBuffers;
  static_assert(kPieceRows * kStored * kPanel * 2 <= kBufferBytes);
  static_assert(kFused || !kTransposed, "one kernel for all products with a transposed X");
  static constexpr bool kElements = sizeof(T) == 4;
  using Sums = float[kRows][2][kSums];

  const bsrg_stream_params &p;
  const uint32_t shared;
  const int warp, lane;

  // Of C 16 rows (or the last 8 of a block) x this warp's 16 columns of a panel, by way of `buffer`, 512 bytes of this
  // warp's own. row: the block row's first; first: in the block row.
  __device__ void load_c(uint32_t (&old)[4], int row, int first, int column, uint32_t buffer) const {
    if constexpr (kTransposed)
      load_c_elements(old, row, first, column, buffer);
    else
      load_c_rows(old, row, first, column, buffer);
  }

  // It comes as it lies in memory, and is transposed in the buffer.
  __device__ void load_c_rows(uint32_t (&old)[4], int row, int first, int column, uint32_t buffer) const {
    const uint32_t in_rows = buffer + lane * 16;  // two lanes a row
    const uint32_t in_matrices = buffer + ((lane & 7) + (lane >> 4) * 8) * 32 + (lane >> 3 & 1) * 16;
    const int my_row = first + (lane >> 1), my_column = column + (lane & 1) * 8;
    int4 c = make_int4(0, 0, 0, 0);
    if (row >= 0 && my_row < kHeight && row + my_row < p.rows && my_column < p.n)
      c = *reinterpret_cast<const int4 *>(static_cast<const T *>(p.c) + (row + my_row) * p.c_row_stride +
                                          my_column);
    __syncwarp();
    ptx::store_shared(in_rows, c);
    __syncwarp();
    ptx::load_matrix_x4_transposed(old, in_matrices);
  }

  // For any strides of C and any n. In the buffer a column's rows are adjacent.
  __device__ void load_c_elements(uint32_t (&old)[4], int row, int first, int column, uint32_t buffer) const {
    const int my_row = first + (lane & 15), my_column = column + (lane >> 4);
    const uint16_t *c =
        static_cast<const uint16_t *>(p.c) + (row + my_row) * p.c_row_stride + my_column * p.c_col_stride;
    const bool exists = row >= 0 && my_row < kHeight && row + my_row < p.rows;
    uint16_t mine[8] = {};  // of every second column, in flight together
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (exists && my_column + 2 * i < p.n) mine[i] = c[2 * i * p.c_col_stride];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; ++i) ptx::store_shared(buffer + 2 * lane + 64 * i, mine[i]);
    __syncwarp();
    ptx::load_matrix_x4(old, buffer + (lane & 15) * 32 + (lane >> 4) * 16);
  }

  // d = alpha * d + beta * C.
  __device__ void scale_and_add(Sums &d, int my_row, int column, uint32_t buffer) const {
    if constexpr (kElements)
      scale_and_add_elements(d, my_row, column);
    else
      scale_and_add_pieces(d, my_row, column, buffer);
  }

  __device__ void scale_and_add_pieces(Sums &d, int my_row, int column, uint32_t buffer) const {
    constexpr int kPieces = (kHeight + 15) / 16;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int piece = 0; piece < 2 * kPieces; ++piece) {
        const int panel = piece / kPieces, first = piece % kPieces * 16;
        const int row = __shfl_sync(~0u, my_row, r);
        // A branch that keeps ptxas from loading all pieces at once, for which registers would not do.
        if (row < 0) continue;
        uint32_t old[4] = {};
        if (kFused || p.beta != 0.f) load_c(old, row, first, column + panel * kPanel, buffer);
#pragma unroll
        for (int i = 0; i < 8 && first / 2 + i < kSums; ++i) {
          const float2 pair = ptx::unpack<T>(old[i / 2]);
          float &sum = d[r][panel][first / 2 + i];
          sum = fmaf(p.beta, i % 2 ? pair.y : pair.x, p.alpha * sum);
        }
      }
  }

  // Calls apply(sum, row, column) for all that exist. Pointers that depend on both are for the caller to step: there are no
  // registers for many.
  template <typename Apply>
  __device__ void for_elements(Sums &d, int my_row, int column, Apply apply) const {
    column += lane >> 2;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int first = __shfl_sync(~0u, my_row, r);
      if (first < 0) continue;
#pragma unroll
      for (int i = 0; i < kHeight / 4; ++i) {
        const int row = first + i / 2 * 8 + 2 * (lane & 3) + i % 2;
        if (row >= p.rows) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = column + j / 2 * kPanel + j % 2 * 8;
          if (at < p.n) apply(d[r][j / 2][i / 2 * 4 + j % 2 * 2 + i % 2], row, at);
        }
      }
    }
  }

  // float32: d = alpha * d + beta * C.
  __device__ void scale_and_add_elements(Sums &d, int my_row, int column) const {
    const float *c = static_cast<const float *>(p.c);
    for_elements(d, my_row, column, [&](float &sum, int row, int at) {
      sum = fmaf(p.beta, c[row * p.c_row_stride + at * p.c_col_stride], p.alpha * sum);
    });
  }

  // float32. A warp's lanes have eight columns of four rows, whole sectors of rows.
  __device__ void store_elements(Sums &d, int my_row, int column) const {
    float *y = static_cast<float *>(p.y_data);
    for_elements(d, my_row, column,
                 [&](float &sum, int row, int at) { y[row * p.y_row_stride + at * p.y_col_stride] = sum; });
  }

  // Whether rows can be stored two by two, as which lanes have whole sectors of columns.
  __device__ bool has_pairs_of_rows() const {
    return p.y_row_stride == 1 && (p.rows | p.y_col_stride) % 2 == 0 &&
           reinterpret_cast<uintptr_t>(p.y_data) % sizeof(float2) == 0;
  }

  __device__ void store_pairs(const Sums &d, int my_row, int column) const {
    column += lane >> 2;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int first = __shfl_sync(~0u, my_row, r);
      if (first < 0) continue;
#pragma unroll
      for (int eight = 0; eight < kHeight / 8; ++eight) {
        const int row = first + eight * 8 + 2 * (lane & 3);
        if (row >= p.rows) continue;
        float *y = static_cast<float *>(p.y_data) + row + column * p.y_col_stride;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int on = j / 2 * kPanel + j % 2 * 8;
          const float *sums = d[r][j / 2] + eight * 4 + j % 2 * 2;
          if (column + on < p.n)
            *reinterpret_cast<float2 *>(y + on * p.y_col_stride) = make_float2(sums[0], sums[1]);
        }
      }
    }
  }

  template <typename Apply>
  static __device__ void for_all(Sums &d, Apply apply) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < 2 * kSums; ++i) apply(d[r][i / kSums][i % kSums]);
  }

  // Fused output, in passes over d that only cost where they are asked for; ReLU comes with the rounding. Each lane loads
  // elements of the vectors once, and gets those that it needs from others: its sums are of columns lane / 4 and 8 further
  // on of the warp's 16 in each panel, and of two rows of every 8.
  template <typename Apply>
  __device__ void for_columns(Sums &d, const bsrg_output_vector &v, int column, float otherwise,
                              Apply apply) const {
    if (v.data == nullptr) return;
    const float mine = output::load<T>(v, column + (lane >> 4) * kPanel + (lane & 15), otherwise);
#pragma unroll
    for (int panel = 0; panel < 2; ++panel)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float element = __shfl_sync(~0u, mine, panel * 16 + half * 8 + (lane >> 2));
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
          for (int i = 0; i < kHeight / 4; ++i) apply(d[r][panel][i / 2 * 4 + half * 2 + i % 2], element);
      }
  }

  template <typename Apply>
  __device__ void for_rows(Sums &d, const bsrg_output_vector &v, int row_begin, float otherwise,
                           Apply apply) const {
    if (v.data == nullptr) return;
    constexpr int kMine = (kRows * kHeight + 31) / 32;
    float mine[kMine];  // of rows lane, lane + 32 ... of the warpgroup
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int at = lane + 32 * i;
      // From memory: registers have no index.
      const int row = at < kRows * kHeight ? __ldg(p.row_begin + row_begin + at / kHeight) : -1;
      mine[i] = row < 0 ? otherwise : output::load<T>(v, row + at % kHeight, otherwise);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kHeight / 4; ++i) {
        const int eight = r * kHeight + i / 2 * 8;
        const float element = __shfl_sync(~0u, mine[eight / 32], eight % 32 + 2 * (lane & 3) + i % 2);
#pragma unroll
        for (int j = 0; j < 4; ++j) apply(d[r][j / 2][i / 2 * 4 + j % 2 * 2 + i % 2], element);
      }
  }

  __device__ void apply_output(Sums &d, int row, int row_begin, int column, uint32_t buffer) const {
    const auto multiply = [](float &sum, float factor) { sum *= factor; };
    const auto add = [](float &sum, float bias) { sum += bias; };
    for_columns(d, p.output.col_scale, column, 1.f, multiply);
    for_rows(d, p.output.row_scale, row_begin, 1.f, multiply);
    if (p.beta != 0.f)
      scale_and_add(d, row, column, buffer);
    else if (p.alpha != 1.f)
      for_all(d, [this](float &sum) { sum *= p.alpha; });
    for_columns(d, p.output.col_bias, column, 0.f, add);
    for_rows(d, p.output.row_bias, row_begin, 0.f, add);
    if (kElements && p.output.activation == BSRG_OUTPUT_RELU)
      for_all(d, [](float &sum) { sum = output::relu(sum); });
    if (p.output.activation > BSRG_OUTPUT_RELU)
      output::with_curve(p.output, [&](auto curve) { for_all(d, [&](float &sum) { sum = curve(sum); }); });
  }

  // Sums of one of those, from row `first` on.
  static __device__ const float *sums_of(const Sums &d, int number, int panel, int first) {
    return d[number / kHalves][panel] + (number % kHalves * kStored + first) / 2;
  }

  // One panel of number `begin` of those and the ones behind it into `buffer`, as TMA stores it. kClipped: by ReLU.
  template <bool kClipped>
  __device__ void write_piece(const Sums &d, int begin, int panel, uint32_t buffer) const {
    if constexpr (kTransposed)
      write_columns<kClipped>(d, begin, panel, buffer);
    else
      write_rows<kClipped>(d, begin, panel, buffer);
  }

  template <bool kClipped>
  static __device__ uint32_t round(float low, float high) {
    return kClipped ? ptx::pack_relu<T>(low, high) : ptx::pack<T>(low, high);
  }

  // Transposed: rows of 128 bytes, swizzled like X.
  template <bool kClipped>
  __device__ void write_rows(const Sums &d, int begin, int panel, uint32_t buffer) const {
    // Matrices of stmatrix: both halves of this warp's columns, then the next 8 rows.
    const int chunk = 2 * (warp & 3) + (lane >> 3 & 1);
    const uint32_t mine = buffer + ((lane >> 4) * 8 + (lane & 7)) * 128 + ((chunk ^ (lane & 7)) << 4);
#pragma unroll
    for (int r = 0; r < kPieceRows; ++r) {
      if (begin + r >= kRows * kHalves) continue;
#pragma unroll
      for (int first = 0; first < kStored; first += 16) {
        const float *v = sums_of(d, begin + r, panel, first);
        const uint32_t to = mine + (r * kStored + first) * 128;
        if (first + 8 < kStored)
          ptx::store_matrix_x4_transposed(to, round<kClipped>(v[0], v[1]), round<kClipped>(v[2], v[3]),
                                          round<kClipped>(v[4], v[5]), round<kClipped>(v[6], v[7]));
        else
          ptx::store_matrix_x2_transposed(to, round<kClipped>(v[0], v[1]), round<kClipped>(v[2], v[3]));
      }
    }
  }

  // 16-byte chunk c of column j of a block row lies at chunk c ^ chunk_bits(j) where TMA has a swizzle of as many bytes as
  // its columns have: else the eight columns of a matrix would meet some banks two to eight times. Columns of other
  // lengths meet each bank once without, but for 48 rows, which meet each twice.
  static constexpr bool kSwizzled = kStored == 16 || kStored == 32 || kStored == 64;
  static __device__ int chunk_bits(int column) {
    return kSwizzled ? column / (64 / kStored) % (kStored / 8) : 0;
  }

  // As they are: of each block row all columns of the panel, one after the other.
  template <bool kClipped>
  __device__ void write_columns(const Sums &d, int begin, int panel, uint32_t buffer) const {
    // Matrices of stmatrix: both halves of this warp's columns, then the next 8 rows.
    const int column = (warp & 3) * 16 + (lane & 15);
    const uint32_t mine = buffer + column * (2 * kStored) + (((lane >> 4) ^ chunk_bits(column)) << 4);
#pragma unroll
    for (int r = 0; r < kPieceRows; ++r) {
      if (begin + r >= kRows * kHalves) continue;
#pragma unroll
      for (int first = 0; first < kStored; first += 16) {
        const float *v = sums_of(d, begin + r, panel, first);
        const uint32_t to = (kSwizzled ? mine ^ (2 * first) : mine + 2 * first) + r * (kStored * 128);
        if (first + 8 < kStored)
          ptx::store_matrix_x4(to, round<kClipped>(v[0], v[1]), round<kClipped>(v[2], v[3]),
                               round<kClipped>(v[4], v[5]), round<kClipped>(v[6], v[7]));
        else
          ptx::store_matrix_x2(to, round<kClipped>(v[0], v[1]), round<kClipped>(v[2], v[3]));
      }
    }
  }

  __device__ void store_block_row(uint32_t from, int row, int column, uint64_t policy) const {
    ptx::tma_store_2d(p.y, from, kTransposed ? row : column, kTransposed ? column : row, policy);
  }

  // Writes the sums of a tile. row: of block row `lane` of the warpgroup's, -1: there is none.
  __device__ void store(Sums &d, int row, int row_begin, int n_tile, int group, uint64_t policy) const {
    if constexpr (kElements) {
      const int column = n_tile * kTileN + (warp & 3) * 16;
      apply_output(d, row, row_begin, column, 0);
      if (has_pairs_of_rows())
        store_pairs(d, row, column);
      else
        store_elements(d, row, column);
    } else {
      store_pieces(d, row, row_begin, n_tile, group, policy);
    }
  }

  // TMA reads the buffer while the next piece or tile is under way, and clips what lies beyond the last row and column n.
  __device__ void store_pieces(Sums &d, int row, int row_begin, int n_tile, int group,
                               uint64_t policy) const {
    const uint32_t buffers = shared + L::kOutput + group * BSRG_STREAM_OUTPUT_BYTES;
    const bool storing = (warp & 3) == 0;
    if (kFused || p.alpha != 1.f || p.beta != 0.f) {
      if (storing) ptx::bulk_wait_read<0>();
      ptx::named_barrier_sync(1 + group, 128);
      const int column = n_tile * kTileN + (warp & 3) * 16;
      if constexpr (kFused)
        apply_output(d, row, row_begin, column, buffers + (warp & 3) * 512);
      else
        scale_and_add(d, row, column, buffers + (warp & 3) * 512);
    }
    const bool clipped = kFused && p.output.activation == BSRG_OUTPUT_RELU;
    if constexpr (kHalves > 1) {  // lane i stores half i % 2 of block row i / 2
      const int begin = __shfl_sync(~0u, row, lane / kHalves);
      row = begin < 0 ? -1 : begin + lane % kHalves * kStored;
    }
#pragma unroll
    for (int first = 0; first < kRows * kHalves; first += kPieceRows)
#pragma unroll
      for (int panel = 0; panel < 2; ++panel) {
        const uint32_t buffer = buffers + panel % kBuffers * kBufferBytes;
        if (storing) ptx::bulk_wait_read<kBuffers - 1>();
        ptx::named_barrier_sync(1 + group, 128);
        if (clipped)
          write_piece<true>(d, first, panel, buffer);
        else
          write_piece<false>(d, first, panel, buffer);
        ptx::fence_async_proxy();
        ptx::named_barrier_sync(1 + group, 128);
        if (storing) {
          if (lane >= first && lane < min(first + kPieceRows, kRows * kHalves) && row >= 0)
            store_block_row(buffer + (lane - first) * kStored * 128, row, n_tile * kTileN + panel * kPanel,
                            policy);
          ptx::bulk_commit();
        }
      }
  }

  __device__ int load_row(int row_begin) const {
    return lane < kRows ? __ldg(p.row_begin + row_begin + lane) : -1;
  }
};

}  // namespace bsrg::stream
