// The streaming kernels' shared memory, and what their warps tell one another.
#pragma once

#include "params.h"

namespace bsrg::stream {

constexpr int kGroups = BSRG_STREAM_GROUPS;
constexpr int kTileN = BSRG_STREAM_TILE_N;
constexpr int kStages = BSRG_STREAM_STAGES;
constexpr int kStageBytes = BSRG_STREAM_STAGE_BYTES;
constexpr int kMessageSlots = 2;
constexpr int kDrawBefore = 3;  // stages to be loaded when the next tile is drawn, see tall_layout.cuh
constexpr int kPanel = 64;      // columns of X in one 128-byte swizzle atom
constexpr int kLoaders = BSRG_STREAM_LOADERS;
constexpr int kConsumerRegisters = 160;  // of 128 that each of 512 threads starts with
constexpr int kProducerRegisters = 32;

// Shared memory, in bytes from a 1024-byte boundary. Stages come first: swizzled tiles need the alignment.
struct Layout {
  static constexpr int kRecordBytes = sizeof(bsrg_stream_stage);
  static constexpr int kOutput = kStages * kStageBytes;
  static constexpr int kZeros = kOutput + kGroups * BSRG_STREAM_OUTPUT_BYTES;
  static constexpr int kRecord = kZeros + BSRG_STREAM_ZERO_BYTES;
  static constexpr int kFull = kRecord + kStages * kRecordBytes;
  static constexpr int kEmpty = kFull + 8 * kStages;
  static constexpr int kTileFull = kEmpty + 8 * kStages;
  static constexpr int kTileEmpty = kTileFull + 8 * kMessageSlots;
  static constexpr int kMessage = kTileEmpty + 8 * kMessageSlots;
  static constexpr int kWanted = kMessage + 16 * kMessageSlots;
  static constexpr int kBothReady = kWanted + 8;
  static constexpr int kEnd = kBothReady + 8;
  static_assert(kRecordBytes % 16 == 0 && kMessage % 16 == 0, "16-byte copies");
  static_assert(kEnd + 1024 <= BSRG_STREAM_SHARED_BYTES, "the host reserves too little");
};

// What the scheduler tells the other roles about a tile.
struct Message {
  int stage_begin, stage_count, row_begin, n_tile;
  __device__ bool last() const { return n_tile < 0; }
};

}  // namespace bsrg::stream
