// Pairs of 16-bit floats, and twos and fours of 8-bit ones, in a register.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace bsrg::ptx {

template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <>
__device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The same with zeros in place of what is negative; NaN stays NaN.
template <typename T>
__device__ __forceinline__ uint32_t pack_relu(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack_relu<__half>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <>
__device__ __forceinline__ uint32_t pack_relu<__nv_bfloat16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// float8_e4m3fn. What is beyond 448 becomes 448, NaN stays NaN.
__device__ __forceinline__ uint16_t pack_e4m3(float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ uint32_t join(uint16_t low, uint16_t high) {
  uint32_t joined;
  asm("mov.b32 %0, {%1, %2};" : "=r"(joined) : "h"(low), "h"(high));
  return joined;
}

// Two neighbours of four 8-bit floats, the lower or the upper ones, as float16, which has all of their values.
template <typename T>
__device__ __forceinline__ uint32_t widen(uint32_t four, bool upper);

// float8_e5m2 is the upper half of a float16.
template <>
__device__ __forceinline__ uint32_t widen<__nv_fp8_e5m2>(uint32_t four, bool upper) {
  return __byte_perm(four, 0, upper ? 0x3424 : 0x1404);
}

template <>
__device__ __forceinline__ uint32_t widen<__nv_fp8_e4m3>(uint32_t four, bool upper) {
#if __CUDA_ARCH__ >= 890
  uint32_t wide;
  if (upper)
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %1;\n\tcvt.rn.f16x2.e4m3x2 %0, high;\n\t}"
        : "=r"(wide)
        : "r"(four));
  else
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %1;\n\tcvt.rn.f16x2.e4m3x2 %0, low;\n\t}"
        : "=r"(wide)
        : "r"(four));
  return wide;
#else
  // Its exponent counts from 7, that of float16 from 15: eight less, also for the values below the least exponent. What has
  // all bits set would become 480, and is NaN.
  const uint32_t bytes = __byte_perm(four, 0, upper ? 0x3424 : 0x1404);
  const uint32_t small = (bytes & 0x7f007f00u) >> 1 | (bytes & 0x80008000u);
  const __half2 value = __hmul2(*reinterpret_cast<const __half2 *>(&small), __float2half2_rn(256.f));
  return *reinterpret_cast<const uint32_t *>(&value) | __hgt2_mask(__habs2(value), __float2half2_rn(448.f));
#endif
}

template <typename T>
__device__ __forceinline__ float2 unpack(uint32_t packed);

template <>
__device__ __forceinline__ float2 unpack<__half>(uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2 *>(&packed));
}

template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(uint32_t packed) {
  return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u));
}

}  // namespace bsrg::ptx
