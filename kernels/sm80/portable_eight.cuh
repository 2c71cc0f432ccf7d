// BSR x dense of 8-bit floats for any block shape, on tensor cores of sm_80 and up.
//
// Tiles, the grid and the ring of stages are those of portable.cuh. Both operands come in chunks of 16 k, an element a byte,
// and become float16 between ldmatrix and mma.sync. Float16 has all values of both formats, so products are exact, and their
// sums float32. ldmatrix gives a lane four neighbours along k, where the instruction asks for two and two more eight further
// on: A and X have the same order, so that the right ones meet.
//
// panels.cu has copied X by chunks, [block columns * chunks of a block][columns][16], so that neighbouring columns of a chunk
// are neighbours in memory, whatever the width of a block, which it fills up with zeros to whole chunks; so it has A, unless
// that is stored with whole chunks, along k. A chunk has one scale: where blocks have scales, its sums are multiplied by that
// before they are added.
//
// Shared memory of a stage: A [tile rows][stage k], chunks permuted within 128-byte lines as portable.cuh does, then X [chunks]
// [tile columns][16]: what is copied lies together in memory and there. With X as A lies, 16 x 16 blocks took twice as long.
// Then the chunks' scales of all stages, and two tables of entries. In the end the tile's sums lie there, so
// that they are stored along whichever side of Y is contiguous, in any of its dtypes.
#pragma once

#include <cuda_fp8.h>

#include "output.cuh"
#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/load.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"
#include "sm80/laid_tile.cuh"
#include "sm80/pipeline.cuh"

namespace bsrg::eight {

constexpr int kChunk = 16;  // k, and bytes

// Where a chunk lies, in bytes from the start of X, for its first column, and of A, for the tile's first row.
struct Entry {
  int64_t x, a;
  int32_t block;
  bool there;  // not beyond the block row
};

// Computes the entries chunk, chunk + kStep, chunk + 2 * kStep, ... of a block row, as portable::KWalker does.
template <int kStep>
class Walker {
 public:
  __device__ __forceinline__ Walker(const bsrg_eight_params &p, const portable::RowTile &tile, int chunk)
      : p_(p), tile_(tile), offset_(chunk) {
    settle();
  }

  __device__ __forceinline__ Entry next() {
    Entry entry = {};
    if (block_ < tile_.blocks) {
      entry.block = stored_;
      entry.x = (static_cast<int64_t>(column_) * p_.chunks + offset_) * p_.portable.n * kChunk;
      entry.a = stored_ * p_.a_block_stride + tile_.row * p_.a_row_stride + offset_ * p_.a_chunk_stride;
      entry.there = true;
    }
    offset_ += kStep;
    settle();
    return entry;
  }

 private:
  __device__ __forceinline__ void settle() {
#pragma unroll 1
    for (; offset_ >= p_.chunks; ++block_) offset_ -= p_.chunks;
    if (block_ >= tile_.blocks) return;
    const int64_t block = tile_.first_block + block_;
    column_ = __ldg(p_.portable.indices + block);
    stored_ = static_cast<int>(p_.portable.order == nullptr ? block : __ldg(p_.portable.order + block));
  }

  const bsrg_eight_params &p_;
  const portable::RowTile &tile_;
  int block_ = 0, offset_, column_ = 0, stored_ = 0;
};

template <typename T, int kTileM, int kTileN, int kWarpsM, int kWarpsN, int kStageK, int kStages>
class Kernel {
 public:
  __device__ __forceinline__ Kernel(const bsrg_eight_params &p, unsigned char *shared)
      : p_(p),
        of_(p.portable),
        shared_(shared),
        tile_(portable::row_tile(p.portable, kTileM)),
        lane_(threadIdx.x % 32),
        warp_(ptx::warp_index()) {}

  __device__ __forceinline__ void run() {
    const int64_t column_tiles = (of_.n + kTileN - 1) / kTileN;
    for (int64_t column_tile = blockIdx.y; column_tile < column_tiles; column_tile += gridDim.y) {
      column_ = column_tile * kTileN;
      float sums[kFragmentsM][kFragmentsN][4] = {};
      if (p_.scaling.block_scales == nullptr)
        accumulate<false>(sums);
      else
        accumulate<true>(sums);
      __syncthreads();  // all have read their stages
      const Laid laid(of_, tile_, column_, shared_);
      laid.put(sums, warp_ / kWarpsN * kWarpM, warp_ % kWarpsN * kWarpN, lane_);
      if (p_.scaling.out == BSRG_KMAJOR_F32)
        store<float>(laid);
      else if (p_.scaling.out == BSRG_KMAJOR_F16)
        store<__half>(laid);
      else
        store<__nv_bfloat16>(laid);
      __syncthreads();  // and their sums
    }
  }

 private:
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 8;
  static constexpr int kChunks = kStageK / kChunk, kRowsPerLine = 128 / kStageK;
  static constexpr int kPanelBytes = kTileN * kChunk;  // a chunk of all columns
  static constexpr int kOffsetX = kTileM * kStageK, kStageBytes = (kTileM + kTileN) * kStageK;
  static constexpr int kOffsetScales = kStages * kStageBytes;
  static constexpr int kOffsetTables = kOffsetScales + kStages * kChunks * 4;
  using Laid = portable::LaidTile<kTileM, kTileN, kThreads, 4, true>;

  static_assert(kStageK == 64 || kStageK == 128, "a row is half a 128-byte line or one");
  static_assert(kThreads % kChunks == 0 && kWarpM % 16 == 0 && kWarpN % 16 == 0,
                "whole copies and fragments");
  static_assert(kOffsetTables + 2 * kChunks * static_cast<int>(sizeof(Entry)) <=
                        BSRG_EIGHT_SHARED_BYTES(kTileM, kTileN, kStageK, kStages) &&
                    Laid::kBytes <= BSRG_EIGHT_SHARED_BYTES(kTileM, kTileN, kStageK, kStages),
                "what the host reserves");

  // Byte offset of a chunk of A or X in its part of a stage.
  __device__ static constexpr int offset(int row, int chunk) {
    return row * kStageK + ((chunk ^ (row / kRowsPerLine % kChunks)) << 4);
  }

  template <bool kScaled>
  __device__ __forceinline__ void accumulate(float (&sums)[kFragmentsM][kFragmentsN][4]) const {
    const uint32_t scales = ptx::shared_address(shared_ + kOffsetScales);
    const auto load = [&](int slot, const Entry *entries) {
      const uint32_t stage = ptx::shared_address(shared_) + slot * kStageBytes;
      copy<kTileM, true>(stage, tile_.rows, p_.a_row_stride, [&](int chunk) {
        const Entry &entry = entries[chunk];
        return entry.there ? static_cast<const uint8_t *>(of_.values) + entry.a : nullptr;
      });
      copy<kTileN, false>(stage + kOffsetX, of_.n - column_, kChunk, [&](int chunk) {
        const Entry &entry = entries[chunk];
        return entry.there ? static_cast<const uint8_t *>(of_.x) + entry.x + column_ * kChunk : nullptr;
      });
      if (kScaled && threadIdx.x < kChunks)
        ptx::cp_async<4>(scales + (slot * kChunks + threadIdx.x) * 4,
                         p_.scaling.block_scales + entries[threadIdx.x].block, entries[threadIdx.x].there);
    };
    const auto multiply = [&](int slot) {
      multiply_stage<kScaled>(ptx::shared_address(shared_) + slot * kStageBytes,
                              reinterpret_cast<const float *>(shared_ + kOffsetScales) + slot * kChunks,
                              sums);
    };
    Walker<kChunks> walker(p_, tile_, threadIdx.x);
    const int steps =
        static_cast<int>((static_cast<int64_t>(tile_.blocks) * p_.chunks + kChunks - 1) / kChunks);
    portable::walk_stages<kStages, kChunks>(steps, walker, reinterpret_cast<Entry *>(shared_ + kOffsetTables),
                                            load, multiply);
  }

  // ---- loads ------------------------------------------------------------------------------------

  // The chunks of kRows rows, of which `existing` are there; the rest is zeros. A quarter of a warp asks L2 together, and has
  // what lies together in memory: the chunks of a row (kAlongK), or eight rows of a chunk.
  template <int kRows, bool kAlongK, typename Where>
  __device__ __forceinline__ static void copy(uint32_t stage, int64_t existing, int64_t row_bytes,
                                              const Where &where) {
    constexpr int kStep = kThreads / kChunks, kTogether = kAlongK ? 1 : 8;
    static_assert(kStep % (8 * kRowsPerLine) == 0 || kRows <= kStep, "rows of a thread are permuted alike");
    const int chunk = threadIdx.x / kTogether % kChunks;
    int row = threadIdx.x / (kTogether * kChunks) * kTogether + threadIdx.x % kTogether;
    ptx::settle(row);  // or all that depends on it would stay in registers from stage to stage
    const uint8_t *source = where(chunk);
    const int count = source == nullptr ? 0 : static_cast<int>(min(existing, static_cast<int64_t>(kRows)));
    source += row * row_bytes;
    uint32_t to = stage + (kAlongK ? offset(row, chunk) : (chunk * kRows + row) * kChunk);
#pragma unroll 4
    for (; row < kRows; row += kStep) {
      ptx::cp_async<16>(to, source, row < count);
      source += kStep * row_bytes;
      to += kStep * (kAlongK ? kStageK : kChunk);
    }
  }

  // ---- multiply ---------------------------------------------------------------------------------

  template <bool kScaled>
  __device__ __forceinline__ void multiply_stage(uint32_t stage, const float *scales,
                                                 float (&sums)[kFragmentsM][kFragmentsN][4]) const {
    // Chunks further along a row are reached by flipping address bits.
    const uint32_t a0 = stage + warp_ / kWarpsN * (kWarpM * kStageK) + offset(lane_ % 16, lane_ / 16);
    const uint32_t x0 =
        stage + kOffsetX + lane_ / 16 * kPanelBytes + (warp_ % kWarpsN * kWarpN + lane_ % 16) * kChunk;
#pragma unroll(kScaled ? 1 : kChunks / 2)
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
      // Of rows 0 to 7 and 8 to 15 of a fragment the first chunk, then the second.
      uint32_t a[kFragmentsM][4], x[kFragmentsN / 2][4];
#pragma unroll
      for (int i = 0; i < kFragmentsM; ++i)
        ptx::load_matrix_x4(a[i], (a0 ^ (chunk << 4)) + i * (16 * kStageK));
#pragma unroll
      for (int j = 0; j < kFragmentsN / 2; ++j)
        ptx::load_matrix_x4(x[j], x0 + chunk * kPanelBytes + j * (16 * kChunk));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale = kScaled ? scales[chunk + half] : 1.f;
        uint32_t wide[kFragmentsM][4];
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
          for (int r = 0; r < 4; ++r) wide[i][r] = ptx::widen<T>(a[i][2 * half + r % 2], r / 2);
#pragma unroll
        for (int j = 0; j < kFragmentsN; ++j) {
          const uint32_t four = x[j / 2][2 * half + j % 2];
          const uint32_t low = ptx::widen<T>(four, false), high = ptx::widen<T>(four, true);
          if constexpr (kScaled) {
            float of_chunk[kFragmentsM][4];
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i) ptx::multiply_m16n8k16(of_chunk[i], wide[i], low, high);
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
              for (int e = 0; e < 4; ++e) sums[i][j][e] = fmaf(scale, of_chunk[i][e], sums[i][j][e]);
            if (j % 2)
              __syncwarp();  // or ptxas would gather sums of more chunks than there are registers for
          } else {
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i) ptx::mma_m16n8k16<__half>(sums[i][j], wide[i], low, high);
          }
        }
      }
    }
  }

  template <typename Out>
  __device__ __forceinline__ void store(const Laid &laid) const {
    const float a_scale = p_.scaling.a_scale == nullptr ? 1.f : __ldg(p_.scaling.a_scale);
    const float x_scale = p_.scaling.x_scale == nullptr ? 1.f : __ldg(p_.scaling.x_scale);
    laid.template put_vectors<Out>();
    __syncthreads();
    laid.template store<Out>(
        [&](float sum) { return static_cast<float>(of_.alpha) * (sum * a_scale * x_scale); },
        of_.beta != 0 || of_.output.given);
  }

  const bsrg_eight_params &p_;
  const bsrg_portable_params &of_;
  unsigned char *const shared_;
  const portable::RowTile tile_;
  const int lane_, warp_;
  int64_t column_ = 0;
};

}  // namespace bsrg::eight

// One kernel, <prefix>_m<rows>n<columns>, a row of BSRG_EIGHT_TILES.
#define BSRG_EIGHT_KERNEL(prefix, type, rows, columns, warps_m, warps_n, stage_k, stages, ctas)        \
  extern "C" __global__ void __launch_bounds__(32 * (warps_m) * (warps_n), ctas)                       \
      prefix##_m##rows##n##columns(const __grid_constant__ bsrg_eight_params params) {                 \
    bsrg::ptx::follow_grid_before();                                                                   \
    extern __shared__ __align__(128) unsigned char shared_memory[];                                    \
    bsrg::eight::Kernel<type, rows, columns, warps_m, warps_n, stage_k, stages>(params, shared_memory) \
        .run();                                                                                        \
  }
