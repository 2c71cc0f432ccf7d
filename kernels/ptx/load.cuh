// What the compiler leaves where it stands.
#pragma once

#include <cstdint>

namespace bsrg::ptx {

// What no kernel writes meanwhile: __ldg of 16-bit floats is assembly without side effects, which nvcc moves before a branch.
__device__ __forceinline__ uint16_t load_here(const uint16_t *from) {
  uint16_t bits;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(from));
  return bits;
}

// What depends on x is computed from here on: before a main loop it would keep registers busy throughout that.
__device__ __forceinline__ void settle(int &x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void settle(int64_t &x) { asm volatile("" : "+l"(x)); }
__device__ __forceinline__ void settle(uint32_t &x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void settle(uint16_t &x) { asm volatile("" : "+h"(x)); }

}  // namespace bsrg::ptx
