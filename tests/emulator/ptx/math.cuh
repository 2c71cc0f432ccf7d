// As kernels/ptx/math.cuh, but exact.
#pragma once

namespace bsrg::ptx {

inline float max_or_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::fmax(a, b); }
inline float times_unless_zero(float factor, float x) { return factor == 0.f ? 0.f : factor * x; }
inline uint32_t highest_bit(uint32_t bits) { return 31 - std::countl_zero(bits); }
inline float exp2(float x) { return ::exp2f(x); }
inline float log2(float x) { return ::log2f(x); }
inline float reciprocal(float x) { return 1.f / x; }
inline double reciprocal(double x) { return 1. / x; }

}  // namespace bsrg::ptx
