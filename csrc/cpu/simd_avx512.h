/* The vector vocabulary on AVX-512 (F, BW, VL, DQ). Every simd_*.h defines the same names, for the element
 * types f32, f64, f16 and bf16: load and store, whole or only the first n lanes (the rest read as zero);
 * and for the accumulator types f32 and f64: zero, set1, add, mul, fma, sum, div, max (b where either is NaN), round
 * (to an integer, for numbers below 2^22) and ldexp (x * 2^n for a whole n of at most 127, 0 where 2^n is no normal
 * number). Loads of 16-bit elements
 * widen to f32, stores round to nearest even and keep NaN. No access needs alignment beyond the element's. */
#ifndef BSRG_SIMD_AVX512_H
#define BSRG_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* 8 x 3 sums, 3 vectors of B and one of A: 28 of 32 registers, 11 loads for 24 multiply-adds. */
#define BSRG_TILE_ROWS 8
#define BSRG_TILE_VECTORS 3
/* Sums that a dot kernel keeps. */
#define BSRG_DOT_SUMS 16
#define F32_LANES 16
#define F64_LANES 8

typedef __m512 f32_vec;
typedef __m512d f64_vec;
typedef float f32_t;
typedef double f64_t;
typedef uint16_t f16_t;
typedef uint16_t bf16_t;

static inline f32_vec f32_zero(void) { return _mm512_setzero_ps(); }
static inline f32_vec f32_set1(float x) { return _mm512_set1_ps(x); }
static inline f32_vec f32_add(f32_vec a, f32_vec b) { return _mm512_add_ps(a, b); }
static inline f32_vec f32_mul(f32_vec a, f32_vec b) { return _mm512_mul_ps(a, b); }
static inline f32_vec f32_fma(f32_vec a, f32_vec b, f32_vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline float f32_sum(f32_vec v) { return _mm512_reduce_add_ps(v); }

static inline f64_vec f64_zero(void) { return _mm512_setzero_pd(); }
static inline f64_vec f64_set1(double x) { return _mm512_set1_pd(x); }
static inline f64_vec f64_add(f64_vec a, f64_vec b) { return _mm512_add_pd(a, b); }
static inline f64_vec f64_mul(f64_vec a, f64_vec b) { return _mm512_mul_pd(a, b); }
static inline f64_vec f64_fma(f64_vec a, f64_vec b, f64_vec c) { return _mm512_fmadd_pd(a, b, c); }
static inline double f64_sum(f64_vec v) { return _mm512_reduce_add_pd(v); }

static inline f32_vec f32_div(f32_vec a, f32_vec b) { return _mm512_div_ps(a, b); }
static inline f32_vec f32_max(f32_vec a, f32_vec b) { return _mm512_max_ps(a, b); }
static inline f32_vec f32_round(f32_vec x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline f32_vec f32_ldexp(f32_vec x, f32_vec n) {
  const __mmask16 normal = _mm512_cmp_ps_mask(n, _mm512_set1_ps(-126), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, x, n);
}

static inline f64_vec f64_div(f64_vec a, f64_vec b) { return _mm512_div_pd(a, b); }
static inline f64_vec f64_max(f64_vec a, f64_vec b) { return _mm512_max_pd(a, b); }
static inline f64_vec f64_round(f64_vec x) {
  return _mm512_roundscale_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline f64_vec f64_ldexp(f64_vec x, f64_vec n) {
  const __mmask8 normal = _mm512_cmp_pd_mask(n, _mm512_set1_pd(-1022), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_pd(normal, x, n);
}

static inline __mmask16 bsrg_first16(int64_t n) { return (__mmask16)((1u << n) - 1); }
static inline __mmask8 bsrg_first8(int64_t n) { return (__mmask8)((1u << n) - 1); }

static inline f32_vec f32_load(const float *p) { return _mm512_loadu_ps(p); }
static inline f32_vec f32_load_part(const float *p, int64_t n) {
  return _mm512_maskz_loadu_ps(bsrg_first16(n), p);
}
static inline void f32_store(float *p, f32_vec v) { _mm512_storeu_ps(p, v); }
static inline void f32_store_part(float *p, f32_vec v, int64_t n) {
  _mm512_mask_storeu_ps(p, bsrg_first16(n), v);
}

static inline f64_vec f64_load(const double *p) { return _mm512_loadu_pd(p); }
static inline f64_vec f64_load_part(const double *p, int64_t n) {
  return _mm512_maskz_loadu_pd(bsrg_first8(n), p);
}
static inline void f64_store(double *p, f64_vec v) { _mm512_storeu_pd(p, v); }
static inline void f64_store_part(double *p, f64_vec v, int64_t n) {
  _mm512_mask_storeu_pd(p, bsrg_first8(n), v);
}

static inline __m256i bsrg_narrow_f16(f32_vec v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline f32_vec f16_load(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline f32_vec f16_load_part(const uint16_t *p, int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(bsrg_first16(n), p));
}
static inline void f16_store(uint16_t *p, f32_vec v) {
  _mm256_storeu_si256((__m256i *)(void *)p, bsrg_narrow_f16(v));
}
static inline void f16_store_part(uint16_t *p, f32_vec v, int64_t n) {
  _mm256_mask_storeu_epi16(p, bsrg_first16(n), bsrg_narrow_f16(v));
}

static inline f32_vec bsrg_widen_bf16(__m256i v) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
/* Not AVX512_BF16's conversion, which flushes subnormal numbers to zero. */
static inline __m256i bsrg_narrow_bf16(f32_vec v) {
  __m512i bits = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
static inline f32_vec bf16_load(const uint16_t *p) {
  return bsrg_widen_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline f32_vec bf16_load_part(const uint16_t *p, int64_t n) {
  return bsrg_widen_bf16(_mm256_maskz_loadu_epi16(bsrg_first16(n), p));
}
static inline void bf16_store(uint16_t *p, f32_vec v) {
  _mm256_storeu_si256((__m256i *)(void *)p, bsrg_narrow_bf16(v));
}
static inline void bf16_store_part(uint16_t *p, f32_vec v, int64_t n) {
  _mm256_mask_storeu_epi16(p, bsrg_first16(n), bsrg_narrow_bf16(v));
}

#endif
