/* The kernels for x86-64 processors with AVX-512 F, BW, VL and DQ. The whole file is compiled for them, so
 * nothing in it may run before cpu.c has asked the processor. */
#include "cpu.h"

#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

#include "simd_avx512.h"

#define BSRG_ISA_OPS bsrg_cpu_avx512_ops
#include "isa.inc"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
