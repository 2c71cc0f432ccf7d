// Warpgroup matrix instructions as in wgmma.cuh, of three panels of 64 columns.
#pragma once

#include "ptx/wgmma.cuh"

namespace bsrg::ptx {

#define BSRG_ACC_8(d, i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define BSRG_ACC_32(d, i) BSRG_ACC_8(d, i), BSRG_ACC_8(d, i + 8), BSRG_ACC_8(d, i + 16), BSRG_ACC_8(d, i + 24)
#define BSRG_ACC_64(d) BSRG_ACC_32(d, 0), BSRG_ACC_32(d, 32)
#define BSRG_ACC_96(d) BSRG_ACC_64(d), BSRG_ACC_32(d, 64)

#define BSRG_D_64                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define BSRG_D_96                                                                                         \
  BSRG_D_64                                                                                               \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83," \
  " %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

// COUNT = N / 2 accumulators; A to TB are the operands' numbers.
#define BSRG_DEFINE_WGMMA(CLASS, TYPE, N, COUNT, A, B, USE, TA, TB)                                          \
  template <int kTransposeA, int kTransposeB>                                                                \
  struct Wgmma<CLASS, N, kTransposeA, kTransposeB> {                                                         \
    static __device__ __forceinline__ void run(float (&d)[COUNT], uint64_t a, uint64_t b, int accumulate) {  \
      asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " USE                                 \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" BSRG_D_##COUNT \
                   "}, " A ", " B ", accumulate, 1, 1, " TA ", " TB ";\n}"                                   \
                   : BSRG_ACC_##COUNT(d)                                                                     \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeA), "n"(kTransposeB));                   \
    }                                                                                                        \
  };
BSRG_DEFINE_WGMMA(__half, "f16", 192, 96, "%96", "%97", "%98", "%99", "%100")
BSRG_DEFINE_WGMMA(__nv_bfloat16, "bf16", 192, 96, "%96", "%97", "%98", "%99", "%100")
#undef BSRG_DEFINE_WGMMA
#undef BSRG_D_96
#undef BSRG_D_64
#undef BSRG_ACC_96
#undef BSRG_ACC_64
#undef BSRG_ACC_32
#undef BSRG_ACC_8

}  // namespace bsrg::ptx
