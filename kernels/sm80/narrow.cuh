// BSR x few dense columns (up to 64), float16, bfloat16 and 8-bit floats, on tensor cores of sm_80 and up.
//
// Each element of A is needed by one warp only, so A goes from device memory to the lane that multiplies it, and
// the kernel is a race to keep enough of A in flight. A CTA computes an item: a strip of 16 or 32 rows of a block
// row, or a piece of a long one. Its warps take turns along k, a round each, and their sums are added in the order
// of the warps.
//
// Fragments (see ptx/mma_sync.cuh), lane l, g = l / 4, q = l % 4. In a step of 32 k, seen as four chunks of eight,
// lane l copies chunk q of rows g, g + 8, ...: 16 bytes of each. Two instructions m = 0, 1 use them as they are. The
// sum over k has no order, so k slots are named as it suits the lanes, in A and X alike:
//
//   slots 2q, 2q + 1 of instruction m      k = 8q + 4m,     8q + 4m + 1      a[0], a[1] and b[0]
//   slots 2q + 8, 2q + 9                   k = 8q + 4m + 2, 8q + 4m + 3      a[2], a[3] and b[1]
//
// Columns are named likewise: slot s of the n8 tile j is column s * tiles + j. So lane l needs `tiles` neighbouring
// columns, g * tiles ..., of four neighbouring rows of X an instruction, and holds runs of `tiles` columns of Y.
// Up to 16 columns, and before Hopper, X takes no detour over shared memory either, a round or two ahead; L1 serves the warps
// that use the same rows.
//
// A waits in a ring of cp.async copies a warp (sm80/narrow_a.cuh). A lane reads only what it copied itself, so no barrier is
// needed, but for blocks of 16 columns and those of transposed views.
//
// 8-bit floats, of an X that is column-major or, in the ring, lies in chunks of 16 k of all columns, are copied and loaded two at
// a time, as if they were 16-bit floats of blocks half as wide. Only in front of the instructions, of which there are two for
// each of those above, are they made float16: of the four in a register the lower two for the first and the upper two for the
// second, in A and X alike.
//
// On Hopper, with more than 16 columns, X comes the same way (kRingX): registers hold one round of it, and to wait for
// L2 at every round was what such products took their time for. Where tensor maps can describe the operands, blocks of
// more than 32 rows have kernels of their own there (sm90/narrow_tma.cuh).
#pragma once

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"
#include "sm80/narrow_a.cuh"
#include "sm80/narrow_begin.cuh"
#include "sm80/narrow_output.cuh"

namespace bsrg::narrow {

template <int kBytes>
__device__ __forceinline__ void load(uint32_t *words, const void *source) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16, "the widths of a load");
  if constexpr (kBytes == 2) {
    words[0] = __ldg(static_cast<const uint16_t *>(source));
  } else if constexpr (kBytes == 4) {
    words[0] = __ldg(static_cast<const uint32_t *>(source));
  } else if constexpr (kBytes == 8) {
    const uint2 v = __ldg(static_cast<const uint2 *>(source));
    words[0] = v.x, words[1] = v.y;
  } else {
    const uint4 v = __ldg(static_cast<const uint4 *>(source));
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  }
}

template <typename T, int kColumns, int kStrip, bool kRingX, Copies kCopies>
class Kernel : RingOfA<RingShape<kColumns, kStrip, kRingX, sizeof(T) == 1>, kStrip, kCopies> {
  using Base = RingOfA<RingShape<kColumns, kStrip, kRingX, sizeof(T) == 1>, kStrip, kCopies>;
  using typename Base::Position;

 public:
  __device__ __forceinline__ Kernel(const bsrg_narrow_params &p, unsigned char *shared)
      : Base(p, shared),
        ring_x_(ring_ + kBytesOfA),
        x_(static_cast<const uint16_t *>(p.x) + g_ * (kEight ? p.x_group_stride : kTiles * p.x_col_stride)) {}

  __device__ __forceinline__ void run(const Start &start) {
    const bsrg_narrow_item &item = start.item;
    this->begin(item);
    // A needs no block columns, so it sets out first, but for transposed views, whose blocks lie anywhere.
    if constexpr (!kTransposed) set_out();
    keep_columns(p_, start, block_columns_);
    if constexpr (kTransposed)
      for (int i = threadIdx.x; i < item.block_count; i += blockDim.x)
        this->block_places()[i] = __ldg(p_.places + item.first_block + i);
    __syncthreads();
    if constexpr (kTransposed) set_out();

    float sums[kStrip / 16][kTiles][4] = {};
    if constexpr (kEight && kRingX) {
      accumulate_from_ring<BSRG_NARROW_X_COLUMNS>(sums);
    } else if constexpr (kEight) {
      accumulate<BSRG_NARROW_X_COLUMNS>(sums);
    } else if constexpr (kRingX) {
      if (p_.x_layout == BSRG_NARROW_X_ROWS)
        accumulate_from_ring<BSRG_NARROW_X_ROWS>(sums);
      else
        accumulate_from_ring<BSRG_NARROW_X_COLUMNS>(sums);
    } else if (p_.x_layout == BSRG_NARROW_X_ROWS)
      accumulate<BSRG_NARROW_X_ROWS>(sums);
    else if (p_.x_layout == BSRG_NARROW_X_COLUMNS)
      accumulate<BSRG_NARROW_X_COLUMNS>(sums);
    else
      accumulate<BSRG_NARROW_X_ELEMENTS>(sums);
    // Copies past the end still write zeros, and the ring now gets the sums, of other lanes too.
    ptx::cp_async_wait<0>();
    __syncwarp();
    share(sums);
    __syncthreads();
    finish();
  }

 private:
  using Base::block_columns_;
  using Base::chunk_stride;
  using Base::chunks_;
  using Base::copy_a;
  using Base::first_chunk;
  using Base::g_;
  using Base::kBytesOfA;
  using Base::kRing;
  using Base::kRoundSteps;
  using Base::kTransposed;
  using Base::kWarpBytes;
  using Base::lane_;
  using Base::p_;
  using Base::position;
  using Base::q_;
  using Base::ring_;
  using Base::shared_;
  using Base::warp_;
  using Base::warps_;
  static constexpr bool kEight = sizeof(T) == 1;
  static constexpr int kTiles = kColumns / 8;
  static constexpr int kHalves = 2 * kRoundSteps;  // instructions along k
  // That X is ahead in registers, where there is no ring of it.
  static constexpr int kRoundsOfX = kColumns == 8 && kStrip == 32 ? 2 : 1;
  // Both halves of a step have one chunk; with 64 columns there are no registers to fetch them side by side.
  static constexpr int kHalvesAtOnce = kColumns <= 32 ? 2 : 1;
  static constexpr int kRowWords = kTiles > 1 ? kTiles / 2 : 1;
  static constexpr int kHalfWords = 4 * kRowWords;
  static constexpr int kBytesOfX = 32 * kColumns * 2;  // of a round
  static constexpr int kUnits = 4 * (kStrip / 16);     // runs of kTiles columns that a lane has sums of

  static_assert(!kRingX || (kColumns >= 32 && kBytesOfA + kRing * kBytesOfX == kWarpBytes),
                "rings of A and X");
  static_assert(kUnits * kTiles * 32 * sizeof(float) <= kBytesOfA, "sums fit in the ring");

  __device__ __forceinline__ void set_out() const {
#pragma unroll
    for (int t = 0; t < kRing - 1; ++t) {
      copy_a(t, first_chunk() + t * chunk_stride());
      ptx::cp_async_commit();
    }
  }

  // ---- X by way of the ring ---------------------------------------------------------------------

  // A round of X, 16 bytes a lane and copy. By rows 8 columns of a row, so that neighbouring lanes copy neighbours: where
  // each copied what it multiplies, four times as many requests went to L2. By columns 8 k of a column.
  __device__ __forceinline__ unsigned char *round_of_x(int t) const {
    return ring_x_ + t % kRing * kBytesOfX;
  }

  // By rows, row 8q + 4h + r of a round: of 64 columns copy 4h + r brings it for all q, of 32 copy r for all q and h.
  // Chunks of 8 columns are permuted so that neither copies nor reads meet a bank twice.
  __device__ __forceinline__ static uint32_t place_in_x(int q, int h, int r, int chunk) {
    if constexpr (kColumns == 64) return (4 * h + r) * 512 + q * 128 + ((chunk ^ 2 * q) << 4);
    return r * 512 + (q + 4 * h) * 64 + ((chunk ^ (q & 2)) << 4);
  }

  // By columns, chunk q of column c of a tile: as lanes copy it, so that writes meet no bank twice.
  __device__ __forceinline__ static uint32_t place_in_tile(int q, int c) {
    return kEight ? q * 128 + ((c ^ 2 * q) << 4) : c * 64 + q * 16;
  }

  // Round t, in which the lane's first chunk of A is `chunk`.
  template <int kLayout>
  __device__ __forceinline__ void copy_x(int t, int chunk) const {
    constexpr bool kByRows = kLayout == BSRG_NARROW_X_ROWS;
    const uint32_t to = ptx::shared_address(round_of_x(t));
    // What the lane copies, of rows 8q, 8q + 1, ... and by rows columns 8c, 8c + 1, ...; by columns c tells which lanes
    // multiply it. Of 8 bits neighbours in memory are columns.
    const int c = kByRows ? lane_ % (kColumns / 8) : kEight ? lane_ % 8 : g_, line = lane_ / (kColumns / 8);
    const int q = kByRows ? line % 4 : kEight ? lane_ / 8 : q_, h = kByRows ? line / 4 : 0;
    chunk += q - q_;
    const bool there = chunk < chunks_;
    int64_t row = 0;
    if (there) {
      const Position at = position(chunk);
      row = static_cast<int64_t>(block_columns_[at.block]) * p_.block_width + at.k;
    }
    constexpr int kCopiesOfX = kBytesOfX / 512;
    const uint16_t *const x = static_cast<const uint16_t *>(p_.x);
    if constexpr (kByRows) {
      const int bytes = there ? min(16, max(0, 2 * (p_.x_columns - 8 * c))) : 0;
      const uint16_t *from = x + (row + 4 * h) * p_.x_row_stride + 8 * c;
#pragma unroll
      for (int i = 0; i < kCopiesOfX; ++i, from += p_.x_row_stride)
        ptx::cp_async_part(to + place_in_x(q, kColumns == 64 ? i / 4 : h, i % 4, c), from, bytes);
    } else {
      const uint16_t *from = x + c * (kEight ? p_.x_group_stride : kTiles * p_.x_col_stride) +
                             (kEight ? row / 8 * p_.x_chunk_stride : row);
#pragma unroll
      for (int i = 0; i < kCopiesOfX; ++i, from += p_.x_col_stride)
        ptx::cp_async<16>(to + i * 512 + place_in_tile(q, c), from, there && c * kTiles + i < p_.x_columns);
    }
  }

  template <int kLayout>
  __device__ __forceinline__ void read_x(uint32_t (&words)[kHalfWords], int t, int h) const {
    const unsigned char *const from = round_of_x(t);
    if constexpr (kLayout == BSRG_NARROW_X_ROWS) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if constexpr (kColumns == 64) {
          const uint4 v = *reinterpret_cast<const uint4 *>(from + place_in_x(q_, h, r, g_));
          words[4 * r] = v.x, words[4 * r + 1] = v.y, words[4 * r + 2] = v.z, words[4 * r + 3] = v.w;
        } else {
          const uint2 v = *reinterpret_cast<const uint2 *>(from + place_in_x(q_, h, r, g_ / 2) + g_ % 2 * 8);
          words[2 * r] = v.x, words[2 * r + 1] = v.y;
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const uint2 v = *reinterpret_cast<const uint2 *>(from + j * 512 + place_in_tile(q_, g_) + h * 8);
        words[2 * j] = v.x, words[2 * j + 1] = v.y;
      }
    }
  }

  template <int kLayout>
  __device__ __forceinline__ void accumulate_from_ring(float (&sums)[kStrip / 16][kTiles][4]) const {
    const int stride = chunk_stride();
    int chunk = first_chunk();
#pragma unroll
    for (int t = 0; t < kRing - 1; ++t) {
      copy_x<kLayout>(t, chunk + t * stride);
      ptx::cp_async_commit();
    }
#pragma unroll 1
    for (int t = 0; chunk - q_ < chunks_; ++t, chunk += stride) {
      ptx::cp_async_wait<kRing - 2>();
      __syncwarp();  // all have copied their part, and read what this round's copies replace
      copy_a(t + kRing - 1, chunk + (kRing - 1) * stride);
      copy_x<kLayout>(t + kRing - 1, chunk + (kRing - 1) * stride);
      ptx::cp_async_commit();
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        uint32_t words[kHalfWords], b[kTiles][2];
        read_x<kLayout>(words, t, h);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          b[j][0] = fragment_x<kLayout>(words, j, 0);
          b[j][1] = fragment_x<kLayout>(words, j, 1);
        }
        multiply_half(t, h, b, sums);
      }
    }
  }

  // ---- X by way of registers --------------------------------------------------------------------

  // The lane's part of X for the round that starts at round_chunk; zeros past the end.
  template <int kLayout>
  __device__ __forceinline__ void fetch_x(uint32_t (&words)[kHalves][kHalfWords], int round_chunk) const {
#pragma unroll
    for (int h = 0; h < kHalves; h += kHalvesAtOnce) {
#pragma unroll
      for (int i = 0; i < kHalvesAtOnce; ++i)
#pragma unroll
        for (int w = 0; w < kHalfWords; ++w) words[h + i][w] = 0;
      const int chunk = round_chunk + h / 2 * 4;
      if (chunk >= chunks_) continue;
      const Position at = position(chunk);
      const int64_t row = static_cast<int64_t>(block_columns_[at.block]) * p_.block_width + at.k + h % 2 * 4;
      const uint16_t *x = x_ + (kEight ? row / 8 * p_.x_chunk_stride + row % 8 : row * p_.x_row_stride);
#pragma unroll
      for (int i = 0; i < kHalvesAtOnce; ++i, x += 4 * p_.x_row_stride) fetch_half<kLayout>(words[h + i], x);
    }
  }

  template <int kLayout>
  __device__ __forceinline__ void fetch_half(uint32_t (&words)[kHalfWords], const uint16_t *x) const {
    if constexpr (kLayout == BSRG_NARROW_X_ROWS) {
#pragma unroll
      for (int i = 0; i < 4; ++i, x += p_.x_row_stride)
        if (g_ * kTiles < p_.x_columns) load<2 * kTiles>(&words[i * kRowWords], x);
    } else {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        if (g_ * kTiles + j >= p_.x_columns) continue;
        const uint16_t *const column = x + j * p_.x_col_stride;
        if constexpr (kLayout == BSRG_NARROW_X_COLUMNS) {
          load<8>(&words[2 * j], column);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            words[2 * j + i / 2] |= static_cast<uint32_t>(__ldg(column + i * p_.x_row_stride)) << i % 2 * 16;
        }
      }
    }
  }

  // Fragment b of tile j: pairs along k, from two rows or as they lie in a column.
  template <int kLayout>
  __device__ static __forceinline__ uint32_t fragment_x(const uint32_t (&words)[kHalfWords], int j,
                                                        int pair) {
    if constexpr (kLayout == BSRG_NARROW_X_ROWS)
      return __byte_perm(words[2 * pair * kRowWords + j / 2], words[(2 * pair + 1) * kRowWords + j / 2],
                         j % 2 ? 0x7632 : 0x5410);
    else
      return words[2 * j + pair];
  }

  template <int kLayout>
  __device__ __forceinline__ void accumulate(float (&sums)[kStrip / 16][kTiles][4]) const {
    const int stride = chunk_stride();
    int chunk = first_chunk();
    uint32_t words[kRoundsOfX][kHalves][kHalfWords];
#pragma unroll
    for (int u = 0; u < kRoundsOfX; ++u) fetch_x<kLayout>(words[u], chunk + u * stride);
#pragma unroll 1
    for (int t = 0; chunk - q_ < chunks_;) {
#pragma unroll
      for (int u = 0; u < kRoundsOfX; ++u, ++t) {
        if (u > 0 && chunk - q_ >= chunks_) break;
        ptx::cp_async_wait<kRing - 2>();
        if constexpr (Base::kShares) __syncwarp();            // as where X waits in the ring
        copy_a(t + kRing - 1, chunk + (kRing - 1) * stride);  // into the slot that was read last
        ptx::cp_async_commit();
        uint32_t b[kHalves][kTiles][2];
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
#pragma unroll
          for (int j = 0; j < kTiles; ++j) {
            b[h][j][0] = fragment_x<kLayout>(words[u][h], j, 0);
            b[h][j][1] = fragment_x<kLayout>(words[u][h], j, 1);
          }
        chunk += stride;
        fetch_x<kLayout>(words[u], chunk + (kRoundsOfX - 1) * stride);
#pragma unroll
        for (int h = 0; h < kHalves; ++h) multiply_half(t, h, b[h], sums);
      }
    }
  }

  __device__ __forceinline__ void multiply_half(int t, int h, const uint32_t (&b)[kTiles][2],
                                                float (&sums)[kStrip / 16][kTiles][4]) const {
    uint32_t a[kStrip / 16][4];
#pragma unroll
    for (int r = 0; r < kStrip / 16; ++r) this->load_fragment(a[r], t, h / 2, h % 2, r);
    if constexpr (kEight) {
      multiply_widened<false>(a, b, sums);
      multiply_widened<true>(a, b, sums);
    } else {
#pragma unroll
      for (int r = 0; r < kStrip / 16; ++r)
#pragma unroll
        for (int j = 0; j < kTiles; ++j) ptx::mma_m16n8k16<T>(sums[r][j], a[r], b[j][0], b[j][1]);
    }
  }

  // The lower or the upper two of every four.
  template <bool kUpper>
  __device__ __forceinline__ void multiply_widened(const uint32_t (&a)[kStrip / 16][4],
                                                   const uint32_t (&b)[kTiles][2],
                                                   float (&sums)[kStrip / 16][kTiles][4]) const {
    uint32_t wide[kStrip / 16][4];
#pragma unroll
    for (int r = 0; r < kStrip / 16; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) wide[r][i] = ptx::widen<T>(a[r][i], kUpper);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const uint32_t low = ptx::widen<T>(b[j][0], kUpper), high = ptx::widen<T>(b[j][1], kUpper);
#pragma unroll
      for (int r = 0; r < kStrip / 16; ++r) ptx::mma_m16n8k16<__half>(sums[r][j], wide[r], low, high);
    }
  }

  // ---- output -----------------------------------------------------------------------------------

  // Unit u of a lane: row u / 2 * 8 + g of its warp's, columns (2q + u % 2) * kTiles and the kTiles - 1 after it.
  __device__ __forceinline__ float *shared_sums(int warp, int unit) const {
    return reinterpret_cast<float *>(shared_ + warp * kWarpBytes) + unit * kTiles * 32 + lane_;
  }

  __device__ __forceinline__ void share(const float (&sums)[kStrip / 16][kTiles][4]) const {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int j = 0; j < kTiles; ++j) shared_sums(warp_, unit)[j * 32] = sums[unit / 4][j][unit % 4];
  }

  __device__ __forceinline__ void finish() const {
    if constexpr (!kEight)
      finish_as<T>();
    else if (p_.out == BSRG_KMAJOR_F32)
      finish_as<float>();
    else if (p_.out == BSRG_KMAJOR_F16)
      finish_as<__half>();
    else
      finish_as<__nv_bfloat16>();
  }

  template <typename Out>
  __device__ __forceinline__ void finish_as() const {
    const bsrg_narrow_item item = p_.items[blockIdx.x];  // again, rather than in registers all the time
    float scale = 1.f;
    if (kEight && p_.a_scale != nullptr) scale *= __ldg(p_.a_scale);
    if (kEight && p_.x_scale != nullptr) scale *= __ldg(p_.x_scale);
    for (int unit = warp_; unit < kUnits; unit += warps_) {
      const int row = unit / 2 * 8 + g_, column = (2 * q_ + unit % 2) * kTiles;
      if (row >= item.rows) continue;
      if (item.slot < 0 && p_.output.given) {
        store_fused<Out>(static_cast<int64_t>(item.y_row) + row, column, unit, scale);
        continue;
      }
      float total[kTiles] = {};
      for (int w = 0; w < warps_; ++w)
#pragma unroll
        for (int j = 0; j < kTiles; ++j) total[j] += shared_sums(w, unit)[j * 32];
      if constexpr (kEight)
#pragma unroll
        for (int j = 0; j < kTiles; ++j) total[j] *= scale;
      if (item.slot >= 0) {
        float *const partial =
            static_cast<float *>(p_.partial) + (static_cast<int64_t>(item.slot) * kStrip + row) * kColumns;
#pragma unroll
        for (int j = 0; j < kTiles; ++j) partial[column + j] = total[j];
      } else {
        store<Out>(static_cast<int64_t>(item.y_row) + row, column, total);
      }
    }
  }

  // Element by element in a loop: its code is long, and unrolled it would take registers from the rest.
  template <typename Out>
  __device__ __forceinline__ void store_fused(int64_t row, int column, int unit, float scale) const {
#pragma unroll 1
    for (int j = 0; j < kTiles && column + j < p_.n; ++j) {
      float total = 0;
      for (int w = 0; w < warps_; ++w) total += shared_sums(w, unit)[j * 32];
      store_element<Out, true>(p_, row, column + j, kEight ? total * scale : total);
    }
  }

  template <typename Out>
  __device__ __forceinline__ void store(int64_t row, int column, const float (&total)[kTiles]) const {
    if constexpr (kTiles > 1 && sizeof(Out) == 2) {
      if (p_.vector_y && column + kTiles <= p_.n) {
        store_run<Out, kTiles>(p_, row, column, total);
        return;
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      if (column + j < p_.n) store_element<Out, false>(p_, row, column + j, total[j]);
  }

  unsigned char *const ring_x_;  // of the warps that take a turn together
  const uint16_t *const x_;      // with the lane's columns
};

template <typename T, int kColumns, int kStrip, bool kRingX, bool kTransposed>
__device__ __forceinline__ void run(const bsrg_narrow_params &p) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  ask_for_blocks(p);
  const Start start = load_start(p);
  // CTAs of the next one that wait beside these cost 1 to 16 columns 15%, so that it begins behind these.
  ptx::wait_for_grid_before();
  if constexpr (kTransposed) {
    Kernel<T, kColumns, kStrip, kRingX, Copies::kTransposed>(p, shared_memory).run(start);
    return;
  } else if constexpr (sizeof(T) == 1) {
    if (p.block_width == 8 && p.block_height > 8) {
      Kernel<T, kColumns, kStrip, kRingX, Copies::kEight>(p, shared_memory).run(start);
      return;
    }
  }
  if constexpr (!kTransposed && (kColumns < 64 || kRingX)) {  // otherwise registers do not suffice
    if (p.block_width == 16) {
      Kernel<T, kColumns, kStrip, kRingX, Copies::kSixteen>(p, shared_memory).run(start);
      return;
    }
  }
  Kernel<T, kColumns, kStrip, kRingX, Copies::kChunks>(p, shared_memory).run(start);
}

}  // namespace bsrg::narrow

// Two CTAs an SM, or more with fewer warps; where the sums are fewest and X is a round ahead, three.
#define BSRG_NARROW_KERNEL(prefix, type, transposed, columns, strip, warps, fewer, fewest)            \
  extern "C" __global__ void __launch_bounds__(32 * (warps), (columns) == 8 && (strip) == 16 ? 3 : 2) \
      prefix##_n##columns##_r##strip(const __grid_constant__ bsrg_narrow_params params) {             \
    bsrg::narrow::run<type, columns, strip, false, transposed>(params);                               \
  }
// One CTA an SM, or more with fewer warps.
#define BSRG_NARROW_SM90_KERNEL(prefix, type, transposed, columns, strip, warps, fewer, fewest) \
  extern "C" __global__ void __launch_bounds__(32 * (warps), 1)                                 \
      prefix##_n##columns##_r##strip(const __grid_constant__ bsrg_narrow_params params) {       \
    bsrg::narrow::run<type, columns, strip, true, transposed>(params);                          \
  }
