// The consumers of the attention kernels: a warpgroup computes 64 query rows, four warps 16 each.
//
// A step issues the scores of the next key tile and the sums of this one, and computes the softmax of the next while
// the sums are under way. Two warpgroups take turns in issuing, so that one's softmax runs while the other multiplies.
// Where there are two buffers of queries this goes on across query tiles: the first scores of the next one are issued
// together with the last sums of this one.
//
// Pairs: some entries of the two rings are the other warpgroup's. The plan gives both warpgroups as many of their own
// and never two in a row that one of them does not take, so turns still alternate. An entry that is passed by must be
// seen full before it is released: a parity only tells a phase from the one before it. Keys are passed by between the
// softmax and the end of the sums, when the other warpgroup is about to use them, and values at the next turn but one,
// when the other warpgroup has used them; so nobody waits, and the buffers become free no later than by their user.
#pragma once

#include <type_traits>

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma_attention.cuh"
#include "sm90/attention_layout.cuh"
#include "sm90/attention_output.cuh"
#include "sm90/attention_parts.cuh"
#include "sm90/attention_softmax.cuh"

namespace bsrg::attention {

template <typename Shape>
class Consumer : OutputRows<Shape> {
  using Base = OutputRows<Shape>;
  using Base::p, Base::shared, Base::warp, Base::lane, Base::sums;
  using T = typename Shape::Element;
  using L = Layout<Shape>;
  static constexpr bool kEight = Shape::kEight;
  static constexpr int kKeys = Shape::kKeys, kSize = Shape::kSize;
  static constexpr int kScores = kKeys / 2, kSums = kSize / 2;  // accumulators of a thread
  static constexpr int kKeySteps = kKeys / Shape::kDepth;       // instructions along the keys
  static constexpr ptx::Swizzle kSwizzle = Shape::kSpan == 128 ? ptx::Swizzle::k128 : ptx::Swizzle::k64;
  // The turn goes on before the last sums have been issued, which gained 0.6% for heads of 128 elements.
  static constexpr int kPassTurnAt = kSize == 64 ? kKeySteps : kKeySteps * 3 / 4;

 public:
  __device__ Consumer(const bsrg_attention_params &params, const Shared<Shape> &memory, int consumer_warp,
                      int my_lane)
      : Base(params, memory, consumer_warp, my_lane),
        group(consumer_warp / 4),
        softmax(params.scale_log2),
        query_matrix(row_matrix(shared.queries(0) + group * 64 * Shape::kSpan)),
        key_matrix(row_matrix(shared.keys(0))),
        value_matrix(kEight ? ptx::matrix_descriptor(shared.values(0), kSize * 16, 128, ptx::Swizzle::kNone)
                            : ptx::matrix_descriptor(shared.values(0), kKeys * Shape::kSpan, 8 * Shape::kSpan,
                                                     kSwizzle)) {}

  __device__ void run() {
    if (group == Shape::kGroups - 1) pass_turn();  // the first one begins
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = 0.f;
#pragma unroll 1
    for (int phase = 0; phase < Shape::kPhases; ++phase) {
      bool scored = false;  // the first key tile of m has become exponentials
      for (Message m = receive(); !m.last();) {
        if (!scored) start(m);
        steps(m);
        release(shared.query_empty(query.slot));
        query.advance();

        const Announced next = announced();
        scored = Shape::kQueryBuffers > 1 && next.any;
        if (scored) {
          m = finish_and_start(m, next);
        } else {
          finish(m);
          m = receive();
        }
      }
      if constexpr (Shape::kAgain)
        if (phase == 0) release(shared.tiles_done());
    }
    if (group == 0) take_turn();  // the one that is passed last: no barrier is left half full
  }

 private:
  const int group;
  using Softmax = std::conditional_t<Shape::kAgain, KeptShift<kScores, Shape::kWide, Shape::kCapped>,
                                     LazyShift<kScores, kEight>>;
  Softmax softmax;
  const uint64_t query_matrix, key_matrix, value_matrix;
  float scores[kScores];
  uint32_t probabilities[kKeySteps][4];  // A of the sums: not to be touched while these are under way
  int accumulate = 0;                    // 0: the next sums are a query tile's first
  int known_run = 0;  // steps from a query tile's second on without a mask, where its first entry tells
  Stage key, value;
  // Pairs: whether entries of the other warpgroup come before the next values of this one, and before those after them.
  bool passes_value = false, passes_value_later = false;
  QuerySlot<Shape> query;
  MessageSlot message;
  int tiles = 0;  // that have been stored

  // ---- barriers ---------------------------------------------------------------------------------

  __device__ void release(uint32_t empty) const {
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(empty);
  }

  // What must be known of the next query tile before its first scores are issued. The rest is received while those are
  // computed: to receive it takes 480 cycles, which the other warpgroup would wait for.
  struct Announced {
    bool any, passes_first;
  };

  __device__ Announced announced() const {
    ptx::barrier_wait(shared.message_full(), message.parity);
    bool any = false, passes_first = false;
    if (lane == 0) any = shared.count() > 0;
    any = __any_sync(~0u, any);
    if constexpr (Shape::kPairs) {
      if (lane == 0) passes_first = shared.passes_first();
      passes_first = __any_sync(~0u, passes_first);
    }
    return {any, passes_first};
  }

  __device__ Message receive() {
    ptx::barrier_wait(shared.message_full(), message.parity);
    Message read;
    if (lane == 0) read = shared.read();
    message.advance();
    release(shared.message_empty());
    return shared.broadcast(read, group);
  }

  // Each warpgroup has a barrier that it waits at and the one before it arrives at.
  __device__ void take_turn() const { ptx::named_barrier_sync(1 + group, 256); }
  __device__ void pass_turn() const {
    ptx::named_barrier_arrive(group + 1 == Shape::kGroups ? 1 : 2 + group, 256);
  }

  // ---- products ---------------------------------------------------------------------------------

  static __device__ uint64_t row_matrix(uint32_t address) {
    return ptx::matrix_descriptor(address, 16, 8 * Shape::kSpan, kSwizzle);
  }

  // Descriptors count 16 bytes: 32 bytes of a row a step, a panel every fourth or second.
  __device__ void issue_scores() {
    const uint64_t q = query_matrix + query.slot * (L::kQueryBytes >> 4);
    const uint64_t k = key_matrix + key.slot * (L::kKeyBytes >> 4);
    ptx::warpgroup_fence();
#pragma unroll
    for (int i = 0; i < kSize / Shape::kDepth; ++i) {
      constexpr int kSteps = Shape::kSpan / 32;
      ptx::Wgmma<T, kKeys, 0, 0>::run(scores, q + i / kSteps * (Shape::kRows * kSteps * 2) + i % kSteps * 2,
                                      k + i / kSteps * (kKeys * kSteps * 2) + i % kSteps * 2, i > 0);
    }
    ptx::warpgroup_commit();
  }

  template <bool kPassTurn>
  __device__ void issue_sums() {
    const uint64_t v = value_matrix + value.slot * (L::kKeyBytes >> 4);
    ptx::warpgroup_fence();
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) {
      if (kPassTurn && i == kPassTurnAt) pass_turn();
      // 16 rows of kSpan bytes, or two chunks of 16 keys
      constexpr int kStep = kEight ? 2 * kSize : Shape::kSpan;
      ptx::WgmmaRegisters<T, kSize>::run(sums, probabilities[i], v + kStep * i, i > 0 || accumulate);
    }
    ptx::warpgroup_commit();
    if (kPassTurn && kPassTurnAt == kKeySteps) pass_turn();
    accumulate = 1;
  }

  __device__ void round_probabilities() {
    if constexpr (kEight) {
      Rounded<kScores> rounded;
      round_scores(scores, rounded);
      join_rounded(rounded, probabilities);
    } else {
#pragma unroll
      for (int i = 0; i < kScores; i += 2)
        probabilities[i / 8][i / 2 % 4] = ptx::pack<T>(scores[i], scores[i + 1]);
    }
  }

  __device__ void release_keys() {
    release(shared.key_empty(key.slot));
    key.advance();
  }

  __device__ void release_values() {
    release(shared.value_empty(value.slot));
    value.advance();
  }

  __device__ void wait_for_sums() {
    ptx::warpgroup_wait<0>();
    ptx::hold_accumulators(sums);
    release_values();
  }

  // ---- entries of the other warpgroup -----------------------------------------------------------

  __device__ bool pass_key(bool passes) {
    if (passes) {
      ptx::barrier_wait(shared.key_full(key.slot), key.parity);
      release_keys();
    }
    return passes;
  }

  // Behind the key tile with these flags.
  __device__ void pass_next_key(int flags) {
    if constexpr (Shape::kPairs) {
      passes_value = passes_value_later;
      passes_value_later = pass_key(flags & BSRG_ATTENTION_PASSES_NEXT);
    }
  }

  // Before the first key tile of a query tile.
  __device__ void pass_first_key(bool passes_first) {
    if constexpr (Shape::kPairs)
      if (pass_key(passes_first && group == 1)) passes_value_later = true;
  }

  // Before the values of this warpgroup that come next.
  __device__ void pass_value() {
    if constexpr (Shape::kPairs) {
      if (passes_value) {
        ptx::barrier_wait(shared.value_full(value.slot), value.parity);
        release_values();
      }
    }
  }

  // ---- masks ------------------------------------------------------------------------------------

  // Of this warp. Message::first_row[0] is the warpgroup's where each has its own.
  __device__ int first_row(const Message &m) const {
    return m.first_row[0] + (Shape::kPairs ? warp % 4 : warp) * 16;
  }

  // What must be masked in key tile i of m, whose keys are in the ring's current stage.
  struct KeyTile {
    int index, flags;
    uint32_t groups;  // of this warp's rows
    int second;       // pairs: of the keys from 64 on
  };

  __device__ KeyTile key_tile(const Message &m, int i) const {
    if constexpr (Shape::kBlocks) {
      int first = 0, second = 0, mine = 0;
      if (lane == 0) {  // which releases the stage, see Shared::read
        const uint32_t entry = shared.entry(key.slot);
        first = ptx::load_shared_int(entry);
        second = ptx::load_shared_int(entry + 4);
        mine = ptx::load_shared_int(entry + 8 + 4 * group);
      }
      first = __shfl_sync(~0u, first, 0);
      second = __shfl_sync(~0u, second, 0);
      mine = __shfl_sync(~0u, mine, 0);
      if constexpr (Shape::kPairs) return {first, mine, 0, second};
      return {first, second, static_cast<uint32_t>(mine) >> (8 * (warp % 4)), 0};
    } else {
      const int index = m.begin + m.count - 1 - i;
      return {index,
              (index >= m.above_begin ? BSRG_ATTENTION_ABOVE : 0) |
                  (index < m.below_end ? BSRG_ATTENTION_BELOW : 0),
              0, 0};
    }
  }

  // What the bounds hide of the kCount scores from kBegin on, of which the first is this key's.
  template <int kBegin, int kCount>
  __device__ void mask_bounds(const Message &m, int flags, int tile_key) {
    const int row = first_row(m) + lane / 4, first_key = tile_key + 2 * (lane & 3);
    if (flags & BSRG_ATTENTION_ABOVE) {
      const int high = row + (Shape::kSequences ? m.high_offset : p.bounds.high_offset);
      const int last = (Shape::kSequences ? m.keys : p.bounds.keys) - 1;
      mask_above<kBegin, kCount>(scores, {min(high, last) - first_key, min(high + 8, last) - first_key});
    }
    if (flags & BSRG_ATTENTION_BELOW) {
      const int low = row + (Shape::kSequences ? m.low_offset : p.bounds.low_offset) - first_key;
      mask_below<kBegin, kCount>(scores, {low, low + 8});
    }
  }

  __device__ void cap_scores(const Message &m) {
    if constexpr (Shape::kCapped) cap(scores, kEight ? p.cap_log2 * m.score_factor : p.cap_log2);
  }

  // Scores of what may be seen, capped where the kernel does that.
  __device__ void mask(const Message &m, const KeyTile &tile) {
    cap_scores(m);
    if constexpr (Shape::kPairs) {
      constexpr int kHalf = kScores / 2;
      if (tile.flags & (BSRG_ATTENTION_ABOVE | BSRG_ATTENTION_BELOW)) {
        mask_bounds<0, kHalf>(m, tile.flags, tile.index * BSRG_ATTENTION_PAIR_ROWS);
        mask_bounds<kHalf, kHalf>(m, tile.flags, tile.second * BSRG_ATTENTION_PAIR_ROWS);
      }
      if (tile.flags & BSRG_ATTENTION_HIDES_FIRST) mask_all<0, kHalf>(scores);
      if (tile.flags & BSRG_ATTENTION_HIDES_SECOND) mask_all<kHalf, kHalf>(scores);
    } else {
      mask_bounds<0, kScores>(m, tile.flags, tile.index * kKeys);
      if constexpr (Shape::kBlocks)
        if (tile.flags & BSRG_ATTENTION_PARTIAL) mask_groups(scores, tile.groups);
    }
  }

  // ---- steps ------------------------------------------------------------------------------------

  // Of m. Capped scores have their factor already. A scale of 0 would make NaN of what is masked.
  __device__ void first_softmax(const Message &m) {
    if constexpr (kEight && !Shape::kCapped) {
      const float scale = p.scale_log2 * m.score_factor;
      softmax.set_scale(scale < 1e-30f ? 1e-30f : scale);
    }
    if constexpr (Shape::kAgain)
      softmax.first(scores, m.exact);
    else
      softmax.first(scores);
  }

  // The first scores of a query tile, with nothing else under way.
  __device__ void start(const Message &m) {
    ptx::barrier_wait(shared.query_full(query.slot), query.parity);
    pass_first_key(m.passes_first);
    ptx::barrier_wait(shared.key_full(key.slot), key.parity);
    take_turn();
    issue_scores();
    pass_turn();
    ptx::warpgroup_wait<0>();
    ptx::hold_accumulators(scores);
    const KeyTile tile = key_tile(m, 0);
    release_keys();
    known_run = run_of(tile.flags) - 1;
    mask(m, tile);
    first_softmax(m);
    pass_next_key(tile.flags);
    round_probabilities();
    accumulate = 0;
  }

  // The key tiles of m but for the first. Runs of steps with nothing to mask are loops of their own, without products in a
  // condition: a warpgroup takes as long from its scores to its next turn as the other one multiplies, so that 25
  // instructions more a step, or products in both branches of a condition, cost 4 to 6% of a call.
  __device__ void steps(const Message &m) {
#pragma unroll 1
    for (int i = 1; i < m.steps;) {
      int run = 0;
      if (softmax.allows_plain()) run = known_run > 0 ? min(known_run, m.steps - i) : unmasked_steps(m, i);
      known_run = 0;
      if (run > 0) {
        i += run;
        if constexpr (Shape::kAgain) {
          i -= plain_run(m, run);
        } else {
#pragma unroll 1
          for (int left = run; left > 0; --left) step<false>(m, i);
        }
      } else {
        step<true>(m, i);
        ++i;
      }
    }
  }

  // Of an entry's flags.
  static __device__ int run_of(int flags) { return Shape::kBlocks ? flags / BSRG_ATTENTION_RUN_UNIT : 0; }

  // How many steps from step i on have nothing to mask, as far as is known and at most BSRG_ATTENTION_RUN.
  __device__ int unmasked_steps(const Message &m, int i) const {
    if constexpr (Shape::kBlocks) {
      ptx::barrier_wait(shared.key_full(key.slot), key.parity);
      const int flags = key_tile(m, i).flags;
      if (!Shape::kPairs && flags % BSRG_ATTENTION_RUN_UNIT != 0) return 0;
      return min(run_of(flags), m.steps - i);
    } else {
      const int index = m.begin + m.count - 1 - i;
      if (index >= m.above_begin) return 0;
      return min(min(index + 1 - m.below_end, m.steps - i), static_cast<int>(BSRG_ATTENTION_RUN));
    }
  }

  // `run` steps with nothing to mask, in which no shift moves. How many are left: float16 ends with a step whose
  // exponentials are too large.
  __device__ int plain_run(const Message &m, int run) {
#pragma unroll 1
    for (; run > 0; --run) {
      issue_step();
      int flags = 0;
      if constexpr (Shape::kPairs) flags = key_tile(m, 0).flags;
      release_keys();
      cap_scores(m);
      softmax.plain(scores);
      if constexpr (!Shape::kWide)
        if (softmax.exceeds()) {
          float factor[2];
          softmax.rescale(scores, factor);
          pass_next_key(flags);
          ptx::hold_accumulators(scores);
          wait_for_sums();
          scale_sums(factor);
          round_probabilities();
          return run - 1;
        }
      pass_next_key(flags);
      ptx::hold_accumulators(scores);
      wait_for_sums();
      round_probabilities();
    }
    return 0;
  }

  // The scores of key tile i, and the sums of the one before it.
  template <bool kMasked>
  __device__ void step(const Message &m, [[maybe_unused]] int i) {
    issue_step();
    int flags = 0;
    if constexpr (kMasked) {
      const KeyTile tile = key_tile(m, i);
      flags = tile.flags;
      release_keys();
      mask(m, tile);
    } else {
      if constexpr (Shape::kPairs) flags = key_tile(m, i).flags;
      release_keys();
      cap_scores(m);
    }
    float factor[2];
    const bool grown = softmax.next(scores, factor);
    pass_next_key(flags);
    ptx::hold_accumulators(scores);
    Rounded<kScores> rounded;
    if constexpr (kEight) {
      round_scores(scores, rounded);
      keep_before_wait(rounded, softmax.sum);
    }
    wait_for_sums();
    if (grown) scale_sums(factor);
    if constexpr (kEight)
      join_rounded(rounded, probabilities);
    else
      round_probabilities();
  }

  // A step's products. Its scores are there at the end, its sums are under way.
  __device__ void issue_step() {
    ptx::barrier_wait(shared.key_full(key.slot), key.parity);
    take_turn();
    pass_value();
    issue_scores();
    ptx::barrier_wait(shared.value_full(value.slot), value.parity);
    issue_sums<true>();
    ptx::warpgroup_wait<1>();
    ptx::hold_accumulators(scores);
  }

  __device__ void scale_sums(const float (&factor)[2]) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums[j] *= factor[j / 2 % 2];
  }

  // The last sums of m alone.
  __device__ void finish(const Message &m) {
    pass_value();
    ptx::barrier_wait(shared.value_full(value.slot), value.parity);
    issue_sums<false>();
    wait_for_sums();
    typename Softmax::Shifts shifts;
    softmax.get_shifts(shifts);
    store(m, shifts, softmax.sum);
  }

  // The last sums of m and the first scores of the next query tile, which is returned.
  __device__ Message finish_and_start(const Message &m, const Announced &announced) {
    ptx::barrier_wait(shared.query_full(query.slot), query.parity);
    pass_first_key(announced.passes_first);
    ptx::barrier_wait(shared.key_full(key.slot), key.parity);
    take_turn();
    pass_value();
    issue_scores();
    ptx::barrier_wait(shared.value_full(value.slot), value.parity);
    issue_sums<true>();
    const Message next = receive();
    ptx::warpgroup_wait<1>();
    ptx::hold_accumulators(scores);
    const KeyTile tile = key_tile(next, 0);
    release_keys();
    known_run = run_of(tile.flags) - 1;
    mask(next, tile);
    typename Softmax::Shifts shifts;
    softmax.get_shifts(shifts);
    const float sum[2] = {softmax.sum[0], softmax.sum[1]};
    first_softmax(next);
    pass_next_key(tile.flags);
    ptx::hold_accumulators(scores);
    wait_for_sums();
    store(m, shifts, sum);
    round_probabilities();
    accumulate = 0;
    return next;
  }

  // ---- output -----------------------------------------------------------------------------------

  // Divides by the sums of exponentials and stores, each warp for itself. A row that sees no key has the sum 0: it becomes
  // zeros, whatever is in V.
  __device__ void store(const Message &m, const typename Softmax::Shifts &shifts,
                        const float (&partial_sum)[2]) {
    const int row = first_row(m);
    float sum[2], inverse[2], shift[2], rest[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const ScaledShift scaled = softmax.scaled(shifts, r, m.exact);
      shift[r] = scaled.shift, rest[r] = scaled.rest;
      sum[r] = partial_sum[r] + __shfl_xor_sync(~0u, partial_sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      inverse[r] = ptx::reciprocal(sum[r]);
      if constexpr (kEight) inverse[r] *= m.value_factor;
    }
    if constexpr (Shape::kAgain) {
      // What is stored now will be stored again.
      if (!m.exact && softmax.overflowed(sum, shift, sums) && lane == 0) shared.set_overflow(tiles);
    }
    const bool is_part = Shape::kParts && m.slot >= 0;
    if (is_part) {
      if constexpr (Shape::kParts) {
        // Whoever joins parts knows the shift alone. What is beyond these bounds, scores are not exact to.
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          factor[r] = ptx::exp2(fminf(fmaxf(rest[r], -30.f), 30.f));
          sum[r] *= factor[r];
          if constexpr (kEight) factor[r] *= m.value_factor;
        }
        store_part(p.parts, static_cast<int64_t>(m.slot) * (Shape::kRows / 16) + warp, sums, factor, shift,
                   sum);
      }
    } else {
      this->store_lse(m, row, shift, sum);
    }
    this->hand_over(tiles, is_part, sum, inverse);
    ++tiles;
  }
};

}  // namespace bsrg::attention
