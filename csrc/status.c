#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

bsrg_status bsrg_fail(bsrg_error *error, bsrg_status status, const char *format, ...) {
  if (error != NULL) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
  }
  return status;
}

size_t bsrg_dtype_size(bsrg_dtype dtype) {
  switch (dtype) {
    case BSRG_F16:
    case BSRG_BF16:
      return 2;
    case BSRG_F32:
      return 4;
    case BSRG_F64:
      return 8;
    case BSRG_F8_E4M3:
    case BSRG_F8_E5M2:
      return 1;
  }
  return 0;
}

const char *bsrg_dtype_name(bsrg_dtype dtype) {
  switch (dtype) {
    case BSRG_F16:
      return "float16";
    case BSRG_BF16:
      return "bfloat16";
    case BSRG_F32:
      return "float32";
    case BSRG_F64:
      return "float64";
    case BSRG_F8_E4M3:
      return "float8_e4m3fn";
    case BSRG_F8_E5M2:
      return "float8_e5m2";
  }
  return "unknown";
}

const char *bsrg_family_name(bsrg_family family) {
  switch (family) {
    case BSRG_AUTO:
      return "auto";
    case BSRG_TALL:
      return "tall";
    case BSRG_STREAM:
      return "stream";
    case BSRG_REGROUP:
      return "regroup";
    case BSRG_ALIGN:
      return "align";
    case BSRG_NARROW:
      return "narrow";
    case BSRG_PORTABLE:
      return "portable";
    case BSRG_HOST:
      return "cpu";
    case BSRG_ATTENTION_HOPPER:
      return "hopper";
    case BSRG_ATTENTION_DECODE:
      return "decode";
    case BSRG_SAMPLED:
      return "sampled";
    case BSRG_PAIRS:
      return "pairs";
    case BSRG_KMAJOR:
      return "kmajor";
    case BSRG_WIDEN:
      return "widen";
    case BSRG_KSTREAM:
      return "kstream";
    case BSRG_COVER:
      return "cover";
    case BSRG_SPREAD:
      return "spread";
    case BSRG_FAMILY_COUNT:
      break;
  }
  return "unknown";
}
