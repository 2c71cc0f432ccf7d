// How the sums of the products of tf32 and 8-bit floats leave the registers: by way of shared memory, from which TMA stores
// them. A tile of 16-bit floats has room there: consumers leave it, and a lane of the producers has it stored while they go
// on. float32 by rows go in small pieces, and what TMA cannot address goes straight to Y.
#pragma once

#include "output.cuh"
#include "ptx/convert.cuh"
#include "ptx/load.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_small.cuh"
#include "sm90/tall_layout.cuh"

namespace bsrg::kmajor {

using tall::kTileN;

// The 64 rows of a warpgroup and all columns of a tile. d: sums as in ptx/wgmma.cuh, of a warp 16 rows.
struct Output {
  // In `buffer` the 16-bit floats lie as TMA stores them, in pieces of 64 lines of 128 bytes: rows or columns of Y, as its
  // elements are adjacent. 16-byte chunk c of line i is at chunk c ^ (i % 8), so that stmatrix meets no bank twice.
  static constexpr int kLines = 64, kPieces = kTileN / kLines, kPieceBytes = kLines * 128;
  static constexpr int kBytes = kPieces * kPieceBytes;
  // Of float32 a piece is 32 columns of a warp's 16 rows, likewise swizzled; a warp has two.
  static constexpr int kFloatColumns = 32, kFloatPieceBytes = 16 * 128;
  static constexpr int kFloatBytes = 8 * 2 * kFloatPieceBytes;
  static_assert(kFloatBytes <= 2 * kBytes, "of all warps, in place of 16-bit floats");

  const bsrg_kmajor_params &p;
  const uint32_t buffer, float_pieces;
  const uint32_t full, empty;  // barriers of the buffer
  const int warp, lane;        // of a consumer; warp: in its warpgroup

  // warp: of the consumers; buffers, full, empty: for one strip after the other.
  __device__ Output(const bsrg_kmajor_params &p, uint32_t buffers, uint32_t full, uint32_t empty, int warp,
                    int lane)
      : p(p),
        buffer(buffers + warp / 4 * kBytes),
        float_pieces(buffers + warp * (2 * kFloatPieceBytes)),
        full(full + warp / 4 * 8),
        empty(empty + warp / 4 * 8),
        warp(warp % 4),
        lane(lane) {}

  // Whether tiles are handed over.
  static __device__ bool hands_over(const bsrg_kmajor_params &p) {
    return p.out != BSRG_KMAJOR_F32 && p.y_order != BSRG_KMAJOR_ELEMENTS;
  }

  // row: the strip's first.
  __device__ void store_f32(float (&d)[kTileN / 2], int row, int column) const {
    finish_sums<float>(d, row, column);
    if (p.y_order == BSRG_KMAJOR_ROWS)
      store_float_pieces(d, row + warp * 16, column);
    else
      store_elements<float>(d, row, column);
  }

  // parity: of the strip's tiles.
  template <typename T>
  __device__ void store_16_bits(float (&d)[kTileN / 2], int row, int column, uint32_t parity) const {
    finish_sums<T>(d, row, column);
    if (p.y_order == BSRG_KMAJOR_ELEMENTS) {
      store_elements<T>(d, row, column);
      return;
    }
    ptx::barrier_wait(empty, parity ^ 1);
    if (p.y_order == BSRG_KMAJOR_ROWS)
      write_rows<T>(d);
    else
      write_columns<T>(d);
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(full);
  }

  // By one lane: what the consumers of a strip have left in their buffer.
  static __device__ void store_pieces(const bsrg_kmajor_params &p, uint32_t buffer, int row, int column,
                                      uint64_t policy) {
    ptx::fence_async_proxy();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint32_t piece = buffer + i * kPieceBytes;
      if (p.y_order == BSRG_KMAJOR_ROWS)
        ptx::tma_store_2d(p.y_map, piece, column + i * kLines, row, policy);
      else
        ptx::tma_store_2d(p.y_map, piece, row, column + i * kLines, policy);
    }
    ptx::bulk_commit();
  }

  // Before the CTA ends.
  __device__ void finish() const {
    if (lane == 0) ptx::bulk_wait<0>();
  }

 private:
  // All that becomes of sums before they are rounded.
  template <typename T>
  __device__ void finish_sums(float (&d)[kTileN / 2], int row, int column) const {
    scale(d);
    const auto multiply = [](float &sum, float factor) { sum *= factor; };
    const auto add_to = [](float &sum, float bias) { sum += bias; };
    if (p.output.given && p.output.scaled) {
      for_rows<T>(d, p.output.row_scale, row, 1.f, multiply);
      for_columns<T>(d, p.output.col_scale, column, 1.f, multiply);
    }
    if (p.beta != 0.f) add<T>(d, row, column);
    if (!p.output.given) return;
    for_rows<T>(d, p.output.row_bias, row, 0.f, add_to);
    for_columns<T>(d, p.output.col_bias, column, 0.f, add_to);
    output::activate(p.output, d);
  }

  // apply(sum, element of the vector), of the rows of the tile.
  template <typename T, typename Apply>
  __device__ void for_rows(float (&d)[kTileN / 2], const bsrg_output_vector &v, int row, float otherwise,
                           Apply apply) const {
    if (v.data == nullptr) return;
    int mine = warp * 16 + (lane >> 2);
    ptx::settle(mine);
    row += mine;
    const float above = output::load<T>(v, row, otherwise), below = output::load<T>(v, row + 8, otherwise);
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) apply(d[i], i / 2 % 2 ? below : above);
  }

  // Likewise of its columns. Each lane loads every 32nd of them, all in flight together, and asks others for those that it has
  // sums of.
  template <typename T, typename Apply>
  __device__ void for_columns(float (&d)[kTileN / 2], const bsrg_output_vector &v, int column,
                              float otherwise, Apply apply) const {
    if (v.data == nullptr) return;
    int lane = this->lane;
    ptx::settle(lane);
    float mine[kTileN / 32];
    output::load_strided<T>(mine, v, column + lane, otherwise);
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 4) {
      const int from = 2 * i % 32 + 2 * (lane & 3);
      const float left = __shfl_sync(~0u, mine[i / 16], from),
                  right = __shfl_sync(~0u, mine[i / 16], from + 1);
      apply(d[i], left);
      apply(d[i + 1], right);
      apply(d[i + 2], left);
      apply(d[i + 3], right);
    }
  }

  __device__ void scale(float (&d)[kTileN / 2]) const {
    float factor = p.alpha;
    if (p.a_scale != nullptr) factor *= __ldg(p.a_scale);
    if (p.x_scale != nullptr) factor *= __ldg(p.x_scale);
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) d[i] *= factor;
  }

  // Pointers step from one fragment of eight columns to the next here and below, and what exists is compared with ends that
  // are settled, since addresses and predicates that ptxas has worked out beforehand do not fit in the registers.
  template <typename T>
  __device__ void add(float (&d)[kTileN / 2], int row, int column) const {
    row += warp * 16 + (lane >> 2);
    column += 2 * (lane & 3);
    const T *c = static_cast<const T *>(p.c) + row * p.c_row_stride + column * p.c_col_stride;
    int end[] = {row < p.rows ? p.n - column : 0, row + 8 < p.rows ? p.n - column : 0};
    ptx::settle(end[0]);
    ptx::settle(end[1]);
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 4, c += 8 * p.c_col_stride) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (2 * i + e % 2 < end[e / 2])
          d[i + e] = fmaf(p.beta, static_cast<float>(c[e / 2 * 8 * p.c_row_stride + e % 2 * p.c_col_stride]),
                          d[i + e]);
    }
  }

  // Of float32 in columns, lanes of equal columns fill sectors; otherwise it is for what TMA cannot address.
  template <typename T>
  __device__ void store_elements(const float (&d)[kTileN / 2], int row, int column) const {
    row += warp * 16 + (lane >> 2);
    column += 2 * (lane & 3);
    T *y = static_cast<T *>(p.y) + row * p.y_row_stride + column * p.y_col_stride;
    int end[] = {row < p.rows ? p.n - column : 0, row + 8 < p.rows ? p.n - column : 0};
    ptx::settle(end[0]);
    ptx::settle(end[1]);
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 4, y += 8 * p.y_col_stride) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (2 * i + e % 2 < end[e / 2])
          y[e / 2 * 8 * p.y_row_stride + e % 2 * p.y_col_stride] = static_cast<T>(d[i + e]);
    }
  }

  // A warp's 16 rows. Y is not read again here: it should leave L2 before X and A do.
  __device__ void store_float_pieces(const float (&d)[kTileN / 2], int row, int column) const {
    const uint64_t policy = ptx::policy_evict_first();
    const int g = lane >> 2, q = lane & 3;
    const uint32_t mine = float_pieces + g * 128 + (((q >> 1) ^ g) << 4) + (q & 1) * 8;
#pragma unroll
    for (int piece = 0; piece < kTileN / kFloatColumns; ++piece) {
      const uint32_t offset = (piece & 1) * kFloatPieceBytes;
      if (lane == 0) ptx::bulk_wait_read<1>();  // the store before the previous one has left this piece
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kFloatColumns / 8; ++j) {
        const float *v = d + piece * (kFloatColumns / 2) + 4 * j;
        ptx::store_shared((mine ^ (j * 32)) + offset, make_float2(v[0], v[1]));
        ptx::store_shared((mine ^ (j * 32)) + offset + 8 * 128, make_float2(v[2], v[3]));
      }
      ptx::fence_async_proxy();
      __syncwarp();
      if (lane == 0) {
        ptx::tma_store_2d(p.y_map, float_pieces + offset, column + piece * kFloatColumns, row, policy);
        ptx::bulk_commit();
      }
    }
  }

  // A line is a row. Matrices of stmatrix: both halves of the warp's rows, then the next eight columns.
  template <typename T>
  __device__ void write_rows(const float (&d)[kTileN / 2]) const {
    const int line = warp * 16 + (lane & 15);
    const uint32_t mine = buffer + line * 128 + (((lane >> 4) ^ (line & 7)) << 4);
#pragma unroll
    for (int j = 0; j < kTileN / 16; ++j) {
      const float *v = d + 8 * j;
      ptx::store_matrix_x4((mine ^ (j % 4 * 32)) + j / 4 * kPieceBytes, ptx::pack<T>(v[0], v[1]),
                           ptx::pack<T>(v[2], v[3]), ptx::pack<T>(v[4], v[5]), ptx::pack<T>(v[6], v[7]));
    }
  }

  // A line is a column.
  template <typename T>
  __device__ void write_columns(const float (&d)[kTileN / 2]) const {
    const int line = (lane >> 4) * 8 + (lane & 7);
    const uint32_t mine = buffer + line * 128 + (((2 * warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4);
#pragma unroll
    for (int j = 0; j < kTileN / 16; ++j) {
      const float *v = d + 8 * j;
      ptx::store_matrix_x4_transposed(mine + j * (16 * 128), ptx::pack<T>(v[0], v[1]),
                                      ptx::pack<T>(v[2], v[3]), ptx::pack<T>(v[4], v[5]),
                                      ptx::pack<T>(v[6], v[7]));
    }
  }
};

}  // namespace bsrg::kmajor
