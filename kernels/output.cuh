// Fused output, shared by all kernels of products: scales, biases and activations (bsrg_output_params) on sums that are
// still in registers, in float32 or float64, before the one rounding to Y's type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <cstdint>
#include <type_traits>

#include "params.h"
#include "ptx/load.cuh"
#include "ptx/math.cuh"

namespace bsrg::output {

// What products of T are added up in.
template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

// A load that stays behind the branch that asks whether there is a vector: that of __ldg for 16-bit floats is assembly
// without side effects, which nvcc moves before it, and plain loads of all columns at once take registers that there are
// not.
template <typename T>
__device__ __forceinline__ T load_here(const T *from) {
  if constexpr (sizeof(T) == 2) {
    const uint16_t bits = ptx::load_here(reinterpret_cast<const uint16_t *>(from));
    return *reinterpret_cast<const T *>(&bits);
  } else {
    return __ldg(from);
  }
}

// Element i of a vector, or `otherwise` where there is none. T: the type of Y; S: that of its sums.
template <typename T, typename S>
__device__ __forceinline__ S load(const bsrg_output_vector &v, int64_t i, S otherwise) {
  if (v.data == nullptr || i >= v.count) return otherwise;
  if (v.is_float) return static_cast<S>(load_here(static_cast<const float *>(v.data) + i * v.stride));
  return static_cast<S>(load_here(static_cast<const T *>(v.data) + i * v.stride));
}

// Every 32nd element from the first on, all loads in flight together.
template <typename T, int kCount>
__device__ __forceinline__ void load_strided(float (&elements)[kCount], const bsrg_output_vector &v,
                                             int64_t first, float otherwise) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) elements[i] = otherwise;
  if (v.is_float) {
    const float *from = static_cast<const float *>(v.data) + first * v.stride;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (first + 32 * i < v.count) elements[i] = load_here(from + 32 * i * v.stride);
  } else {
    const T *from = static_cast<const T *>(v.data) + first * v.stride;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (first + 32 * i < v.count) elements[i] = static_cast<float>(load_here(from + 32 * i * v.stride));
  }
}

template <typename T, typename S>
__device__ __forceinline__ S scale(const bsrg_output_params &p, int64_t row, int64_t column) {
  return load<T>(p.row_scale, row, S{1}) * load<T>(p.col_scale, column, S{1});
}

template <typename T, typename S>
__device__ __forceinline__ S bias(const bsrg_output_params &p, int64_t row, int64_t column) {
  return load<T>(p.row_bias, row, S{0}) + load<T>(p.col_bias, column, S{0});
}

// Like torch's: NaN stays NaN.
__device__ __forceinline__ float relu(float x) { return ptx::max_or_nan(x, 0.f); }
__device__ __forceinline__ double relu(double x) { return x < 0 ? 0 : x; }

// GELU, its tanh form and SiLU are x (1 - share) for x from 0 on and -|x| share below, with a share that falls from 1/2
// to 0. The special function unit takes eight cycles for an instruction of a warp, the others one or two: for sums that
// are rounded to 16 bits the share has one of that unit, and polynomials. Results are right to 3e-4 of their difference
// from ReLU, GELU's up to |x| = 5.6, beyond which that is below 6e-8. As in torch, that of negative infinity is NaN: it times 0.
__device__ __forceinline__ float less_share(float x, float share) {
  return fmaf(-fabsf(fminf(x, FLT_MAX)), share, relu(x));
}

// 2^p(|x|), p a polynomial.
__device__ __forceinline__ float gelu(const bsrg_output_params &p, float x) {
  const float size = fabsf(x);
  float y = p.curve[BSRG_OUTPUT_GELU_TERMS - 1];
#pragma unroll
  for (int i = BSRG_OUTPUT_GELU_TERMS - 2; i >= 0; --i) y = fmaf(y, size, p.curve[i]);
  return less_share(x, ptx::exp2(y));
}

// e / (1 + e) with e = 2^(|x| q), q = curve[0], or with curve[1] x^2 besides: a polynomial of e up to 1.
template <bool kCubic>
__device__ __forceinline__ float logistic(const bsrg_output_params &p, float x) {
  const float q = kCubic ? fmaf(p.curve[1], x * x, p.curve[0]) : p.curve[0];
  const float e = ptx::exp2(fabsf(x) * q);
  float share = p.curve[2];
#pragma unroll
  for (int i = 3; i < BSRG_OUTPUT_CURVE_TERMS; ++i) share = fmaf(share, e, p.curve[i]);
  return less_share(x, share * e);
}

// Calls all(function of a sum): the choice stays outside of loops that are unrolled.
template <typename All>
__device__ __forceinline__ void with_curve(const bsrg_output_params &p, All all) {
  if (p.activation == BSRG_OUTPUT_GELU)
    all([&p](float x) { return gelu(p, x); });
  else if (p.activation == BSRG_OUTPUT_SILU)
    all([&p](float x) { return logistic<false>(p, x); });
  else
    all([&p](float x) { return logistic<true>(p, x); });
}

__device__ __forceinline__ float activate(const bsrg_output_params &p, float x) {
  if (p.activation == BSRG_OUTPUT_IDENTITY) return x;
  if (p.activation == BSRG_OUTPUT_RELU) return relu(x);
  if (p.activation == BSRG_OUTPUT_GELU) return gelu(p, x);
  return p.activation == BSRG_OUTPUT_SILU ? logistic<false>(p, x) : logistic<true>(p, x);
}

// The same of several, with one choice for all of them.
template <int kCount>
__device__ __forceinline__ void activate(const bsrg_output_params &p, float (&x)[kCount]) {
  if (p.activation == BSRG_OUTPUT_RELU) {
#pragma unroll
    for (float &value : x) value = relu(value);
  } else if (p.activation != BSRG_OUTPUT_IDENTITY) {
    with_curve(p, [&x](auto curve) {
#pragma unroll
      for (float &value : x) value = curve(value);
    });
  }
}

// The steps after alpha and C of one element.
template <typename T>
__device__ __forceinline__ float finish(const bsrg_output_params &p, int64_t row, int64_t column,
                                        float value) {
  return activate(p, value + bias<T, float>(p, row, column));
}

// All activations to the precision of S. Long code, for loops that are not unrolled.
template <typename S>
__device__ __forceinline__ S activate_exactly(int activation, S x) {
  switch (activation) {
    case BSRG_OUTPUT_RELU:
      return relu(x);
    case BSRG_OUTPUT_GELU:
      return x * (S(0.5) * erfc(x * S(-0.70710678118654752440)));
    case BSRG_OUTPUT_GELU_TANH:
      return x / (S{1} + exp(x * fma(x * x, S(-0.071354816272600248), S(-1.5957691216057308))));
    case BSRG_OUTPUT_SILU:
      return x / (S{1} + exp(-x));
    default:
      return x;
  }
}

}  // namespace bsrg::output
