// 8-bit floats as 16-bit ones of either type, which have all of their values.
#pragma once

#include "ptx/convert.cuh"

namespace bsrg::ptx {

// Two float16 as two of another type.
template <typename To>
__device__ __forceinline__ uint32_t from_half(uint32_t two);

template <>
__device__ __forceinline__ uint32_t from_half<__half>(uint32_t two) {
  return two;
}

template <>
__device__ __forceinline__ uint32_t from_half<__nv_bfloat16>(uint32_t two) {
  const float2 wide = __half22float2(*reinterpret_cast<const __half2 *>(&two));
  return pack<__nv_bfloat16>(wide.x, wide.y);
}

// Four neighbours.
template <typename From, typename To>
__device__ __forceinline__ uint2 widen_four(uint32_t four) {
  return make_uint2(from_half<To>(widen<From>(four, false)), from_half<To>(widen<From>(four, true)));
}

}  // namespace bsrg::ptx
