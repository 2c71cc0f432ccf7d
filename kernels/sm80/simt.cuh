// BSR x dense for float32 and float64, and float32 by way of tf32: any block shape, N and strides.
//
// The same walk over the flattened K of a block row as portable.cuh. cp.async has 4- and 8-byte copies, so
// operands of any alignment and stride reach shared memory without passing registers. simt_threads.cuh says how threads
// share a tile; B there is X here.
#pragma once

#include <type_traits>

#include "output.cuh"
#include "params.h"
#include "ptx/cp_async.cuh"
#include "ptx/load.cuh"
#include "ptx/sync.cuh"
#include "sm80/pipeline.cuh"
#include "sm80/simt_threads.cuh"

namespace bsrg::simt {

using portable::KEntry;

// kTransposed: A is the transposed of what is stored. Matrix instructions read it as it is, for others copies turn it.
template <typename T, int kTileM, int kTileN, int kWarpsM, int kWarpsN, int kStageK, int kStages,
          bool kTransposed, bool kTf32 = false>
class Kernel : Threads<T, kTileM, kTileN, kWarpsM, kWarpsN, kStageK, kTf32, kTransposed> {
 public:
  __device__ __forceinline__ Kernel(const bsrg_portable_params &p, unsigned char *shared)
      : p_(p),
        shared_(shared),
        tile_(portable::row_tile(p, kTileM)),
        first_row_(Base::first_row()),
        first_column_(Base::first_column()) {}

  __device__ __forceinline__ void run() {
    const int64_t column_tiles = (p_.n + kTileN - 1) / kTileN;
    for (int64_t column_tile = blockIdx.y; column_tile < column_tiles; column_tile += gridDim.y) {
      column_ = column_tile * kTileN;
      T totals[kRows][kColumns] = {}, sums[kRows][kColumns] = {};
      int stages = 0;
      accumulate(sums, totals, stages, tile_);
      add_chunk(sums, totals);
      if (p_.output.given && p_.output.scaled) scale(totals);
      store(totals);
    }
    if (p_.output.given) add_bias_and_activate();
  }

  // One tile, from `column` on, of the product with a block column of B: see pairs.cuh.
  template <typename Meetings>
  __device__ __forceinline__ void run_pairs(Meetings &meetings, int column) {
    column_ = column;
    T totals[kRows][kColumns] = {}, sums[kRows][kColumns] = {};
    int stages = 0;
    while (meetings.template find<kThreads>(tile_)) accumulate(sums, totals, stages, meetings.tile());
    add_chunk(sums, totals);
    store(totals);
  }

 private:
  using Base = Threads<T, kTileM, kTileN, kWarpsM, kWarpsN, kStageK, kTf32, kTransposed>;
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
  using Base::kTurnedA;
  using Base::kVector;
  using Base::multiply_stage;
  struct alignas(Base::kRun * sizeof(T)) Run {
    T v[Base::kRun];
  };
  static constexpr int kTableBytes = 2 * kStageK * sizeof(KEntry);

  static_assert(kThreads % kStageK == 0, "a thread for each k");
  static_assert(kStages * kStageElements * sizeof(T) + kTableBytes ==
                    (kTurnedA ? BSRG_SIMT_TURNED_BYTES(sizeof(T), kTileM, kTileN, kStageK, kStages)
                              : BSRG_SIMT_SHARED_BYTES(sizeof(T), kTileM, kTileN, kStageK, kStages)),
                "what the host reserves");

  __device__ __forceinline__ T *stage_a(int slot) const {
    return reinterpret_cast<T *>(shared_) + slot * kStageElements;
  }

  // stages counts what is in sums and totals.
  template <typename Tile>
  __device__ __forceinline__ void accumulate(T (&sums)[kRows][kColumns], T (&totals)[kRows][kColumns],
                                             int &stages, const Tile &tile) const {
    const bool whole = column_ + kTileN <= p_.n;
    const auto load = [&](int slot, const KEntry *entries) {
      T *const a = stage_a(slot), *const x = a + kElementsA;
      if constexpr (kTurnedA) {
        if (p_.vector_a)
          copy_turned_a<kVector>(a, entries);
        else
          copy_turned_a<1>(a, entries);
      } else if constexpr (kTransposed)
        copy_at(a, entries);
      else if (p_.vector_a)
        copy_a<kVector>(a, entries);
      else
        copy_a<1>(a, entries);
      if (!p_.vector_x)
        copy_x_elements(x, entries);
      else if (whole)
        copy_x_vectors<true>(x, entries);
      else
        copy_x_vectors<false>(x, entries);
    };
    const auto multiply = [&](int slot) {
      multiply_stage(stage_a(slot), first_row_, first_column_, sums);
      if (++stages % (kChunkK / kStageK) == 0) add_chunk(sums, totals);
    };
    portable::walk_k<kStages, kStageK, kTransposed>(p_, tile, reinterpret_cast<KEntry *>(stage_a(kStages)),
                                                    load, multiply);
  }

  // ---- loads ------------------------------------------------------------------------------------

  // kWidth elements a copy: kVector where a block's width is a multiple of it, else 1. Sources advance by
  // addition, here and below: offsets computed for each copy would be kept in registers throughout the
  // kernel.
  template <int kWidth>
  __device__ __forceinline__ void copy_a(T *stage, const KEntry *entries) const {
    constexpr int kPerRow = kStageK / kWidth, kRowStep = kThreads / kPerRow;
    const int k = threadIdx.x % kPerRow * kWidth, first_row = threadIdx.x / kPerRow;
    const int64_t a = entries[k].a;
    const T *source =
        static_cast<const T *>(p_.values) + a + static_cast<int64_t>(first_row) * p_.block_width;
    const uint32_t destination = ptx::shared_address(stage + first_row * kPitchA + k);
#pragma unroll
    for (int row = 0; row < kTileM; row += kRowStep) {
      if (kTileM % kRowStep == 0 || first_row + row < kTileM)
        ptx::cp_async<kWidth * sizeof(T)>(destination + row * kPitchA * sizeof(T), source,
                                          a >= 0 && first_row + row < tile_.rows);
      source += static_cast<int64_t>(kRowStep) * p_.block_width;
    }
  }

  // Neighbouring lanes read neighbouring rows, which are adjacent in memory.
  __device__ __forceinline__ void copy_at(T *stage, const KEntry *entries) const {
#pragma unroll 2
    for (int i = threadIdx.x; i < kTileM * kStageK; i += kThreads) {
      const int row = i % kTileM, k = i / kTileM;
      const int64_t a = entries[k].a;
      ptx::cp_async<sizeof(T)>(ptx::shared_address(stage + row * kPitchA + k),
                               static_cast<const T *>(p_.values) + a + row, a >= 0 && row < tile_.rows);
    }
  }

  // kWidth neighbouring rows a copy, which lie side by side as they do in memory.
  template <int kWidth>
  __device__ __forceinline__ void copy_turned_a(T *stage, const KEntry *entries) const {
    constexpr int kPerK = kTileM / kWidth;
#pragma unroll 1
    for (int i = threadIdx.x; i < kPerK * kStageK; i += kThreads) {
      const int row = i % kPerK * kWidth, k = i / kPerK;
      const int64_t a = entries[k].a;
      ptx::cp_async<kWidth * sizeof(T)>(ptx::shared_address(stage + k * kPitchA + row),
                                        static_cast<const T *>(p_.values) + a + row,
                                        a >= 0 && row < tile_.rows);
    }
  }

  // A thread copies vectors of one row of X, so that it looks up one entry a stage and its addresses are a
  // constant apart. kWhole: all columns of the tile exist.
  template <bool kWhole>
  __device__ __forceinline__ void copy_x_vectors(T *stage, const KEntry *entries) const {
    constexpr int kPerRow = kThreads / kStageK, kStep = kPerRow * kVector;
    static_assert(kTileN % kStep == 0, "as many vectors for each thread");
    const int k = threadIdx.x / kPerRow, first = threadIdx.x % kPerRow * kVector;
    const KEntry entry = entries[k];
    const T *const source = static_cast<const T *>(p_.x) + entry.x + column_ + first;
    const uint32_t destination = ptx::shared_address(stage + k * kPitchB + first);
    const int columns = kWhole ? kTileN : static_cast<int>(p_.n - column_) - first;
#pragma unroll
    for (int n = 0; n < kTileN; n += kStep) {
      if constexpr (kWhole) {
        ptx::cp_async<16>(destination + n * sizeof(T), source + n, entry.a >= 0);
      } else {
        const int bytes = max(min(columns - n, kVector), 0) * static_cast<int>(sizeof(T));
        ptx::cp_async_part(destination + n * sizeof(T), source + n, entry.a >= 0 ? bytes : 0);
      }
    }
  }

  __device__ __forceinline__ void copy_x_elements(T *stage, const KEntry *entries) const {
    const bool along_columns = p_.x_col_stride == 1;  // which neighbours lanes read together
#pragma unroll 2
    for (int i = threadIdx.x; i < kStageK * kTileN; i += kThreads) {
      const int n = along_columns ? i % kTileN : i / kStageK;
      const int k = along_columns ? i / kTileN : i % kStageK;
      const int64_t column = column_ + n;
      const KEntry entry = entries[k];
      ptx::cp_async<sizeof(T)>(ptx::shared_address(stage + k * kPitchB + n),
                               static_cast<const T *>(p_.x) + entry.x + column * p_.x_col_stride,
                               entry.a >= 0 && column < p_.n);
    }
  }

  // ---- output -----------------------------------------------------------------------------------

  __device__ __forceinline__ void store(const T (&totals)[kRows][kColumns]) const {
    const T alpha = static_cast<T>(p_.alpha), beta = static_cast<T>(p_.beta);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first_row_ + i * kRowStep;
      if (row >= tile_.rows) continue;
      T *const y_row = static_cast<T *>(p_.y) + (tile_.y_row + row) * p_.y_row_stride;
      const T *const c_row = static_cast<const T *>(p_.c) + (tile_.y_row + row) * p_.c_row_stride;
#pragma unroll
      for (int j = 0; j < kColumns; j += kRun) {
        const int64_t column = column_ + first_column_ + j / kRun * kRunStep;
        if (p_.vector_y && column + kRun <= p_.n) {
          Run y, c = {};
          if (beta != 0) c = *reinterpret_cast<const Run *>(c_row + column);
#pragma unroll
          for (int v = 0; v < kRun; ++v) y.v[v] = fma(beta, c.v[v], alpha * totals[i][j + v]);
          // An assignment would become a store of each element.
          using Bits = std::conditional_t<sizeof(Run) == 16, int4, int2>;
          __stcs(reinterpret_cast<Bits *>(y_row + column), *reinterpret_cast<const Bits *>(&y));
        } else {
#pragma unroll
          for (int v = 0; v < kRun; ++v) {
            if (column + v >= p_.n) continue;
            const T c = beta != 0 ? c_row[(column + v) * p_.c_col_stride] : T{0};
            y_row[(column + v) * p_.y_col_stride] = fma(beta, c, alpha * totals[i][j + v]);
          }
        }
      }
    }
  }

  // Fused output: the scales go before alpha and C.
  __device__ __forceinline__ void scale(T (&totals)[kRows][kColumns]) const {
    int first_row = first_row_;
    ptx::settle(first_row);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const T of_row = output::load<T>(p_.output.row_scale, tile_.y_row + first_row + i * kRowStep, T{1});
#pragma unroll
      for (int j = 0; j < kColumns; ++j) totals[i][j] *= of_row;
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const T of_column = output::load<T>(p_.output.col_scale, column_of(j), T{1});
#pragma unroll
      for (int i = 0; i < kRows; ++i) totals[i][j] *= of_column;
    }
  }

  // The rest comes in the end, on the elements that each thread has stored: Y has the type of the sums, so nothing is
  // lost, and in registers it would be the same long code for each element.
  __device__ __forceinline__ void add_bias_and_activate() {
#pragma unroll 1
    for (column_ = static_cast<int64_t>(blockIdx.y) * kTileN; column_ < p_.n;
         column_ += static_cast<int64_t>(gridDim.y) * kTileN)
#pragma unroll 1
      for (int e = 0; e < kRows * kColumns; ++e) {
        const int row = first_row_ + e / kColumns * kRowStep;
        const int64_t y_row = tile_.y_row + row, column = column_of(e % kColumns);
        if (row >= tile_.rows || column >= p_.n) continue;
        T *const y = static_cast<T *>(p_.y) + y_row * p_.y_row_stride + column * p_.y_col_stride;
        *y =
            output::activate_exactly(p_.output.activation, *y + output::bias<T, T>(p_.output, y_row, column));
      }
  }

  // Of element j of a thread's rows.
  __device__ __forceinline__ int64_t column_of(int j) const {
    return column_ + first_column_ + j / kRun * kRunStep + j % kRun;
  }

  const bsrg_portable_params &p_;
  unsigned char *const shared_;
  const portable::RowTile tile_;
  const int first_row_, first_column_;
  int64_t column_ = 0;
};

}  // namespace bsrg::simt

// One kernel, <prefix>_m<rows>n<columns>, a row of BSRG_SIMT_F32_TILES or BSRG_SIMT_F64_TILES.
#define BSRG_SIMT_KERNEL_OF(prefix, type, transposed, tf32, rows, columns, warps_m, warps_n, stage_k, \
                            stages, ctas)                                                             \
  extern "C" __global__ void __launch_bounds__(32 * (warps_m) * (warps_n), ctas)                      \
      prefix##_m##rows##n##columns(const __grid_constant__ bsrg_portable_params params) {             \
    bsrg::ptx::follow_grid_before();                                                                  \
    extern __shared__ __align__(128) unsigned char shared_memory[];                                   \
    bsrg::simt::Kernel<type, rows, columns, warps_m, warps_n, stage_k, stages, transposed, tf32>(     \
        params, shared_memory)                                                                        \
        .run();                                                                                       \
  }
#define BSRG_SIMT_KERNEL(prefix, type, ...) BSRG_SIMT_KERNEL_OF(prefix, type, false, false, __VA_ARGS__)
#define BSRG_SIMT_TRANSPOSED(prefix, type, ...) BSRG_SIMT_KERNEL_OF(prefix, type, true, false, __VA_ARGS__)
// Of float32, by way of tf32.
#define BSRG_TF32_KERNEL(prefix, ...) BSRG_SIMT_KERNEL_OF(prefix, float, false, true, __VA_ARGS__)
#define BSRG_TF32_TRANSPOSED(prefix, ...) BSRG_SIMT_KERNEL_OF(prefix, float, true, true, __VA_ARGS__)
