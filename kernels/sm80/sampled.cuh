// Sampled products, dense x dense at the stored blocks only, for any block shape and strides, float16 and bfloat16, on
// tensor cores of sm_80 and up.
//
// A CTA computes some rows of one block row by stored columns of it (bsrg_sampled_item), which it gathers from wherever
// they lie in B. Operands go through a ring of stages in shared memory, in the order in which they are contiguous in
// memory, to ldmatrix, which transposes where it must, and mma.sync.
//
// Shared memory: stages of A, then B; 16-byte chunks are permuted within 128 bytes so that eight rows of one chunk lie in
// different banks, for ldmatrix as well as for the copies. Then the columns of the tile.
#pragma once

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"
#include "sm80/quad.cuh"
#include "sm80/sampled_columns.cuh"

namespace bsrg::sampled {

// Byte offset of a chunk in rows of kRowBytes.
template <int kRowBytes>
__device__ __forceinline__ constexpr int chunk_at(int row, int chunk) {
  constexpr int kPeriod = kRowBytes >= 128 ? 1 : 128 / kRowBytes;  // rows, until a bank comes again
  constexpr int kSpread = kRowBytes >= 128 ? 8 : kRowBytes / 16;
  return row * kRowBytes + ((chunk ^ (row / kPeriod % kSpread)) << 4);
}

// A stage has A as [stage k][rows] with kAlongM, else as [rows][stage k]; B as [columns][stage k] with kAlongK, else as
// [stage k][columns].
template <typename T, int kTileM, int kTileN, int kWarpsM, int kWarpsN, int kStageK, int kStages,
          bool kAlongM, bool kAlongK>
class MmaKernel {
 public:
  __device__ __forceinline__ MmaKernel(const bsrg_sampled_portable_params &p, unsigned char *shared)
      : p_(p),
        shared_(ptx::shared_address(shared)),
        stages_(shared),
        rows_(tile_rows<kTileM>(p)),
        columns_{reinterpret_cast<int64_t *>(shared + kStages * kStageBytes),
                 reinterpret_cast<int64_t *>(shared + kStages * kStageBytes) + kTileN},
        lane_(threadIdx.x % 32),
        warp_(ptx::warp_index()) {}

  __device__ __forceinline__ void run() {
    if (!has_columns(p_)) return;
    float sums[kFragmentsM][kFragmentsN][4] = {};
    find_columns<kTileN>(p_, rows_, columns_);
    const auto load = [&](int64_t step, int slot) {
      if (p_.vector_a)
        copy_a(slot * kStageBytes, step * kStageK);
      else
        gather_a(slot * kStageBytes, step * kStageK);
      if (p_.vector_b)
        copy_b(slot * kStageBytes + kOffsetB, step * kStageK);
      else
        gather_b(slot * kStageBytes + kOffsetB, step * kStageK);
    };
    walk_k<kStages>((p_.k + kStageK - 1) / kStageK, load,
                    [&](int slot) { multiply_stage(shared_ + slot * kStageBytes, sums); });
    if (p_.vector_out)
      store_vectors(sums);
    else
      store_elements(sums);
  }

 private:
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 8;
  static constexpr int kChunk = 8;  // elements in 16 bytes
  static constexpr int kLengthA = kAlongM ? kTileM : kStageK, kLengthB = kAlongK ? kStageK : kTileN;
  static constexpr int kRowBytesA = 2 * kLengthA, kRowBytesB = 2 * kLengthB;
  static constexpr int kOffsetB = 2 * kTileM * kStageK;
  static constexpr int kStageBytes = kOffsetB + 2 * kTileN * kStageK;

  static_assert(kFragmentsM >= 1 && kFragmentsN >= 4 && kFragmentsN % 4 == 0, "outputs are stored in fours");
  static_assert(kStages * kStageBytes + 16 * kTileN ==
                    BSRG_SAMPLED_MMA_BYTES(kTileM, kTileN, kStageK, kStages),
                "what the host reserves");

  // ---- loads; k0 is the stage's first k ----------------------------------------------------------

  __device__ __forceinline__ int bytes_from(int64_t k) const {
    return 2 * static_cast<int>(max(min(p_.k - k, int64_t{kChunk}), int64_t{0}));
  }

  __device__ __forceinline__ void copy_a(int stage, int64_t k0) const {
    const T *const a = static_cast<const T *>(p_.a) + rows_.first * p_.a_row_stride;
#pragma unroll 4
    for (int i = threadIdx.x; i < kTileM * kStageK / kChunk; i += kThreads) {
      const int outer = i / (kLengthA / kChunk), chunk = i % (kLengthA / kChunk);
      const uint32_t destination = shared_ + stage + chunk_at<kRowBytesA>(outer, chunk);
      if constexpr (kAlongM) {  // the block height is a multiple of 8
        const bool exists = k0 + outer < p_.k && chunk * kChunk < rows_.count;
        ptx::cp_async<16>(destination, exists ? a + (k0 + outer) * p_.a_col_stride + chunk * kChunk : a,
                          exists);
      } else {
        const int64_t k = k0 + chunk * kChunk;
        const int bytes = outer < rows_.count ? bytes_from(k) : 0;
        ptx::cp_async_part(destination, bytes > 0 ? a + outer * p_.a_row_stride + k : a, bytes);
      }
    }
  }

  __device__ __forceinline__ void copy_b(int stage, int64_t k0) const {
    const T *const b = static_cast<const T *>(p_.b);
#pragma unroll 4
    for (int i = threadIdx.x; i < kTileN * kStageK / kChunk; i += kThreads) {
      const int outer = i / (kLengthB / kChunk), chunk = i % (kLengthB / kChunk);
      const uint32_t destination = shared_ + stage + chunk_at<kRowBytesB>(outer, chunk);
      if constexpr (kAlongK) {
        const int64_t column = columns_.b[outer], k = k0 + chunk * kChunk;
        const int bytes = column >= 0 ? bytes_from(k) : 0;
        ptx::cp_async_part(destination, bytes > 0 ? b + column * p_.b_col_stride + k : b, bytes);
      } else {  // the block width is a multiple of 8
        const int64_t column = columns_.b[chunk * kChunk];
        const bool exists = column >= 0 && k0 + outer < p_.k;
        ptx::cp_async<16>(destination, exists ? b + (k0 + outer) * p_.b_row_stride + column : b, exists);
      }
    }
  }

  // Element by element through registers, a pair a store: two neighbours in the stage's order.
  __device__ __forceinline__ void gather_a(int stage, int64_t k0) const {
    const auto *const a = static_cast<const uint16_t *>(p_.a) + rows_.first * p_.a_row_stride;
    const auto at = [&](int row, int k) -> uint32_t {
      return row < rows_.count && k0 + k < p_.k
                 ? __ldg(a + row * p_.a_row_stride + (k0 + k) * p_.a_col_stride)
                 : 0;
    };
#pragma unroll 2
    for (int i = threadIdx.x; i < kTileM * kStageK / 2; i += kThreads) {
      const int outer = i / (kLengthA / 2), inner = i % (kLengthA / 2) * 2;
      const uint32_t low = kAlongM ? at(inner, outer) : at(outer, inner);
      const uint32_t high = kAlongM ? at(inner + 1, outer) : at(outer, inner + 1);
      put_pair<kRowBytesA>(stage, outer, inner, low, high);
    }
  }

  __device__ __forceinline__ void gather_b(int stage, int64_t k0) const {
    const auto *const b = static_cast<const uint16_t *>(p_.b);
    const auto at = [&](int k, int n) -> uint32_t {
      const int64_t column = columns_.b[n];
      return column >= 0 && k0 + k < p_.k ? __ldg(b + column * p_.b_col_stride + (k0 + k) * p_.b_row_stride)
                                          : 0;
    };
#pragma unroll 2
    for (int i = threadIdx.x; i < kTileN * kStageK / 2; i += kThreads) {
      const int outer = i / (kLengthB / 2), inner = i % (kLengthB / 2) * 2;
      const uint32_t low = kAlongK ? at(inner, outer) : at(outer, inner);
      const uint32_t high = kAlongK ? at(inner + 1, outer) : at(outer, inner + 1);
      put_pair<kRowBytesB>(stage, outer, inner, low, high);
    }
  }

  template <int kRowBytes>
  __device__ __forceinline__ void put_pair(int stage, int outer, int inner, uint32_t low,
                                           uint32_t high) const {
    const int offset = stage + chunk_at<kRowBytes>(outer, inner / kChunk) + inner % kChunk * 2;
    *reinterpret_cast<uint32_t *>(stages_ + offset) = low | high << 16;
  }

  // ---- multiply ---------------------------------------------------------------------------------

  __device__ __forceinline__ void multiply_stage(uint32_t a_stage,
                                                 float (&sums)[kFragmentsM][kFragmentsN][4]) const {
    const uint32_t b_stage = a_stage + kOffsetB;
    const int low = lane_ % 16, high = lane_ / 16;                 // one of two rows of matrices
    const int row = high * 8 + lane_ % 8, second = lane_ / 8 % 2;  // the same, transposed
#pragma unroll
    for (int k = 0; k < kStageK; k += 16) {
      uint32_t a[kFragmentsM][4];
#pragma unroll
      for (int i = 0; i < kFragmentsM; ++i) {
        const int first = warp_ / kWarpsN * kWarpM + i * 16;
        if constexpr (kAlongM)
          ptx::load_matrix_x4_trans(a[i], a_stage + chunk_at<kRowBytesA>(k + row, first / kChunk + second));
        else
          ptx::load_matrix_x4(a[i], a_stage + chunk_at<kRowBytesA>(first + low, k / kChunk + high));
      }
#pragma unroll
      for (int j = 0; j < kFragmentsN; j += 2) {
        const int first = warp_ % kWarpsN * kWarpN + j * 8;
        uint32_t b[4];
        if constexpr (kAlongK)
          ptx::load_matrix_x4(b, b_stage + chunk_at<kRowBytesB>(first + row, k / kChunk + second));
        else
          ptx::load_matrix_x4_trans(b, b_stage + chunk_at<kRowBytesB>(k + low, first / kChunk + high));
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i) {
          ptx::mma_m16n8k16<T>(sums[i][j], a[i], b[0], b[1]);
          ptx::mma_m16n8k16<T>(sums[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  // ---- output -----------------------------------------------------------------------------------

  __device__ __forceinline__ int fragment_row(int i) const {
    return warp_ / kWarpsN * kWarpM + i / 2 * 16 + i % 2 * 8 + lane_ / 4;
  }

  // 16 bytes a lane: four fragments of a row are exchanged within the quad, those of values the other way round. Each
  // lane reads the bytes of values that it then overwrites when out is values.
  __device__ __forceinline__ void store_vectors(const float (&sums)[kFragmentsM][kFragmentsN][4]) const {
    const float alpha = static_cast<float>(p_.alpha), beta = static_cast<float>(p_.beta);
#pragma unroll
    for (int j = 0; j < kFragmentsN; j += 4) {
      const int column = warp_ % kWarpsN * kWarpN + (j + lane_ % 4) * kChunk;
      const int64_t place = columns_.out[column];
      const bool exists = columns_.b[column] >= 0;
#pragma unroll
      for (int i = 0; i < 2 * kFragmentsM; ++i) {
        const int row = fragment_row(i);
        const int count = exists && row < rows_.count ? kChunk : 0;
        const int64_t at = place + static_cast<int64_t>(row) * p_.block_width;
        uint32_t c[4] = {}, y[4];
        if (beta != 0) {
          quad::load_chunk(c, static_cast<const T *>(p_.values) + at, count);
          quad::transpose(c, lane_);
        }
#pragma unroll
        for (int f = 0; f < 4; ++f) {
          const float *sum = &sums[i / 2][j + f][i % 2 * 2];
          float first = alpha * sum[0], second = alpha * sum[1];
          if (beta != 0) {
            const float2 old = ptx::unpack<T>(c[f]);
            first = fmaf(beta, old.x, first);
            second = fmaf(beta, old.y, second);
          }
          y[f] = ptx::pack<T>(first, second);
        }
        quad::transpose(y, lane_);
        quad::store_chunk(static_cast<T *>(p_.out) + at, y, count);
      }
    }
  }

  __device__ __forceinline__ void store_elements(const float (&sums)[kFragmentsM][kFragmentsN][4]) const {
    const float alpha = static_cast<float>(p_.alpha), beta = static_cast<float>(p_.beta);
#pragma unroll
    for (int j = 0; j < kFragmentsN; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = warp_ % kWarpsN * kWarpN + j * kChunk + lane_ % 4 * 2 + e;
        const int64_t place = columns_.out[column];
        if (columns_.b[column] < 0) continue;
#pragma unroll
        for (int i = 0; i < 2 * kFragmentsM; ++i) {
          const int row = fragment_row(i);
          if (row >= rows_.count) continue;
          const int64_t at = place + static_cast<int64_t>(row) * p_.block_width;
          float v = alpha * sums[i / 2][j][i % 2 * 2 + e];
          if (beta != 0) v = fmaf(beta, static_cast<float>(static_cast<const T *>(p_.values)[at]), v);
          static_cast<T *>(p_.out)[at] = static_cast<T>(v);
        }
      }
    }
  }

  const bsrg_sampled_portable_params &p_;
  const uint32_t shared_;
  unsigned char *const stages_;
  const Rows rows_;
  const Columns columns_;
  const int lane_, warp_;
};

}  // namespace bsrg::sampled

// One kernel, <prefix>_m<rows>n<columns>_<order>, for a row of BSRG_SAMPLED_MMA_TILES.
#define BSRG_SAMPLED_MMA_KERNEL(prefix, type, order, along_m, along_k, rows, columns, warps_m, warps_n,     \
                                stage_k, stages, ctas)                                                      \
  extern "C" __global__ void __launch_bounds__(32 * (warps_m) * (warps_n), ctas)                            \
      prefix##_m##rows##n##columns##_##order(const __grid_constant__ bsrg_sampled_portable_params params) { \
    bsrg::ptx::follow_grid_before();                                                                        \
    extern __shared__ __align__(128) unsigned char shared_memory[];                                         \
    bsrg::sampled::MmaKernel<type, rows, columns, warps_m, warps_n, stage_k, stages, along_m, along_k>(     \
        params, shared_memory)                                                                              \
        .run();                                                                                             \
  }
