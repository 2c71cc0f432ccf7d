// A CTA's tile of sums in shared memory. There loops over them need not be unrolled, while in registers, which have no index,
// fused output would be the same long code for each sum.
#pragma once

#include "output.cuh"
#include "params.h"
#include "ptx/convert.cuh"
#include "sm80/pipeline.cuh"

namespace bsrg::portable {

// kExact: activations to the precision of float32, and not only to that of 16 bits.
template <int kTileM, int kTileN, int kThreads, bool kExact>
class LaidTile {
  static constexpr int kRun = 4;                // neighbours that a thread stores
  static constexpr int kPitch = kTileN + kRun;  // of the sums

 public:
  static constexpr int kBytes = kTileM * kPitch * 4;

  // vector_y: runs of Y, of a row or else of a column, lie at multiples of their size.
  __device__ __forceinline__ LaidTile(const bsrg_portable_params &p, const RowTile &tile, int64_t column,
                                      bool vector_y, unsigned char *shared)
      : p_(p), tile_(tile), column_(column), vector_y_(vector_y), sums_(reinterpret_cast<float *>(shared)) {}

  // The fragments of m16n8 products that a warp has from that row and column on, those of the lane's first sum.
  template <int kFragmentsM, int kFragmentsN>
  __device__ __forceinline__ void put(const float (&sums)[kFragmentsM][kFragmentsN][4], int row,
                                      int column) const {
#pragma unroll
    for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
      for (int j = 0; j < kFragmentsN; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2 *>(at(row + i * 16 + half * 8, column + j * 8)) =
              make_float2(sums[i][j][2 * half], sums[i][j][2 * half + 1]);
  }

  // Behind a barrier. multiplied: a sum with its factors; more: C comes in, or what output.cuh does.
  template <typename Out, typename Multiplied>
  __device__ __forceinline__ void store(const Multiplied &multiplied, bool more) const {
    if (more) {
      for (int i = threadIdx.x; i < kTileM * kTileN; i += kThreads) {
        const Position position = position_of<1>(i);
        if (position.row >= tile_.rows || column_ + position.column >= p_.n) continue;
        float *const sum = at(position.row, position.column);
        *sum = completed<Out>(multiplied(*sum), tile_.y_row + position.row, column_ + position.column);
      }
      __syncthreads();
      store_runs<Out>([](float sum) { return sum; });
    } else {
      store_runs<Out>(multiplied);
    }
  }

 private:
  __device__ __forceinline__ float *at(int row, int column) const { return sums_ + row * kPitch + column; }

  // Of run i of kCount neighbours of Y, so that neighbouring threads have neighbouring runs.
  struct Position {
    int row, column;
  };
  template <int kCount>
  __device__ __forceinline__ Position position_of(int i) const {
    if (along_columns()) return {i / (kTileN / kCount), i % (kTileN / kCount) * kCount};
    return {i % (kTileM / kCount) * kCount, i / (kTileM / kCount)};
  }
  __device__ __forceinline__ bool along_columns() const { return p_.y_row_stride != 1; }

  template <typename Out>
  __device__ __forceinline__ float completed(float value, int64_t row, int64_t column) const {
    const bsrg_output_params &output = p_.output;
    if (output.given && output.scaled) value *= output::scale<Out, float>(output, row, column);
    if (p_.beta != 0)
      value = fmaf(static_cast<float>(p_.beta),
                   static_cast<float>(
                       static_cast<const Out *>(p_.c)[row * p_.c_row_stride + column * p_.c_col_stride]),
                   value);
    if (!output.given) return value;
    value += output::bias<Out, float>(output, row, column);
    return kExact ? output::activate_exactly(output.activation, value) : output::activate(output, value);
  }

  template <typename Out, typename Last>
  __device__ __forceinline__ void store_runs(const Last &last) const {
    const bool across = along_columns();
    for (int i = threadIdx.x; i < kTileM * kTileN / kRun; i += kThreads) {
      const Position position = position_of<kRun>(i);
      const int64_t left_rows = tile_.rows - position.row, left_columns = p_.n - column_ - position.column;
      if (left_rows <= 0 || left_columns <= 0) continue;
      Out *const y = static_cast<Out *>(p_.y) + (tile_.y_row + position.row) * p_.y_row_stride +
                     (column_ + position.column) * p_.y_col_stride;
      const float *const from = at(position.row, position.column);
      float value[kRun];
#pragma unroll
      for (int e = 0; e < kRun; ++e) value[e] = last(from[across ? e : e * kPitch]);
      if (vector_y_ && (across ? left_columns : left_rows) >= kRun) {
        store_run(y, value);
        continue;
      }
      const int64_t step = across ? p_.y_col_stride : p_.y_row_stride;
#pragma unroll
      for (int e = 0; e < kRun; ++e)
        if (e < (across ? left_columns : left_rows)) y[e * step] = static_cast<Out>(value[e]);
    }
  }

  __device__ __forceinline__ static void store_run(float *y, const float (&v)[kRun]) {
    __stcs(reinterpret_cast<float4 *>(y), make_float4(v[0], v[1], v[2], v[3]));
  }
  template <typename Out>
  __device__ __forceinline__ static void store_run(Out *y, const float (&v)[kRun]) {
    __stcs(reinterpret_cast<uint2 *>(y), make_uint2(ptx::pack<Out>(v[0], v[1]), ptx::pack<Out>(v[2], v[3])));
  }

  const bsrg_portable_params &p_;
  const RowTile &tile_;
  const int64_t column_;
  const bool vector_y_;
  float *const sums_;
};

}  // namespace bsrg::portable
