/* Register tiles of bfloat16 for x86-64 processors with AVX512_BF16, which multiply pairs along k: two multiply-adds for one
 * of float32, and A is read as it lies. Subnormal numbers count as zero there. The whole file is compiled for these
 * processors, so nothing in it may run before cpu.c has asked for them. */
#include "cpu.h"

#if defined(BSRG_HAS_BF16_PAIRS)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(                                                               \
    __attribute__((target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

#include "isa_macros.h"
#include "simd_avx512.h"

/* Elements 2k and 2k + 1 of a row of A, or of a column of X. */
typedef uint32_t __attribute__((aligned(2), may_alias)) bf16_pair_t;
typedef __m512i bf16_pair_vec;

static inline bf16_pair_vec bf16_pair_load(const bf16_pair_t *p) { return _mm512_loadu_si512(p); }
static inline bf16_pair_vec bf16_pair_set1(uint32_t pair) { return _mm512_set1_epi32((int)pair); }
static inline f32_vec bf16_pair_fma(bf16_pair_vec a, bf16_pair_vec b, f32_vec c) {
  return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

#define SUM f32
#define FACTOR bf16_pair
#include "tile.inc"

enum { LANES = F32_LANES, WIDTH = BSRG_TILE_VECTORS * LANES };

/* Two rows of X, element by element. */
static void pack_row(bf16_pair_t *destination, int64_t width, const uint16_t *first, const uint16_t *second,
                     int64_t columns) {
  for (int64_t j = 0; j < width; j += LANES) {
    const __mmask16 mask = bsrg_first16(bsrg_max(0, bsrg_min(LANES, columns - j)));
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, first + j));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, second + j));
    _mm512_storeu_si512(destination + j, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
}

static void pack(void *destination, int64_t width, const void *source, int64_t row_stride, int64_t col_stride,
                 int64_t pairs, int64_t columns) {
  enum { AHEAD = 16, ROWS = 16 };
  bf16_pair_t *out = destination;
  const uint16_t *in = source;
  if (col_stride == 1) {
    for (int64_t k = 0; k < pairs; k++, in += 2 * row_stride) {
      if (k + AHEAD < pairs) { /* rows of X lie too far apart for the processor's own prefetchers */
        for (int64_t j = 0; j < columns; j += 64 / (int64_t)sizeof *in) {
          __builtin_prefetch(in + 2 * AHEAD * row_stride + j);
          __builtin_prefetch(in + (2 * AHEAD + 1) * row_stride + j);
        }
      }
      pack_row(out + k * width, width, in, in + row_stride, columns);
    }
    return;
  }
  uint16_t block[2 * ROWS][WIDTH];
  for (int64_t k0 = 0; k0 < pairs; k0 += ROWS) {
    const int64_t count = bsrg_min(ROWS, pairs - k0);
    for (int64_t j = 0; j < columns; j++) {
      const uint16_t *column = in + 2 * k0 * row_stride + j * col_stride;
      for (int64_t k = 0; k < 2 * count; k++) block[k][j] = column[k * row_stride];
    }
    for (int64_t k = 0; k < count; k++)
      pack_row(out + (k0 + k) * width, width, block[2 * k], block[2 * k + 1], columns);
  }
}

bsrg_cpu_ops bsrg_cpu_bf16_pair_ops(const bsrg_cpu_ops *ops) {
  bsrg_cpu_ops pairs = *ops;
  pairs.element_size = sizeof(bf16_pair_t);
  pairs.element_k = 2;
  pairs.tile = bf16_pair_tiles;
  pairs.pack = pack;
  return pairs;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
