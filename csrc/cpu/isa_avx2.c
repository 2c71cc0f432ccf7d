/* Kernels for x86-64 with avx2,fma,f16c. The whole file is compiled for them, so nothing here may
 * run before cpu.c has asked the processor. */
#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "simd_avx2.h"

#define BSRG_ISA_TABLE bsrg_cpu_avx2
#include "isa.inc"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else
typedef int bsrg_isa_avx2_is_for_x86; /* ISO C wants a declaration in every file */
#endif
