// Warpgroup matrix instructions (wgmma, sm_90a) and their shared-memory descriptors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace bsrg::ptx {

// ---- shared-memory matrix descriptors -----------------------------------------------------------

enum class Swizzle : uint64_t { kNone = 0, k128 = 1, k64 = 2, k32 = 3 };

// All distances in bytes. K-major with swizzle: group_bytes is the distance between groups of 8 rows and
// atom_bytes is ignored; along K, advance the address. MN-major with swizzle: atom_bytes is the distance
// between atoms along MN, group_bytes that between groups of 8 k.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t atom_bytes,
                                                      uint32_t group_bytes, Swizzle swizzle) {
  // In a cluster, shared addresses carry the CTA's rank in high bits that the field must not see.
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (static_cast<uint64_t>(atom_bytes >> 4) << 16) |
         (static_cast<uint64_t>(group_bytes >> 4) << 32) | (static_cast<uint64_t>(swizzle) << 62);
}

// ---- ordering -----------------------------------------------------------------------------------

__device__ __forceinline__ void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// ---- D (+)= A * B, float32 accumulators, both operands in shared memory -------------------------
//
// accumulate = 0 overwrites D. kTransposeA, kTransposeB: the operand is MN-major. Accumulator i of a thread
// is row (lane / 4) + 8 * ((i / 2) % 2) of its warp's 16 rows, column 8 * (i / 4) + 2 * (lane % 4) + i % 2.

template <typename T, int kN, int kTransposeA, int kTransposeB>
struct Wgmma;

#define BSRG_ACC_8(d, i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define BSRG_ACC_32(d, i) BSRG_ACC_8(d, i), BSRG_ACC_8(d, i + 8), BSRG_ACC_8(d, i + 16), BSRG_ACC_8(d, i + 24)

#define BSRG_DEFINE_WGMMA_N64(CLASS, TYPE)                                                               \
  template <int kTransposeA, int kTransposeB>                                                            \
  struct Wgmma<CLASS, 64, kTransposeA, kTransposeB> {                                                    \
    static __device__ __forceinline__ void run(float (&d)[32], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile(                                                                                      \
          "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %34, 0;\n"                                 \
          "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                                    \
          " "                                                                                            \
          "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "            \
          "%32, %33, accumulate, 1, 1, %35, %36;\n}"                                                     \
          : BSRG_ACC_32(d, 0)                                                                            \
          : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeA), "n"(kTransposeB));                        \
    }                                                                                                    \
  };

BSRG_DEFINE_WGMMA_N64(__half, "f16")
BSRG_DEFINE_WGMMA_N64(__nv_bfloat16, "bf16")
#undef BSRG_DEFINE_WGMMA_N64

#define BSRG_DEFINE_WGMMA_N128(CLASS, TYPE)                                                              \
  template <int kTransposeA, int kTransposeB>                                                            \
  struct Wgmma<CLASS, 128, kTransposeA, kTransposeB> {                                                   \
    static __device__ __forceinline__ void run(float (&d)[64], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile(                                                                                      \
          "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %66, 0;\n"                                 \
          "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                                   \
          " "                                                                                            \
          "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
          "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
          "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "            \
          "%64, %65, accumulate, 1, 1, %67, %68;\n}"                                                     \
          : BSRG_ACC_32(d, 0), BSRG_ACC_32(d, 32)                                                        \
          : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeA), "n"(kTransposeB));                        \
    }                                                                                                    \
  };

BSRG_DEFINE_WGMMA_N128(__half, "f16")
BSRG_DEFINE_WGMMA_N128(__nv_bfloat16, "bf16")
#undef BSRG_DEFINE_WGMMA_N128

#define BSRG_DEFINE_WGMMA_N256(CLASS, TYPE)                                                               \
  template <int kTransposeA, int kTransposeB>                                                             \
  struct Wgmma<CLASS, 256, kTransposeA, kTransposeB> {                                                    \
    static __device__ __forceinline__ void run(float (&d)[128], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile(                                                                                       \
          "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %130, 0;\n"                                 \
          "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE                                    \
          " "                                                                                             \
          "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "              \
          "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "              \
          "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "              \
          "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "              \
          "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "              \
          "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "  \
          "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "    \
          "%127}, "                                                                                       \
          "%128, %129, accumulate, 1, 1, %131, %132;\n}"                                                  \
          : BSRG_ACC_32(d, 0), BSRG_ACC_32(d, 32), BSRG_ACC_32(d, 64), BSRG_ACC_32(d, 96)                 \
          : "l"(a), "l"(b), "r"(accumulate), "n"(kTransposeA), "n"(kTransposeB));                         \
    }                                                                                                     \
  };

BSRG_DEFINE_WGMMA_N256(__half, "f16")
BSRG_DEFINE_WGMMA_N256(__nv_bfloat16, "bf16")
#undef BSRG_DEFINE_WGMMA_N256

#undef BSRG_ACC_32
#undef BSRG_ACC_8

// ---- registers to shared memory -----------------------------------------------------------------

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                                uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace bsrg::ptx
