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

// kRun neighbours of a row or column, where C and Y have runs of them (vector_y). The first one's place:
template <typename T, int kRun>
__device__ __forceinline__ void store_run(const bsrg_narrow_params &p, int64_t row, int64_t column,
                                          const float (&total)[kRun]) {
  struct alignas(2 * kRun) Run {
    uint32_t words[kRun / 2];
  };
  Run c = {}, y;
  if (p.beta != 0)
    c = *reinterpret_cast<const Run *>(static_cast<const T *>(p.c) + row * p.c_row_stride +
                                       column * p.c_col_stride);
#pragma unroll
  for (int w = 0; w < kRun / 2; ++w) {
    float low = p.alpha * total[2 * w], high = p.alpha * total[2 * w + 1];
    if (p.beta != 0) {
      const float2 old = ptx::unpack<T>(c.words[w]);
      low = fmaf(p.beta, old.x, low);
      high = fmaf(p.beta, old.y, high);
    }
    y.words[w] = ptx::pack<T>(low, high);
  }
  *reinterpret_cast<Run *>(static_cast<T *>(p.y) + row * p.y_row_stride + column * p.y_col_stride) = y;
}

}  // namespace bsrg::narrow
