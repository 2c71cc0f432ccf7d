// How the kernels of few columns write Y: alpha * sum + beta * c, and the rest of the output's description.
#pragma once

#include "output.cuh"
#include "params.h"
#include "ptx/convert.cuh"

namespace bsrg::narrow {

// One element: where neighbours cannot be stored together, and in the second pass. kFused: with the rest of the output's
// description, of which activations are as exact as T.
template <typename T, bool kFused>
__device__ __forceinline__ void store_element(const bsrg_narrow_params &p, int64_t row, int64_t column,
                                              output::SumOf<T> sum) {
  using S = output::SumOf<T>;
  const S alpha = sizeof(T) == 8 ? static_cast<S>(p.alpha_f64) : static_cast<S>(p.alpha);
  const S beta = sizeof(T) == 8 ? static_cast<S>(p.beta_f64) : static_cast<S>(p.beta);
  S value = alpha * sum;
  if (kFused) value *= output::scale<T, S>(p.output, row, column);
  if (beta != 0)
    value =
        fma(beta, static_cast<S>(static_cast<const T *>(p.c)[row * p.c_row_stride + column * p.c_col_stride]),
            value);
  if constexpr (kFused && sizeof(T) > 2)
    value = output::activate_exactly(p.output.activation, value + output::bias<T, S>(p.output, row, column));
  else if constexpr (kFused)
    value = output::finish<T>(p.output, row, column, value);
  static_cast<T *>(p.y)[row * p.y_row_stride + column * p.y_col_stride] = static_cast<T>(value);
}

// kRun neighbours of a row or column, where C and Y have runs of them (vector_y). The first one's place: row, column.
template <int kRun>
struct alignas(2 * kRun) Run {
  uint32_t words[kRun / 2];
};

template <typename T, int kRun>
__device__ __forceinline__ void add_c(const bsrg_narrow_params &p, int64_t row, int64_t column,
                                      float (&values)[kRun]) {
  if (p.beta == 0) return;
  const Run<kRun> c = *reinterpret_cast<const Run<kRun> *>(static_cast<const T *>(p.c) +
                                                           row * p.c_row_stride + column * p.c_col_stride);
#pragma unroll
  for (int w = 0; w < kRun / 2; ++w) {
    const float2 old = ptx::unpack<T>(c.words[w]);
    values[2 * w] = fmaf(p.beta, old.x, values[2 * w]);
    values[2 * w + 1] = fmaf(p.beta, old.y, values[2 * w + 1]);
  }
}

template <typename T, int kRun>
__device__ __forceinline__ void store_values(const bsrg_narrow_params &p, int64_t row, int64_t column,
                                             const float (&values)[kRun]) {
  Run<kRun> y;
#pragma unroll
  for (int w = 0; w < kRun / 2; ++w) y.words[w] = ptx::pack<T>(values[2 * w], values[2 * w + 1]);
  *reinterpret_cast<Run<kRun> *>(static_cast<T *>(p.y) + row * p.y_row_stride + column * p.y_col_stride) = y;
}

template <typename T, int kRun>
__device__ __forceinline__ void store_run(const bsrg_narrow_params &p, int64_t row, int64_t column,
                                          const float (&total)[kRun]) {
  float values[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) values[i] = p.alpha * total[i];
  add_c<T>(p, row, column, values);
  store_values<T>(p, row, column, values);
}

// As output::load, of neighbours, all loads in flight together.
template <typename T, int kRun>
__device__ __forceinline__ void load_neighbours(float (&elements)[kRun], const bsrg_output_vector &v,
                                                int64_t first, float otherwise) {
#pragma unroll
  for (float &element : elements) element = otherwise;
  if (v.data == nullptr) return;
  if (v.is_float) {
    const float *from = static_cast<const float *>(v.data) + first * v.stride;
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (first + i < v.count) elements[i] = output::load_here(from + i * v.stride);
  } else {
    const T *from = static_cast<const T *>(v.data) + first * v.stride;
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (first + i < v.count) elements[i] = static_cast<float>(output::load_here(from + i * v.stride));
  }
}

// As store_run, with the rest of the output's description. by_columns: neighbours of a column.
template <typename T, int kRun>
__device__ __forceinline__ void store_fused_run(const bsrg_narrow_params &p, int64_t row, int64_t column,
                                                const float (&total)[kRun], bool by_columns) {
  const bsrg_output_params &output = p.output;
  const int64_t along = by_columns ? row : column, across = by_columns ? column : row;
  float values[kRun], terms[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) values[i] = p.alpha * total[i];
  if (output.scaled) {
    load_neighbours<T>(terms, by_columns ? output.row_scale : output.col_scale, along, 1.f);
    const float of_all = output::load<T>(by_columns ? output.col_scale : output.row_scale, across, 1.f);
#pragma unroll
    for (int i = 0; i < kRun; ++i) values[i] *= of_all * terms[i];
  }
  load_neighbours<T>(terms, by_columns ? output.row_bias : output.col_bias, along, 0.f);
  const float of_all = output::load<T>(by_columns ? output.col_bias : output.row_bias, across, 0.f);
  add_c<T>(p, row, column, values);
#pragma unroll
  for (int i = 0; i < kRun; ++i) values[i] += of_all + terms[i];
  output::activate(output, values);
  store_values<T>(p, row, column, values);
}

}  // namespace bsrg::narrow
