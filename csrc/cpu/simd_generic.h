/* The vector vocabulary (see simd_avx512.h) for any processor: 16-byte vectors of the compiler's own. */
#ifndef BSRG_SIMD_GENERIC_H
#define BSRG_SIMD_GENERIC_H

#include <stdint.h>
#include <string.h>

/* 4 x 2 sums, 2 vectors of B, one of A and a product: 12 of SSE2's 16 registers. */
#define BSRG_TILE_ROWS 4
#define BSRG_TILE_VECTORS 2
#define BSRG_DOT_SUMS 8
#define F32_LANES 4
#define F64_LANES 2

typedef float f32_vec __attribute__((vector_size(16)));
typedef double f64_vec __attribute__((vector_size(16)));
typedef float f32_t;
typedef double f64_t;
typedef uint16_t f16_t;
typedef uint16_t bf16_t;

static inline f32_vec f32_zero(void) { return (f32_vec){0, 0, 0, 0}; }
static inline f32_vec f32_set1(float x) { return (f32_vec){x, x, x, x}; }
static inline f32_vec f32_add(f32_vec a, f32_vec b) { return a + b; }
static inline f32_vec f32_mul(f32_vec a, f32_vec b) { return a * b; }
static inline f32_vec f32_fma(f32_vec a, f32_vec b, f32_vec c) { return a * b + c; }
static inline float f32_sum(f32_vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }

static inline f64_vec f64_zero(void) { return (f64_vec){0, 0}; }
static inline f64_vec f64_set1(double x) { return (f64_vec){x, x}; }
static inline f64_vec f64_add(f64_vec a, f64_vec b) { return a + b; }
static inline f64_vec f64_mul(f64_vec a, f64_vec b) { return a * b; }
static inline f64_vec f64_fma(f64_vec a, f64_vec b, f64_vec c) { return a * b + c; }
static inline double f64_sum(f64_vec v) { return v[0] + v[1]; }

/* Lane by lane: compilers differ in what they offer for comparisons of vectors. */
static inline f32_vec f32_div(f32_vec a, f32_vec b) { return a / b; }
static inline f32_vec f32_max(f32_vec a, f32_vec b) {
  for (int i = 0; i < F32_LANES; ++i) b[i] = a[i] > b[i] ? a[i] : b[i];
  return b;
}
static inline f32_vec f32_round(f32_vec x) {
  const f32_vec large = f32_set1(0x1.8p23f); /* whose neighbours are 1 apart */
  return (x + large) - large;
}
static inline f32_vec f32_ldexp(f32_vec x, f32_vec n) {
  for (int i = 0; i < F32_LANES; ++i) {
    const uint32_t bits = n[i] >= -126 ? (uint32_t)((int)n[i] + 127) << 23 : 0;
    float power;
    memcpy(&power, &bits, sizeof power);
    n[i] = n[i] < -126 ? 0 : x[i] * power;
  }
  return n;
}

static inline f64_vec f64_div(f64_vec a, f64_vec b) { return a / b; }
static inline f64_vec f64_max(f64_vec a, f64_vec b) {
  for (int i = 0; i < F64_LANES; ++i) b[i] = a[i] > b[i] ? a[i] : b[i];
  return b;
}
static inline f64_vec f64_round(f64_vec x) {
  const f64_vec large = f64_set1(0x1.8p52);
  return (x + large) - large;
}
static inline f64_vec f64_ldexp(f64_vec x, f64_vec n) {
  for (int i = 0; i < F64_LANES; ++i) {
    const uint64_t bits = n[i] >= -1022 ? (uint64_t)((int64_t)n[i] + 1023) << 52 : 0;
    double power;
    memcpy(&power, &bits, sizeof power);
    n[i] = n[i] < -1022 ? 0 : x[i] * power;
  }
  return n;
}

static inline f32_vec f32_load(const float *p) {
  f32_vec v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline f32_vec f32_load_part(const float *p, int64_t n) {
  f32_vec v = f32_zero();
  memcpy(&v, p, (size_t)n * sizeof *p);
  return v;
}
static inline void f32_store(float *p, f32_vec v) { memcpy(p, &v, sizeof v); }
static inline void f32_store_part(float *p, f32_vec v, int64_t n) { memcpy(p, &v, (size_t)n * sizeof *p); }

static inline f64_vec f64_load(const double *p) {
  f64_vec v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline f64_vec f64_load_part(const double *p, int64_t n) {
  f64_vec v = f64_zero();
  memcpy(&v, p, (size_t)n * sizeof *p);
  return v;
}
static inline void f64_store(double *p, f64_vec v) { memcpy(p, &v, sizeof v); }
static inline void f64_store_part(double *p, f64_vec v, int64_t n) { memcpy(p, &v, (size_t)n * sizeof *p); }

static inline float bsrg_float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static inline uint32_t bsrg_bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float bsrg_widen_f16(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00) { /* infinity, or NaN made quiet */
    uint32_t quiet = magnitude > 0x7c00 ? 0x400000u : 0;
    return bsrg_float_of(sign | 0x7f800000u | quiet | (magnitude & 0x3ff) << 13);
  }
  /* Read as a float's exponent and mantissa, the number is too small by the ratio of the exponent biases,
   * 2^112; the product is exact and also right for subnormal numbers. */
  return bsrg_float_of(sign | bsrg_bits_of(bsrg_float_of(magnitude << 13) * 0x1p112f));
}

static inline uint16_t bsrg_narrow_f16(float x) {
  uint32_t bits = bsrg_bits_of(x);
  uint32_t sign = bits >> 16 & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to 65536 or more */
  if (magnitude < 0x38800000) {
    /* Below 2^-14 the spacing is 2^-24, as that of floats in [0.5, 1): adding 0.5 rounds there. */
    return (uint16_t)(sign | (bsrg_bits_of(bsrg_float_of(magnitude) + 0.5f) - 0x3f000000));
  }
  uint32_t odd = magnitude >> 13 & 1;
  return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

static inline float bsrg_widen_bf16(uint16_t half) { return bsrg_float_of((uint32_t)half << 16); }

static inline uint16_t bsrg_narrow_bf16(float x) {
  uint32_t bits = bsrg_bits_of(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits | 0x400000) >> 16);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline f32_vec f16_load(const uint16_t *p) {
  return (f32_vec){bsrg_widen_f16(p[0]), bsrg_widen_f16(p[1]), bsrg_widen_f16(p[2]), bsrg_widen_f16(p[3])};
}
static inline f32_vec f16_load_part(const uint16_t *p, int64_t n) {
  f32_vec v = f32_zero();
  for (int64_t i = 0; i < n; i++) v[i] = bsrg_widen_f16(p[i]);
  return v;
}
static inline void f16_store_part(uint16_t *p, f32_vec v, int64_t n) {
  for (int64_t i = 0; i < n; i++) p[i] = bsrg_narrow_f16(v[i]);
}
static inline void f16_store(uint16_t *p, f32_vec v) { f16_store_part(p, v, F32_LANES); }

static inline f32_vec bf16_load(const uint16_t *p) {
  return (f32_vec){bsrg_widen_bf16(p[0]), bsrg_widen_bf16(p[1]), bsrg_widen_bf16(p[2]),
                   bsrg_widen_bf16(p[3])};
}
static inline f32_vec bf16_load_part(const uint16_t *p, int64_t n) {
  f32_vec v = f32_zero();
  for (int64_t i = 0; i < n; i++) v[i] = bsrg_widen_bf16(p[i]);
  return v;
}
static inline void bf16_store_part(uint16_t *p, f32_vec v, int64_t n) {
  for (int64_t i = 0; i < n; i++) p[i] = bsrg_narrow_bf16(v[i]);
}
static inline void bf16_store(uint16_t *p, f32_vec v) { bf16_store_part(p, v, F32_LANES); }

#endif
