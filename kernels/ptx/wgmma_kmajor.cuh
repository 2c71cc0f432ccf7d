// WGMMA of tf32 and of 8-bit floats. Both operands are K-major in shared memory, which is all that these types have, and
// an instruction takes 32 bytes of each row: k8 or k32.
#pragma once

#include <cuda_fp8.h>

#include "ptx/wgmma.cuh"

namespace bsrg::ptx {

// Float32 of which the tensor cores read sign, exponent and 10 bits of the mantissa.
struct Tf32 {
  uint32_t bits;
};

// D (+)= A * B, m64nNk8 or k32, float32 accumulators as in wgmma.cuh.
template <typename T, int kN>
struct WgmmaKMajor;

#define BSRG_ACC_16(d, i)                                                                               \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),           \
      "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]), \
      "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define BSRG_ACC_32(d, i) BSRG_ACC_16(d, i), BSRG_ACC_16(d, i + 16)
#define BSRG_ACC_64(d, i) \
  BSRG_ACC_16(d, i), BSRG_ACC_16(d, i + 16), BSRG_ACC_16(d, i + 32), BSRG_ACC_16(d, i + 48)
#define BSRG_D_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define BSRG_D_32 \
  BSRG_D_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BSRG_D_64                                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
  "%59, %60, %61, %62, %63"
#define BSRG_D_128                                                                                    \
  BSRG_D_64                                                                                           \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
  "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, " \
  "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "  \
  "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// COUNT = N / 2 accumulators; D, A, B and USE are the operands' numbers.
#define BSRG_DEFINE_WGMMA(CLASS, TYPE, SHAPE, N, COUNT, ACCUMULATORS, D, A, B, USE)                         \
  template <>                                                                                               \
  struct WgmmaKMajor<CLASS, N> {                                                                            \
    static __device__ __forceinline__ void run(float (&d)[COUNT], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " USE                                \
                   ", 0;\nwgmma.mma_async.sync.aligned." SHAPE ".f32." TYPE "." TYPE " {" D "}, " A ", " B  \
                   ", accumulate, 1, 1;\n}"                                                                 \
                   : ACCUMULATORS                                                                           \
                   : "l"(a), "l"(b), "r"(accumulate));                                                      \
    }                                                                                                       \
  };
#define BSRG_ACC_128(d, i) BSRG_ACC_64(d, i), BSRG_ACC_64(d, i + 64)
BSRG_DEFINE_WGMMA(Tf32, "tf32", "m64n256k8", 256, 128, BSRG_ACC_128(d, 0), BSRG_D_128, "%128", "%129", "%130")
#define BSRG_DEFINE_WGMMA_8(CLASS, TYPE, N, COUNT, A, B, USE) \
  BSRG_DEFINE_WGMMA(CLASS, TYPE, "m64n" #N "k32", N, COUNT, BSRG_ACC_##COUNT(d, 0), BSRG_D_##COUNT, A, B, USE)
#define BSRG_DEFINE_WGMMAS_8(...)                         \
  BSRG_DEFINE_WGMMA_8(__nv_fp8_e4m3, "e4m3", __VA_ARGS__) \
  BSRG_DEFINE_WGMMA_8(__nv_fp8_e5m2, "e5m2", __VA_ARGS__)
BSRG_DEFINE_WGMMAS_8(256, 128, "%128", "%129", "%130")
BSRG_DEFINE_WGMMAS_8(128, 64, "%64", "%65", "%66")
BSRG_DEFINE_WGMMAS_8(64, 32, "%32", "%33", "%34")
BSRG_DEFINE_WGMMAS_8(32, 16, "%16", "%17", "%18")
#undef BSRG_DEFINE_WGMMA_8
#undef BSRG_DEFINE_WGMMAS_8
#undef BSRG_DEFINE_WGMMA
#undef BSRG_D_128
#undef BSRG_D_64
#undef BSRG_D_32
#undef BSRG_D_16
#undef BSRG_ACC_128
#undef BSRG_ACC_64
#undef BSRG_ACC_32
#undef BSRG_ACC_16

}  // namespace bsrg::ptx
