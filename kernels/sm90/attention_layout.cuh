// Shared memory of the attention kernels: where everything lies, and what the roles tell one another there.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "params.h"
#include "ptx/sync.cuh"
#include "sm90/persistent.cuh"

namespace bsrg::attention {

template <typename T, int kSize_, int kRows_, int kKeys_, int kListing, bool kCapped_>
struct Shape {
  using Element = T;
  static constexpr int kSize = kSize_;  // of a head
  static constexpr int kRows = kRows_;  // queries of a tile
  static constexpr int kKeys = kKeys_;  // keys of a tile
  static constexpr bool kPairs = kListing == BSRG_ATTENTION_BY_PAIRS,
                        kBlocks = kPairs || kListing == BSRG_ATTENTION_BY_LIST,
                        kSequences = kListing == BSRG_ATTENTION_BY_SEQUENCE,
                        kByBounds = kListing == BSRG_ATTENTION_BY_BOUNDS;
  static constexpr bool kCapped = kCapped_;
  // float8_e4m3fn: operands come with factors, values packed by attention_values.cu, and results are bfloat16.
  static constexpr bool kEight = sizeof(T) == 1;
  // Exponentials may overflow, or their shift be far from 0: those query tiles are computed again, exactly (KeptShift). Larger
  // heads gain nothing.
  static constexpr bool kAgain = !kEight && kSize <= 128;
  // Exponentials may be as large as in float32.
  static constexpr bool kWide = std::is_same_v<T, __nv_bfloat16>;
  static constexpr bool kTail = kByBounds && kAgain && kSize == BSRG_ATTENTION_TAIL_SIZE;
  static constexpr bool kParts =
      kListing == BSRG_ATTENTION_BY_LIST || kTail;  // some query tiles may be parts
  // The scheduler of 8-bit kinds has no registers for it.
  static constexpr bool kHandsEntry = kBlocks && !kEight;
  static constexpr int kPhases = kAgain ? 2 : 1;  // the second: of the last tiles, what must be
  using Output = std::conditional_t<kEight, __nv_bfloat16, T>;
  static constexpr int kRowBytes = kSize * static_cast<int>(sizeof(T));
  static constexpr int kSpan = kRowBytes % 128 == 0 ? 128 : 64;  // bytes of a row that are swizzled together
  static constexpr int kPanels = kRowBytes / kSpan, kPanel = kSize / kPanels;  // elements of a panel's row
  static constexpr int kDepth =
      32 / static_cast<int>(sizeof(T));       // elements that a WGMMA sums over, 32 bytes
  static constexpr int kGroups = kRows / 64;  // consumer warpgroups
  static constexpr int kQueryBuffers = BSRG_ATTENTION_QUERY_BUFFERS(kSize);
  // What 65536 registers allow; the launch gives 168 or 128 to every thread.
  static constexpr int kConsumerRegisters = kGroups == 3 ? 160 : kEight ? 240 : 232;
  static constexpr int kProducerRegisters = kGroups == 3 ? 32 : kEight ? 24 : 40;
  static_assert(!kBlocks || (kRows == BSRG_ATTENTION_LIST_ROWS && kKeys <= 8 * BSRG_ATTENTION_GROUP),
                "an entry has bits for 128 rows and 128 keys");
  static_assert(!kSequences || !kEight,
                "the maps' windows are not for packed values, and a message holds either");
  static_assert(!kPairs || (kKeys == 2 * BSRG_ATTENTION_PAIR_ROWS && kQueryBuffers == 2),
                "a pair is one key tile, and query tiles follow one another without a break");
};

using Stage = RingPosition<BSRG_ATTENTION_STAGES>;
using MessageSlot = RingPosition<1>;
template <typename Shape>
using QuerySlot = RingPosition<Shape::kQueryBuffers>;

// The scheduler draws the next query tile when the keys of all but so many steps have been loaded: later, and loads would
// wait for it; earlier, and one SM would hold back what another has time for.
constexpr int kStepsToDraw = 3;

// Of the last query tiles that this CTA was given: which they are, and whether exponentials overflowed.
constexpr int kTileWords = 4;

// Bytes from a 1024-byte boundary. Tiles come first: their swizzle needs the alignment. A tile of r rows is panels of
// [r][kPanel] elements.
template <typename Shape>
struct Layout {
  static constexpr int kStages = BSRG_ATTENTION_STAGES;
  static constexpr int kQueryBytes = Shape::kRows * Shape::kRowBytes;
  static constexpr int kKeyBytes = Shape::kKeys * Shape::kRowBytes;
  // Outputs of a warpgroup are panels of 128 bytes of a row, the last one perhaps half. It has room for kPieces of them,
  // so that a query tile takes one or two rounds.
  static constexpr int kPanels = (Shape::kSize + 63) / 64, kPieces = BSRG_ATTENTION_PIECES(Shape::kSize),
                       kRounds = (kPanels + kPieces - 1) / kPieces;
  static_assert(kRounds <= 2, "round_parity counts so");
  static __device__ uint32_t round_parity(int tile, int round) { return (kRounds == 1 ? tile : round) & 1; }
  static constexpr int kPieceBytes = BSRG_ATTENTION_PIECE_ROWS * 128;
  static constexpr int kQueries = 0;
  static constexpr int kKeys = kQueries + Shape::kQueryBuffers * kQueryBytes;
  static constexpr int kValues = kKeys + kStages * kKeyBytes;
  static constexpr int kOutput = kValues + kStages * kKeyBytes;
  static constexpr int kMessage = kOutput + Shape::kGroups * kPieces * kPieceBytes;
  static constexpr int kEntry = kMessage + 80;
  static constexpr int kTiles = kEntry + 16 * kStages;
  static constexpr int kBarriers = kTiles + 8 * kTileWords;
  static constexpr int kEnd =
      kBarriers + 8 * (2 * Shape::kQueryBuffers + 4 * kStages + 4 + 2 * Shape::kGroups);
  static_assert(kOutput % 1024 == 0, "outputs begin where a swizzle does");
  static_assert(kMessage % 16 == 0, "messages are 16-byte stores");
  static_assert(kQueryBytes % 1024 == 0 && kKeyBytes % 1024 == 0, "every tile begins where a swizzle does");
  static_assert(kEnd + 1024 <= BSRG_ATTENTION_HOPPER_BYTES(sizeof(typename Shape::Element), Shape::kSize,
                                                           Shape::kRows, Shape::kKeys),
                "the host reserves too little");
};

// What the scheduler tells the other roles about a query tile.
struct Message {
  int first_row[2] = {0, 0};  // of all warpgroups; pairs: of each of the two
  int head = 0, batch = 0;
  int count = 0;                             // entries or key tiles; 0: there is no tile any more
  int begin = 0;                             // first entry or lowest key tile
  int above_begin = 0, below_end = 0;        // as in bsrg_attention_range; entries have flags instead
  int steps = 0;                             // those of them that a warpgroup computes
  int passes_first = 0;                      // as in bsrg_attention_item
  float score_factor = 1, value_factor = 1;  // 8 bits: what scores and results are multiplied by
  // Sequences: first_row counts all rows; end_row is the first one behind the sequence, and row i of all sees the keys
  // i + low_offset .. i + high_offset of the sequence, which has `keys` from first_key on. Without initial
  // values, with which kernels of other kinds would compile to other code.
  int end_row, low_offset, high_offset, first_key, keys;
  // Parts: as in bsrg_attention_item.
  int slot;
  // 16 bits: 1 where the query tile is computed again.
  int exact;
  __device__ bool last() const { return count == 0; }
};

template <typename Shape>
struct Shared {
  using L = Layout<Shape>;
  static constexpr int kBuffers = Shape::kQueryBuffers, kStages = L::kStages;

  const uint32_t base;

  __device__ uint32_t queries(int slot) const { return base + L::kQueries + slot * L::kQueryBytes; }
  __device__ uint32_t keys(int stage) const { return base + L::kKeys + stage * L::kKeyBytes; }
  __device__ uint32_t values(int stage) const { return base + L::kValues + stage * L::kKeyBytes; }
  __device__ uint32_t output(int group, int panel) const {
    return base + L::kOutput + (group * L::kPieces + panel % L::kPieces) * L::kPieceBytes;
  }
  __device__ uint32_t entry(int stage) const { return base + L::kEntry + 16 * stage; }

  __device__ uint32_t barrier(int i) const { return base + L::kBarriers + 8 * i; }
  __device__ uint32_t query_full(int slot) const { return barrier(slot); }
  __device__ uint32_t query_empty(int slot) const { return barrier(kBuffers + slot); }
  __device__ uint32_t key_full(int stage) const { return barrier(2 * kBuffers + stage); }
  __device__ uint32_t key_empty(int stage) const { return barrier(2 * kBuffers + kStages + stage); }
  __device__ uint32_t value_full(int stage) const { return barrier(2 * kBuffers + 2 * kStages + stage); }
  __device__ uint32_t value_empty(int stage) const { return barrier(2 * kBuffers + 3 * kStages + stage); }
  __device__ uint32_t message_full() const { return barrier(2 * kBuffers + 4 * kStages); }
  __device__ uint32_t message_empty() const { return barrier(2 * kBuffers + 4 * kStages + 1); }
  __device__ uint32_t tiles_done() const { return barrier(2 * kBuffers + 4 * kStages + 2); }  // first phase

  __device__ uint32_t tile_ends() const { return barrier(2 * kBuffers + 4 * kStages + 3); }
  __device__ uint32_t output_full(int group) const { return barrier(2 * kBuffers + 4 * kStages + 4 + group); }
  __device__ uint32_t output_empty(int group) const { return output_full(Shape::kGroups + group); }

  // Of query tile i of this CTA: the scheduler notes which it is, consumers that exponentials overflowed in it, and the
  // scheduler asks once: its number then, or -1.
  __device__ void set_tile(int i, int t) const { ptx::store_shared(tile_word(i), t); }
  __device__ void set_overflow(int i) const { ptx::exchange_shared(tile_word(i) + 4 * kTileWords, 1); }
  __device__ int take_again(int i) const {
    return ptx::exchange_shared(tile_word(i) + 4 * kTileWords, 0) ? ptx::load_shared_int(tile_word(i)) : -1;
  }
  __device__ uint32_t tile_word(int i) const { return base + L::kTiles + (i & (kTileWords - 1)) * 4; }

  __device__ void init_barriers() const {
    constexpr int kWarps = 4 * Shape::kGroups;  // each consumer warp releases for itself
    for (int i = 0; i < kBuffers; ++i) {
      ptx::barrier_init(query_full(i), 1);
      ptx::barrier_init(query_empty(i), kWarps);
    }
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(key_full(i), 1);
      ptx::barrier_init(key_empty(i), kWarps);
      ptx::barrier_init(value_full(i), 1);
      ptx::barrier_init(value_empty(i), kWarps);
    }
    ptx::barrier_init(message_full(), 1);
    for (int i = 0; i < Shape::kGroups; ++i) {
      ptx::barrier_init(output_full(i), 4);
      ptx::barrier_init(output_empty(i), 1);
    }
    ptx::barrier_init(message_empty(), 3 + kWarps);  // both loading lanes, the storing one and the consumers
    ptx::barrier_init(tiles_done(), kWarps);
    ptx::barrier_init(tile_ends(), 1);
    ptx::store_shared(base + L::kTiles + 4 * kTileWords, make_int4(0, 0, 0, 0));
    ptx::barrier_init_fence();
  }

  __device__ void write(const Message &m) const {
    [[maybe_unused]] int slot = -1;
    if constexpr (Shape::kParts) slot = m.slot;
    ptx::store_shared(base + L::kMessage,
                      make_int4(m.first_row[0], m.head, Shape::kSequences ? m.end_row : m.batch, m.count));
    ptx::store_shared(base + L::kMessage + 16,
                      make_int4(m.begin, Shape::kByBounds || Shape::kSequences ? m.above_begin : slot,
                                m.below_end, m.steps));
    if constexpr (Shape::kPairs || Shape::kEight)
      ptx::store_shared(
          base + L::kMessage + 32,
          make_int4(m.first_row[1], m.passes_first, Shape::kEight ? __float_as_int(m.score_factor) : 0,
                    Shape::kEight ? __float_as_int(m.value_factor) : 0));
    if constexpr (Shape::kSequences)
      ptx::store_shared(base + L::kMessage + 32, make_int4(m.low_offset, m.high_offset, m.first_key, m.keys));
    if constexpr (Shape::kAgain) ptx::store_shared(base + L::kMessage + 48, make_int4(m.exact, slot, 0, 0));
    ptx::barrier_arrive(message_full());
  }

  // Beside the message, for those who load: to look it up when a tile begins would cost them 0.6 us.
  __device__ void write_first_entry(const int4 &entry) const {
    ptx::store_shared(base + L::kMessage + 64, entry);
  }
  __device__ int4 first_entry() const { return ptx::load_shared_int4(base + L::kMessage + 64); }

  // Of the message alone, before it is read.
  __device__ int count() const { return ptx::load_shared_int(base + L::kMessage + 12); }
  __device__ int passes_first() const { return ptx::load_shared_int(base + L::kMessage + 36); }

  // By one lane of a warp, the one that releases the message: racecheck does not see that others have read it too.
  __device__ Message read() const {
    const int4 a = ptx::load_shared_int4(base + L::kMessage);
    const int4 b = ptx::load_shared_int4(base + L::kMessage + 16);
    Message m;
    m.first_row[0] = a.x;
    m.head = a.y;
    (Shape::kSequences ? m.end_row : m.batch) = a.z;
    m.count = a.w;
    m.begin = b.x;
    (Shape::kByBounds || Shape::kSequences ? m.above_begin : m.slot) = b.y;
    m.below_end = b.z;
    m.steps = b.w;
    if constexpr (Shape::kPairs || Shape::kEight) {
      const int4 c = ptx::load_shared_int4(base + L::kMessage + 32);
      m.first_row[1] = c.x;
      m.passes_first = c.y;
      if constexpr (Shape::kEight) {
        m.score_factor = __int_as_float(c.z);
        m.value_factor = __int_as_float(c.w);
      }
    }
    if constexpr (Shape::kSequences) {
      const int4 c = ptx::load_shared_int4(base + L::kMessage + 32);
      m.low_offset = c.x;
      m.high_offset = c.y;
      m.first_key = c.z;
      m.keys = c.w;
    }
    if constexpr (Shape::kAgain) {
      const int4 d = ptx::load_shared_int4(base + L::kMessage + 48);
      m.exact = d.x;
      if constexpr (Shape::kTail) m.slot = d.y;
    }
    return m;
  }

  // What lane 0 of a consumers' warp has read, for all of its lanes. Shuffles tell the compiler that all of it is
  // uniform: without them it serialises WGMMAs in branches on it.
  static __device__ Message broadcast(const Message &read, int group) {
    Message m;
    m.first_row[0] = __shfl_sync(~0u, Shape::kPairs && group == 1 ? read.first_row[1] : read.first_row[0], 0);
    if constexpr (Shape::kPairs) m.passes_first = __shfl_sync(~0u, read.passes_first, 0);
    m.steps = __shfl_sync(~0u, read.steps, 0);
    m.head = __shfl_sync(~0u, read.head, 0);
    if constexpr (Shape::kSequences) {
      m.end_row = __shfl_sync(~0u, read.end_row, 0);
      m.low_offset = __shfl_sync(~0u, read.low_offset, 0);
      m.high_offset = __shfl_sync(~0u, read.high_offset, 0);
      m.keys = __shfl_sync(~0u, read.keys, 0);
    } else {
      m.batch = __shfl_sync(~0u, read.batch, 0);
    }
    m.count = __shfl_sync(~0u, read.count, 0);
    m.begin = __shfl_sync(~0u, read.begin, 0);
    m.above_begin = __shfl_sync(~0u, read.above_begin, 0);
    if constexpr (Shape::kAgain) m.exact = __shfl_sync(~0u, read.exact, 0);
    if constexpr (Shape::kParts) m.slot = __shfl_sync(~0u, read.slot, 0);
    m.below_end = __shfl_sync(~0u, read.below_end, 0);
    if constexpr (Shape::kEight) {
      m.score_factor = __shfl_sync(~0u, read.score_factor, 0);
      m.value_factor = __shfl_sync(~0u, read.value_factor, 0);
    }
    return m;
  }
};

}  // namespace bsrg::attention
