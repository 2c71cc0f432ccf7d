/* For the files that one source makes for several types: names put together, and loops that must be unrolled. */
#ifndef BSRG_ISA_MACROS_H
#define BSRG_ISA_MACROS_H

#define BSRG_JOIN_(a, b) a##b
#define BSRG_JOIN(a, b) BSRG_JOIN_(a, b)
#define BSRG_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define BSRG_UNROLL _Pragma("clang loop unroll(full)")
#else
#define BSRG_UNROLL _Pragma("GCC unroll 16")
#endif

#endif
