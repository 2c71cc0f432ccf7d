// BSR x dense for any block shape, N and strides, float16 and bfloat16, on tensor cores of sm_80 and up.
//
//   Y[tile rows, tile columns]  =  A block row[tile rows, flattened K] * the rows of X that it selects
//
// A CTA computes one tile of one block row (rows beyond the block height are zeros) and re-reads X for
// every block row, so that the traffic of X from L2, 2 / block height bytes a multiply-add, is what limits
// small blocks; hence the wide column tiles. Operands go through a ring of stages in shared memory to
// ldmatrix and mma.sync.
//
// Shared memory of a stage: A [tile rows][stage k], then X [stage k][tile columns], 16-byte chunks permuted
// within 128-byte lines so that eight rows of one chunk lie in different banks, for ldmatrix as well as for
// the copies.
#pragma once

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"
#include "sm80/laid_tile.cuh"
#include "sm80/pipeline.cuh"
#include "sm80/quad.cuh"

namespace bsrg::portable {

// kTransposed: A is the transposed of what is stored. A stage then has it as [stage k][tile rows], and ldmatrix
// transposes it on the way to the registers.
template <typename T, int kTileM, int kTileN, int kWarpsM, int kWarpsN, int kStageK, int kStages,
          bool kTransposed>
class Kernel {
 public:
  __device__ __forceinline__ Kernel(const bsrg_portable_params &p, unsigned char *shared)
      : p_(p),
        shared_(shared),
        tile_(row_tile(p, kTileM)),
        lane_(threadIdx.x % 32),
        warp_(ptx::warp_index()) {}

  __device__ __forceinline__ void run() {
    const int64_t column_tiles = (p_.n + kTileN - 1) / kTileN;
    for (int64_t column_tile = blockIdx.y; column_tile < column_tiles; column_tile += gridDim.y) {
      column_ = column_tile * kTileN;
      float sums[kFragmentsM][kFragmentsN][4] = {};
      if (p_.vector_a && p_.vector_x && p_.n % kChunk == 0)
        accumulate<true>(sums, tile_);
      else
        accumulate<false>(sums, tile_);
      if (p_.vector_y && !p_.output.given)
        store_vectors(sums);
      else
        store_laid(sums);
    }
  }

  // One tile, from `column` on, of the product with a block column of B: see pairs.cuh.
  template <typename Meetings>
  __device__ __forceinline__ void run_pairs(Meetings &meetings, int column) {
    column_ = column;
    float sums[kFragmentsM][kFragmentsN][4] = {};
    while (meetings.template find<kThreads>(tile_)) {
      if (p_.vector_a && p_.vector_x && p_.n % kChunk == 0)
        accumulate<true>(sums, meetings.tile());
      else
        accumulate<false>(sums, meetings.tile());
    }
    if (p_.vector_y)
      store_vectors(sums);
    else
      store_elements(sums);
  }

 private:
  static constexpr int kWarps = kWarpsM * kWarpsN, kThreads = 32 * kWarps;
  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 8;
  static constexpr int kChunk = 8;  // elements in 16 bytes
  static constexpr int kChunksA = kStageK / kChunk, kChunksX = kTileN / kChunk;
  static constexpr int kRowBytesA = kStageK * 2, kRowBytesX = kTileN * 2;
  static constexpr int kRowsPerLine = 128 / kRowBytesA;
  static constexpr int kChunksAT = kTileM / kChunk, kRowBytesAT = kTileM * 2;  // transposed
  static constexpr int kOffsetX = kTileM * kRowBytesA;
  static constexpr int kStageBytes = kOffsetX + kStageK * kRowBytesX;

  using Laid = LaidTile<kTileM, kTileN, kThreads, 8, false>;

  static_assert(Laid::kBytes <= kStages * kStageBytes, "sums take the place of stages");
  static_assert(kStageK == 16 || kStageK == 32 || kStageK == 64, "a row of A is at most a 128-byte line");
  static_assert(kTileN == 64 || kTileN == 128 || kTileN == 256, "a row of X is copied by 8, 16 or 32 lanes");
  static_assert(kFragmentsM >= 1 && kFragmentsN >= 4 && kFragmentsN % 4 == 0, "outputs are stored in fours");
  static_assert(kThreads >= kStageK && kOffsetX % 128 == 0, "entries a thread, swizzled lines");
  static_assert(kStages * kStageBytes + 2 * kStageK * sizeof(KEntry) ==
                    BSRG_MMA_SHARED_BYTES(kTileM, kTileN, kStageK, kStages),
                "what the host reserves");

  // Byte offsets of a chunk in a stage's A and X.
  __device__ static constexpr int offset_a(int row, int chunk) {
    return row * kRowBytesA + ((chunk ^ (row / kRowsPerLine % kChunksA)) << 4);
  }
  __device__ static constexpr int offset_at(int k, int chunk) {
    constexpr int kPeriod = kRowBytesAT >= 128  ? 1
                            : kRowBytesAT == 64 ? 2
                                                : 4;  // k, until a bank comes again
    constexpr int kSpread = kRowBytesAT >= 128 ? 8 : kRowBytesAT == 64 ? 4 : 2;
    return k * kRowBytesAT + ((chunk ^ (k / kPeriod % kSpread)) << 4);
  }
  __device__ static constexpr int offset_x(int k, int chunk) {
    return k * kRowBytesX + ((chunk ^ (k % 8)) << 4);
  }

  // kFast: 16-byte copies of both operands, each whole or absent.
  template <bool kFast, typename Tile>
  __device__ __forceinline__ void accumulate(float (&sums)[kFragmentsM][kFragmentsN][4],
                                             const Tile &tile) const {
    const auto load = [&](int slot, const KEntry *entries) {
      unsigned char *const a = shared_ + slot * kStageBytes;
      unsigned char *const x = a + kOffsetX;
      if constexpr (kFast) {
        if constexpr (kTransposed)
          copy_at(ptx::shared_address(a), entries);
        else
          copy_a(ptx::shared_address(a), entries);
        copy_x(ptx::shared_address(x), entries);
      } else {
        if constexpr (kTransposed)
          load_at(a, entries);
        else if (p_.vector_a)
          copy_a(ptx::shared_address(a), entries);
        else
          gather_a(a, entries);
        if (p_.vector_x)
          copy_x_rows(ptx::shared_address(x), entries);
        else
          gather_x(x, entries);
      }
    };
    const auto multiply = [&](int slot) {
      multiply_stage(ptx::shared_address(shared_) + slot * kStageBytes, sums);
    };
    walk_k<kStages, kStageK, kTransposed>(
        p_, tile, reinterpret_cast<KEntry *>(shared_ + kStages * kStageBytes), load, multiply);
  }

  // ---- loads of a transposed A ------------------------------------------------------------------

  // Block height a multiple of 8: the 8 rows of a chunk exist, or none. A thread copies the same chunk of several k where
  // the chunks of a k divide the threads.
  __device__ __forceinline__ void copy_at(uint32_t stage, const KEntry *entries) const {
    constexpr int kStep = kThreads % kChunksAT == 0 ? kThreads / kChunksAT : 0;
    static_assert(kStep % 8 == 0, "the permutation repeats after 8 k");
    if constexpr (kStep > 0) {
      const int chunk = threadIdx.x % kChunksAT, first_k = threadIdx.x / kChunksAT;
      const bool exists = chunk * kChunk < tile_.rows;
      const uint32_t destination = stage + offset_at(first_k, chunk);
#pragma unroll 2
      for (int k = 0; k < kStageK; k += kStep)
        if (kStageK % kStep == 0 || first_k + k < kStageK)
          copy_chunk(destination + k * kRowBytesAT, entries[first_k + k].a, chunk, exists);
    } else {
#pragma unroll 2
      for (int copy = threadIdx.x; copy < kStageK * kChunksAT; copy += kThreads) {
        const int k = copy / kChunksAT, chunk = copy % kChunksAT;
        copy_chunk(stage + offset_at(k, chunk), entries[k].a, chunk, chunk * kChunk < tile_.rows);
      }
    }
  }

  __device__ __forceinline__ void copy_chunk(uint32_t destination, int64_t a, int chunk, bool exists) const {
    ptx::cp_async<16>(destination, static_cast<const T *>(p_.values) + a + chunk * kChunk, a >= 0 && exists);
  }

  __device__ __forceinline__ void gather_at(unsigned char *stage, const KEntry *entries) const {
    constexpr int kPairs = kTileM * kStageK / 2;
    const auto *values = static_cast<const uint16_t *>(p_.values);
#pragma unroll 2
    for (int pair = threadIdx.x; pair < kPairs; pair += kThreads) {
      const int k = pair / (kTileM / 2), row = pair % (kTileM / 2) * 2;
      const int64_t a = entries[k].a;
      uint32_t packed = 0;
      if (a >= 0 && row < tile_.rows) packed = __ldg(values + a + row);
      if (a >= 0 && row + 1 < tile_.rows) packed |= static_cast<uint32_t>(__ldg(values + a + row + 1)) << 16;
      *reinterpret_cast<uint32_t *>(stage + offset_at(k, row / kChunk) + row % kChunk * 2) = packed;
    }
  }

  __device__ __forceinline__ void load_at(unsigned char *stage, const KEntry *entries) const {
    if (p_.vector_a)
      copy_at(ptx::shared_address(stage), entries);
    else
      gather_at(stage, entries);
  }

  // ---- loads, block width a multiple of 8: the 8 k of a chunk lie in one block ------------------

  __device__ __forceinline__ void copy_a(uint32_t stage, const KEntry *entries) const {
    constexpr int kCopies = kTileM * kChunksA;
    constexpr int kRowStep = kThreads / kChunksA;
    const int chunk = threadIdx.x % kChunksA, first_row = threadIdx.x / kChunksA;
    const int64_t a = entries[chunk * kChunk].a;
    const T *source =
        static_cast<const T *>(p_.values) + a + static_cast<int64_t>(first_row) * p_.block_width;
#pragma unroll
    for (int i = 0; i < (kCopies + kThreads - 1) / kThreads; ++i) {
      const int row = first_row + i * kRowStep;
      if (kCopies % kThreads == 0 || row < kTileM)
        ptx::cp_async<16>(stage + offset_a(row, chunk), source, a >= 0 && row < tile_.rows);
      source += static_cast<int64_t>(kRowStep) * p_.block_width;
    }
  }

  // A warp copies successive k, so that it needs one entry for eight of them.
  __device__ __forceinline__ void copy_x(uint32_t stage, const KEntry *entries) const {
    constexpr int kRowsPerWarp = kStageK / kWarps;
    constexpr int kRowsPerCopy = 32 / kChunksX;
    constexpr int kGroup = kRowsPerWarp < kChunk ? kRowsPerWarp : kChunk;
    static_assert(kRowsPerWarp % kRowsPerCopy == 0 && kRowsPerWarp % kGroup == 0, "whole copies");
    const int chunk = lane_ % kChunksX;
    const int64_t column = column_ + chunk * kChunk;
#pragma unroll
    for (int group = 0; group < kRowsPerWarp; group += kGroup) {
      const int first_k = warp_ * kRowsPerWarp + group;
      const KEntry entry = entries[first_k / kChunk * kChunk];
      const bool read = entry.a >= 0 && column < p_.n;
      const int lane_k = first_k % kChunk + lane_ / kChunksX;
      const T *source = static_cast<const T *>(p_.x) + entry.x + lane_k * p_.x_row_stride + column;
      const uint32_t destination = stage + (first_k / kChunk * kChunk) * kRowBytesX + offset_x(lane_k, chunk);
#pragma unroll
      for (int k = 0; k < kGroup; k += kRowsPerCopy) {
        // Row k's permutation differs from row 0's in these address bits only.
        ptx::cp_async<16>((destination ^ (k << 4)) + k * kRowBytesX, source, read);
        source += kRowsPerCopy * p_.x_row_stride;
      }
    }
  }

  // ---- loads, any block width, any strides ------------------------------------------------------

  __device__ __forceinline__ void copy_x_rows(uint32_t stage, const KEntry *entries) const {
    const int chunk = threadIdx.x % kChunksX;
    const int64_t column = column_ + chunk * kChunk;
    const int bytes = static_cast<int>(max(min(p_.n - column, int64_t{kChunk}), int64_t{0})) * 2;
#pragma unroll 4
    for (int k = threadIdx.x / kChunksX; k < kStageK; k += kThreads / kChunksX) {
      const KEntry entry = entries[k];
      ptx::cp_async_part(stage + offset_x(k, chunk), static_cast<const T *>(p_.x) + entry.x + column,
                         entry.a >= 0 ? bytes : 0);
    }
  }

  // Element by element through registers, a pair a store.
  __device__ __forceinline__ void gather_a(unsigned char *stage, const KEntry *entries) const {
    constexpr int kPairs = kTileM * kStageK / 2;
    const auto *values = static_cast<const uint16_t *>(p_.values);
#pragma unroll 4
    for (int pair = threadIdx.x; pair < kPairs; pair += kThreads) {
      const int k = pair % (kStageK / 2) * 2, row = pair / (kStageK / 2);
      const int64_t row_offset = static_cast<int64_t>(row) * p_.block_width;
      const int64_t a0 = entries[k].a, a1 = entries[k + 1].a;
      uint32_t packed = 0;
      if (row < tile_.rows && a0 >= 0) packed = __ldg(values + a0 + row_offset);
      if (row < tile_.rows && a1 >= 0) packed |= static_cast<uint32_t>(__ldg(values + a1 + row_offset)) << 16;
      *reinterpret_cast<uint32_t *>(stage + offset_a(row, k / kChunk) + k % kChunk * 2) = packed;
    }
  }

  __device__ __forceinline__ void gather_x(unsigned char *stage, const KEntry *entries) const {
    constexpr int kPairs = kStageK * kTileN / 2;
    const auto *x = static_cast<const uint16_t *>(p_.x);
    const bool along_columns = p_.x_col_stride == 1;  // which neighbours lanes read together
#pragma unroll 4
    for (int pair = threadIdx.x; pair < kPairs; pair += kThreads) {
      const int k = along_columns ? pair / (kTileN / 2) : pair % kStageK;
      const int n = (along_columns ? pair % (kTileN / 2) : pair / kStageK) * 2;
      const KEntry entry = entries[k];
      const int64_t column = column_ + n;
      const uint16_t *source = x + entry.x + column * p_.x_col_stride;
      uint32_t packed = 0;
      if (entry.a >= 0 && column < p_.n) packed = __ldg(source);
      if (entry.a >= 0 && column + 1 < p_.n)
        packed |= static_cast<uint32_t>(__ldg(source + p_.x_col_stride)) << 16;
      *reinterpret_cast<uint32_t *>(stage + offset_x(k, n / kChunk) + n % kChunk * 2) = packed;
    }
  }

  // ---- multiply ---------------------------------------------------------------------------------

  __device__ __forceinline__ void multiply_stage(uint32_t stage,
                                                 float (&sums)[kFragmentsM][kFragmentsN][4]) const {
    // Chunks further along a row are reached by flipping address bits: swizzled addresses do not add.
    const uint32_t a0 = stage + warp_ / kWarpsN * (kWarpM * kRowBytesA) + offset_a(lane_ % 16, lane_ / 16);
    const uint32_t x0 =
        stage + kOffsetX + offset_x(lane_ % 16, warp_ % kWarpsN * (kWarpN / kChunk) + lane_ / 16);
#pragma unroll
    for (int k = 0; k < kStageK; k += 16) {
      uint32_t a[kFragmentsM][4];
#pragma unroll
      for (int i = 0; i < kFragmentsM; ++i) {
        if constexpr (kTransposed)
          ptx::load_matrix_x4_trans(a[i], fragment_at(stage, i) + k * kRowBytesAT);
        else
          ptx::load_matrix_x4(a[i], (a0 ^ (k / kChunk << 4)) + i * (16 * kRowBytesA));
      }
#pragma unroll
      for (int j = 0; j < kFragmentsN; j += 2) {
        uint32_t b[4];
        ptx::load_matrix_x4_trans(b, (x0 ^ (j << 4)) + k * kRowBytesX);
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i) {
          ptx::mma_m16n8k16<T>(sums[i][j], a[i], b[0], b[1]);
          ptx::mma_m16n8k16<T>(sums[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  // Where a lane's row of fragment i, first k, lies in a transposed stage: matrices 0 and 1 are eight k of 16 rows, 2 and
  // 3 the next eight. Fragments are two chunks apart, a flip of bits where the swizzle may reach these.
  __device__ __forceinline__ uint32_t fragment_at(uint32_t stage, int i) const {
    const int chunk = warp_ / kWarpsN * (kWarpM / kChunk) + lane_ / 8 % 2;
    const uint32_t first = stage + offset_at(lane_ / 16 * 8 + lane_ % 8, chunk);
    return kRowBytesAT == 96 ? first + i * 32 : first ^ (i * 32);
  }

  // ---- output -----------------------------------------------------------------------------------

  __device__ __forceinline__ int64_t warp_column() const { return column_ + warp_ % kWarpsN * kWarpN; }
  __device__ __forceinline__ int fragment_row(int i, int half) const {
    return warp_ / kWarpsN * kWarpM + i * 16 + half * 8 + lane_ / 4;
  }

  // Fused output, and what goes element by element.
  __device__ __forceinline__ void store_laid(const float (&sums)[kFragmentsM][kFragmentsN][4]) const {
    const Laid laid(p_, tile_, column_, shared_);
    __syncthreads();  // all have read their stages; the next ones come behind a barrier
    laid.put(sums, warp_ / kWarpsN * kWarpM, warp_ % kWarpsN * kWarpN, lane_);
    laid.template put_vectors<T>();
    __syncthreads();
    laid.template store<T>([&](float sum) { return static_cast<float>(p_.alpha) * sum; },
                           p_.output.given || p_.beta != 0);
  }

  // 16 bytes a lane and store: four fragments of a row are exchanged within the quad. C comes in the same
  // way, and each lane reads the bytes of C that it then overwrites when Y is C.
  __device__ __forceinline__ void store_vectors(const float (&sums)[kFragmentsM][kFragmentsN][4]) const {
    const float alpha = static_cast<float>(p_.alpha), beta = static_cast<float>(p_.beta);
    int64_t first_row = tile_.y_row;
    ptx::settle(first_row);  // as LaidTile::put
#pragma unroll
    for (int i = 0; i < 2 * kFragmentsM; ++i) {
      const int row = fragment_row(i / 2, i % 2);
      T *const y_row = static_cast<T *>(p_.y) + (first_row + row) * p_.y_row_stride;
      const T *const c_row = static_cast<const T *>(p_.c) + (first_row + row) * p_.c_row_stride;
#pragma unroll
      for (int j = 0; j < kFragmentsN; j += 4) {
        const int64_t column = warp_column() + (j + lane_ % 4) * kChunk;
        const int64_t count = row < tile_.rows ? p_.n - column : 0;
        uint32_t c[4] = {}, y[4];
        if (beta != 0) {
          quad::load_chunk(c, c_row + column, count);
          quad::transpose(c, lane_);
        }
#pragma unroll
        for (int f = 0; f < 4; ++f) {
          const float *sum = &sums[i / 2][j + f][i % 2 * 2];
          float low = alpha * sum[0], high = alpha * sum[1];
          if (beta != 0) {
            const float2 old = ptx::unpack<T>(c[f]);
            low = fmaf(beta, old.x, low);
            high = fmaf(beta, old.y, high);
          }
          y[f] = ptx::pack<T>(low, high);
        }
        quad::transpose(y, lane_);
        quad::store_chunk(y_row + column, y, count);
      }
    }
  }

  __device__ __forceinline__ void store_elements(const float (&sums)[kFragmentsM][kFragmentsN][4]) const {
    const float alpha = static_cast<float>(p_.alpha), beta = static_cast<float>(p_.beta);
#pragma unroll
    for (int i = 0; i < 2 * kFragmentsM; ++i) {
      const int row = fragment_row(i / 2, i % 2);
      if (row >= tile_.rows) continue;
      T *const y_row = static_cast<T *>(p_.y) + (tile_.y_row + row) * p_.y_row_stride;
      const T *const c_row = static_cast<const T *>(p_.c) + (tile_.y_row + row) * p_.c_row_stride;
#pragma unroll
      for (int j = 0; j < kFragmentsN; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int64_t column = warp_column() + j * kChunk + lane_ % 4 * 2 + e;
          if (column >= p_.n) continue;
          float v = alpha * sums[i / 2][j][i % 2 * 2 + e];
          if (beta != 0) v = fmaf(beta, static_cast<float>(c_row[column * p_.c_col_stride]), v);
          y_row[column * p_.y_col_stride] = static_cast<T>(v);
        }
      }
    }
  }

  const bsrg_portable_params &p_;
  unsigned char *const shared_;
  const RowTile tile_;
  const int lane_, warp_;
  int64_t column_ = 0;
};

}  // namespace bsrg::portable

// One kernel, <prefix>_m<rows>n<columns>, a row of BSRG_MMA_TILES.
#define BSRG_MMA_KERNEL_OF(prefix, type, transposed, rows, columns, warps_m, warps_n, stage_k, stages, ctas) \
  extern "C" __global__ void __launch_bounds__(32 * (warps_m) * (warps_n), ctas)                             \
      prefix##_m##rows##n##columns(const __grid_constant__ bsrg_portable_params params) {                    \
    /* CTAs of the next one that wait beside these lie where there is room first: up to 30% slower. */       \
    bsrg::ptx::wait_for_grid_before();                                                                       \
    extern __shared__ __align__(128) unsigned char shared_memory[];                                          \
    bsrg::portable::Kernel<type, rows, columns, warps_m, warps_n, stage_k, stages, transposed>(              \
        params, shared_memory)                                                                               \
        .run();                                                                                              \
  }
#define BSRG_MMA_KERNEL(prefix, type, ...) BSRG_MMA_KERNEL_OF(prefix, type, false, __VA_ARGS__)
#define BSRG_MMA_TRANSPOSED(prefix, type, ...) BSRG_MMA_KERNEL_OF(prefix, type, true, __VA_ARGS__)
