/* The kernels for every processor without AVX2 and for other architectures: 16-byte vectors, which GCC and
 * clang map to SSE2, NEON or whatever there is. */
#include "cpu.h"
#include "simd_generic.h"

#define BSRG_ISA_TABLE bsrg_cpu_generic
#include "isa.inc"
