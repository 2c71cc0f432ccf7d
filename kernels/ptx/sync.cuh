// Thin names for the PTX of barriers, proxies, clusters and register budgets. One instruction each, no
// policy.
#pragma once

#include <climits>
#include <cstdint>

namespace bsrg::ptx {

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The warp's index in its block, as a value that the compiler knows to be uniform across the warp.
__device__ __forceinline__ int warp_index() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);
}

// ---- mbarrier -----------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Predicated, so that lanes with different barriers do not part.
__device__ __forceinline__ void barrier_arrive_if(uint32_t barrier, bool here) {
  asm volatile(
      "{\n"
      ".reg .pred here;\n"
      "setp.ne.b32 here, %1, 0;\n"
      "@here mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(static_cast<int>(here))
      : "memory");
}

__device__ __forceinline__ void barrier_arrive_cluster_if(uint32_t barrier, bool here) {
  asm volatile(
      "{\n"
      ".reg .pred here;\n"
      "setp.ne.b32 here, %1, 0;\n"
      "@here mbarrier.arrive.shared::cluster.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(static_cast<int>(here))
      : "memory");
}

__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// The address may be another CTA's. The default semantics are used, which hold within a CTA: an explicit .release.cluster is
// much slower. So this arrival may overtake loads of shared memory that have been issued before.
__device__ __forceinline__ void barrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The same behind a load of shared memory that gave `read`, which is never INT_MIN: the address waits for it, by a choice that
// the compiler cannot foresee.
__device__ __forceinline__ void barrier_arrive_cluster_behind(uint32_t barrier, int read) {
  barrier_arrive_cluster(read == INT_MIN ? 0 : barrier);
}

__device__ __forceinline__ void barrier_arrive_expect_cluster(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait_%=;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// The same by a warp, of which one lane arrives or sends next. Each lane looks by itself, and parities are ambiguous to one that
// is a lap behind: before the phase can end a second time, all must have seen it end.
__device__ __forceinline__ void barrier_wait_by_warp(uint32_t barrier, uint32_t parity) {
  barrier_wait(barrier, parity);
  __syncwarp();
}

// ---- grids that follow one another --------------------------------------------------------------

// Programmatic dependent launch: a kernel may begin on SMs that the one before it in its stream has left, and prepare
// itself there. Before it touches memory it waits until that one has ended and its writes can be seen. bsrg_launch asks for
// that, so every kernel must wait; tools/check_kernels.py looks whether it does.
__device__ __forceinline__ void wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Before that wait, though, a kernel may read what the host has uploaded before the launch, which no kernel writes, and have
// lines of memory brought to L2, where they stay right whoever writes them. Such loads have a way past L1 of their own, by which
// tools/check_kernels.py knows them. They do not say that nobody writes there (.nc): ptxas moves those behind the wait.
template <typename T>
__device__ __forceinline__ T load_uploaded(const T *from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "the widths of a load");
  T value;
  if constexpr (sizeof(T) == 4)
    asm volatile("ld.global.L1::no_allocate.b32 %0, [%1];" : "=r"(value) : "l"(from));
  else if constexpr (sizeof(T) == 16)
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
  else
    asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(from));
  return value;
}

// The line of 128 bytes.
__device__ __forceinline__ void prefetch_l2(const void *from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// The next one may begin as CTAs of this one leave their SMs, not only when all have. Not before the wait: whatever ran
// earlier has ended by then, on which kernels of others may count.
__device__ __forceinline__ void follow_grid_before() {
  wait_for_grid_before();
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// ---- named barriers, clusters -------------------------------------------------------------------

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts among the barrier's threads without waiting for it.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of the cluster meet; in two halves there may be other work between. Nobody sees more of what others have written
// than barriers that barrier_init_fence follows: to publish all of it took a kernel of 10 us up to 0.6.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The address that a shared-memory address of this CTA has in CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t map_to_rank(uint32_t address, int rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// 16 bytes into the shared memory of any CTA of the cluster; counts as 16 bytes on that CTA's barrier.
__device__ __forceinline__ void store_async(uint32_t address, int4 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, int4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, int value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, uint16_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, float2 value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value.x), "f"(value.y) : "memory");
}

__device__ __forceinline__ float load_shared_float(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ float2 load_shared_float2(uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ int4 load_shared_int4(uint32_t address) {
  int4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// Replaces a word that others write too.
__device__ __forceinline__ int exchange_shared(uint32_t address, int value) {
  int before;
  asm volatile("atom.shared.exch.b32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(value) : "memory");
  return before;
}

__device__ __forceinline__ int load_shared_int(uint32_t address) {
  int value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

// ---- proxies and registers ----------------------------------------------------------------------

// Orders ordinary shared-memory stores of this thread before later TMA or WGMMA reads of the same bytes.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// By all warps of a warpgroup: the registers a thread may use from here on.
template <int kRegisters>
__device__ __forceinline__ void give_back_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace bsrg::ptx
