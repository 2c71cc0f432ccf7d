// How the sums of the products of tf32 and 8-bit floats leave the registers: as float32 or 16-bit floats, to any strides
// of Y. The lanes of a warp exchange what they hold so that each stores 16 bytes of neighbours.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/wgmma_kmajor.cuh"
#include "sm80/quad.cuh"
#include "sm90/tall_layout.cuh"

namespace bsrg::kmajor {

using tall::kTileN;

// The 16 rows of a warp and all columns of a tile. d: sums as in ptx/wgmma.cuh. Pointers step from one fragment of eight
// columns to the next, since addresses that ptxas has worked out beforehand do not fit in the registers.
struct Output {
  const bsrg_kmajor_params &p;
  const int lane;

  __device__ void store_f32(float (&d)[kTileN / 2], int row, int column) const {
    scale(d);
    if (p.beta != 0.f) add<float>(d, row, column);
    if (p.vector_y && p.y_col_stride == 1)
      store_pairs(d, row, column);
    else
      store_elements<float>(d, row, column);
  }

  template <typename T>
  __device__ void store_16_bits(float (&d)[kTileN / 2], int row, int column) const {
    scale(d);
    if (p.beta != 0.f) add<T>(d, row, column);
    if (!p.vector_y)
      store_elements<T>(d, row, column);
    else if (p.y_col_stride == 1)
      store_rows<T>(d, row, column);
    else
      store_columns<T>(d, row, column);
  }

 private:
  __device__ void scale(float (&d)[kTileN / 2]) const {
    float factor = p.alpha;
    if (p.a_scale != nullptr) factor *= __ldg(p.a_scale);
    if (p.x_scale != nullptr) factor *= __ldg(p.x_scale);
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) d[i] *= factor;
  }

  template <typename T>
  __device__ void add(float (&d)[kTileN / 2], int row, int column) const {
    row += lane >> 2;
    column += 2 * (lane & 3);
    const T *c = static_cast<const T *>(p.c) + row * p.c_row_stride + column * p.c_col_stride;
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 4, c += 8 * p.c_col_stride) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (column + 2 * i + e % 2 < p.n)
          d[i + e] = fmaf(p.beta, static_cast<float>(c[e / 2 * 8 * p.c_row_stride + e % 2 * p.c_col_stride]),
                          d[i + e]);
    }
  }

  // Of float32 in columns, lanes of equal columns fill sectors; otherwise it is for what is not aligned.
  template <typename T>
  __device__ void store_elements(const float (&d)[kTileN / 2], int row, int column) const {
    row += lane >> 2;
    column += 2 * (lane & 3);
    T *y = static_cast<T *>(p.y) + row * p.y_row_stride + column * p.y_col_stride;
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 4, y += 8 * p.y_col_stride) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (column + 2 * i + e % 2 < p.n)
          y[e / 2 * 8 * p.y_row_stride + e % 2 * p.y_col_stride] = static_cast<T>(d[i + e]);
    }
  }

  // The quads fill sectors of eight rows.
  __device__ void store_pairs(const float (&d)[kTileN / 2], int row, int column) const {
    row += lane >> 2;
    column += 2 * (lane & 3);
    float *y = static_cast<float *>(p.y) + row * p.y_row_stride + column;
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 2) {
      float *at = y + i / 2 % 2 * 8 * p.y_row_stride + i / 4 * 8;
      if (column + i / 4 * 8 < p.n) __stcs(reinterpret_cast<float2 *>(at), make_float2(d[i], d[i + 1]));
    }
  }

  // Y is not read again here: it should leave L2 before X and A do.
  template <typename T>
  __device__ static void store_chunk(T *y, const uint32_t (&r)[4]) {
    __stcs(reinterpret_cast<uint4 *>(y), make_uint4(r[0], r[1], r[2], r[3]));
  }

  // A lane gets eight columns of a row: 64 bytes of eight rows a store.
  template <typename T>
  __device__ void store_rows(const float (&d)[kTileN / 2], int row, int column) const {
    row += lane >> 2;
    column += 8 * (lane & 3);
    T *y = static_cast<T *>(p.y) + row * p.y_row_stride + column;
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 16) {  // four fragments
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        uint32_t r[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          r[j] = ptx::pack<T>(d[i + 4 * j + 2 * below], d[i + 4 * j + 2 * below + 1]);
        quad::transpose(r, lane);
        if (column + 2 * i < p.n) store_chunk(y + 8 * below * p.y_row_stride + 2 * i, r);
      }
    }
  }

  // A lane gets eight rows of a column: 32 bytes of 16 columns a store. There are always whole strips of rows.
  template <typename T>
  __device__ void store_columns(const float (&d)[kTileN / 2], int row, int column) const {
    row += 8 * (lane & 1);
    column += 8 * (lane >> 1 & 1) + (lane >> 2);
    T *y = static_cast<T *>(p.y) + row + column * p.y_col_stride;
#pragma unroll
    for (int i = 0; i < kTileN / 2; i += 8, y += 16 * p.y_col_stride) {  // two fragments
      uint32_t r[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Now lane / 4 is the column, and lane % 4 the pair of rows.
        r[j] = ptx::transpose_matrix(ptx::pack<T>(d[i + 2 * j], d[i + 2 * j + 1]));
      }
      quad::transpose(r, lane);
      if (column + 2 * i < p.n) store_chunk(y, r);
    }
  }
};

}  // namespace bsrg::kmajor
