// Sampled products for float32 and float64 with IEEE fused multiply-adds: any block shape and strides.
//
// The same tiles and walk along K as sampled.cuh. cp.async has 4- and 8-byte copies, so operands of any order reach shared
// memory in one, without passing registers. simt_threads.cuh says how threads share a tile.
#pragma once

#include "params.h"
#include "ptx/cp_async.cuh"
#include "ptx/sync.cuh"
#include "sm80/sampled_columns.cuh"
#include "sm80/simt_threads.cuh"

namespace bsrg::sampled {

template <typename T, int kTileM, int kTileN, int kWarpsM, int kWarpsN, int kStageK, int kStages>
class SimtKernel : simt::Threads<T, kTileM, kTileN, kWarpsM, kWarpsN, kStageK> {
 public:
  __device__ __forceinline__ SimtKernel(const bsrg_sampled_portable_params &p, unsigned char *shared)
      : p_(p),
        shared_(reinterpret_cast<T *>(shared)),
        rows_(tile_rows<kTileM>(p)),
        columns_{reinterpret_cast<int64_t *>(shared_ + kStages * kStageElements),
                 reinterpret_cast<int64_t *>(shared_ + kStages * kStageElements) + kTileN},
        first_row_(Base::first_row()),
        first_column_(Base::first_column()) {}

  __device__ __forceinline__ void run() {
    if (!has_columns(p_)) return;
    T totals[kRows][kColumns] = {}, sums[kRows][kColumns] = {};
    int stages = 0;
    find_columns<kTileN>(p_, rows_, columns_);
    const auto load = [&](int64_t step, int slot) {
      T *const a = shared_ + slot * kStageElements;
      if (p_.vector_a)
        copy_a_vectors(a, step * kStageK);
      else
        copy_a_elements(a, step * kStageK);
      if (p_.vector_b)
        copy_b_vectors(a + kElementsA, step * kStageK);
      else
        copy_b_elements(a + kElementsA, step * kStageK);
    };
    walk_k<kStages>((p_.k + kStageK - 1) / kStageK, load, [&](int slot) {
      multiply_stage(shared_ + slot * kStageElements, first_row_, first_column_, sums);
      if (++stages % (kChunkK / kStageK) == 0) add_chunk(sums, totals);
    });
    add_chunk(sums, totals);
    store(totals);
  }

 private:
  using Base = simt::Threads<T, kTileM, kTileN, kWarpsM, kWarpsN, kStageK>;
  using Base::add_chunk;
  using Base::kChunkK;
  using Base::kColumns;
  using Base::kElementsA;
  using Base::kPitchA;
  using Base::kPitchB;
  using Base::kRows;
  using Base::kRowStep;
  using Base::kRun;
  using Base::kRunStep;
  using Base::kStageElements;
  using Base::kThreads;
  using Base::kVector;
  using Base::multiply_stage;

  static_assert(kStages * kStageElements * sizeof(T) + 16 * kTileN ==
                    BSRG_SAMPLED_SIMT_BYTES(sizeof(T), kTileM, kTileN, kStageK, kStages),
                "what the host reserves");

  // ---- loads; k0 is the stage's first k ----------------------------------------------------------

  __device__ __forceinline__ const T *a_row(int row) const {
    return static_cast<const T *>(p_.a) + (rows_.first + row) * p_.a_row_stride;
  }

  // Unit stride along k, rows at multiples of 16 bytes.
  __device__ __forceinline__ void copy_a_vectors(T *stage, int64_t k0) const {
    constexpr int kPerRow = kStageK / kVector;
#pragma unroll 2
    for (int i = threadIdx.x; i < kTileM * kPerRow; i += kThreads) {
      const int row = i / kPerRow, k = i % kPerRow * kVector;
      const int64_t left = row < rows_.count ? max(min(p_.k - k0 - k, int64_t{kVector}), int64_t{0}) : 0;
      ptx::cp_async_part(ptx::shared_address(stage + row * kPitchA + k),
                         left > 0 ? a_row(row) + k0 + k : a_row(0), static_cast<int>(left * sizeof(T)));
    }
  }

  __device__ __forceinline__ void copy_a_elements(T *stage, int64_t k0) const {
    const bool along_k = p_.a_col_stride == 1;  // which neighbours lanes read together
#pragma unroll 2
    for (int i = threadIdx.x; i < kTileM * kStageK; i += kThreads) {
      const int row = along_k ? i / kStageK : i % kTileM, k = along_k ? i % kStageK : i / kTileM;
      const bool exists = row < rows_.count && k0 + k < p_.k;
      ptx::cp_async<sizeof(T)>(ptx::shared_address(stage + row * kPitchA + k),
                               exists ? a_row(row) + (k0 + k) * p_.a_col_stride : a_row(0), exists);
    }
  }

  // Unit stride along columns, rows at multiples of 16 bytes, a block width of whole vectors.
  __device__ __forceinline__ void copy_b_vectors(T *stage, int64_t k0) const {
    constexpr int kPerRow = kTileN / kVector;
    const T *const b = static_cast<const T *>(p_.b);
#pragma unroll 2
    for (int i = threadIdx.x; i < kStageK * kPerRow; i += kThreads) {
      const int k = i / kPerRow, n = i % kPerRow * kVector;
      const int64_t column = columns_.b[n];
      const bool exists = column >= 0 && k0 + k < p_.k;
      ptx::cp_async<16>(ptx::shared_address(stage + k * kPitchB + n),
                        exists ? b + (k0 + k) * p_.b_row_stride + column : b, exists);
    }
  }

  __device__ __forceinline__ void copy_b_elements(T *stage, int64_t k0) const {
    const bool along_n = p_.b_col_stride == 1;
    const T *const b = static_cast<const T *>(p_.b);
#pragma unroll 2
    for (int i = threadIdx.x; i < kStageK * kTileN; i += kThreads) {
      const int k = along_n ? i / kTileN : i % kStageK, n = along_n ? i % kTileN : i / kStageK;
      const int64_t column = columns_.b[n];
      const bool exists = column >= 0 && k0 + k < p_.k;
      ptx::cp_async<sizeof(T)>(ptx::shared_address(stage + k * kPitchB + n),
                               exists ? b + (k0 + k) * p_.b_row_stride + column * p_.b_col_stride : b,
                               exists);
    }
  }

  // ---- output -----------------------------------------------------------------------------------

  __device__ __forceinline__ void store(const T (&totals)[kRows][kColumns]) const {
    const T alpha = static_cast<T>(p_.alpha), beta = static_cast<T>(p_.beta);
#pragma unroll
    for (int j = 0; j < kColumns; j += kRun) {
#pragma unroll
      for (int v = 0; v < kRun; ++v) {
        const int column = first_column_ + j / kRun * kRunStep + v;
        if (columns_.b[column] < 0) continue;
        const int64_t place = columns_.out[column];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const int row = first_row_ + i * kRowStep;
          if (row >= rows_.count) continue;
          const int64_t at = place + static_cast<int64_t>(row) * p_.block_width;
          const T c = beta != 0 ? static_cast<const T *>(p_.values)[at] : T{0};
          static_cast<T *>(p_.out)[at] = fma(beta, c, alpha * totals[i][j + v]);
        }
      }
    }
  }

  const bsrg_sampled_portable_params &p_;
  T *const shared_;
  const Rows rows_;
  const Columns columns_;
  const int first_row_, first_column_;
};

}  // namespace bsrg::sampled

// One kernel, <prefix>_m<rows>n<columns>, a row of BSRG_SAMPLED_F32_TILES or BSRG_SAMPLED_F64_TILES.
#define BSRG_SAMPLED_SIMT_KERNEL(prefix, type, rows, columns, warps_m, warps_n, stage_k, stages, ctas)       \
  extern "C" __global__ void __launch_bounds__(32 * (warps_m) * (warps_n), ctas)                             \
      prefix##_m##rows##n##columns(const __grid_constant__ bsrg_sampled_portable_params params) {            \
    bsrg::ptx::follow_grid_before();                                                                         \
    extern __shared__ __align__(128) unsigned char shared_memory[];                                          \
    bsrg::sampled::SimtKernel<type, rows, columns, warps_m, warps_n, stage_k, stages>(params, shared_memory) \
        .run();                                                                                              \
  }
