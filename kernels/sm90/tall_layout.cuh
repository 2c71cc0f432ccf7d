// The tall kernels' shared memory, how their CTAs pair, and what these tell one another.
#pragma once

#include "params.h"
#include "ptx/wgmma.cuh"

namespace bsrg::tall {

constexpr int kStrip = BSRG_TALL_STRIP;
constexpr int kTileN = BSRG_TALL_TILE_N;
constexpr int kPanel = 64;  // columns of X or Y in one 128-byte swizzle atom
constexpr int kMessageSlots = 2;
// A CTA draws its next tile when so many elements of k of this one are still to be loaded, which takes longer than to draw and
// to hand out a tile: with 128, tiles of 384 and 512 waited, and took up to 4% longer. Tiles drawn when a long one begins would
// wait for it while others have none.
constexpr int kDrawBefore = 384;

// Of a thread: 168 in the mean, as the launch bounds say.
constexpr int kConsumerRegisters = 224, kProducerRegisters = 56;

// Shared memory, in bytes from a 1024-byte boundary. Stages come first: swizzled tiles need the alignment.
template <int kStepK>
struct Layout {
  static constexpr int kStages = BSRG_TALL_STAGES * BSRG_TALL_STAGE_K / kStepK;
  static constexpr int kStripBytes = kStrip * kStepK * 2;
  static constexpr int kStageA = 2 * kStripBytes;
  static constexpr int kStageX = kStepK * kTileN * 2;
  static constexpr int kPieceBytes = 16 * kPanel * 2;  // 16 x 64 outputs of one warp, stored at a time
  static constexpr int kA = 0;
  static constexpr int kX = kA + kStages * kStageA;
  static constexpr int kOutput = kX + kStages * kStageX;  // two pieces a consumer warp
  static constexpr int kFull = kOutput + 8 * 2 * kPieceBytes;
  static constexpr int kEmpty = kFull + 8 * kStages;
  // Of each warpgroup's two pieces, where these are handed over.
  static constexpr int kPieceFull = kEmpty + 8 * kStages;
  static constexpr int kPieceEmpty = kPieceFull + 8 * 4;
  static constexpr int kTileFull = kPieceEmpty + 8 * 4;
  static constexpr int kTileEmpty = kTileFull + 8 * kMessageSlots;
  static constexpr int kMessage = kTileEmpty + 8 * kMessageSlots;
  static constexpr int kWanted = kMessage + 32 * kMessageSlots;
  static constexpr int kEnd = kWanted + 8;
  static_assert(kMessage % 16 == 0, "messages are 16-byte stores");
  static_assert(kEnd + 1024 <= BSRG_TALL_SHARED_BYTES, "the host reserves too little");
};

// Of operands with so many elements of k in a row.
template <int kRow>
constexpr ptx::Swizzle kSwizzleOf = kRow == 64   ? ptx::Swizzle::k128
                                    : kRow == 32 ? ptx::Swizzle::k64
                                                 : ptx::Swizzle::k32;

// What the two CTAs of a cluster compute, if it has two. kColumns: neighbouring column tiles of one row tile; each
// loads one strip of A for both. kRows: two row tiles with equal lists of block columns, in one column tile; each
// loads half of the columns of X for both.
enum class Pairing { kNone, kColumns, kRows };

// Whether a lane of the producers stores for the consumers: not where stages may pass a warpgroup by, for which it gained
// nothing, nor where no warp is left for it.
constexpr bool hands_over(bool is_union, bool has_parts, bool has_pieces) {
  return !is_union && !has_parts && !has_pieces;
}

// What the scheduler tells the other roles of a CTA about its tile. slot: where the sums of a part go; -1: to Y.
// present0, present1: a bit for each of the first 32 entries in which the strip has a block.
struct Message {
  int strip0, strip1, entry_begin, entry_count, n_tile, slot, present0, present1;
  __device__ bool last() const { return n_tile < 0; }
};

}  // namespace bsrg::tall
