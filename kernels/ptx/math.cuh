// Instructions of arithmetic that CUDA C++ has no name for.
#pragma once

#include <cstdint>

namespace bsrg::ptx {

// Unlike fmaxf: NaN where either is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// factor * x, but 0 for a factor of 0, whatever x is.
__device__ __forceinline__ float times_unless_zero(float factor, float x) {
  return factor == 0.f ? 0.f : factor * x;
}

__device__ __forceinline__ uint32_t highest_bit(uint32_t bits) {
  uint32_t number;
  asm("bfind.u32 %0, %1;" : "=r"(number) : "r"(bits));
  return number;
}

// Approximations of the special function unit, wrong by about 2^-22.

__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Of float64 the upper 20 bits are right.
__device__ __forceinline__ double reciprocal(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}

}  // namespace bsrg::ptx
