// Loads that the compiler leaves where they stand.
#pragma once

#include <cstdint>

namespace bsrg::ptx {

// What no kernel writes meanwhile: __ldg of 16-bit floats is assembly without side effects, which nvcc moves before a branch.
__device__ __forceinline__ uint16_t load_here(const uint16_t *from) {
  uint16_t bits;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(from));
  return bits;
}

}  // namespace bsrg::ptx
