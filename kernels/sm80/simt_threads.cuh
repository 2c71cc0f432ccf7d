// How the threads of a CTA share a tile of float32 or float64 sums, and multiply a stage of it.
//
// Of float32 a thread multiplies rows 4 apart by vectors of columns 8 vectors apart: a warp, 4 x 8 threads, then reads 64 bytes of A
// and 128 of B at a time. Lanes that differ in bit 0 read the same B, lanes that differ in bit 1 the same A: only then
// does a 16-byte read take two passes over shared memory instead of four.
//
// Float64 has matrix instructions, which round as multiply-adds do and are twice as fast on A100 and H100, and so has float32
// where it may be rounded to tf32: a thread has what these leave it, rows 8 apart and pairs of columns 8 apart. Pads let a warp's
// 4 k of 8 rows or columns lie in different banks.
//
// Sums have two levels: a chain of multiply-adds over kChunkK k starts at zero and is then added to the
// totals. The relative error grows like sqrt(chunk + K / chunk) instead of sqrt(K); with chunks of 128 it is
// at most 1.2 times that of OpenBLAS and MKL up to a K of 100,000.
//
// Shared memory of a stage: A [tile rows][stage k + 16 bytes], of float64 32 bytes, or kTurnedA, as matrix instructions take a
// transposed one, [stage k][tile rows + 32 bytes]; then B [stage k][tile columns + 32 bytes].
#pragma once

#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"

namespace bsrg::simt {

template <typename T, int kTileM, int kTileN, int kWarpsM, int kWarpsN, int kStageK, bool kTf32 = false,
          bool kTransposed = false>
struct Threads {
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kChunkK = 128;
  static constexpr bool kByMma = sizeof(T) == 8 || kTf32;
  static constexpr bool kTurnedA = kTransposed && kByMma;
  // Of a thread: rows kRowStep apart, and runs of adjacent columns kRunStep apart.
  static constexpr int kRowStep = kByMma ? 8 : 4;
  static constexpr int kRun = kByMma ? 2 : kVector, kRunStep = kByMma ? 8 : 8 * kVector;
  static constexpr int kRows = kTileM / (kRowStep * kWarpsM);
  static constexpr int kColumns = kTileN / (kRunStep / kRun * kWarpsN);
  static constexpr int kPitchA =
      kTurnedA ? kTileM + 2 * kVector : kStageK + (sizeof(T) == 8 ? 2 : 1) * kVector;
  static constexpr int kPitchB = kTileN + 2 * kVector;
  static constexpr int kElementsA = (kTurnedA ? kStageK : kTileM) * kPitchA;
  static constexpr int kStageElements = kElementsA + kStageK * kPitchB;

  static_assert(kColumns % kRun == 0 && kStageK % kVector == 0, "whole runs and vectors");
  static_assert(kChunkK % kStageK == 0, "whole stages");
  static_assert(!kByMma || (kRows % 2 == 0 && kStageK % 8 == 0), "whole instructions");

  struct alignas(16) Vector {
    T v[kVector];
  };

  // Where the first element of the thread stands in the tile.
  static __device__ __forceinline__ int first_row() {
    const int lane = threadIdx.x % 32;
    return ptx::warp_index() / kWarpsN * (kRowStep * kRows) + (kByMma ? lane / 4 : lane / 16 * 2 + lane % 2);
  }
  static __device__ __forceinline__ int first_column() {
    const int lane = threadIdx.x % 32;
    return ptx::warp_index() % kWarpsN * (kTileN / kWarpsN) + (kByMma ? lane % 4 : lane / 2 % 8) * kRun;
  }

  static __device__ __forceinline__ void multiply_stage(const T *stage, int first_row, int first_column,
                                                        T (&sums)[kRows][kColumns]) {
    if constexpr (kByMma)
      multiply_by_mma(stage, first_row, first_column, sums);
    else
      multiply_by_fma(stage, first_row, first_column, sums);
  }

  static __device__ __forceinline__ T rounded(T x) {
    if constexpr (kTf32)
      return ptx::round_to_tf32(x);
    else
      return x;
  }

  static __device__ __forceinline__ void multiply_by_mma(const T *stage, int first_row, int first_column,
                                                         T (&sums)[kRows][kColumns]) {
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const T *const a_stage = stage + (kTurnedA ? q * kPitchA + first_row : first_row * kPitchA + q);
    constexpr int kOfRow = kTurnedA ? 1 : kPitchA, kOfK = kTurnedA ? kPitchA : 1;  // to the next one
    const T *const b_stage = stage + kElementsA + q * kPitchB + first_column - q * kRun + g;
#pragma unroll
    for (int k = 0; k < kStageK; k += 8) {
      T b[kColumns / 2][2];
#pragma unroll
      for (int j = 0; j < kColumns / 2; ++j) {
        b[j][0] = rounded(b_stage[k * kPitchB + j * 8]);
        b[j][1] = rounded(b_stage[(k + 4) * kPitchB + j * 8]);
      }
#pragma unroll
      for (int i = 0; i < kRows; i += 2) {
        const T *const row = a_stage + i * 8 * kOfRow + k * kOfK;
        const T a[4] = {rounded(row[0]), rounded(row[8 * kOfRow]), rounded(row[4 * kOfK]),
                        rounded(row[8 * kOfRow + 4 * kOfK])};
#pragma unroll
        for (int j = 0; j < kColumns / 2; ++j)
          ptx::mma_m16n8k8(sums[i][2 * j], sums[i][2 * j + 1], sums[i + 1][2 * j], sums[i + 1][2 * j + 1], a,
                           b[j]);
      }
    }
  }

  static __device__ __forceinline__ void multiply_by_fma(const T *stage, int first_row, int first_column,
                                                         T (&sums)[kRows][kColumns]) {
    const T *const a_stage = stage + first_row * kPitchA;
    const T *const b_stage = stage + kElementsA + first_column;
#pragma unroll
    for (int k = 0; k < kStageK; k += kVector) {
      Vector a[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) a[i] = *reinterpret_cast<const Vector *>(a_stage + i * 4 * kPitchA + k);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
#pragma unroll
        for (int j = 0; j < kColumns; j += kVector) {
          const Vector b = *reinterpret_cast<const Vector *>(b_stage + (k + e) * kPitchB + j * 8);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) sums[i][j + v] = fma(a[i].v[e], b.v[v], sums[i][j + v]);
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void add_chunk(T (&sums)[kRows][kColumns], T (&totals)[kRows][kColumns]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        totals[i][j] += sums[i][j];
        sums[i][j] = 0;
      }
    }
  }
};

}  // namespace bsrg::simt
