// As kernels/ptx/sync.cuh, of which the kernels for sm_80 use this.
#pragma once

namespace bsrg::ptx {

inline uint32_t shared_address(const void *pointer) { return emulation::shared_address(pointer); }
inline int warp_index() { return emulation::thread().warp; }
inline void wait_for_grid_before() {}
inline void follow_grid_before() {}
inline void prefetch_l2(const void *) {}

template <typename T>
T load_uploaded(const T *from) {
  return *from;
}

}  // namespace bsrg::ptx
