// The shared memory of the kernels for two block-sparse operands, and what their roles tell one another.
#pragma once

#include "params.h"

namespace bsrg::pairs {

constexpr int kStrip = BSRG_PAIRS_STRIP;
constexpr int kStages = BSRG_PAIRS_STAGES;
constexpr int kBatch = BSRG_PAIRS_BATCH;
constexpr int kBatchSlots = BSRG_PAIRS_BATCH_SLOTS;
constexpr int kStrips = BSRG_PAIRS_TILE_M / kStrip;  // of A in a tile
constexpr int kPanels = BSRG_PAIRS_TILE_N / kStrip;  // of B in a tile

// In bytes from a 1024-byte boundary. Stages come first: swizzled tiles need the alignment.
struct Layout {
  static constexpr int kStripBytes = kStrip * kStrip * 2;
  static constexpr int kStageA = kStrips * kStripBytes;
  static constexpr int kStageB = kPanels * kStripBytes;
  static constexpr int kPieceBytes = 16 * kStrip * 2;  // 16 x 64 outputs of one warp, stored at a time
  static constexpr int kA = 0;
  static constexpr int kB = kA + kStages * kStageA;
  static constexpr int kOutput = kB + kStages * kStageB;  // two pieces a consumer warp
  static constexpr int kBatches = kOutput + 8 * 2 * kPieceBytes;
  static constexpr int kHeaders = kBatches + kBatchSlots * kBatch * 32;
  static constexpr int kNotes = kHeaders + kBatchSlots * 16;
  static constexpr int kFull = kNotes + kStages * 16;
  static constexpr int kEmpty = kFull + 8 * kStages;
  static constexpr int kBatchFull = kEmpty + 8 * kStages;
  static constexpr int kBatchEmpty = kBatchFull + 8 * kBatchSlots;
  static constexpr int kEnd = kBatchEmpty + 8 * kBatchSlots;
  static_assert(kBatches % 16 == 0, "16-byte stores");
  static_assert(kEnd + 1024 <= BSRG_PAIRS_SHARED_BYTES, "the host reserves too little");
};

// A note of a stage says which operands' parts it has: bit s a strip of A, bit kStrips + s a slot of B.
constexpr int kLast = 1 << 8;  // the tile's last stage
constexpr int kStop = 1 << 9;  // no tile, nor any after it

// What heads a batch of meetings. A meeting is a block column of A, block row of B, in which some strip and some slot of
// the tile have blocks: their numbers in values, -1 where there is none, in the order of a note's bits.
struct Header {
  int count, ends, row_tile, column_tile;  // ends: 1 in a tile's last batch, -1 behind all tiles
};

// Position of the set bit of `word` that has `rank` set bits below it.
__device__ __forceinline__ int nth_bit(uint32_t word, int rank) {
  int at = 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const int below = __popc(word & ((1u << step) - 1));
    if (rank >= below) {
      rank -= below;
      word >>= step;
      at += step;
    }
  }
  return at;
}

}  // namespace bsrg::pairs
