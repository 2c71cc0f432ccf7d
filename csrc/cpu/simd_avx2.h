/* The vector vocabulary (see simd_avx512.h) on AVX2, FMA and F16C. */
#ifndef BSRG_SIMD_AVX2_H
#define BSRG_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* 4 x 3 sums and 3 vectors of B: 15 of 16 registers, one left for A; 7 loads for 12 multiply-adds. */
#define BSRG_TILE_ROWS 4
#define BSRG_TILE_VECTORS 3
#define BSRG_DOT_SUMS 8
#define F32_LANES 8
#define F64_LANES 4

typedef __m256 f32_vec;
typedef __m256d f64_vec;
typedef float f32_t;
typedef double f64_t;
typedef uint16_t f16_t;
typedef uint16_t bf16_t;

static inline f32_vec f32_zero(void) { return _mm256_setzero_ps(); }
static inline f32_vec f32_set1(float x) { return _mm256_set1_ps(x); }
static inline f32_vec f32_add(f32_vec a, f32_vec b) { return _mm256_add_ps(a, b); }
static inline f32_vec f32_mul(f32_vec a, f32_vec b) { return _mm256_mul_ps(a, b); }
static inline f32_vec f32_fma(f32_vec a, f32_vec b, f32_vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline float f32_sum(f32_vec v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

static inline f64_vec f64_zero(void) { return _mm256_setzero_pd(); }
static inline f64_vec f64_set1(double x) { return _mm256_set1_pd(x); }
static inline f64_vec f64_add(f64_vec a, f64_vec b) { return _mm256_add_pd(a, b); }
static inline f64_vec f64_mul(f64_vec a, f64_vec b) { return _mm256_mul_pd(a, b); }
static inline f64_vec f64_fma(f64_vec a, f64_vec b, f64_vec c) { return _mm256_fmadd_pd(a, b, c); }
static inline double f64_sum(f64_vec v) {
  __m128d half = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}

static inline f32_vec f32_div(f32_vec a, f32_vec b) { return _mm256_div_ps(a, b); }
static inline f32_vec f32_max(f32_vec a, f32_vec b) { return _mm256_max_ps(a, b); }
static inline f32_vec f32_round(f32_vec x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline f32_vec f32_ldexp(f32_vec x, f32_vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  const f32_vec power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  const f32_vec normal = _mm256_cmp_ps(n, _mm256_set1_ps(-126), _CMP_NLT_UQ);
  return _mm256_and_ps(normal, _mm256_mul_ps(x, power));
}

static inline f64_vec f64_div(f64_vec a, f64_vec b) { return _mm256_div_pd(a, b); }
static inline f64_vec f64_max(f64_vec a, f64_vec b) { return _mm256_max_pd(a, b); }
static inline f64_vec f64_round(f64_vec x) {
  return _mm256_round_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline f64_vec f64_ldexp(f64_vec x, f64_vec n) {
  /* The low bits of n + 1.5 * 2^52 are n as an integer: AVX2 has no such conversion. */
  const __m256i integer = _mm256_castpd_si256(_mm256_add_pd(n, _mm256_set1_pd(0x1.8p52)));
  const __m256i exponent = _mm256_add_epi64(integer, _mm256_set1_epi64x(1023));
  const f64_vec power = _mm256_castsi256_pd(_mm256_slli_epi64(exponent, 52));
  const f64_vec normal = _mm256_cmp_pd(n, _mm256_set1_pd(-1022), _CMP_NLT_UQ);
  return _mm256_and_pd(normal, _mm256_mul_pd(x, power));
}

/* All bits set in the first n 32-bit (64-bit) lanes. */
static inline __m256i bsrg_first8(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline __m256i bsrg_first4(int64_t n) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}

static inline f32_vec f32_load(const float *p) { return _mm256_loadu_ps(p); }
static inline f32_vec f32_load_part(const float *p, int64_t n) {
  return _mm256_maskload_ps(p, bsrg_first8(n));
}
static inline void f32_store(float *p, f32_vec v) { _mm256_storeu_ps(p, v); }
static inline void f32_store_part(float *p, f32_vec v, int64_t n) {
  _mm256_maskstore_ps(p, bsrg_first8(n), v);
}

static inline f64_vec f64_load(const double *p) { return _mm256_loadu_pd(p); }
static inline f64_vec f64_load_part(const double *p, int64_t n) {
  return _mm256_maskload_pd(p, bsrg_first4(n));
}
static inline void f64_store(double *p, f64_vec v) { _mm256_storeu_pd(p, v); }
static inline void f64_store_part(double *p, f64_vec v, int64_t n) {
  _mm256_maskstore_pd(p, bsrg_first4(n), v);
}

/* Eight 16-bit elements, or the first n: AVX2 has no 16-bit mask loads, so parts go through the stack. */
static inline __m128i bsrg_load_u16(const uint16_t *p) {
  return _mm_loadu_si128((const __m128i *)(const void *)p);
}
/* In registers: by way of memory it takes 12 ns. n is 8 at most. */
static inline __m128i bsrg_load_u16_part(const uint16_t *p, int64_t n) {
  if (n >= 8) return bsrg_load_u16(p);
  uint64_t low = 0, rest = 0;
  const uint16_t *at = p + (n & 4);
  if (n & 2) {
    uint32_t two;
    memcpy(&two, at, sizeof two);
    rest = two;
  }
  if (n & 1) rest |= (uint64_t)at[n & 2] << (n & 2) * 16;
  if (n & 4) memcpy(&low, p, sizeof low);
  return n & 4 ? _mm_set_epi64x((int64_t)rest, (int64_t)low) : _mm_set_epi64x(0, (int64_t)rest);
}
static inline void bsrg_store_u16(uint16_t *p, __m128i v) { _mm_storeu_si128((__m128i *)(void *)p, v); }
static inline void bsrg_store_u16_part(uint16_t *p, __m128i v, int64_t n) {
  uint16_t lanes[8];
  bsrg_store_u16(lanes, v);
  memcpy(p, lanes, (size_t)n * sizeof *p);
}

static inline __m128i bsrg_narrow_f16(f32_vec v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
static inline f32_vec f16_load(const uint16_t *p) { return _mm256_cvtph_ps(bsrg_load_u16(p)); }
static inline f32_vec f16_load_part(const uint16_t *p, int64_t n) {
  return _mm256_cvtph_ps(bsrg_load_u16_part(p, n));
}
static inline void f16_store(uint16_t *p, f32_vec v) { bsrg_store_u16(p, bsrg_narrow_f16(v)); }
static inline void f16_store_part(uint16_t *p, f32_vec v, int64_t n) {
  bsrg_store_u16_part(p, bsrg_narrow_f16(v), n);
}

static inline f32_vec bsrg_widen_bf16(__m128i v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
static inline __m128i bsrg_narrow_bf16(f32_vec v) {
  __m256i bits = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
static inline f32_vec bf16_load(const uint16_t *p) { return bsrg_widen_bf16(bsrg_load_u16(p)); }
static inline f32_vec bf16_load_part(const uint16_t *p, int64_t n) {
  return bsrg_widen_bf16(bsrg_load_u16_part(p, n));
}
static inline void bf16_store(uint16_t *p, f32_vec v) { bsrg_store_u16(p, bsrg_narrow_bf16(v)); }
static inline void bf16_store_part(uint16_t *p, f32_vec v, int64_t n) {
  bsrg_store_u16_part(p, bsrg_narrow_bf16(v), n);
}

#endif
