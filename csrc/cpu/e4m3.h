/* 8-bit elements on the CPU, which computes with them as float32. */
#ifndef BSRG_CPU_E4M3_H
#define BSRG_CPU_E4M3_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float bsrg_from_e4m3(uint8_t bits) {
  /* Exponents count from -7 instead of -127; multiplying by 2^120 takes subnormal numbers along. */
  const uint32_t magnitude = (uint32_t)(bits & 127) << 20, sign = (uint32_t)(bits & 128) << 24;
  float value;
  memcpy(&value, &magnitude, sizeof value);
  value = (bits & 127) == 127 ? NAN : value * 0x1p120f;
  return sign ? -value : value;
}

static inline float bsrg_from_e5m2(uint8_t bits) {
  /* Likewise from -15. The largest exponent is that of infinity and NaN. */
  const uint32_t magnitude = (uint32_t)(bits & 127) << 21, sign = (uint32_t)(bits & 128) << 24;
  float value;
  memcpy(&value, &magnitude, sizeof value);
  value = (bits & 127) > 124 ? NAN : (bits & 127) == 124 ? INFINITY : value * 0x1p112f;
  return sign ? -value : value;
}

/* destination: float[rows][width], of which columns are written. */
static inline void bsrg_widen_e4m3(float *destination, int64_t width, const char *source, int64_t row_stride,
                                   int64_t col_stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      destination[r * width + c] = bsrg_from_e4m3((uint8_t)source[r * row_stride + c * col_stride]);
}

#endif
