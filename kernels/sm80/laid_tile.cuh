// A CTA's tile of sums in shared memory. There loops over them need not be unrolled, while in registers, which have no index,
// fused output would be the same long code for each sum.
#pragma once

#include "output.cuh"
#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/load.cuh"
#include "sm80/pipeline.cuh"

namespace bsrg::portable {

// kRun: neighbours that a thread stores. kExact: activations to the precision of float32, and not only to that of 16 bits.
template <int kTileM, int kTileN, int kThreads, int kRun, bool kExact>
class LaidTile {
  static constexpr int kPitch = kTileN + kRun;  // of the sums

 public:
  // Of rows, then of columns.
  struct Vectors {
    alignas(16) float scale[kTileM + kTileN];
    alignas(16) float bias[kTileM + kTileN];
  };
  static constexpr int kBytes = kTileM * kPitch * 4 + sizeof(Vectors);

  __device__ __forceinline__ LaidTile(const bsrg_portable_params &p, const RowTile &tile, int64_t column,
                                      unsigned char *shared)
      : p_(p),
        tile_(tile),
        column_(column),
        columns_(static_cast<int>(min(p.n - column, int64_t{kTileN}))),
        sums_(reinterpret_cast<float *>(shared)),
        vectors_(reinterpret_cast<Vectors *>(sums_ + kTileM * kPitch)) {}

  // The fragments of m16n8 products that a warp has from that row and column on.
  template <int kFragmentsM, int kFragmentsN>
  __device__ __forceinline__ void put(const float (&sums)[kFragmentsM][kFragmentsN][4], int row, int column,
                                      int lane) const {
    ptx::settle(lane);  // addresses before the main loop would keep registers busy throughout that
    row += lane / 4;
    column += lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
      for (int j = 0; j < kFragmentsN; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2 *>(sums_ + (row + i * 16 + half * 8) * kPitch + column + j * 8) =
              make_float2(sums[i][j][2 * half], sums[i][j][2 * half + 1]);
  }

  // What the tile's rows and columns are multiplied by and have added: where each run asked for it, it would wait each time.
  template <typename Out>
  __device__ __forceinline__ void put_vectors() const {
    const bsrg_output_params &output = p_.output;
    for (int i = threadIdx.x; i < kTileM + kTileN; i += kThreads) {
      const bool of_row = i < kTileM;
      const int64_t at = of_row ? tile_.y_row + i : column_ + i - kTileM;
      const bool exists = output.given && (of_row ? i < tile_.rows : i - kTileM < columns_);
      vectors_->scale[i] =
          exists ? output::load<Out, float>(of_row ? output.row_scale : output.col_scale, at, 1.f) : 1.f;
      vectors_->bias[i] =
          exists ? output::load<Out, float>(of_row ? output.row_bias : output.col_bias, at, 0.f) : 0.f;
    }
  }

  // Behind a barrier. multiplied: a sum with its factors; more: C comes in, or what output.cuh does, with vectors that have been
  // put.
  template <typename Out, typename Multiplied>
  __device__ __forceinline__ void store(const Multiplied &multiplied, bool more) const {
    const bool across = p_.y_row_stride != 1;
    if (more) {
#pragma unroll kExact ? 1 : 2
      for (int i = threadIdx.x; i < kRuns; i += kThreads) store_run<Out>(run_of(i, across), multiplied, true);
    } else {
      for (int i = threadIdx.x; i < kRuns; i += kThreads)
        store_run<Out>(run_of(i, across), multiplied, false);
    }
  }

 private:
  static constexpr int kRuns = kTileM * kTileN / kRun;

  // Neighbours in Y, of a row where it is `across`, else of a column; so many of them are in Y.
  struct Run {
    int row, column, left;
    bool across;
  };
  // Neighbouring threads have neighbouring runs.
  __device__ __forceinline__ Run run_of(int i, bool across) const {
    constexpr int kRunsM = kTileM / kRun, kRunsN = kTileN / kRun;
    Run run =
        across ? Run{i / kRunsN, i % kRunsN * kRun, 0, true} : Run{i % kRunsM * kRun, i / kRunsM, 0, false};
    const int rows = tile_.rows - run.row, columns = columns_ - run.column;
    if (rows > 0 && columns > 0) run.left = min(across ? columns : rows, kRun);
    return run;
  }

  // Four at a time where they are neighbours, at a multiple of four.
  __device__ __forceinline__ static void read(float (&value)[kRun], const float *from, int step) {
    static_assert(kRun % 4 == 0 && kPitch % 4 == 0);
    if (step == 1) {
#pragma unroll
      for (int e = 0; e < kRun; e += 4) {
        const float4 four = *reinterpret_cast<const float4 *>(from + e);
        value[e] = four.x;
        value[e + 1] = four.y;
        value[e + 2] = four.z;
        value[e + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int e = 0; e < kRun; ++e) value[e] = from[e * step];
    }
  }

  template <typename Out>
  __device__ __forceinline__ void complete(const Run &run, float *sums, float (&value)[kRun]) const {
    const int step = run.across ? 1 : kPitch;
    const int line = run.across ? run.row : kTileM + run.column,
              along = run.across ? kTileM + run.column : run.row;
    float factors[kRun];
    if (p_.output.scaled) {
      read(factors, vectors_->scale + along, 1);
#pragma unroll
      for (int e = 0; e < kRun; ++e) value[e] *= factors[e] * vectors_->scale[line];
    }
    if (p_.beta != 0) {
      const Out *const c = static_cast<const Out *>(p_.c) + (tile_.y_row + run.row) * p_.c_row_stride +
                           (column_ + run.column) * p_.c_col_stride;
      const int64_t c_step = run.across ? p_.c_col_stride : p_.c_row_stride;
#pragma unroll
      for (int e = 0; e < kRun; ++e)
        if (e < run.left)
          value[e] = fmaf(static_cast<float>(p_.beta), static_cast<float>(c[e * c_step]), value[e]);
    }
    if (!p_.output.given) return;
    float summands[kRun];
    read(summands, vectors_->bias + along, 1);
#pragma unroll
    for (int e = 0; e < kRun; ++e) value[e] += summands[e] + vectors_->bias[line];
    if constexpr (!kExact) {
      output::activate(p_.output, value);
    } else if (p_.output.activation != BSRG_OUTPUT_IDENTITY) {
      // Once for all, where they have an index.
#pragma unroll
      for (int e = 0; e < kRun; ++e) sums[e * step] = value[e];
#pragma unroll 1
      for (int e = 0; e < kRun; ++e)
        sums[e * step] = output::activate_exactly(p_.output.activation, sums[e * step]);
#pragma unroll
      for (int e = 0; e < kRun; ++e) value[e] = sums[e * step];
    }
  }

  template <typename Out, typename Multiplied>
  __device__ __forceinline__ void store_run(const Run &run, const Multiplied &multiplied, bool more) const {
    if (run.left <= 0) return;
    float *const sums = sums_ + run.row * kPitch + run.column;
    float value[kRun];
    read(value, sums, run.across ? 1 : kPitch);
#pragma unroll
    for (float &x : value) x = multiplied(x);
    if (more) complete<Out>(run, sums, value);
    write<Out>(run, value);
  }

  template <typename Out>
  __device__ __forceinline__ void write(const Run &run, const float (&value)[kRun]) const {
    Out *const y = static_cast<Out *>(p_.y) + (tile_.y_row + run.row) * p_.y_row_stride +
                   (column_ + run.column) * p_.y_col_stride;
    if (p_.vector_y && run.left == kRun) {
      write_vector(y, value);
      return;
    }
    const int64_t step = run.across ? p_.y_col_stride : p_.y_row_stride;
#pragma unroll
    for (int e = 0; e < kRun; ++e)
      if (e < run.left) y[e * step] = static_cast<Out>(value[e]);
  }

  __device__ __forceinline__ static void write_vector(float *y, const float (&v)[kRun]) {
#pragma unroll
    for (int e = 0; e < kRun; e += 4)
      __stcs(reinterpret_cast<float4 *>(y + e), make_float4(v[e], v[e + 1], v[e + 2], v[e + 3]));
  }
  template <typename Out>
  __device__ __forceinline__ static void write_vector(Out *y, const float (&v)[kRun]) {
    static_assert(kRun == 4 || kRun == 8);
    if constexpr (kRun == 4)
      __stcs(reinterpret_cast<uint2 *>(y),
             make_uint2(ptx::pack<Out>(v[0], v[1]), ptx::pack<Out>(v[2], v[3])));
    else
      __stcs(reinterpret_cast<uint4 *>(y),
             make_uint4(ptx::pack<Out>(v[0], v[1]), ptx::pack<Out>(v[2], v[3]), ptx::pack<Out>(v[4], v[5]),
                        ptx::pack<Out>(v[6], v[7])));
  }

  const bsrg_portable_params &p_;
  const RowTile &tile_;
  const int64_t column_;
  const int columns_;  // of the tile that exist
  float *const sums_;
  Vectors *const vectors_;
};

}  // namespace bsrg::portable
