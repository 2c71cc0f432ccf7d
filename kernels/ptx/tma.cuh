// Tensor-map copies (TMA) between global and shared memory, with L2 cache hints.
#pragma once

#include <cstdint>

#include "params.h"

namespace bsrg::ptx {

// ---- L2 eviction policies -----------------------------------------------------------------------

__device__ __forceinline__ uint64_t policy_evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t policy_evict_normal() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t policy_evict_last() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// ---- loads: completion counts as bytes on an mbarrier -------------------------------------------

__device__ __forceinline__ void tma_load_2d(uint32_t destination, const bsrg_tensor_map &map, int x, int y,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void tma_load_2d(uint32_t destination, const bsrg_tensor_map &map, int x, int y,
                                            uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
      : "memory");
}

// Multicast: to the same shared-memory offset, and the barrier at the same offset, of every CTA in cta_mask.
__device__ __forceinline__ void tma_load_2d_multicast(uint32_t destination, const bsrg_tensor_map &map, int x,
                                                      int y, uint32_t barrier, uint16_t cta_mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(cta_mask)
      : "memory");
}

__device__ __forceinline__ void tma_load_2d_multicast(uint32_t destination, const bsrg_tensor_map &map, int x,
                                                      int y, uint32_t barrier, uint16_t cta_mask,
                                                      uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
      "cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(cta_mask), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_3d(uint32_t destination, const bsrg_tensor_map &map, int x, int y,
                                            int z, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ __forceinline__ void tma_load_3d(uint32_t destination, const bsrg_tensor_map &map, int x, int y,
                                            int z, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_4d(uint32_t destination, const bsrg_tensor_map &map, int x, int y,
                                            int z, int w, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], "
      "[%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

__device__ __forceinline__ void tma_load_3d_multicast(uint32_t destination, const bsrg_tensor_map &map, int x,
                                                      int y, int z, uint32_t barrier, uint16_t cta_mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(cta_mask)
      : "memory");
}

// Contiguous bytes, a multiple of 16, from a 16-byte boundary to one.
__device__ __forceinline__ void bulk_load(uint32_t destination, const void *source, int bytes,
                                          uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void bulk_load(uint32_t destination, const void *source, int bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// Multicast, as above.
__device__ __forceinline__ void bulk_load_multicast(uint32_t destination, const void *source, int bytes,
                                                    uint32_t barrier, uint16_t cta_mask, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4, %5;" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "h"(cta_mask), "l"(policy)
      : "memory");
}

// From this CTA's shared memory to that of another one in the cluster, whose barrier counts the bytes. What is copied has to
// stay until they have arrived there.
__device__ __forceinline__ void bulk_send(uint32_t destination, uint32_t source, int bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          destination),
      "r"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// ---- stores: completion counts in bulk groups of the issuing thread -----------------------------

__device__ __forceinline__ void tma_store_2d(const bsrg_tensor_map &map, uint32_t source, int x, int y,
                                             uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1], %4;" ::"l"(
          &map),
      "r"(source), "r"(x), "r"(y), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_store_4d(const bsrg_tensor_map &map, uint32_t source, int x, int y, int z,
                                             int w, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], "
      "%6;" ::"l"(&map),
      "r"(source), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most kPending of this thread's groups still read their shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace bsrg::ptx
