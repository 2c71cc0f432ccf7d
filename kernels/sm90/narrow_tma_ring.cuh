// The rings of narrow_tma.cuh, and the warps that fill them.
#pragma once

#include "params.h"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "sm90/narrow_tma_gapless.cuh"
#include "sm90/narrow_tma_output.cuh"
#include "sm90/persistent.cuh"

namespace bsrg::narrow_tma {

// The numbers of an item's blocks, in a warp that has those of 32 at a time, and of the next 32.
template <typename Number>
class Numbers {
 public:
  __device__ Numbers(const Number *numbers, int count, Number first, int lane)
      : numbers_(numbers), count_(count), lane_(lane), mine_(first) {}
  // That of block first + offset, by the whole warp, for ascending `first` that pass by no multiple of 32. Lanes may have offsets
  // of their own, which are right up to the next multiple.
  __device__ Number of(int first, int offset = 0) {
    if (first % 32 == 0) {
      if (first > 0) mine_ = next_;
      next_ = first + 32 + lane_ < count_ ? __ldg(numbers_ + first + 32 + lane_) : Number{0};
    }
    return __shfl_sync(~0u, mine_, (first + offset) % 32);
  }

 private:
  const Number *const numbers_;
  const int count_, lane_;
  Number mine_, next_ = 0;
};

// A lane's position in a ring that several lanes fill in turns.
struct LanePosition : OpenRingPosition {
  // lanes: no more than slots.
  __device__ void advance(int lanes, int slots) {
    slot += lanes;
    if (slot < slots) return;
    slot -= slots;
    parity ^= 1;
  }
};

// kPanels: of columns. kStrip: rows. kTransposedA: of a transposed view. kTransposedX: the rows of X are adjacent in memory, not
// its columns. kGapless: the rows of X follow one another, and become columns here.
template <typename T, int kPanels, int kStrip, int kStepK, bool kTransposedA, bool kTransposedX,
          int kGroups = BSRG_NARROW_TMA_GROUPS(kPanels), bool kGapless = false>
struct Ring : Output<T, kPanels, kStrip, kGroups> {
  using Base = Output<T, kPanels, kStrip, kGroups>;
  using Base::kEight, Base::kItem, Base::kWarps, Base::p;
  static constexpr int kInstructionK = 32 / kItem;
  static constexpr int kMine = kPanels / kGroups;  // panels of a warpgroup
  static constexpr int kPanelBytes = kStepK * kPanel * kItem;
  static constexpr int kBytesOfX = kPanels * kPanelBytes, kBytesOfA = kStrip * kStepK * kItem;
  static constexpr int kStageBytes = BSRG_NARROW_TMA_STAGE_BYTES(kPanels, kStrip, kStepK *kItem);
  static constexpr int kMostStages = BSRG_NARROW_TMA_MOST_STAGES;
  static_assert(kBytesOfX + kBytesOfA <= kStageBytes && kStageBytes % 1024 == 0 && kPanelBytes % 1024 == 0,
                "swizzled tiles lie where their pattern begins");
  static_assert(!kTransposedA || kStrip == 64, "a line of 128 bytes");
  static_assert(!kEight || (kTransposedX && !kTransposedA), "K-major");
  static_assert(!kGapless || (kTransposedX && kPanels == 1 && !kEight), "of half a panel");

  const uint32_t shared;
  const int warp, lane;

  __device__ uint32_t full(int slot) const { return shared + 8 * slot; }
  __device__ uint32_t empty(int slot) const { return shared + 8 * (kMostStages + slot); }
  __device__ uint32_t rows_of_x(int slot) const { return shared + 1024 + slot * kStageBytes; }
  __device__ uint32_t first_panel(int slot) const { return rows_of_x(slot) + warp / 4 * kMine * kPanelBytes; }
  __device__ uint32_t blocks(int slot) const { return rows_of_x(slot) + kBytesOfX; }
  // Of a gapless X, in rings of half as many stages at most: what comes, behind what it is turned to.
  __device__ uint32_t lines_full(int slot) const { return full(kMostStages / 2 + slot); }
  __device__ uint32_t lines(int slot) const { return rows_of_x(slot) + kPanelBytes / 2; }

  // CTAs that compute strips of the same blocks and load half of X each, for both.
  __device__ int cluster() const { return kPanels > 1 ? p.cluster : 1; }

  __device__ void init_barriers() const {
    for (int i = 0; i < p.stages; ++i) {
      ptx::barrier_init(full(i), 2);  // both producers
      ptx::barrier_init(empty(i), kWarps * cluster());
      if constexpr (kGapless) ptx::barrier_init(lines_full(i), 1);
    }
    ptx::barrier_init_fence();
  }

  // ---- producers --------------------------------------------------------------------------------

  // x / y for y of 1 to 4: where y is known at run time alone, a general division would be in the way of the first copies.
  static __device__ int divide_by_few(int x, int y) {
    return y == 1 ? x : y == 2 ? x / 2 : y == 3 ? x / 3 : x / 4;
  }

  // A warp. What one lane does for a stage takes 0.2 us, mostly its instructions' latency, so several ask for stages side by side
  // (blocks_at_once, steps_at_once), or each for a part of one. number_of(first, offset) is called by all of the warp, for block
  // first + offset, load(block, number, step, slot, part) by each stage's lanes.
  // filled: stages that were loaded before, of other items.
  template <typename NumberOf, typename Load>
  __device__ void produce(int blocks, int parts, NumberOf number_of, Load load, int filled = 0) const {
    const int turn = divide_by_few(lane, parts), part = lane - turn * parts;
    const int stages = p.blocks_at_once * p.steps_at_once;
    const int offset = p.steps_at_once == 1 ? turn : turn / p.steps_at_once;
    LanePosition stage;
    stage.slot = turn;
    stage.parity = 1;
    if (filled > 0) {
      stage.slot = (filled + turn) % p.stages;
      stage.parity ^= (filled + turn) / p.stages & 1;
    }
#pragma unroll 1
    for (int first = 0; first < blocks; first += p.blocks_at_once) {
      const int block = first + offset;
      const auto number = number_of(first, offset);
#pragma unroll 1
      for (int step = turn - offset * p.steps_at_once; step < p.steps;
           step += p.steps_at_once, stage.advance(stages, p.stages)) {
        if (turn >= stages || block >= blocks) continue;
        ptx::barrier_wait(empty(stage.slot), stage.parity);
        load(block, number, step, stage.slot, part);
      }
    }
  }

  // What loads a block's stage: block `block` of the item, which in a transposed view lies at `place`.
  __device__ auto block_loader(const bsrg_narrow_item &item) const {
    const int height = p.narrow.block_height;
    const bool whole = item.row_in_block + kStrip <= height;
    const bsrg_tensor_map *const map = whole ? &p.a : &p.a_tail;
    const int bytes = (whole ? kStrip : p.tail_rows) * kStepK * kItem;
    const int first_row = item.first_block * height + item.row_in_block, row_in_block = item.row_in_block;
    const uint64_t policy = ptx::policy_evict_first();
    return [=](int block, int place, int step, int slot) {
      if constexpr (kTransposedA) {
        const bool tail = step == p.steps - 1;
        ptx::barrier_arrive_expect(full(slot),
                                   (tail ? p.tail_steps * kInstructionK : kStepK) * kStrip * kItem);
        ptx::tma_load_2d(blocks(slot), tail ? p.a_tail : p.a, row_in_block,
                         place * p.narrow.block_width + step * kStepK, full(slot), policy);
      } else {
        ptx::barrier_arrive_expect(full(slot), bytes);
        ptx::tma_load_2d(blocks(slot), *map, step * kStepK, first_row + block * height, full(slot), policy);
      }
    };
  }

  __device__ Numbers<int32_t> places_of(const bsrg_narrow_item &item) const {
    const int32_t *const places = p.narrow.places + item.first_block;
    return {places, item.block_count, lane < item.block_count ? __ldg(places + lane) : 0, lane};
  }

  __device__ void load_blocks(const bsrg_narrow_item &item, int filled = 0) const {
    const auto load_block = block_loader(item);
    const auto load = [&](int block, int place, int step, int slot, int) {
      load_block(block, place, step, slot);
    };
    if constexpr (kTransposedA) {
      Numbers<int32_t> places = places_of(item);
      produce(
          item.block_count, 1, [&](int first, int offset) { return places.of(first, offset); }, load, filled);
    } else {
      produce(item.block_count, 1, [](int, int) { return 0; }, load, filled);
    }
  }

  // `block_columns`: the item's.
  __device__ void load_x(const bsrg_narrow_item &item, const int32_t *block_columns,
                         int first_columns) const {
    Numbers<int32_t> numbers(block_columns, item.block_count, first_columns, lane);
    // Of a pair this CTA's boxes, every other one. Each lane loads or counts, as one that only waited could be a lap behind.
    const bool paired = cluster() > 1;
    const int rank = paired ? static_cast<int>(ptx::cluster_rank()) : 0;
    const int first_box = this->first_panel_of_tile(), of_tile = min(p.x_boxes - first_box, kPanels);
    const int columns = of_tile == p.x_boxes ? p.x_columns : of_tile * kPanel;
    const int boxes = kPanels == 1 ? 1 : paired ? max((of_tile + 1 - rank) / 2, 1) : of_tile;
    const auto column = [&](int first, int offset) { return numbers.of(first, offset); };
    produce(item.block_count, boxes, column, [&](int, int column, int step, int slot, int part) {
      const bool tail = step == p.steps - 1;
      // By columns whole stages come, with k of what lies behind the block, which is not multiplied.
      const int k = tail && !kTransposedX ? p.tail_steps * kInstructionK : kStepK;
      const int box = paired ? 2 * part + rank : part;
      const int at = column * p.narrow.block_width + step * kStepK, first = (first_box + box) * kPanel;
      const bsrg_tensor_map &map = tail ? p.x_tail : p.x;
      const uint32_t target = rows_of_x(slot) + box * kPanelBytes;
      // What arrives before this is counted as well: the phase does not end before.
      if (part == 0) ptx::barrier_arrive_expect(full(slot), k * columns * kItem);
      if (box >= of_tile) return;
      if (paired)
        ptx::tma_load_2d_multicast(target, map, kTransposedX ? at : first, kTransposedX ? first : at,
                                   full(slot), uint16_t{3});
      else
        ptx::tma_load_2d(target, map, kTransposedX ? at : first, kTransposedX ? first : at, full(slot));
    });
  }

  // Of a gapless X, by the warp that loads blocks, as the other one turns what has come.
  __device__ void load_blocks_and_lines(const bsrg_narrow_item &item, const int32_t *block_columns,
                                        int first_columns) const {
    struct Two {
      int32_t column, place;
    };
    Numbers<int32_t> columns(block_columns, item.block_count, first_columns, lane);
    Numbers<int32_t> places = kTransposedA ? places_of(item) : columns;
    const auto numbers = [&](int first, int offset) {
      return Two{columns.of(first, offset), kTransposedA ? places.of(first, offset) : 0};
    };
    const auto load_block = block_loader(item);
    const int n = p.x_columns;
    produce(item.block_count, 2, numbers, [&](int block, Two of, int step, int slot, int part) {
      if (part == 0) {
        load_block(block, of.place, step, slot);
      } else {
        const int at = of.column * p.narrow.block_width + step * kStepK;
        ptx::barrier_arrive_expect(lines_full(slot), kStepK * n * kItem);
        ptx::tma_load_2d(lines(slot), p.x, 0, at / 8 * (n / 8), lines_full(slot));
      }
    });
  }

  // The next kCount stages, whose lines all have to have come.
  template <int kColumns, int kCount>
  __device__ void turn_next(OpenRingPosition &stage) const {
    uint32_t from[kCount], to[kCount], done[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i, stage.advance(p.stages)) {
      from[i] = lines(stage.slot), to[i] = rows_of_x(stage.slot), done[i] = full(stage.slot);
      ptx::barrier_wait(lines_full(stage.slot), stage.parity);
    }
    narrow_tma::turn_stages<kStepK, kColumns>(from, to, lane);
    ptx::fence_async_proxy();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kCount; ++i) ptx::barrier_arrive_if(done[i], lane == 0);
  }

  template <int kColumns>
  __device__ void turn_all(int count) const {
    constexpr int kAtOnce = 64 / kStepK;
    OpenRingPosition stage;
#pragma unroll 1
    for (; count >= kAtOnce; count -= kAtOnce) turn_next<kColumns, kAtOnce>(stage);
    if constexpr (kAtOnce > 1)
#pragma unroll 1
      for (; count > 0; --count) turn_next<kColumns, 1>(stage);
  }

  template <int kColumns = 8>
  __device__ void turn_lines(int count) const {
    if constexpr (kColumns < BSRG_NARROW_TMA_GAPLESS_MAX_N)
      if (p.x_columns > kColumns) return turn_lines<kColumns + 8>(count);
    turn_all<kColumns>(count);
  }

  // Of a pair, until all `count` stages have been released by both CTAs, as wait_until_released does.
  __device__ void wait_for_releases(int count) const {
    OpenRingPosition next{count % p.stages, (count / p.stages & 1) ^ 1u};
    for (int i = 0; i < p.stages; ++i, next.advance(p.stages))
      ptx::barrier_wait(empty(next.slot), next.parity);
  }
};

}  // namespace bsrg::narrow_tma
