/* The kernels for every processor without AVX2 and for other architectures: 16-byte vectors, which GCC and
 * clang map to SSE2, NEON or whatever there is. */
#include "cpu.h"
#include "simd_generic.h"

#define BSRG_ISA_OPS bsrg_cpu_generic_ops
#include "isa.inc"
