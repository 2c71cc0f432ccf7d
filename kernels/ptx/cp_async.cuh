// cp.async: copies from global to shared memory that bypass registers (sm_80 and up).
//
// A thread's copies are grouped by cp_async_commit; after cp_async_wait<n> all but its n latest groups have
// landed, for this thread. Other threads see them after a barrier.
#pragma once

#include <cstdint>

namespace bsrg::ptx {

// kBytes zeros where read is false; nothing is read then. 16-byte copies pass L1 by, smaller ones cannot.
template <int kBytes>
__device__ __forceinline__ void cp_async(uint32_t destination, const void *source, bool read) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "the sizes that cp.async has");
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
                 "r"(read ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(destination), "l"(source), "n"(kBytes),
                 "r"(read ? kBytes : 0)
                 : "memory");
}

// 16 bytes that will not be read again, and whose neighbours are asked for at about the same time.
__device__ __forceinline__ void cp_async_stream(uint32_t destination, const void *source, bool read) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(read ? 16 : 0)
               : "memory");
}

// 16 bytes that will not be read again, and leave L2 before others do. Only in machine code, which tools/check_kernels.py has
// looked at, and not in PTX for other GPUs: ptxas 13.0 makes illegal instructions of such copies where part of the address in
// shared memory is the same for all lanes. So it does where they say L2::128B, too.
__device__ __forceinline__ void cp_async_evict_first(uint32_t destination, const void *source, bool read) {
#if __CUDA_ARCH__ == 900
  uint64_t policy;  // without side effects, so that there is one for all copies
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(destination),
               "l"(source), "r"(read ? 16 : 0), "l"(policy)
               : "memory");
#else
  cp_async_stream(destination, source, read);
#endif
}

// The first `bytes` of 16, then zeros. Costs a few instructions more than all or nothing.
__device__ __forceinline__ void cp_async_part(uint32_t destination, const void *source, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace bsrg::ptx
