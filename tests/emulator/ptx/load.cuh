// As kernels/ptx/load.cuh.
#pragma once

namespace bsrg::ptx {

inline uint16_t load_here(const uint16_t *from) { return *from; }
template <typename T>
void settle(T &) {}

}  // namespace bsrg::ptx
