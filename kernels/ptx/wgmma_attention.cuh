// WGMMA forms of attention: scores from two K-major operands in shared memory, and sums with A in registers.
#pragma once

#include <cuda_fp8.h>

#include "ptx/wgmma.cuh"

namespace bsrg::ptx {

// D (+)= A * B, m64nNk16, float32 accumulators as in wgmma.cuh. A: a warp's 16 rows x 16 k in registers; register 0
// has row lane / 4 and k 2 * (lane % 4), 1 is 8 rows below, 2 and 3 are 8 k further. That is where the accumulators of
// another product lie, rounded and packed by twos: 8 of them make the 4 registers. B: MN-major in shared memory.
//
// float8_e4m3fn: m64nNk32, B K-major as every operand of 8 bits. Register 0 has k 4 * (lane % 4) to that + 3, registers
// 2 and 3 are 16 k further: accumulators packed by fours, if B has keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of every 16 where
// k is 4 t to 4 t + 3.
template <typename T, int kN>
struct WgmmaRegisters;

#define BSRG_ACC_16(d, i)                                                                               \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),           \
      "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]), \
      "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define BSRG_ACC_32(d) BSRG_ACC_16(d, 0), BSRG_ACC_16(d, 16)
#define BSRG_ACC_48(d) BSRG_ACC_32(d), BSRG_ACC_16(d, 32)
#define BSRG_ACC_64(d) BSRG_ACC_48(d), BSRG_ACC_16(d, 48)
#define BSRG_ACC_80(d) BSRG_ACC_64(d), BSRG_ACC_16(d, 64)
#define BSRG_ACC_96(d) BSRG_ACC_80(d), BSRG_ACC_16(d, 80)
#define BSRG_ACC_112(d) BSRG_ACC_96(d), BSRG_ACC_16(d, 96)
#define BSRG_ACC_128(d) BSRG_ACC_112(d), BSRG_ACC_16(d, 112)

#define BSRG_D_32                                                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BSRG_D_48 BSRG_D_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define BSRG_D_64 BSRG_D_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BSRG_D_80 BSRG_D_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define BSRG_D_96 BSRG_D_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define BSRG_D_112 \
  BSRG_D_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define BSRG_D_128 \
  BSRG_D_112       \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// COUNT = N / 2 accumulators; A, B and USE are the operands' numbers. MAJOR: how operands in shared memory lie, which
// only instructions of 16-bit floats say.
#define BSRG_DEFINE_WGMMA(CLASS, TYPE, K, MAJOR, N, COUNT, A, B, USE)                                       \
  template <>                                                                                               \
  struct WgmmaRegisters<CLASS, N> {                                                                         \
    static __device__ __forceinline__ void run(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b,       \
                                               int accumulate) {                                            \
      asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " USE                                \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N K ".f32." TYPE "." TYPE " {" BSRG_D_##COUNT \
                   "}, {" A "}, " B ", accumulate, 1, 1" MAJOR ";\n}"                                       \
                   : BSRG_ACC_##COUNT(d)                                                                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                  \
    }                                                                                                       \
  };
#define BSRG_DEFINE_WGMMAS(N, COUNT, A, B, USE)                       \
  BSRG_DEFINE_WGMMA(__half, "f16", "k16", ", 1", N, COUNT, A, B, USE) \
  BSRG_DEFINE_WGMMA(__nv_bfloat16, "bf16", "k16", ", 1", N, COUNT, A, B, USE)
#define BSRG_DEFINE_WGMMAS_8(N, COUNT, A, B, USE) \
  BSRG_DEFINE_WGMMA(__nv_fp8_e4m3, "e4m3", "k32", "", N, COUNT, A, B, USE)
BSRG_DEFINE_WGMMAS(64, 32, "%32, %33, %34, %35", "%36", "%37")
BSRG_DEFINE_WGMMAS(96, 48, "%48, %49, %50, %51", "%52", "%53")
BSRG_DEFINE_WGMMAS(128, 64, "%64, %65, %66, %67", "%68", "%69")
BSRG_DEFINE_WGMMAS(192, 96, "%96, %97, %98, %99", "%100", "%101")
BSRG_DEFINE_WGMMAS(256, 128, "%128, %129, %130, %131", "%132", "%133")
BSRG_DEFINE_WGMMAS_8(64, 32, "%32, %33, %34, %35", "%36", "%37")
BSRG_DEFINE_WGMMAS_8(128, 64, "%64, %65, %66, %67", "%68", "%69")
BSRG_DEFINE_WGMMAS_8(192, 96, "%96, %97, %98, %99", "%100", "%101")
BSRG_DEFINE_WGMMAS_8(256, 128, "%128, %129, %130, %131", "%132", "%133")
#undef BSRG_DEFINE_WGMMAS_8
#undef BSRG_DEFINE_WGMMAS
#undef BSRG_DEFINE_WGMMA

#define BSRG_DEFINE_WGMMA(CLASS, TYPE, K, MAJOR, N, COUNT, A, B, USE)                                       \
  template <>                                                                                               \
  struct Wgmma<CLASS, N, 0, 0> {                                                                            \
    static __device__ __forceinline__ void run(float (&d)[COUNT], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " USE                                \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N K ".f32." TYPE "." TYPE " {" BSRG_D_##COUNT \
                   "}, " A ", " B ", accumulate, 1, 1" MAJOR ";\n}"                                         \
                   : BSRG_ACC_##COUNT(d)                                                                    \
                   : "l"(a), "l"(b), "r"(accumulate));                                                      \
    }                                                                                                       \
  };
#define BSRG_DEFINE_WGMMAS(N, COUNT, A, B, USE)                          \
  BSRG_DEFINE_WGMMA(__half, "f16", "k16", ", 0, 0", N, COUNT, A, B, USE) \
  BSRG_DEFINE_WGMMA(__nv_bfloat16, "bf16", "k16", ", 0, 0", N, COUNT, A, B, USE)
#define BSRG_DEFINE_WGMMAS_8(N, COUNT, A, B, USE) \
  BSRG_DEFINE_WGMMA(__nv_fp8_e4m3, "e4m3", "k32", "", N, COUNT, A, B, USE)
BSRG_DEFINE_WGMMAS(96, 48, "%48", "%49", "%50")
BSRG_DEFINE_WGMMAS(128, 64, "%64", "%65", "%66")
BSRG_DEFINE_WGMMAS_8(128, 64, "%64", "%65", "%66")
BSRG_DEFINE_WGMMAS_8(160, 80, "%80", "%81", "%82")
BSRG_DEFINE_WGMMAS_8(224, 112, "%112", "%113", "%114")
#undef BSRG_DEFINE_WGMMAS_8
#undef BSRG_DEFINE_WGMMAS
#undef BSRG_DEFINE_WGMMA
#undef BSRG_D_32
#undef BSRG_D_48
#undef BSRG_D_64
#undef BSRG_D_80
#undef BSRG_D_96
#undef BSRG_D_112
#undef BSRG_D_128
#undef BSRG_ACC_16
#undef BSRG_ACC_32
#undef BSRG_ACC_48
#undef BSRG_ACC_64
#undef BSRG_ACC_80
#undef BSRG_ACC_96
#undef BSRG_ACC_112
#undef BSRG_ACC_128

// After each wait for WGMMAs: without it the compiler moves uses of their accumulators before the wait, and then
// serialises everything.
template <int kCount>
__device__ __forceinline__ void hold_accumulators(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace bsrg::ptx
