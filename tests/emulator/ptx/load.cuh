#pragma once

namespace bsrg::ptx {

inline uint16_t load_here(const uint16_t *from) { return *from; }

}  // namespace bsrg::ptx
