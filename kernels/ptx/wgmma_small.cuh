// Warpgroup matrix instructions of few columns (wgmma m64nNk16, of tf32 m64nNk8, sm_90a), and the shared-memory instructions that
// go with them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace bsrg::ptx {

// D += A * B with float32 accumulators. A: a descriptor of shared memory, with kTransposeA of [16][64], MN-major, else of
// [64][16], K-major.
// B: a descriptor of [kN][16] in shared memory, K-major. Accumulator i of a thread is row (lane / 4) + 8 * ((i / 2) % 2)
// of its warp's 16 rows, column 8 * (i / 4) + 2 * (lane % 4) + i % 2. T = float: read as tf32, A K-major alone, of half as
// many elements of k.
template <typename T, int kN, int kTransposeA>
struct WgmmaSmall;

#define BSRG_ACC_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BSRG_ACC_8(d, i) BSRG_ACC_4(d, i), BSRG_ACC_4(d, i + 4)
#define BSRG_ACC_12(d, i) BSRG_ACC_8(d, i), BSRG_ACC_4(d, i + 8)
#define BSRG_ACC_16(d, i) BSRG_ACC_8(d, i), BSRG_ACC_8(d, i + 8)
#define BSRG_ACC_20(d, i) BSRG_ACC_16(d, i), BSRG_ACC_4(d, i + 16)
#define BSRG_ACC_24(d, i) BSRG_ACC_16(d, i), BSRG_ACC_8(d, i + 16)
#define BSRG_ACC_28(d, i) BSRG_ACC_16(d, i), BSRG_ACC_12(d, i + 16)
#define BSRG_ACC_32(d, i) BSRG_ACC_16(d, i), BSRG_ACC_16(d, i + 16)
#define BSRG_ACC_48(d, i) BSRG_ACC_32(d, i), BSRG_ACC_16(d, i + 32)
#define BSRG_ACC_56(d, i) BSRG_ACC_32(d, i), BSRG_ACC_24(d, i + 32)

// COUNT = N / 2 accumulators; D, A, B and TA are the operands' numbers.
#define BSRG_DEFINE_WGMMA(CLASS, TYPE, N, COUNT, D, A, B, TA)                                            \
  template <int kTransposeA>                                                                             \
  struct WgmmaSmall<CLASS, N, kTransposeA> {                                                             \
    static __device__ __forceinline__ void run(float (&d)[COUNT], uint64_t a, uint64_t b) {              \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D "}, " A ", " B \
                   ", 1, 1, 1, " TA ", 0;"                                                               \
                   : BSRG_ACC_##COUNT(d, 0)                                                              \
                   : "l"(a), "l"(b), "n"(kTransposeA));                                                  \
    }                                                                                                    \
  };
#define BSRG_DEFINE_WGMMA_TF32(N, COUNT, D, A, B)                                                            \
  template <>                                                                                                \
  struct WgmmaSmall<float, N, 0> {                                                                           \
    static __device__ __forceinline__ void run(float (&d)[COUNT], uint64_t a, uint64_t b) {                  \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" D "}, " A ", " B ", 1, 1, 1;" \
                   : BSRG_ACC_##COUNT(d, 0)                                                                  \
                   : "l"(a), "l"(b));                                                                        \
    }                                                                                                        \
  };
#define BSRG_DEFINE_WGMMAS(N, COUNT, D, A, B, TA)                 \
  BSRG_DEFINE_WGMMA(__half, "f16", N, COUNT, D, A, B, TA)         \
  BSRG_DEFINE_WGMMA(__nv_bfloat16, "bf16", N, COUNT, D, A, B, TA) \
  BSRG_DEFINE_WGMMA_TF32(N, COUNT, D, A, B)

#define BSRG_D_4 "%0, %1, %2, %3"
#define BSRG_D_8 BSRG_D_4 ", %4, %5, %6, %7"
#define BSRG_D_12 BSRG_D_8 ", %8, %9, %10, %11"
#define BSRG_D_16 BSRG_D_12 ", %12, %13, %14, %15"
#define BSRG_D_20 BSRG_D_16 ", %16, %17, %18, %19"
#define BSRG_D_24 BSRG_D_20 ", %20, %21, %22, %23"
#define BSRG_D_28 BSRG_D_24 ", %24, %25, %26, %27"
#define BSRG_D_32 BSRG_D_28 ", %28, %29, %30, %31"
#define BSRG_D_48 BSRG_D_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define BSRG_D_56 BSRG_D_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
BSRG_DEFINE_WGMMAS(8, 4, BSRG_D_4, "%4", "%5", "%6")
BSRG_DEFINE_WGMMAS(16, 8, BSRG_D_8, "%8", "%9", "%10")
BSRG_DEFINE_WGMMAS(24, 12, BSRG_D_12, "%12", "%13", "%14")
BSRG_DEFINE_WGMMAS(32, 16, BSRG_D_16, "%16", "%17", "%18")
BSRG_DEFINE_WGMMAS(40, 20, BSRG_D_20, "%20", "%21", "%22")
BSRG_DEFINE_WGMMAS(48, 24, BSRG_D_24, "%24", "%25", "%26")
BSRG_DEFINE_WGMMAS(56, 28, BSRG_D_28, "%28", "%29", "%30")
BSRG_DEFINE_WGMMAS(64, 32, BSRG_D_32, "%32", "%33", "%34")
BSRG_DEFINE_WGMMAS(96, 48, BSRG_D_48, "%48", "%49", "%50")
BSRG_DEFINE_WGMMAS(112, 56, BSRG_D_56, "%56", "%57", "%58")
#undef BSRG_D_4
#undef BSRG_D_8
#undef BSRG_D_12
#undef BSRG_D_16
#undef BSRG_D_20
#undef BSRG_D_24
#undef BSRG_D_28
#undef BSRG_D_32
#undef BSRG_D_48
#undef BSRG_D_56
#undef BSRG_DEFINE_WGMMAS
#undef BSRG_DEFINE_WGMMA_TF32
#undef BSRG_DEFINE_WGMMA
#undef BSRG_ACC_4
#undef BSRG_ACC_8
#undef BSRG_ACC_12
#undef BSRG_ACC_16
#undef BSRG_ACC_20
#undef BSRG_ACC_24
#undef BSRG_ACC_28
#undef BSRG_ACC_32
#undef BSRG_ACC_48
#undef BSRG_ACC_56

// Four 8x8 matrices of 16-bit elements, transposed on the way; lane l gives the address of row l % 8 of matrix
// l / 8.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Two matrices; lanes 0 to 15 give the addresses.
__device__ __forceinline__ void store_matrix_x2(uint32_t address, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0), "r"(r1)
               : "memory");
}

__device__ __forceinline__ void store_matrix_x4_transposed(uint32_t address, uint32_t r0, uint32_t r1,
                                                           uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

__device__ __forceinline__ void store_matrix_x2_transposed(uint32_t address, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0),
               "r"(r1)
               : "memory");
}

}  // namespace bsrg::ptx
