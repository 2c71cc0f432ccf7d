// As kernels/ptx/sync.cuh.
#pragma once

namespace bsrg::ptx {

inline uint32_t shared_address(const void *pointer) { return emulation::shared_address(pointer); }
inline int warp_index() { return emulation::thread().warp; }

// ---- mbarrier -----------------------------------------------------------------------------------

inline void barrier_init(uint32_t barrier, int arrivals) { emulation::init_barrier(barrier, arrivals); }
inline void barrier_init_fence() {}
inline void barrier_arrive(uint32_t barrier) { emulation::arrive(barrier, 0); }
inline void barrier_arrive_if(uint32_t barrier, bool here) {
  if (here) emulation::arrive(barrier, 0);
}
inline void barrier_arrive_cluster_if(uint32_t barrier, bool here) { barrier_arrive_if(barrier, here); }
inline void barrier_arrive_expect(uint32_t barrier, int bytes) { emulation::arrive(barrier, bytes); }
inline void barrier_arrive_cluster(uint32_t barrier) { emulation::arrive(barrier, 0); }
inline void barrier_arrive_cluster_behind(uint32_t barrier, int) { emulation::arrive(barrier, 0); }
inline void barrier_arrive_expect_cluster(uint32_t barrier, int bytes) { emulation::arrive(barrier, bytes); }
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (!emulation::is_past(barrier, parity)) emulation::yield();
}

inline void barrier_wait_by_warp(uint32_t barrier, uint32_t parity) {
  barrier_wait(barrier, parity);
  __syncwarp();
}

// ---- grids that follow one another --------------------------------------------------------------

inline void wait_for_grid_before() {}
inline void follow_grid_before() {}
inline void prefetch_l2(const void *) {}
template <typename T>
T load_uploaded(const T *from) {
  return *from;
}

// ---- named barriers, clusters -------------------------------------------------------------------

inline void named_barrier_sync(int id, int threads) { emulation::wait_for_some(id, threads); }
inline void named_barrier_arrive(int id, int threads) { emulation::arrive_with_some(id, threads); }
inline uint32_t cluster_rank() { return emulation::rank_in_cluster(); }
inline void cluster_arrive() { emulation::arrive_in_cluster(); }
inline void cluster_wait() { emulation::wait_for_cluster(); }
inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
inline uint32_t map_to_rank(uint32_t address, int rank) { return emulation::address_in(address, rank); }

template <typename T>
void store_shared(uint32_t address, T value) {
  std::memcpy(emulation::shared(address), &value, sizeof(T));
}
template <typename T>
T load_shared(uint32_t address) {
  T value;
  std::memcpy(&value, emulation::shared(address), sizeof(T));
  return value;
}
inline float load_shared_float(uint32_t address) { return load_shared<float>(address); }
inline float2 load_shared_float2(uint32_t address) { return load_shared<float2>(address); }
inline int4 load_shared_int4(uint32_t address) { return load_shared<int4>(address); }
inline int load_shared_int(uint32_t address) { return load_shared<int>(address); }
inline int exchange_shared(uint32_t address, int value) {
  const int before = load_shared<int>(address);
  store_shared(address, value);
  return before;
}
inline void store_async(uint32_t address, int4 value, uint32_t barrier) {
  emulation::later([=] {
    store_shared(address, value);
    emulation::complete(barrier, 16);
  });
}

// ---- proxies and registers ----------------------------------------------------------------------

inline void fence_async_proxy() {}
template <int kRegisters>
void give_back_registers() {}
template <int kRegisters>
void take_registers() {}

}  // namespace bsrg::ptx
