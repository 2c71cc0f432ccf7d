/* The kernels for processors without the vector instructions below, and for other architectures. */
#include "simd_generic.h"

#define BSRG_ISA_TABLE bsrg_cpu_generic
#include "isa.inc"
