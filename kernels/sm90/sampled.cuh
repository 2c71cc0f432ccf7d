// Sampled products, dense x dense at the stored blocks only, on Hopper (TMA, WGMMA, warp specialisation), for block
// heights and widths that are multiples of 32.
//
//   stored blocks  =  A[rows of their block row, K] * B[K, columns of their block columns]
//
// Stored blocks are cut into panels of 64 columns. A tile is 128 rows of one block row and up to four of its panels,
// wherever these lie in B: they are gathered side by side in shared memory, so that a consumer warpgroup multiplies a
// strip of 64 rows by all of them in one m64n256k16. Where block rows have no 128 rows to share, a tile is one strip and
// up to eight panels, of which each warpgroup takes its half. Where they have no 64, a strip is 32 rows of one and 32 of
// another, a tile has up to sixteen panels of 32 columns that one or both of them store, and what neither stores is left
// out when the sums are written.
//
// Roles in a CTA of three warpgroups: warp 0 issues TMA loads, warp 1 hands out tiles, warpgroups 1 and 2 multiply and
// store, and warps 2 and 3 write zeros behind the last block of a pattern that the host does not know. All meet only at mbarriers: `full` and `empty` a stage, `tile_full` and `tile_empty` a message slot.
//
// Either operand may be row-major or column-major: WGMMA reads 16-bit operands along k and across it.
#pragma once

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_panels.cuh"
#include "sm80/quad.cuh"
#include "sm90/persistent.cuh"

namespace bsrg::sampled {

constexpr int kStrip = BSRG_SAMPLED_STRIP;
constexpr int kStageK = BSRG_SAMPLED_STAGE_K;
constexpr int kSums = BSRG_SAMPLED_GROUP_COLUMNS / 2;  // of a thread
constexpr int kMessageSlots = 2;
constexpr int kDrawBefore = 2;  // stages to be loaded when the next tile is drawn, see tall_layout.cuh

// Shared memory, in bytes from a 1024-byte boundary.
template <int kStrips, int kPart>
struct Layout {
  static constexpr int kStages = BSRG_SAMPLED_STAGES(kStrips);
  static constexpr int kPanels = BSRG_SAMPLED_PANELS(kStrips, kPart);  // of a tile, at most
  static constexpr int kPartBytes = 2 * kPart * kStageK;
  static constexpr int kStripBytes = 2 * kStrip * kStageK;
  static constexpr int kA = 0;
  static constexpr int kB = kA + kStages * kStrips * kStripBytes;
  static constexpr int kFull = kB + kStages * kPanels * kPartBytes;
  static constexpr int kEmpty = kFull + 8 * kStages;
  static constexpr int kTileFull = kEmpty + 8 * kStages;
  static constexpr int kTileEmpty = kTileFull + 8 * kMessageSlots;
  static constexpr int kMessage = (kTileEmpty + 8 * kMessageSlots + 15) / 16 * 16;
  static constexpr int kMessageBytes = 16 + 4 * kPanels;  // the tile and the columns of its panels
  static constexpr int kWanted = kMessage + kMessageSlots * kMessageBytes;
  static constexpr int kEnd = kWanted + 8;
  static_assert(kPanels % 4 == 0, "columns are sent 16 bytes at a time");
  static_assert(kEnd + 1024 <= BSRG_SAMPLED_SHARED_BYTES(kStrips), "the host reserves too little");
};

template <typename T, int kStrips, int kPart, bool kColumnMajorA, bool kColumnMajorB>
struct Kernel {
  using L = Layout<kStrips, kPart>;
  // A warpgroup's panels come in such numbers, so that an instruction has a multiple of 64 columns.
  static constexpr int kUnit = 64 / kPart;
  static constexpr int kRowParts = kStrips * kStrip / kPart;  // boxes of A in a stage
  static_assert(kRowParts <= 2, "a tile says where two begin");
  using Stage = RingPosition<L::kStages>;
  using Slot = RingPosition<kMessageSlots>;

  const bsrg_sampled_params &p;
  const uint32_t shared;
  const int warp, lane;

  __device__ uint32_t full(int stage) const { return shared + L::kFull + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return shared + L::kEmpty + 8 * stage; }
  __device__ uint32_t tile_full(int slot) const { return shared + L::kTileFull + 8 * slot; }
  __device__ uint32_t tile_empty(int slot) const { return shared + L::kTileEmpty + 8 * slot; }
  __device__ uint32_t message(int slot) const { return shared + L::kMessage + L::kMessageBytes * slot; }
  __device__ uint32_t wanted() const { return shared + L::kWanted; }
  __device__ uint32_t strip_of(int stage, int strip) const {
    return shared + L::kA + (stage * kStrips + strip) * L::kStripBytes;
  }
  __device__ uint32_t panel_of(int stage, int panel) const {
    return shared + L::kB + (stage * L::kPanels + panel) * L::kPartBytes;
  }

  __device__ void init_barriers() const {
    for (int i = 0; i < L::kStages; ++i) {
      ptx::barrier_init(full(i), 1);
      ptx::barrier_init(empty(i), 2);  // both consumer warpgroups
    }
    for (int i = 0; i < kMessageSlots; ++i) {
      ptx::barrier_init(tile_full(i), 1);
      ptx::barrier_init(tile_empty(i), 1 + 8);  // producer and consumer warps
    }
    ptx::barrier_init(wanted(), 1);
    ptx::barrier_init_fence();
  }

  // ---- scheduler: one lane ----------------------------------------------------------------------

  // A tile without panels says that there are no more.
  __device__ void send(const Slot &slot, const int4 &tile, const int (&columns)[L::kPanels]) const {
    const uint32_t target = message(slot.slot);
    ptx::store_shared(target, tile);
#pragma unroll
    for (int i = 0; i < L::kPanels; i += 4)
      ptx::store_shared(target + 16 + 4 * i,
                        make_int4(columns[i], columns[i + 1], columns[i + 2], columns[i + 3]));
    ptx::barrier_arrive(tile_full(slot.slot));
  }

  __device__ void schedule() const {
    Slot slot;
    slot.parity = 1;  // every slot starts out empty
    uint32_t tile_parity = 0;
    int t = blockIdx.x;
    int columns[L::kPanels] = {};
    for (;; slot.advance(), tile_parity ^= 1) {
      ptx::barrier_wait(tile_empty(slot.slot), slot.parity);
      int4 tile = make_int4(0, 0, 0, -1);
      for (; t < p.tile_count; t = next_tile(p.counter, t, gridDim.x, p.tile_count)) {
        tile = __ldg(reinterpret_cast<const int4 *>(p.tiles + t));
        if (tile.w != 0) break;  // those of patterns that the host does not know may be empty
      }
      if (t >= p.tile_count || tile.w < 0) break;
#pragma unroll
      for (int i = 0; i < L::kPanels; ++i)
        if (i < tile.w) columns[i] = __ldg(&p.panels[tile.z + i].column);
      send(slot, tile, columns);
      ptx::barrier_wait(wanted(), tile_parity);
      t = next_tile(p.counter, t, gridDim.x, p.tile_count);
    }
    send(slot, make_int4(0, 0, 0, 0), columns);
    slot.advance();
    wait_until_released(tile_empty(0), slot);
  }

  // ---- producer: one lane -----------------------------------------------------------------------

  __device__ void produce() const {
    Stage stage;
    stage.parity = 1;
    for (Slot slot;; slot.advance()) {
      ptx::barrier_wait(tile_full(slot.slot), slot.parity);
      const int4 tile = ptx::load_shared_int4(message(slot.slot));
      int columns[L::kPanels];
#pragma unroll
      for (int i = 0; i < L::kPanels; i += 4) {
        const int4 four = ptx::load_shared_int4(message(slot.slot) + 16 + 4 * i);
        columns[i] = four.x, columns[i + 1] = four.y, columns[i + 2] = four.z, columns[i + 3] = four.w;
      }
      ptx::barrier_arrive(tile_empty(slot.slot));
      if (tile.w == 0) break;
      if (p.steps == 0) ptx::barrier_arrive(wanted());
      for (int step = 0; step < p.steps; ++step, stage.advance()) {
        if (step == max(p.steps - kDrawBefore, 0)) ptx::barrier_arrive(wanted());
        const int k = step * kStageK;
        const uint32_t barrier = full(stage.slot);
        ptx::barrier_wait(empty(stage.slot), stage.parity);
        // What lies behind the last k arrives as zeros, and counts.
        ptx::barrier_arrive_expect(barrier, (kRowParts + tile.w) * L::kPartBytes);
#pragma unroll
        for (int i = 0; i < kRowParts; ++i) {
          const int row = i == 0 ? tile.x : tile.y;
          ptx::tma_load_2d(strip_of(stage.slot, 0) + i * L::kPartBytes, p.a, kColumnMajorA ? row : k,
                           kColumnMajorA ? k : row, barrier);
        }
#pragma unroll
        for (int i = 0; i < L::kPanels; ++i)
          if (i < tile.w)
            ptx::tma_load_2d(panel_of(stage.slot, i), p.b, kColumnMajorB ? k : columns[i],
                             kColumnMajorB ? columns[i] : k, barrier);
      }
    }
    wait_until_released(empty(0), stage);
  }

  // ---- consumers: a warpgroup's strip, and its panels of a tile ---------------------------------

  // By the first warp, as every stage is a WGMMA, which holds the four together.
  __device__ void release_stage(int stage) const {
    __syncwarp();
    if (warp % 4 == 0 && lane == 0) ptx::barrier_arrive(empty(stage));
  }

  // Parts of an operand, one behind the other: along k they are one, since groups of 8 rows are.
  template <bool kAlongK>
  static __device__ uint64_t operand(uint32_t address) {
    constexpr bool kHalf = !kAlongK && kPart == 32;
    return ptx::matrix_descriptor(address, L::kPartBytes, kHalf ? 512 : 1024,
                                  kHalf ? ptx::Swizzle::k64 : ptx::Swizzle::k128);
  }

  template <int kPanels>
  __device__ void multiply(float (&d)[kSums], uint32_t strip, uint32_t panels, bool accumulate) const {
    // Along k, rows of 64 k, 128 bytes; across it, a part's rows of A or columns of B for each k, 128 or 64 bytes.
    // Descriptors count 16 bytes: to the next k16 it is 32 bytes of a row, or 16 rows.
    constexpr int kNextAcross = 16 * 2 * kPart / 16;
    constexpr int kNextA = kColumnMajorA ? kNextAcross : 2, kNextB = kColumnMajorB ? 2 : kNextAcross;
    const uint64_t a = operand<!kColumnMajorA>(strip), b = operand<kColumnMajorB>(panels);
    ptx::warpgroup_fence();
#pragma unroll
    for (int k = 0; k < kStageK / 16; ++k)
      ptx::Wgmma<T, kPart * kPanels, kColumnMajorA, !kColumnMajorB>::run(
          reinterpret_cast<float (&)[kPart / 2 * kPanels]>(d), a + kNextA * k, b + kNextB * k,
          accumulate || k > 0);
    ptx::warpgroup_commit();
  }

  // d = alpha * d + beta * values, apart from the stores, which it would slow down even unused.
  template <int kPanels>
  __device__ void scale_and_add(float (&d)[kSums], int64_t place, int row) const {
    constexpr int kOfPanel = kPart / 2;
#pragma unroll
    for (int i = 0; i < kOfPanel * kPanels; ++i) d[i] *= p.alpha;
    if (p.beta == 0.f) return;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int64_t at = __shfl_sync(~0u, place, panel);
      if (kPart < kStrip && at < 0) continue;
      const T *c =
          static_cast<const T *>(p.values) + at + static_cast<int64_t>(row) * p.block_width + 2 * (lane & 3);
#pragma unroll
      for (int i = 0; i < kOfPanel; i += 2) {
        const T *source = c + (i / 2 % 2 ? 8 * static_cast<int64_t>(p.block_width) : 0) + i / 4 * 8;
        const float2 old = ptx::unpack<T>(*reinterpret_cast<const uint32_t *>(source));
        float *sums = d + kOfPanel * panel + i;
        sums[0] = fmaf(p.beta, old.x, sums[0]);
        sums[1] = fmaf(p.beta, old.y, sums[1]);
      }
    }
  }

  // Straight from the registers, 64 bytes a quad: shared memory is full of stages.
  template <int kPanels>
  __device__ void store(const float (&d)[kSums], int64_t place, int row) const {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int64_t at = __shfl_sync(~0u, place, panel);
      if (kPart < kStrip && at < 0) continue;
      T *out = static_cast<T *>(p.out) + at + static_cast<int64_t>(row) * p.block_width + 8 * (lane & 3);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < kPart / 8; j += 4) {
          uint32_t y[4];
#pragma unroll
          for (int f = 0; f < 4; ++f) {
            const float *v = d + kPart / 2 * panel + 4 * (j + f) + 2 * half;
            y[f] = ptx::pack<T>(v[0], v[1]);
          }
          quad::transpose(y, lane);
          __stcs(reinterpret_cast<int4 *>(out + half * 8 * static_cast<int64_t>(p.block_width) + 8 * j),
                 make_int4(y[0], y[1], y[2], y[3]));
        }
      }
    }
  }

  // kPanels panels of the tile, from `first` on.
  template <int kPanels>
  __device__ void compute(float (&d)[kSums], const int4 &tile, int strip, int first, Stage &stage) const {
    // Where panel i goes, in lane i: the rows of this warp's part of the strip. Nowhere: -1.
    const int part = kPart == kStrip ? strip : (warp & 3) * 16 / kPart;
    int64_t place = -1;
    if (lane < kPanels) {
      const int4 panel = __ldg(reinterpret_cast<const int4 *>(p.panels + tile.z + first + lane));
      const int block = kPart < kStrip && part == 1 ? panel.w : panel.z;
      const int row = (part == 0 ? tile.x : tile.y) % p.block_height;
      if (kPart == kStrip || block >= 0)
        place = (static_cast<int64_t>(block) * p.block_height + row) * p.block_width + panel.y;
    }
    int in_flight = -1;  // the stage that the last committed group still reads
    for (int step = 0; step < p.steps; ++step, stage.advance()) {
      ptx::barrier_wait(full(stage.slot), stage.parity);
      multiply<kPanels>(d, strip_of(stage.slot, strip), panel_of(stage.slot, first), step > 0);
      ptx::warpgroup_wait<1>();
      if (in_flight >= 0) release_stage(in_flight);
      in_flight = stage.slot;
    }
    ptx::warpgroup_wait<0>();
    release_stage(in_flight);
    const int row = (warp & 3) * 16 % kPart + (lane >> 2);
    if (p.alpha != 1.f || p.beta != 0.f) scale_and_add<kPanels>(d, place, row);
    store<kPanels>(d, place, row);
  }

  // A warpgroup without panels passes through every stage: parity waits are ambiguous to a reader that is a lap behind.
  __device__ void pass(Stage &stage) const {
    for (int step = 0; step < p.steps; ++step, stage.advance()) {
      ptx::barrier_wait(full(stage.slot), stage.parity);
      ptx::named_barrier_sync(warp / 4, 128);
      release_stage(stage.slot);
    }
  }

  // By a warp. The lane that reads is the one that arrives: racecheck would not see that others have read before.
  __device__ int4 receive(const Slot &slot) const {
    int4 tile = {};
    ptx::barrier_wait_by_warp(tile_full(slot.slot), slot.parity);
    if (lane == 0) {
      tile = ptx::load_shared_int4(message(slot.slot));
      ptx::barrier_arrive(tile_empty(slot.slot));
    }
    return make_int4(__shfl_sync(~0u, tile.x, 0), __shfl_sync(~0u, tile.y, 0), __shfl_sync(~0u, tile.z, 0),
                     __shfl_sync(~0u, tile.w, 0));
  }

  __device__ void consume() const {
    const int group = warp / 4 - 1;
    float
        d[kSums];  // one for tiles of any width: ptxas keeps the sums of each of them alive from tile to tile
    Stage stage;
    for (Slot slot;; slot.advance()) {
      const int4 tile = receive(slot);
      if (tile.w == 0) break;
      const int half = (tile.w / kUnit + 1) / 2 * kUnit;
      const int strip = kStrips == 2 ? group : 0, first = kStrips == 2 || group == 0 ? 0 : half;
      const int count = kStrips == 2 ? tile.w : group == 0 ? half : tile.w - half;
      if (count == 4 * kUnit)
        compute<4 * kUnit>(d, tile, strip, first, stage);
      else if (count == 3 * kUnit)
        compute<3 * kUnit>(d, tile, strip, first, stage);
      else if (count == 2 * kUnit)
        compute<2 * kUnit>(d, tile, strip, first, stage);
      else if (count == kUnit)
        compute<kUnit>(d, tile, strip, first, stage);
      else
        pass(stage);
    }
  }

  // By two warps of each CTA, whose out begins at a multiple of 16 bytes.
  __device__ void clear_rest() const {
    if (p.stored == nullptr) return;
    const int64_t units = static_cast<int64_t>(p.block_height) * p.block_width / 8, all = 64 * gridDim.x;
    int4 *out = static_cast<int4 *>(p.out);
    for (int64_t i = *p.stored * units + 64 * blockIdx.x + threadIdx.x - 64; i < p.capacity * units; i += all)
      out[i] = make_int4(0, 0, 0, 0);
  }

  __device__ void run() const {
    if (threadIdx.x == 0) init_barriers();
    __syncthreads();
    ptx::follow_grid_before();
    if (warp < 4) {
      if (warp == 0 && lane == 0) produce();
      if (warp == 1 && lane == 0) schedule();
      if (warp >= 2) clear_rest();
      __syncwarp();
    } else {
      consume();
    }
  }
};

template <typename T, int kStrips, int kPart, bool kColumnMajorA, bool kColumnMajorB>
__device__ __forceinline__ void run(const bsrg_sampled_params &params) {
  extern __shared__ char raw[];
  const uint32_t shared = (ptx::shared_address(raw) + 1023) & ~1023u;
  Kernel<T, kStrips, kPart, kColumnMajorA, kColumnMajorB>{params, shared, ptx::warp_index(),
                                                          static_cast<int>(threadIdx.x & 31)}
      .run();
}

}  // namespace bsrg::sampled

// <name>_m<rows>_<order>: rows of a tile or, 32, of its parts; along what A and B are contiguous, k or m, then k or n.
#define BSRG_SAMPLED_KERNEL(NAME, T, STRIPS, PART, ROWS, ORDER, A, B)           \
  extern "C" __global__ void __launch_bounds__(BSRG_SAMPLED_THREADS, 1)         \
      NAME##_m##ROWS##_##ORDER(const __grid_constant__ bsrg_sampled_params p) { \
    bsrg::sampled::run<T, STRIPS, PART, A, B>(p);                               \
  }
#define BSRG_SAMPLED_KERNELS_OF(NAME, T, STRIPS, PART, ROWS)         \
  BSRG_SAMPLED_KERNEL(NAME, T, STRIPS, PART, ROWS, kn, false, false) \
  BSRG_SAMPLED_KERNEL(NAME, T, STRIPS, PART, ROWS, kk, false, true)  \
  BSRG_SAMPLED_KERNEL(NAME, T, STRIPS, PART, ROWS, mn, true, false)  \
  BSRG_SAMPLED_KERNEL(NAME, T, STRIPS, PART, ROWS, mk, true, true)
