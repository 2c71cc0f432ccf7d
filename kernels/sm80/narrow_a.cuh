// A of the narrow kernels: from device memory through a ring of cp.async copies, one a warp, to fragments.
//
// In a round of 32 k, or two such steps, a warp copies its strip's rows and multiplies them. No other warp wants them.
#pragma once

#include "params.h"
#include "ptx/cp_async.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"

namespace bsrg::narrow {

// How a warp copies the blocks.
//
// kChunks: each lane the chunks of eight k that it multiplies, so no barrier is needed.
//
// kSixteen: of 16 columns. Their rows of 32 bytes would make a copy two pieces of 256 bytes that lie a block apart, and device
// memory gives 3.4 TB/s of such. Lanes copy neighbours, 512 bytes of a block at a time: 4.2 TB/s.
//
// kEight: of 8 columns and more than 8 rows, likewise, of which it would be four pieces of 128 bytes.
//
// kTransposed: those of a transposed view, where the elements of a strip's rows are neighbours, and those of k rows of memory.
// Lanes copy neighbours, eight rows of the strip for one k each, and `ldmatrix` turns them.
enum class Copies { kChunks, kSixteen, kEight, kTransposed };

// What a warp's ring is, for so many columns and rows of a strip.
//
// A round is what a warp does between two waits. It is long where X has few bytes, so that the time X takes from L2 is shared
// by more of A.
template <int kColumns, int kStrip, bool kRingX, bool kEight>
struct RingShape {
  static constexpr int kRoundSteps = kStrip == 16 && kColumns <= 16 ? 2 : 1;
  static constexpr int kRing =
      kRingX ? BSRG_NARROW_SM90_ROUNDS : BSRG_NARROW_WARP_BYTES / (kRoundSteps * kStrip * 64);
  static constexpr int kWarpBytes =
      kRingX ? BSRG_NARROW_SM90_WARP_BYTES(kColumns, kStrip) : BSRG_NARROW_WARP_BYTES;
  // A is read once, X again and again. For strips of 32 rows and 32 columns ptxas makes illegal instructions of that, of 8 bits
  // for 16, too.
  static constexpr bool kEvictsFirst = kStrip != 32 || (kColumns != 32 && !(kEight && kColumns == 16));
};

template <typename Shape, int kStrip, Copies kCopies>
class RingOfA {
 protected:
  __device__ __forceinline__ RingOfA(const bsrg_narrow_params &p, unsigned char *shared)
      : p_(p),
        warp_(ptx::warp_index()),
        warps_(static_cast<int>(blockDim.x) / 32),
        lane_(threadIdx.x % 32),
        g_(lane_ / 4),
        q_(lane_ % 4),
        shared_(shared),
        block_columns_(reinterpret_cast<int32_t *>(shared + warps_ * kWarpBytes)),
        ring_(shared + warp_ * kWarpBytes) {}

  static constexpr bool kTransposed = kCopies == Copies::kTransposed;
  static constexpr int kRowParts = kStrip / 8;  // 16-byte copies of A a lane and step
  static constexpr int kRoundSteps = Shape::kRoundSteps;
  static constexpr int kRoundChunks = 4 * kRoundSteps;
  static constexpr int kRoundBytes = kRoundSteps * kRowParts * 32 * 16;
  static constexpr int kRing = Shape::kRing;
  static constexpr int kBytesOfA = kRing * kRoundBytes;
  static constexpr int kWarpBytes = Shape::kWarpBytes;
  static_assert(kStrip == 16 || kStrip == 32, "one or two fragments");
  static_assert(kRing >= 4 && (kRing & (kRing - 1)) == 0, "three rounds of A in flight");

  // Of so many chunks a row.
  static constexpr bool kInBlocks = kCopies == Copies::kSixteen || kCopies == Copies::kEight;
  static constexpr int kBlockChunks = kCopies == Copies::kEight ? 1 : 2;
  // Whether lanes read what others have copied.
  static constexpr bool kShares = kCopies != Copies::kChunks;

  __device__ __forceinline__ void begin(const bsrg_narrow_item &item) {
    chunks_ = item.block_count * (p_.block_width / BSRG_NARROW_CHUNK);
    rows_ = item.rows;
    a_ = static_cast<const uint16_t *>(p_.values);
    if constexpr (kTransposed)
      a_ += item.row_in_block;
    else
      a_ += (static_cast<int64_t>(item.first_block) * p_.block_height + item.row_in_block) * p_.block_width +
            (kInBlocks ? 8 * lane_ : g_ * p_.block_width);
  }

  // Where the blocks of a transposed view lie, in shared memory behind their columns.
  __device__ __forceinline__ int32_t *block_places() const { return block_columns_ + BSRG_NARROW_MAX_BLOCKS; }

  // The lane's chunk in the first step of the warp's rounds.
  __device__ __forceinline__ int first_chunk() const { return warp_ * kRoundChunks + q_; }
  __device__ __forceinline__ int chunk_stride() const { return warps_ * kRoundChunks; }
  struct Position {
    int block, k;  // in the item, in the block
  };
  // Exact for chunk < 2^16 and widths up to BSRG_NARROW_MAX_WIDTH: 2 * chunk times the reciprocal's error, which
  // is at most the divisor, stays below 2^32.
  __device__ __forceinline__ Position position(int chunk) const {
    if constexpr (kInBlocks) return {chunk / kBlockChunks, chunk % kBlockChunks * 8};
    const int block = static_cast<int>(__umulhi(2 * chunk, p_.chunks_reciprocal));
    return {block, chunk * BSRG_NARROW_CHUNK - block * p_.block_width};
  }

  // The warp's part of A in its round t, in which the lane's first chunk is `chunk`. Every round is a group of copies, so
  // that counting them counts rounds.
  __device__ __forceinline__ void copy_a(int t, int chunk) const {
    const uint32_t round = ptx::shared_address(ring_) + t % kRing * kRoundBytes;
    if constexpr (kTransposed)
      copy_rows_of_k(round, chunk - q_);
    else if constexpr (kInBlocks)
      copy_blocks(round, (chunk - q_) / kBlockChunks);
    else
      copy_chunks(round, chunk);
  }

  // 16 rows of the strip, from row 16 r on, of instruction m of a step.
  __device__ __forceinline__ void load_fragment(uint32_t (&a)[4], int t, int step, int m, int r) const {
    const unsigned char *round = ring_ + t % kRing * kRoundBytes;
    if constexpr (kTransposed) {
      const int matrix = lane_ / 8, line = 16 * m + matrix / 2 * 8 + lane_ % 8;
      ptx::load_matrix_x4_trans(
          a, ptx::shared_address(round) + step * (kRowParts * 512) + place_of_k(line, 2 * r + matrix % 2));
    } else {
      const uint2 low = read(round, step, 2 * r, m), high = read(round, step, 2 * r + 1, m);
      a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y;
    }
  }

  // Of chunk q of a step, in a row of the strip.
  __device__ __forceinline__ static int place_of_chunk(int step, int row, int q) {
    if constexpr (kInBlocks)
      return place_in_block(4 / kBlockChunks * step + q / kBlockChunks, row, q % kBlockChunks);
    return (step * kRowParts + row / 8) * 512 + row % 8 * 64 + q * 16;
  }

 private:
  static __device__ __forceinline__ void copy(uint32_t destination, const void *source, bool read) {
    if constexpr (Shape::kEvictsFirst)
      ptx::cp_async_evict_first(destination, source, read);
    else
      ptx::cp_async_stream(destination, source, read);
  }

  __device__ __forceinline__ void copy_chunks(uint32_t round, int chunk) const {
    const uint32_t destination = round + lane_ * 16;
#pragma unroll
    for (int step = 0; step < kRoundSteps; ++step, chunk += 4) {
      const Position at = position(chunk);
      const uint16_t *source =
          a_ + static_cast<int64_t>(at.block) * (p_.block_height * p_.block_width) + at.k;
#pragma unroll
      for (int i = 0; i < kRowParts; ++i, source += 8 * p_.block_width)
        copy(destination + (step * kRowParts + i) * 512, source, chunk < chunks_ && g_ + 8 * i < rows_);
    }
  }

  // The strip's rows of a block, one after the other. Every second block, or of every four all but the first, has its units of
  // 16 bytes elsewhere, so that reads of eight bytes meet no bank more often than in chunks.
  __device__ __forceinline__ static int place_in_block(int block, int row, int chunk) {
    constexpr int kTurns = kCopies == Copies::kEight ? 4 : 2;
    return block * (kStrip * 16 * kBlockChunks) +
           ((row * (16 * kBlockChunks) + chunk * 16) ^ (block % kTurns * 64));
  }

  __device__ __forceinline__ void copy_blocks(uint32_t round, int block) const {
    constexpr int kUnits = kStrip * kBlockChunks;  // of 16 bytes, of a block
    const int block_elements = p_.block_height * (8 * kBlockChunks);
    const uint16_t *source = a_ + static_cast<int64_t>(block) * block_elements;
    if constexpr (kUnits == 16) {  // two blocks a copy
      const int row = lane_ % 16, second = lane_ / 16;
      source += second * (block_elements - 128);
#pragma unroll
      for (int i = 0; i < 2 * kRoundSteps; ++i, source += 2 * block_elements)
        copy(round + place_in_block(2 * i + second, row, 0), source,
             block + 2 * i + second < chunks_ && row < rows_);
    } else {
#pragma unroll
      for (int i = 0; i < 4 / kBlockChunks * kRoundSteps; ++i, source += block_elements)
#pragma unroll
        for (int row = lane_ / kBlockChunks, part = 0; part < kUnits / 32; ++part, row += 32 / kBlockChunks)
          copy(round + place_in_block(i, row, lane_ % kBlockChunks), source + part * 256,
               kBlockChunks * (block + i) < chunks_ && row < rows_);
    }
  }

  // Eight rows of a step's line: lines are k in the order in which instructions take them, and rotated so that the eight
  // lines of a matrix of ldmatrix meet no bank twice.
  __device__ __forceinline__ static int place_of_k(int line, int eight) {
    return line * (2 * kStrip) + ((eight ^ (kStrip == 16 ? line / 4 % 2 : line / 2 % 4)) << 4);
  }

  // `chunk`: the first of the round.
  __device__ __forceinline__ void copy_rows_of_k(uint32_t round, int chunk) const {
    const int eight = lane_ % kRowParts;
    const bool has_rows = 8 * eight < rows_;
#pragma unroll
    for (int i = 0; i < kRoundSteps * kRowParts; ++i) {
      const int k = (32 * i + lane_) / kRowParts, of = chunk + k / 8;
      const int line = (k & 4) * 4 + (k & 2) * 4 + k / 8 % 4 * 2 + (k & 1);
      const bool there = of < chunks_ && has_rows;
      const Position at = position(of);
      const int64_t block = there ? block_places()[at.block] : 0;
      const uint16_t *source = a_ + (block * p_.block_width + at.k + k % 8) * p_.block_height + 8 * eight;
      copy(round + k / 32 * (kRowParts * 512) + place_of_k(line, eight), source, there);
    }
  }

  // Row part i of the chunk that the lane has in a step, the half that instruction m uses.
  __device__ __forceinline__ uint2 read(const unsigned char *round, int step, int i, int m) const {
    const int place =
        kInBlocks ? place_of_chunk(step, g_ + 8 * i, q_) : (step * kRowParts + i) * 512 + lane_ * 16;
    return *reinterpret_cast<const uint2 *>(round + place + m * 8);
  }

 protected:
  const bsrg_narrow_params &p_;
  const int warp_, warps_, lane_, g_, q_;
  unsigned char *const shared_;
  int32_t *const block_columns_;
  unsigned char *const ring_;  // the warp's
  int chunks_ = 0;             // of the item

 private:
  const uint16_t *a_ = nullptr;  // what the lane copies first, without its chunk
  int rows_ = 0;                 // of the item
};

}  // namespace bsrg::narrow
