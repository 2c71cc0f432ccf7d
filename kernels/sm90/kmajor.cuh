// BSR x dense of tf32 and of 8-bit floats, for blocks whose height is a multiple of 64, on Hopper.
//
// The tiles, roles and barriers are those of the tall kernels (tall.cuh): strips of 64 rows, one a consumer warpgroup,
// times 256 columns, fed by TMA from the union of the strips' block columns, single CTAs or pairs along columns. What
// differs comes from the types: WGMMA has them K-major alone, so X is read with the elements of a column adjacent, and
// everything here counts bytes of k.
//
// The tensor cores add products of 8 bits with about 14 bits. What a tile begins with they may add up themselves (see
// direct_stages), where blocks have no scales. Later sums are taken over at most one stage, 128 of k, and then added to
// float32 ones, multiplied by the scale of the block. The registers for both sets are there for half of the columns at a
// time; while one warpgroup adds, the other one multiplies.
#pragma once

#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma_attention.cuh"
#include "ptx/wgmma_kmajor.cuh"
#include "sm90/kmajor_output.cuh"
#include "sm90/persistent.cuh"
#include "sm90/tall_layout.cuh"
#include "sm90/tall_messages.cuh"

namespace bsrg::kmajor {

using tall::kMessageSlots;
using tall::kStrip;
using tall::Message;

// Shared memory, in bytes from a 1024-byte boundary. kRowBytes: k of a stage. kEight: with room for a tile of 16-bit outputs,
// for which one stage less will do, since of 8 bits each has twice the k.
template <int kRowBytes, bool kEight>
struct Layout {
  static constexpr int kFullStages = kEight ? BSRG_KMAJOR_STAGES - 1 : BSRG_KMAJOR_STAGES;
  static constexpr int kStages = kFullStages * BSRG_KMAJOR_STAGE_BYTES / kRowBytes;
  static constexpr int kStripBytes = kStrip * kRowBytes;
  static constexpr int kStageA = 2 * kStripBytes;
  static constexpr int kStageX = kTileN * kRowBytes;
  static constexpr int kA = 0;
  static constexpr int kX = kA + kStages * kStageA;
  static constexpr int kOutput = kX + kStages * kStageX;
  static constexpr int kFull = kOutput + (kEight ? 2 * Output::kBytes : Output::kFloatBytes);
  static constexpr int kEmpty = kFull + 8 * kStages;
  static constexpr int kOutputFull = kEmpty + 8 * kStages;  // of each strip's outputs
  static constexpr int kOutputEmpty = kOutputFull + 8 * 2;
  static constexpr int kTileFull = kOutputEmpty + 8 * 2;
  static constexpr int kTileEmpty = kTileFull + 8 * kMessageSlots;
  static constexpr int kMessage = kTileEmpty + 8 * kMessageSlots;
  static constexpr int kScales = kMessage + 32 * kMessageSlots;  // of the strips' blocks
  static constexpr int kWanted = kScales + 8 * kStages;
  static constexpr int kEnd = kWanted + 8;
  static_assert(kMessage % 16 == 0, "messages are 16-byte stores");
  static_assert(kEnd + 1024 <= BSRG_KMAJOR_SHARED_BYTES, "the host reserves too little");
};

template <typename T, int kRowBytes, bool kPair>
struct Kernel {
  static constexpr bool kEight = sizeof(T) == 1;
  static constexpr int kCluster = kPair ? 2 : 1;
  static constexpr uint16_t kBoth = 3;  // the CTAs that a multicast reaches
  static constexpr int kStageK = kRowBytes / static_cast<int>(sizeof(T));
  static constexpr int kSteps = kRowBytes / BSRG_KMAJOR_STEP_BYTES;
  static constexpr int kDrawBefore = 256 / kRowBytes;  // stages to be loaded, see tall_layout.cuh
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  using Stages = tall::Stages<true, bsrg_kmajor_entry>;
  using L = Layout<kRowBytes, kEight>;
  using Stage = RingPosition<L::kStages>;
  using Slot = RingPosition<kMessageSlots>;

  const bsrg_kmajor_params &p;
  const uint32_t shared;
  const int warp, lane, rank;

  __device__ uint32_t full(int stage) const { return shared + L::kFull + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return shared + L::kEmpty + 8 * stage; }
  __device__ uint32_t tile_full(int slot) const { return shared + L::kTileFull + 8 * slot; }
  __device__ uint32_t tile_empty(int slot) const { return shared + L::kTileEmpty + 8 * slot; }
  __device__ uint32_t message(int slot) const { return shared + L::kMessage + 32 * slot; }
  __device__ uint32_t scales(int stage) const { return shared + L::kScales + 8 * stage; }
  __device__ uint32_t wanted() const { return shared + L::kWanted; }
  __device__ uint32_t output_full(int strip) const { return shared + L::kOutputFull + 8 * strip; }
  __device__ uint32_t output_empty(int strip) const { return shared + L::kOutputEmpty + 8 * strip; }
  __device__ bool hands_over() const { return kEight && Output::hands_over(p); }

  __device__ void init_barriers() const {
    for (int i = 0; i < L::kStages; ++i) {
      ptx::barrier_init(full(i), 2);              // both producers
      ptx::barrier_init(empty(i), 8 * kCluster);  // the consumer warps of every CTA that reads the slot
    }
    for (int i = 0; i < kMessageSlots; ++i) {
      ptx::barrier_init(tile_full(i), 1);
      // Producers, consumer warps and the lane that stores of every CTA.
      ptx::barrier_init(tile_empty(i), (2 + 8 + hands_over()) * kCluster);
    }
    for (int strip = 0; strip < 2; ++strip) {
      ptx::barrier_init(output_full(strip), 4);
      ptx::barrier_init(output_empty(strip), 1);
    }
    ptx::barrier_init(wanted(), 1);
    ptx::barrier_init_fence();
  }

  // ---- scheduler: a warp of rank 0, of which one lane acts ---------------------------------------

  __device__ tall::MessageSlot<kCluster, false, true> at(const Slot &slot) const {
    return {message(slot.slot), tile_full(slot.slot), tile_empty(slot.slot)};
  }

  __device__ void schedule() const {
    const int clusters = gridDim.x / kCluster, tiles = p.tile_count * p.n_tile_count;
    Slot slot;
    slot.parity = 1;  // every slot starts out empty
    uint32_t tile_parity = 0;
    int t = blockIdx.x / kCluster;
    for (;; slot.advance(), tile_parity ^= 1) {
      ptx::barrier_wait_by_warp(tile_empty(slot.slot), slot.parity);
      if (t >= tiles) break;
      const TilePosition position = tile_position(t, p.tile_count, p.n_tile_count, p.group, p.lead);
      const int4 rows = __ldg(reinterpret_cast<const int4 *>(p.tiles + position.row));
      Message m = {rows.x, rows.y, rows.z, rows.w, kCluster * position.column, -1, 0, 0};
      tall::say_which_are_present(m, p.entries, lane);
      for (int r = 0; r < kCluster && lane == 0; ++r, ++m.n_tile) at(slot).send(r, m);
      ptx::barrier_wait(wanted(), tile_parity);
      if (lane == 0) t = next_tile(p.counter, t, clusters, tiles);
      t = __shfl_sync(~0u, t, 0);
    }
    for (int r = 0; r < kCluster && lane == 0; ++r) at(slot).send(r, {0, 0, 0, 0, -1, -1, 0, 0});
    slot.advance();
    wait_until_released(tile_empty(0), slot);
  }

  // ---- producers: two lanes of every CTA --------------------------------------------------------

  // A block of the strip's, and where the strip begins in it.
  __device__ void load_strip(int strip, int stage, int block, int offset, int k, uint64_t policy) const {
    const uint32_t target = shared + L::kA + stage * L::kStageA + strip * L::kStripBytes;
    const int row = block * p.block_height + offset;
    if constexpr (kPair) {
      if (strip == rank) ptx::tma_load_2d_multicast(target, p.a, k, row, full(stage), kBoth, policy);
    } else {
      ptx::tma_load_2d(target, p.a, k, row, full(stage), policy);
    }
  }

  // The scales of an entry's blocks.
  __device__ float2 scales_of(const int4 &entry) const {
    float2 scales = make_float2(1.f, 1.f);
    if (kEight && p.block_scales != nullptr) {
      if (entry.y >= 0) scales.x = __ldg(p.block_scales + entry.y);
      if (entry.z >= 0) scales.y = __ldg(p.block_scales + entry.z);
    }
    return scales;
  }

  // By one lane for X and one for A: together they would take longer for a stage than its WGMMAs do.
  template <bool kOfX>
  __device__ void produce() const {
    const uint64_t policy_a = p.keep_a ? ptx::policy_evict_last() : ptx::policy_evict_normal();
    Stage stage;
    stage.parity = 1;
    for (Slot slot;; slot.advance()) {
      ptx::barrier_wait(tile_full(slot.slot), slot.parity);
      const Message m = at(slot).take();
      if (m.last()) break;
      // What is left is compared, and not `columns`, since ptxas inverts that.
      const int column = m.n_tile * kTileN, left = p.n - column, columns = max(0, min(kTileN, left));
      const int offset0 = m.strip0 * kStrip % p.block_height, offset1 = m.strip1 * kStrip % p.block_height;
      const int4 *entries = reinterpret_cast<const int4 *>(p.entries) + m.entry_begin;
      // One entry ahead, and its scales: waiting for memory in this lane's path would cost 0.3 us a block each.
      int4 next = m.entry_count > 0 ? __ldg(entries) : make_int4(0, -1, -1, 0);
      float2 next_scales = kOfX ? float2{} : scales_of(next);
      const int draw_at = max(m.entry_count - 1 - (kDrawBefore - 1) / p.steps, 0);
      const bool draws = kOfX && rank == 0;
      if (m.entry_count == 0 && draws) ptx::barrier_arrive(wanted());
      for (int e = 0; e < m.entry_count; ++e) {
        if (e == draw_at && draws) ptx::barrier_arrive(wanted());
        const int4 entry = next;
        const float2 its_scales = next_scales;
        if (e + 1 < m.entry_count) next = __ldg(entries + e + 1);
        for (int step = 0; step < p.steps; ++step, stage.advance()) {
          const int k = step * kStageK;
          ptx::barrier_wait(empty(stage.slot), stage.parity);
          if constexpr (kOfX) {
            ptx::barrier_arrive_expect(full(stage.slot), columns * (L::kStageX / kTileN));
            if (columns > 0)
              ptx::tma_load_2d(shared + L::kX + stage.slot * L::kStageX, left >= kTileN ? p.x : p.x_rest,
                               entry.x + k, column, full(stage.slot));
          } else {
            if constexpr (kEight) {
              ptx::store_shared(scales(stage.slot), its_scales.x);
              ptx::store_shared(scales(stage.slot) + 4, its_scales.y);
            }
            ptx::barrier_arrive_expect(full(stage.slot), ((entry.y >= 0) + (entry.z >= 0)) * L::kStripBytes);
            if (entry.y >= 0) load_strip(0, stage.slot, entry.y, offset0, k, policy_a);
            if (entry.z >= 0) load_strip(1, stage.slot, entry.z, offset1, k, policy_a);
          }
        }
        if constexpr (!kOfX) next_scales = scales_of(next);
      }
    }
    wait_until_released(empty(0), stage);
  }

  // ---- stores: one lane -------------------------------------------------------------------------

  // For the consumers, as for tall kernels. One warpgroup may be ahead of the other, but by no more than the ring's stages.
  __device__ void store() const {
    const uint64_t policy = ptx::policy_evict_first();
    uint32_t parity[2] = {0, 0};
    for (Slot slot;; slot.advance()) {
      ptx::barrier_wait(tile_full(slot.slot), slot.parity);
      const Message m = at(slot).take();
      if (m.last()) break;
#pragma unroll
      for (int strip = 0; strip < 2; ++strip) {
        const int of_matrix = strip == 0 ? m.strip0 : m.strip1;
        if (of_matrix < 0) continue;
        ptx::barrier_wait(output_full(strip), parity[strip]);
        Output::store_pieces(p, shared + L::kOutput + strip * Output::kBytes, of_matrix * kStrip,
                             m.n_tile * kTileN, policy);
        ptx::bulk_wait_read<0>();
        ptx::barrier_arrive(output_empty(strip));
        parity[strip] ^= 1;
      }
    }
    ptx::bulk_wait<0>();
  }

  // ---- consumers: one warpgroup a strip ---------------------------------------------------------

  // By every warp: a stage may pass a warpgroup by, and the ring must not lap one that falls behind.
  __device__ void release_stage(int stage) const {
    // At its own barrier in the local way: racecheck does not take a cluster-wide arrival for the end of a read.
    ptx::barrier_arrive_if(empty(stage), lane == rank);
    if constexpr (kPair)
      ptx::barrier_arrive_cluster_if(ptx::map_to_rank(empty(stage), rank ^ 1), lane == (rank ^ 1));
  }

  // Of a stage that the strip does not read. Parity waits are ambiguous to a reader that is a lap behind: it passes through every
  // stage, in order, and with all lanes, of which each has waited by itself.
  __device__ void pass_stage(int stage) const {
    __syncwarp();
    release_stage(stage);
  }

  // The scale of a strip's block in a stage. The lane that reads is the one that later arrives at this CTA's barrier, so
  // that racecheck sees that the producer's next ones come after.
  __device__ float scale_of(int stage, int strip) const {
    float scale = 1.f;
    if (lane == rank) scale = __int_as_float(ptx::load_shared_int(scales(stage) + 4 * strip));
    return __shfl_sync(~0u, scale, rank);
  }

  // kCount instructions along k from the columns `first` on, committed as one group. The count is a template argument
  // because a branch between two WGMMAs of a group makes ptxas wait for each of them.
  template <int kCount, int kSums>
  __device__ void multiply(float (&d)[kSums], int strip, int stage, int first, bool accumulate) const {
    using Instruction = ptx::WgmmaKMajor<T, 2 * kSums>;
    constexpr ptx::Swizzle kSwizzle = kRowBytes == 128  ? ptx::Swizzle::k128
                                      : kRowBytes == 64 ? ptx::Swizzle::k64
                                                        : ptx::Swizzle::k32;
    const uint64_t a = ptx::matrix_descriptor(shared + L::kA + stage * L::kStageA + strip * L::kStripBytes,
                                              16, 8 * kRowBytes, kSwizzle);
    const uint64_t x = ptx::matrix_descriptor(shared + L::kX + stage * L::kStageX + first * kRowBytes, 16,
                                              8 * kRowBytes, kSwizzle);
    constexpr int kNext = BSRG_KMAJOR_STEP_BYTES / 16;  // descriptors count 16 bytes
    ptx::warpgroup_fence();
#pragma unroll
    for (int k = 0; k < kCount; ++k) Instruction::run(d, a + kNext * k, x + kNext * k, accumulate || k > 0);
    ptx::warpgroup_commit();
  }

  // A stage into d.
  template <int kCount>
  __device__ void add_stage(float (&d)[kTileN / 2], int strip, int stage, bool accumulate) const {
    multiply<kCount>(d, strip, stage, 0, accumulate);
  }

  // A stage of 8 bits: its sums, multiplied by the scale, are added to d, and it is released.
  template <int kCount>
  __device__ void add_stage(float (&d)[kTileN / 2], int strip, int stage, float scale) const {
    constexpr int kHalf = kTileN / 4;
    float part[kHalf];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      multiply<kCount>(part, strip, stage, half * kTileN / 2, false);
      ptx::warpgroup_wait<0>();
      ptx::hold_accumulators(part);
      if (half == 1) release_stage(stage);
#pragma unroll
      for (int j = 0; j < kHalf; ++j) d[half * kHalf + j] = fmaf(part[j], scale, d[half * kHalf + j]);
    }
  }

  // The last stage of a block may be shorter. `how`: whether to accumulate, or the scale.
  template <int kCount = kSteps, typename How>
  __device__ void add_stage_up_to(float (&d)[kTileN / 2], int strip, int stage, int steps, How how) const {
    if (kCount == 1 || steps == kCount)
      add_stage<kCount>(d, strip, stage, how);
    else if constexpr (kCount > 1)
      add_stage_up_to<kCount - 1>(d, strip, stage, steps, how);
  }

  // The stages of a tile of 8 bits that need not be added in float32: so many that results lose less than twice what cuBLAS's
  // do. 768 of 1,024 k so take 8% off the time. Whole stages alone: code for shorter ones would double the compile time.
  __device__ int direct_stages() const {
    if (p.block_scales != nullptr || p.tail_steps != kSteps) return 0;
    const int k = p.out == BSRG_KMAJOR_BF16 ? 768 : p.out == BSRG_KMAJOR_F16 ? 512 : 256;
    return k / kRowBytes;
  }

  static __device__ void clear(float (&d)[kTileN / 2]) {
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) d[i] = 0.f;
  }

  // The next of the `left` stages of a tile, until the strip has taken part in `most` of them, added up by the tensor cores,
  // with one group of instructions in flight. All that it has read is released on return. Sums of 8 bits have to be set
  // before and held behind: ptxas serialises everything (C7515) where it sees them change elsewhere in the tile.
  __device__ void accumulate(float (&d)[kTileN / 2], Stages &stages, int strip, int tail_steps, int most,
                             int &left, Stage &stage) const {
    bool started = kEight;
    if constexpr (kEight) {
      clear(d);
      ptx::hold_accumulators(d);
    }
    int in_flight = -1;  // the stage that the last committed group still reads
#pragma unroll 1
    for (; left > 0 && most > 0; --left, stage.advance()) {
      const bool takes_part = stages.takes_part();
      const bool tail = stages.next_is_last();
      ptx::barrier_wait(full(stage.slot), stage.parity);
      if (takes_part) {
        if constexpr (kEight) {
          add_stage<kSteps>(d, strip, stage.slot, true);
          --most;
        } else {
          add_stage_up_to(d, strip, stage.slot, tail ? tail_steps : kSteps, started);
        }
        started = true;
      } else {
        pass_stage(stage.slot);
      }
      stages.pass(tail);
      if (takes_part) {
        ptx::warpgroup_wait<1>();
        if (in_flight >= 0) release_stage(in_flight);
        in_flight = stage.slot;
      } else if (in_flight >= 0) {
        ptx::warpgroup_wait<0>();
        release_stage(in_flight);
        in_flight = -1;
      }
    }
    ptx::warpgroup_wait<0>();
    if constexpr (kEight) ptx::hold_accumulators(d);
    if (in_flight >= 0) release_stage(in_flight);
    if (!started) clear(d);
  }

  // The rest of a tile of 8 bits, added in float32.
  __device__ void accumulate_promoted(float (&d)[kTileN / 2], Stages &stages, int strip, int tail_steps,
                                      int left, Stage &stage) const {
#pragma unroll 1
    for (; left > 0; --left, stage.advance()) {
      const bool takes_part = stages.takes_part();
      const bool tail = stages.next_is_last();
      ptx::barrier_wait(full(stage.slot), stage.parity);
      if (takes_part)
        add_stage_up_to(d, strip, stage.slot, tail ? tail_steps : kSteps, scale_of(stage.slot, strip));
      else
        pass_stage(stage.slot);
      stages.pass(tail);
    }
  }

  __device__ void multiply_tile(float (&d)[kTileN / 2], const Message &m, int strip, Stage &stage) const {
    Stages stages(m, p.entries, strip, lane, p.steps);
    const int tail_steps = __shfl_sync(~0u, p.tail_steps, 0);  // in a register, as there
    int left = stages.count();
    if constexpr (kEight) {
      accumulate(d, stages, strip, tail_steps, direct_stages(), left, stage);
      accumulate_promoted(d, stages, strip, tail_steps, left, stage);
    } else {
      accumulate(d, stages, strip, tail_steps, left, left, stage);
    }
  }

  __device__ void consume() const {
    const int strip = warp / 4 - 1;
    const Output output(p, shared + L::kOutput, output_full(0), output_empty(0), warp - 4, lane);
    float d[kTileN / 2];
    Stage stage;
    uint32_t parity = 0;  // of stored tiles
    for (Slot slot;; slot.advance()) {
      const Message m = at(slot).receive_by_warp(slot.parity, lane, strip);
      if (m.last()) break;
      multiply_tile(d, m, strip, stage);
      const int output_strip = strip == 0 ? m.strip0 : m.strip1;
      if (output_strip < 0) continue;
      const int row = output_strip * kStrip, column = m.n_tile * kTileN;
      if (!kEight || p.out == BSRG_KMAJOR_F32)
        output.store_f32(d, row, column);
      else if (p.out == BSRG_KMAJOR_F16)
        output.template store_16_bits<__half>(d, row, column, parity);
      else
        output.template store_16_bits<__nv_bfloat16>(d, row, column, parity);
      parity ^= 1;
    }
    output.finish();
  }

  __device__ void run() const {
    if (threadIdx.x == 0) init_barriers();
    if constexpr (kPair)
      ptx::cluster_sync();
    else
      __syncthreads();
    ptx::follow_grid_before();

    if (warp < 4) {
      ptx::give_back_registers<kProducerRegisters>();
      if (warp == 0 && lane == 0) produce<true>();
      if (warp == 1 && rank == 0) schedule();
      if (warp == 2 && lane == 0) produce<false>();
      if (warp == 3 && lane == 0 && hands_over()) store();
      __syncwarp();
    } else {
      ptx::take_registers<kConsumerRegisters>();
      consume();
    }
    // No CTA may exit while its peer can still write into its shared memory or arrive at its barriers.
    if constexpr (kPair) ptx::cluster_sync();
  }
};

template <typename T, int kRowBytes, bool kPair>
__device__ __forceinline__ void run(const bsrg_kmajor_params &params) {
  extern __shared__ char raw[];
  const uint32_t shared = (ptx::shared_address(raw) + 1023) & ~1023u;
  const int rank = kPair ? static_cast<int>(ptx::cluster_rank()) : 0;
  const Kernel<T, kRowBytes, kPair> kernel{params, shared, ptx::warp_index(),
                                           static_cast<int>(threadIdx.x & 31), rank};
  kernel.run();
}

}  // namespace bsrg::kmajor

// b: bytes of k in a stage, the narrowest of 128, 64 and 32 that wastes little of the blocks' width; c1 single CTAs, c2
// pairs along columns.
#define BSRG_KMAJOR_KERNEL(NAME, T, BYTES, SUFFIX, PAIR)                         \
  extern "C" __global__ void __launch_bounds__(BSRG_KMAJOR_THREADS, 1)           \
      NAME##_b##BYTES##_##SUFFIX(const __grid_constant__ bsrg_kmajor_params p) { \
    bsrg::kmajor::run<T, BYTES, PAIR>(p);                                        \
  }
#define BSRG_KMAJOR_KERNELS(NAME, T)          \
  BSRG_KMAJOR_KERNEL(NAME, T, 128, c1, false) \
  BSRG_KMAJOR_KERNEL(NAME, T, 128, c2, true)  \
  BSRG_KMAJOR_KERNEL(NAME, T, 64, c1, false)  \
  BSRG_KMAJOR_KERNEL(NAME, T, 64, c2, true)   \
  BSRG_KMAJOR_KERNEL(NAME, T, 32, c1, false)  \
  BSRG_KMAJOR_KERNEL(NAME, T, 32, c2, true)
