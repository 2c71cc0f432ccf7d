// BSR x dense for blocks of few rows, on Hopper: compacted streaming.
//
// A CTA owns an output tile, 3 warpgroups of up to 128 rows by 128 columns, and streams through shared memory only
// those rows of X that some block of the tile meets, together with the blocks that meet them, packed in the order
// of use. X is read once a tile however many blocks there are.
//
// The product is computed transposed: 64 columns of X are the M side of a WGMMA and its left operand, a block is
// the N side, so any height that is a multiple of 8 fits. A stage brings slots, each the rows of X of one block column,
// and a warpgroup multiplies them by its blocks block row by block row. Which of them it has travels with each stage:
// bsrg_stream_stage.
//
// An instruction takes 16 rows of X. These are two groups of 8 any distance apart, which its descriptor tells, so two
// blocks 8 columns wide go together wherever they lie.
//
// CTAs may work in clusters of two, at neighbouring column tiles, which meet the same blocks: each loads half of them for
// both. A byte that two SMs get by one read of L2 costs each 16 pJ and not 28, and there is less to read: 32 x 32 blocks of
// densities 1/8 and 1/2 gained 4 and 2% sustained, 10 and 1% in bursts.
//
// A transposed X, the rows of which are adjacent in memory instead of its columns, comes as it lies, and WGMMA reads it
// so. Y is then stored in the same way.
//
// Of tf32 (T = float) WGMMA reads nothing but a transposed X. Shared memory then looks like that of 16-bit floats in
// blocks twice as wide, by which all widths are counted here: only instructions and output differ.
#pragma once

#include "params.h"
#include "ptx/math.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_small.cuh"
#include "sm90/persistent.cuh"
#include "sm90/stream_layout.cuh"
#include "sm90/stream_output.cuh"

namespace bsrg::stream {

// kStored: blocks are read as they are stored, not packed.
template <typename T, int kHeight, int kWidth, bool kFused, bool kTransposedX, bool kStored>
struct Kernel : Output<T, kHeight, kFused, kTransposedX> {
  using Base = Output<T, kHeight, kFused, kTransposedX>;
  using Base::kRows;
  using Base::kSums;
  using typename Base::L;
  using typename Base::Sums;
  using Stage = RingPosition<kStages>;
  using Slot = RingPosition<kMessageSlots>;
  static constexpr bool kTf32 = sizeof(T) == 4;
  static constexpr int kBlockBytes = kHeight * kWidth * 2;
  static constexpr int kPanelBytes = kWidth * kPanel * 2;  // half a slot: 64 columns
  static constexpr int kSlotBytes = 2 * kPanelBytes;
  static constexpr bool kPairs = BSRG_STREAM_PAIRS(kWidth);
  static_assert(kRows <= BSRG_STREAM_MOST_ROWS / (kPairs ? 2 : 1), "a stage's record has no more");
  static_assert(!kStored || !kPairs, "rows of 32 or 64 bytes, as swizzles have them");
  static constexpr bool kTwoRows = kStored && BSRG_STREAM_TWO_ROWS(kHeight);
  static constexpr uint16_t kBoth = 3;  // the CTAs that a multicast reaches
  static_assert(!kTf32 || (kTransposedX && !kPairs), "WGMMA of tf32 is K-major, and takes eight rows of X");

  using Base::lane;
  using Base::p;
  using Base::shared;
  using Base::warp;

  __device__ uint32_t full(int stage) const { return shared + L::kFull + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return shared + L::kEmpty + 8 * stage; }
  __device__ uint32_t tile_full(int slot) const { return shared + L::kTileFull + 8 * slot; }
  __device__ uint32_t tile_empty(int slot) const { return shared + L::kTileEmpty + 8 * slot; }
  __device__ uint32_t message(int slot) const { return shared + L::kMessage + 16 * slot; }
  __device__ uint32_t wanted() const { return shared + L::kWanted; }
  __device__ uint32_t both_ready() const { return shared + L::kBothReady; }
  __device__ uint32_t stage_data(int stage) const { return shared + stage * kStageBytes; }
  __device__ uint32_t record(int stage) const { return shared + L::kRecord + stage * L::kRecordBytes; }

  __device__ void init_barriers() const {
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(full(i), kLoaders);
      ptx::barrier_init(empty(i), 128 * kGroups);
    }
    for (int i = 0; i < kMessageSlots; ++i) {
      ptx::barrier_init(tile_full(i), 1);
      ptx::barrier_init(tile_empty(i), (4 * kGroups + kLoaders) * p.cluster);
    }
    ptx::barrier_init(wanted(), 1);
    ptx::barrier_init(both_ready(), 2 * kBlockLoaders);
    ptx::barrier_init_fence();
  }

  // By one lane, when the slot is full.
  __device__ Message take(const Slot &slot) const {
    const int4 m = ptx::load_shared_int4(message(slot.slot));
    if (p.cluster > 1)
      ptx::barrier_arrive_cluster_behind(ptx::map_to_rank(tile_empty(slot.slot), 0), m.y);
    else
      ptx::barrier_arrive(tile_empty(slot.slot));
    return {m.x, m.y, m.z, m.w};
  }

  // By a warp. The lane that reads is the one that arrives: racecheck would not see that others have read before. All
  // wait: after a loop of one lane's, ptxas takes nothing for uniform any more and the main loop grows by a third.
  __device__ Message receive_by_warp(const Slot &slot) const {
    Message m = {};
    ptx::barrier_wait_by_warp(tile_full(slot.slot), slot.parity);
    if (lane == 0) m = take(slot);
    return {__shfl_sync(~0u, m.stage_begin, 0), __shfl_sync(~0u, m.stage_count, 0),
            __shfl_sync(~0u, m.row_begin, 0), __shfl_sync(~0u, m.n_tile, 0)};
  }

  // ---- scheduler: one lane of a cluster's first CTA ---------------------------------------------

  __device__ void send(const Slot &slot, int rank, int4 m) const {
    if (p.cluster > 1) {
      const uint32_t barrier = ptx::map_to_rank(tile_full(slot.slot), rank);
      ptx::barrier_arrive_expect_cluster(barrier, 16);
      ptx::store_async(ptx::map_to_rank(message(slot.slot), rank), m, barrier);
    } else {
      ptx::store_shared(message(slot.slot), m);
      ptx::barrier_arrive(tile_full(slot.slot));
    }
  }

  __device__ void schedule() const {
    const int tiles = p.tile_count * p.n_tile_count;
    Slot slot;
    slot.parity = 1;  // every slot starts out empty
    uint32_t tile_parity = 0;
    for (int t = blockIdx.x / p.cluster;; slot.advance(), tile_parity ^= 1) {
      ptx::barrier_wait(tile_empty(slot.slot), slot.parity);
      int4 m = make_int4(0, 0, 0, -1);
      if (t < tiles) {
        const TilePosition at = tile_position(t, p.tile_count, p.n_tile_count, p.group, p.lead);
        m = __ldg(reinterpret_cast<const int4 *>(p.tiles) + at.row);
        m.w = at.column * p.cluster;
      }
      const bool last = t >= tiles;
      for (int rank = 0; rank < p.cluster; ++rank) {
        send(slot, rank, m);
        if (!last) ++m.w;
      }
      if (last) break;
      ptx::barrier_wait(wanted(), tile_parity);
      t = next_tile(p.counter, t, gridDim.x / p.cluster, tiles);
    }
    slot.advance();
    if (p.cluster > 1) wait_until_released(tile_empty(0), slot);
  }

  // ---- producers --------------------------------------------------------------------------------

  // A warp takes some 65 cycles from one box to the next. Of blocks that are not packed each has its own; packed ones come by one
  // copy, and the other two warps share the slots.
  static constexpr int kSlotLoaders = kStored ? 1 : 2, kBlockLoaders = kLoaders - kSlotLoaders;

  // By one lane: the record of a stage. In a cluster for both CTAs.
  __device__ void load_record(int stage, const bsrg_stream_stage *from) const {
    if (p.cluster == 1)
      ptx::bulk_load(record(stage), from, L::kRecordBytes, full(stage), p.blocks_policy);
    else if (ptx::cluster_rank() == 0)
      ptx::bulk_load_multicast(record(stage), from, L::kRecordBytes, full(stage), kBoth, p.blocks_policy);
  }

  // By one lane: its blocks. In a cluster half of them, for both CTAs.
  __device__ void load_packed(int stage, int begin, int count) const {
    const int bytes = count * kBlockBytes, half = bytes / 2;
    const char *blocks = static_cast<const char *>(p.packed) + static_cast<int64_t>(begin) * kBlockBytes;
    const uint32_t target = stage_data(stage) + kStageBytes - bytes;
    if (p.cluster == 1) {
      ptx::bulk_load(target, blocks, bytes, full(stage), p.blocks_policy);
    } else {
      const int at = static_cast<int>(ptx::cluster_rank()) * half;
      ptx::bulk_load_multicast(target + at, blocks + at, half, full(stage), kBoth, p.blocks_policy);
    }
  }

  // By a warp: its share of them, one box each. Their rows are swizzled like those of a transposed X.
  // first: where the lane's first one is stored.
  __device__ void load_stored(int loader, int stage, int begin, int count, int first) const {
    constexpr int kBoxRows = kTwoRows ? kHeight / 2 : kHeight;
    const uint32_t target = stage_data(stage) + kStageBytes - count * kBlockBytes;
    const int rank = p.cluster > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
    for (int i = lane; kBlockLoaders * i + loader < count; i += 32) {
      const int block = kBlockLoaders * i + loader;
      const int row = (i < 32 ? first : __ldg(p.source + begin + block)) * kBoxRows;
      if (p.cluster == 1)
        ptx::tma_load_2d(target + block * kBlockBytes, p.blocks, 0, row, full(stage), p.blocks_policy);
      else if (i % 2 == rank)
        ptx::tma_load_2d_multicast(target + block * kBlockBytes, p.blocks, 0, row, full(stage), kBoth,
                                   p.blocks_policy);
    }
  }

  // Stages are the same in both CTAs of a cluster, and so are slots; a copy to both has to wait until both are empty. Parts of
  // a stage follow those of the one before it in p.source.
  __device__ void load_blocks(int loader) const {
    const bool leads = lane == 0, is_first = loader == 0;
    const bool draws = is_first && leads && (p.cluster == 1 || ptx::cluster_rank() == 0);
    const int32_t *sources = p.source + kBlockLoaders * lane + loader;
    Stage stage;
    stage.parity = 1;
    uint32_t turn = 0;
    for (Slot slot;; slot.advance()) {
      const Message m = receive_by_warp(slot);
      if (m.last()) return;
      const bsrg_stream_stage *next = p.stages + m.stage_begin;
      // One record ahead: a global load in this path would cost 0.3 us a stage.
      int2 a = m.stage_count > 0 ? __ldg(reinterpret_cast<const int2 *>(next)) : make_int2(0, 0);
      int source = kStored && m.stage_count > 0 ? __ldg(sources + a.x) : 0;
      if (m.stage_count == 0 && draws) ptx::barrier_arrive(wanted());
      for (int i = 0; i < m.stage_count; ++i, stage.advance()) {
        if (i == max(m.stage_count - kDrawBefore, 0) && draws) ptx::barrier_arrive(wanted());
        const bsrg_stream_stage *current = next++;
        const int begin = a.x, count = a.y, first = source;
        if (i + 1 < m.stage_count) {
          a = __ldg(reinterpret_cast<const int2 *>(next));
          if constexpr (kStored) source = __ldg(sources + begin + count);
        }
        ptx::barrier_wait_by_warp(empty(stage.slot), stage.parity);
        if (leads)
          ptx::barrier_arrive_expect(full(stage.slot), share_of(count, loader, kBlockLoaders) * kBlockBytes +
                                                           (is_first ? L::kRecordBytes : 0));
        if (p.cluster > 1) {
          // Of this one, too: else a partner that is ahead could end two phases, and this warp wait for the first for ever.
          if (leads) {
            ptx::barrier_arrive(both_ready());
            ptx::barrier_arrive_cluster(ptx::map_to_rank(both_ready(), ptx::cluster_rank() ^ 1));
          }
          ptx::barrier_wait(both_ready(), turn);
          turn ^= 1;
        }
        __syncwarp();  // what the barrier expects comes first
        if (is_first && leads) load_record(stage.slot, current);
        if constexpr (kStored)
          load_stored(loader, stage.slot, begin, count, first);
        else if (leads)
          load_packed(stage.slot, begin, count);
      }
    }
  }

  static __device__ int loaded(int columns) { return loaded_columns<kTransposedX ? 1 : kPanel>(columns); }

  // For a tile that X has `columns` for.
  __device__ void load_slot(int stage, int slot, int row, int column, int columns) const {
    const uint32_t target = stage_data(stage) + slot * kSlotBytes;
    if constexpr (kTransposedX) {
      ptx::tma_load_2d(target, columns == kTileN ? p.x : p.x_rest, kTf32 ? row / 2 : row, column, full(stage),
                       p.x_policy);
    } else if (columns == kTileN) {
      ptx::tma_load_3d(target, p.x, 0, row, column / kPanel, full(stage), p.x_policy);
    } else {
      for (int panel = 0; panel < loaded(columns) / kPanel; ++panel)
        ptx::tma_load_2d(target + panel * kPanelBytes, p.x_rest, column + panel * kPanel, row, full(stage),
                         p.x_policy);
    }
  }

  // A warp: its share of the slots of X, one lane each.
  __device__ void load_x(int loader) const {
    static_assert(BSRG_STREAM_SLOTS == 32, "a lane each");
    const int mine = kSlotLoaders * lane + loader;
    const bool has_any = mine < BSRG_STREAM_SLOTS;
    Stage stage;
    stage.parity = 1;
    for (Slot slot;; slot.advance()) {
      const Message m = receive_by_warp(slot);
      if (m.last()) return;
      const int column = m.n_tile * kTileN, columns = min(kTileN, p.n - column);
      const int bytes = loaded(columns) * kWidth * 2;  // of a slot
      const bsrg_stream_stage *next = p.stages + m.stage_begin;
      int next_count = 0, next_row = 0;
      if (m.stage_count > 0) {
        next_count = __ldg(&next->x_count);
        if (has_any) next_row = __ldg(&next->x_row[mine]);
      }
      for (int i = 0; i < m.stage_count; ++i, stage.advance()) {
        const int count = next_count, row = next_row;
        ++next;
        if (i + 1 < m.stage_count) {
          next_count = __ldg(&next->x_count);
          if (has_any) next_row = __ldg(&next->x_row[mine]);
        }
        ptx::barrier_wait_by_warp(empty(stage.slot), stage.parity);
        if (lane == 0)
          ptx::barrier_arrive_expect(full(stage.slot), share_of(count, loader, kSlotLoaders) * bytes);
        __syncwarp();
        if (mine < count) load_slot(stage.slot, mine, row, column, columns);
      }
    }
  }

  // ---- consumers --------------------------------------------------------------------------------

  // Uniform, as the shuffle tells the compiler.
  static __device__ uint32_t uniform(int value) { return __shfl_sync(~0u, value, 0); }

  static constexpr int kWords = ((kPairs ? kRows : (kRows + 1) / 2) + 3) / 4 * 4;
  // What a warp reads of its share of a stage, before it starts: it would wait for each later load.
  struct Share {
    uint32_t slots[kWords];
    uint32_t blocks;
  };
  static __device__ Share load_share(uint32_t at) {
    Share share;
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const int4 v = ptx::load_shared_int4(at + offsetof(bsrg_stream_share, slots) + 16 * i);
      share.slots[4 * i] = uniform(v.x);
      share.slots[4 * i + 1] = uniform(v.y);
      share.slots[4 * i + 2] = uniform(v.z);
      share.slots[4 * i + 3] = uniform(v.w);
    }
    share.blocks = uniform(ptx::load_shared_int(at + offsetof(bsrg_stream_share, blocks)));
    return share;
  }

  // The low words of descriptors: but for pairs only these move, and 32-bit sums stay in uniform registers.
  static __device__ uint32_t descriptor(uint32_t address, uint32_t leading) {
    return static_cast<uint32_t>(ptx::matrix_descriptor(address, leading, 0, ptx::Swizzle::kNone));
  }

  // One block times both panels of X.
  static __device__ void multiply(float (&d)[2][kSums], uint32_t slot, uint32_t block) {
    // As in matrix_descriptor. Of a transposed X and of stored blocks the next 16 k are the next 32 bytes of each row, which is as
    // long as a part is wide.
    constexpr ptx::Swizzle kOfRows = kWidth == 32 ? ptx::Swizzle::k64 : ptx::Swizzle::k32;
    constexpr uint64_t kInRows = 8 * kWidth * 2 >> 4 | static_cast<uint32_t>(kOfRows) << 30;
    constexpr uint64_t kInPanel = 1024 >> 4 | static_cast<uint32_t>(ptx::Swizzle::k128) << 30;
    constexpr uint64_t kXHigh = (kTransposedX ? kInRows : kInPanel) << 32;
    constexpr uint32_t k16Bytes = kTransposedX ? 32 : 16 * 128;
    // Packed ones are 8 x 8 core matrices of 128 bytes, those of 8 rows before those of the next 8.
    constexpr uint64_t kBlockHigh = (kStored ? kInRows : kWidth * 16 >> 4) << 32;
    constexpr uint32_t kNextInBlock = (kStored ? 32 : 256) >> 4;
    ptx::warpgroup_fence();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k)
#pragma unroll
      for (int panel = 0; panel < 2; ++panel)
        ptx::WgmmaSmall<T, kHeight, !kTransposedX>::run(
            d[panel], kXHigh | (slot + panel * (kPanelBytes >> 4) + k * (k16Bytes >> 4)),
            kBlockHigh | (block + k * kNextInBlock));
    ptx::warpgroup_commit();
  }

  // Two blocks times both panels of their slots. Both lie so many units of 16 bytes apart.
  static __device__ void multiply_two(float (&d)[2][kSums], uint32_t slot, uint32_t slots_apart,
                                      uint32_t block, uint32_t blocks_apart) {
    // Of a transposed X the 8 rows of 8 columns are a core matrix of 128 bytes. Else each row has 64 columns.
    const uint32_t x_high =
        kTransposedX ? 128 >> 4 : slots_apart + (static_cast<uint32_t>(ptx::Swizzle::k128) << 30);
    const uint32_t x_low = kTransposedX ? slot + (slots_apart << 16) : slot;
    const uint64_t b = static_cast<uint64_t>(128 >> 4) << 32 | (block + (blocks_apart << 16));
    ptx::warpgroup_fence();
#pragma unroll
    for (int panel = 0; panel < 2; ++panel)
      ptx::WgmmaSmall<T, kHeight, !kTransposedX>::run(
          d[panel], static_cast<uint64_t>(x_high) << 32 | (x_low + panel * (kPanelBytes >> 4)), b);
    ptx::warpgroup_commit();
  }

  // A block row's blocks two by two, lowest slots first. A last one without another goes with zeros times zeros: X may
  // have no finite numbers where the row has no block.
  __device__ void multiply_pairs(float (&d)[2][kSums], uint32_t slots, uint32_t x, uint32_t &block) const {
    uint32_t others;
    while ((others = slots & (slots - 1)) != 0) {
      const uint32_t rest = others & (others - 1);
      const uint32_t first = ptx::highest_bit(slots ^ others), second = ptx::highest_bit(others ^ rest);
      slots = rest;
      multiply_two(d, x + first * (kSlotBytes >> 4), (second - first) * (kSlotBytes >> 4), block,
                   kBlockBytes >> 4);
      block += 2 * (kBlockBytes >> 4);
    }
    if (slots != 0) {
      const uint32_t zeros = (shared + L::kZeros) >> 4;
      const uint32_t slot = x + ptx::highest_bit(slots) * (kSlotBytes >> 4);
      multiply_two(d, slot, zeros - slot, block, zeros - block);
      block += kBlockBytes >> 4;
    }
  }

  // Block row by block row, so that each loop adds to the sums of one and nothing in it is decided block by block.
  __device__ void multiply_stage(Sums &d, int group, int stage) const {
    const uint32_t data = stage_data(stage);
    const Share share =
        load_share(record(stage) + offsetof(bsrg_stream_stage, share) + group * sizeof(bsrg_stream_share));
    // Pairs have their distance where others have `leading`.
    const uint32_t x = descriptor(data, kPairs ? 0 : 16);
    uint32_t block = descriptor(data + kStageBytes - share.blocks * kBlockBytes, kPairs ? 0 : 128);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kPairs) {
        multiply_pairs(d[r], share.slots[r], x, block);
      } else {
        const uint32_t two_rows = share.slots[r / 2];
        uint32_t slots = r % 2 ? two_rows >> 16 : two_rows & 0xffff;
        while (slots != 0) {
          const uint32_t highest = ptx::highest_bit(slots);
          slots ^= 1u << highest;
          multiply(d[r], x + highest * (kSlotBytes >> 4), block);
          block += kBlockBytes >> 4;
        }
      }
    }
    ptx::warpgroup_wait<0>();
  }

  // A thread has the sums of both rows that BSRG_TWO_ROWS leaves in each other's place.
  static __device__ void swap_rows(Sums &d) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < 2 * kSums; i += 2) {
        if (i % kSums / 4 % 2 == 0) continue;
        float *pair = d[r][i / kSums] + i % kSums;
        const float first = pair[0];
        pair[0] = pair[1];
        pair[1] = first;
      }
  }

  __device__ void consume() const {
    const int group = warp / 4;
    const uint64_t stream_out = ptx::policy_evict_first();
    Stage stage;
    Sums d;
    for (Slot slot;; slot.advance()) {
      const Message m = receive_by_warp(slot);
      if (m.last()) break;
      const int row_begin = m.row_begin + group * kRows;
      // Asked for now, since an answer takes longer than storing a tile.
      const int row = this->load_row(row_begin);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int i = 0; i < 2 * kSums; ++i) d[r][i / kSums][i % kSums] = 0.f;
      for (int i = 0; i < m.stage_count; ++i, stage.advance()) {
        ptx::barrier_wait(full(stage.slot), stage.parity);
        multiply_stage(d, group, stage.slot);
        // Warp by warp: in a stage without blocks for its warpgroup no WGMMA holds the four warps together, and
        // one that falls behind must still find the stage's record. Lane by lane: each has read, which racecheck would
        // not see in an arrival of one for all.
        ptx::barrier_arrive(empty(stage.slot));
      }
      if constexpr (kTwoRows) swap_rows(d);
      this->store(d, row, row_begin, m.n_tile, group, stream_out);
    }
    if ((warp & 3) == 0) ptx::bulk_wait<0>();
  }

  __device__ void run() const {
    if (threadIdx.x == 0) init_barriers();
    if constexpr (kPairs) {
      const int at = 16 * static_cast<int>(threadIdx.x);
      if (at < BSRG_STREAM_ZERO_BYTES) ptx::store_shared(shared + L::kZeros + at, make_int4(0, 0, 0, 0));
      ptx::fence_async_proxy();
    }
    __syncthreads();
    if (p.cluster > 1) ptx::cluster_sync();
    ptx::follow_grid_before();
    if (warp < 4 * kGroups) {
      ptx::take_registers<kConsumerRegisters>();
      consume();
    } else {
      ptx::give_back_registers<kProducerRegisters>();
      const int role = warp - 4 * kGroups;
      if (role < kSlotLoaders) load_x(role);
      if (role >= kSlotLoaders && role < kLoaders) load_blocks(role - kSlotLoaders);
      if (role == kLoaders && lane == 0 && blockIdx.x % p.cluster == 0) schedule();
    }
    __syncwarp();
    // Without it one of some 20,000 short products ended with an illegal instruction, or did not end.
    if (p.cluster > 1) ptx::cluster_sync();
  }
};

template <typename T, int kHeight, int kWidth, bool kFused, bool kTransposedX, bool kStored>
__device__ __forceinline__ void run(const bsrg_stream_params &params) {
  extern __shared__ char raw[];
  const uint32_t shared = (ptx::shared_address(raw) + 1023) & ~1023u;
  const Kernel<T, kHeight, kWidth, kFused, kTransposedX, kStored> kernel{
      {params, shared, ptx::warp_index(), static_cast<int>(threadIdx.x & 31)}};
  kernel.run();
}

}  // namespace bsrg::stream

#define BSRG_STREAM_KERNEL_OF(NAME, T, FUSED, TRANSPOSED_X, STORED, HEIGHT, WIDTH) \
  extern "C" __global__ void __launch_bounds__(BSRG_STREAM_THREADS, 1)             \
      NAME##_##HEIGHT##x##WIDTH(const __grid_constant__ bsrg_stream_params p) {    \
    bsrg::stream::run<T, HEIGHT, WIDTH, FUSED, TRANSPOSED_X, STORED>(p);           \
  }
#define BSRG_STREAM_KERNEL(NAME, T, FUSED, TRANSPOSED_X, HEIGHT, WIDTH) \
  BSRG_STREAM_KERNEL_OF(NAME, T, FUSED, TRANSPOSED_X, false, HEIGHT, WIDTH)
#define BSRG_STREAM_STORED_KERNEL(NAME, T, FUSED, TRANSPOSED_X, HEIGHT, WIDTH) \
  BSRG_STREAM_KERNEL_OF(NAME, T, FUSED, TRANSPOSED_X, true, HEIGHT, WIDTH)
