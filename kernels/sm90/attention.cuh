// Attention forward on Hopper (TMA, WGMMA, warp specialisation): float16, bfloat16 and float8_e4m3fn.
//
//   O[64 rows a warpgroup]  =  softmax(scale * Q * K^T, over the visible keys) * V
//
// A CTA computes query tiles one after another, and each against its key tiles. One warpgroup produces: warp 0 loads Q
// and K, warp 1 loads V, warp 2 hands out query tiles, warp 3 stores O. The others consume, 64 rows each: scores in
// accumulators, softmax in registers, the exponentials rounded and multiplied by V from there (attention_consumer.cuh).
// All meet at mbarriers: `full` and `empty` of every buffer.
//
// kBlocks: the key tiles of a query tile come from a list, each with the groups of 16 x 16 that may be seen. Otherwise
// they are those that the bounds let through, from the last to the first.
//
// kEight: 8-bit operands, products of 32 keys or elements a WGMMA. Those take K-major operands only, so another kernel
// has transposed V (sm80/attention_values.cu), with the keys in the order in which exponentials lie in registers.
// Scores and results are multiplied by the factors of their batch and head, which come with the query tile. Sums stay in
// the accumulators of WGMMA over all keys, which for 8-bit operands keep fewer bits than float32.
//
// kSequences: a tensor holds sequences of different lengths one behind the other. Nobody counts their tiles: there is a
// slot for every tile that there may be, and the scheduler passes over those that are empty. Tensor maps that end where
// the sequence does keep its neighbours out (bsrg_attention_map).
//
// kPairs: masks of blocks of 64 x 64. Each warpgroup has 64 queries of its own, from anywhere, and computes entries of
// two key tiles of 64. What both need they share; the rest is loaded for one of them alone and passed by the other.
// For heads of 128 elements an entry of one warpgroup is 4.2 MFLOP and 64 KB from L2. With lists of its own, that is
// 7.4 TB/s at 3/4 of the dense rate of 629 TFLOP/s, when L2 delivers 7.8. The plan loads 0.89, 0.83 and 0.72 of it for
// random masks of densities 1/8, 1/4 and 1/2, by counting: 6.6, 6.1 and 5.3 TB/s. Steps of single key tiles would make
// the same loads, but the fixed cost of a step (barriers, turns, reductions; some 400 cycles, an estimate) would meet
// 512 cycles of the tensor cores instead of 1024.
#pragma once

#include "params.h"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "sm90/attention_consumer.cuh"
#include "sm90/attention_layout.cuh"
#include "sm90/attention_sequences.cuh"
#include "sm90/persistent.cuh"

namespace bsrg::attention {

template <typename Shape>
struct Producers {
  using L = Layout<Shape>;

  const bsrg_attention_params &p;
  const Shared<Shape> shared;

  // ---- scheduler: one lane ----------------------------------------------------------------------

  __device__ Message tile(int t) const {
    Message m;
    bsrg_attention_item tile = {};
    if constexpr (Shape::kBlocks) {
      const int4 *record = reinterpret_cast<const int4 *>(p.tiles + t);
      const int4 a = __ldg(record), b = __ldg(record + 1);
      tile = {{a.x, a.y}, a.z, a.w, b.x, b.y, b.z, b.w};
    } else {
      [[maybe_unused]] bsrg_attention_tail_item item = {t, 0, 0, -1};
      if constexpr (Shape::kTail)
        if (t >= p.tail.first)
          item = bsrg_attention_item_of_share(&p.tail, (t - p.tail.first) / 2, (t - p.tail.first) % 2);
      const bsrg_attention_position at = bsrg_attention_tile_position(&p.order, item.tile);
      const bsrg_attention_range range =
          bsrg_attention_key_range(&p.bounds, at.query_tile * Shape::kRows, Shape::kRows, Shape::kKeys);
      tile.first_row[0] = at.query_tile * Shape::kRows;
      tile.head = at.head;
      tile.entry_begin = range.begin + item.begin;
      tile.entry_count = tile.steps = item.slot < 0 ? range.end - range.begin : item.count;
      tile.slot = item.slot;
      m.above_begin = range.above_begin;
      m.below_end = range.below_end;
    }
    m.first_row[0] = tile.first_row[0];
    m.first_row[1] = tile.first_row[1];
    m.head = tile.head % p.heads;
    m.batch = tile.head / p.heads;
    m.begin = tile.entry_begin;
    m.count = tile.entry_count;
    m.steps = tile.steps;
    m.passes_first = tile.passes_first;
    if constexpr (Shape::kParts) m.slot = tile.slot;
    if constexpr (Shape::kEight) {
      m.score_factor = factor(p.q_factors, m) * factor(p.k_factors, m);
      m.value_factor = factor(p.v_factors, m);
    }
    return m;
  }

  __device__ float factor(const bsrg_attention_factors &of, const Message &m) const {
    const int head = m.head / p.group;
    return of.data == nullptr ? of.all : __ldg(of.data + m.batch * of.batch_stride + head * of.head_stride);
  }

  // False where a slot has no query tile.
  __device__ bool sequence_tile(int t, Message &m) const {
    const int slots = p.order.query_tiles;
    const int slot = slots - 1 - t % slots;
    const bsrg_attention_sequence s = bsrg_attention_sequence_at(&p.sequences, slot, Shape::kRows);
    const int first_row = (slot - s.first_slot) * Shape::kRows;
    if (first_row < 0 || first_row >= s.bounds.queries) return false;
    const bsrg_attention_range range =
        bsrg_attention_key_range(&s.bounds, first_row, Shape::kRows, Shape::kKeys);
    m.first_row[0] = s.first_query + first_row;
    m.end_row = s.first_query + s.bounds.queries;
    m.head = t / slots;
    m.begin = range.begin;
    m.count = m.steps = range.end - range.begin;
    m.above_begin = range.above_begin;
    m.below_end = range.below_end;
    m.low_offset = s.bounds.low_offset - s.first_query;
    m.high_offset = s.bounds.high_offset - s.first_query;
    m.first_key = s.first_key;
    m.keys = s.bounds.keys;
    return true;
  }

  // Of a tail, shares are drawn. Their items are two numbers each: those of share i are tail.first + 2 * i and the next.
  __device__ int number_of(int drawn) const {
    return Shape::kTail && drawn >= p.tail.first ? 2 * drawn - p.tail.first : drawn;
  }
  __device__ int draw_after(int t) const {
    const int drawn = Shape::kTail && t >= p.tail.first ? p.tail.first + (t - p.tail.first) / 2 : t;
    return number_of(next_of(drawn));
  }
  // As next_tile, but dealt in turn: there are no registers for more.
  __device__ int next_of(int drawn) const {
    return p.counter == nullptr ? drawn + gridDim.x : next_tile(p.counter, drawn, gridDim.x, p.tile_count);
  }
  // Whether t is the first item of a share that has another.
  __device__ bool goes_on(int t) const {
    const int i = t - p.tail.first;
    return i >= 0 && i % 2 == 0 && bsrg_attention_item_of_share(&p.tail, i / 2, 1).count > 0;
  }

  __device__ void schedule() const {
    uint32_t parity = 1;  // every slot starts out empty
    bool ended = false;   // nothing is left but what is computed again
    const int end = number_of(p.tile_count);
    for (int t = number_of(blockIdx.x);; ++parity) {
      ptx::barrier_wait(shared.message_empty(), parity & 1);
      int next = t;
      bool again = false;
      if constexpr (Shape::kAgain) {
        // Who has taken a tile has stored the one but one before it, and at the end everything.
        int before = shared.take_again(parity - 4);
        if (ended && before < 0) before = shared.take_again(parity - 3);
        again = before >= 0;
        if (again) next = before;
      }
      Message m;
      if constexpr (Shape::kSequences)
        while (next < p.tile_count && !sequence_tile(next, m)) next = next_of(next);
      if (next >= end) {
        Message last;
        last.begin = ended;
        shared.write(last);
        if (!Shape::kAgain || ended) break;
        ptx::barrier_wait(shared.tiles_done(), 0);
        ended = true;
        t = next;
        continue;
      }
      if constexpr (!Shape::kSequences) m = tile(next);
      if constexpr (Shape::kHandsEntry)
        shared.write_first_entry(__ldg(static_cast<const int4 *>(p.entries) + m.begin));
      m.exact = again;
      if constexpr (Shape::kAgain) shared.set_tile(parity - 1, next);
      shared.write(m);
      if (again) continue;
      if (Shape::kTail && goes_on(next)) {
        t = next + 1;
        continue;
      }
      ptx::barrier_wait(shared.message_empty(), parity + 1 & 1);  // so that tile_ends is this tile's
      ptx::barrier_wait(shared.tile_ends(), parity - 1 & 1);
      t = draw_after(next);
    }
  }

  // ---- loads: one lane each ---------------------------------------------------------------------

  // The head of a batch that a query tile reads.
  struct Source {
    const bsrg_tensor_map &map;
    int head, batch;
  };

  static __device__ Source source(const bsrg_attention_map &from, const Message &m) {
    return {from.map, m.head / from.head_divisor, m.batch * from.batch_factor};
  }

  // All of a tile's rows, a panel a box; what lies beyond the last row or element becomes zeros. Pairs have two boxes of
  // 64 rows one below the other, the others one.
  template <int kRows>
  __device__ void load(const Source &from, uint32_t target, const int (&row)[2], uint32_t full) const {
    ptx::barrier_arrive_expect(full, kRows * Shape::kRowBytes);
#pragma unroll
    for (int panel = 0; panel < Shape::kPanels; ++panel)
#pragma unroll
      for (int part = 0; part < (Shape::kPairs ? 2 : 1); ++part)
        ptx::tma_load_4d(target + (panel * kRows + part * BSRG_ATTENTION_PAIR_ROWS) * Shape::kSpan, from.map,
                         panel * Shape::kPanel, row[part], from.head, from.batch, full);
  }

  // Packed values of a tile, of which each part is contiguous.
  __device__ void load_packed(const Source &from, uint32_t target, const int (&row)[2], uint32_t full) const {
    constexpr int kParts = Shape::kPairs ? 2 : 1, kBytes = L::kKeyBytes / kParts;
    const uint8_t *head =
        p.values.data + (static_cast<int64_t>(from.batch) * p.values.heads + from.head) * p.values.head_bytes;
    ptx::barrier_arrive_expect(full, kParts * kBytes);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      ptx::bulk_load(target + part * kBytes, head + static_cast<int64_t>(row[part]) * Shape::kSize, kBytes,
                     full);
  }

  template <bool kIsKeys>
  __device__ void produce() const {
    Stage stage;
    QuerySlot<Shape> query;
    stage.parity = query.parity = 1;
    for (MessageSlot slot;; slot.advance()) {
      ptx::barrier_wait(shared.message_full(), slot.parity);
      const Message m = shared.read();
      [[maybe_unused]] int4 handed;
      if constexpr (Shape::kHandsEntry) handed = shared.first_entry();
      ptx::barrier_arrive(shared.message_empty());
      if (m.last()) {
        if (!Shape::kAgain || m.begin != 0) break;
        continue;
      }
      if constexpr (kIsKeys) {
        ptx::barrier_wait(shared.query_empty(query.slot), query.parity);
        if constexpr (Shape::kSequences) {
          load_of_sequence<Shape, Shape::kRows>(source(p.q, m).map, p.q_rows, source(p.q, m).head,
                                                {m.first_row[0], m.end_row}, shared.queries(query.slot),
                                                shared.query_full(query.slot));
        } else {
          load<Shape::kRows>(source(p.q, m), shared.queries(query.slot), m.first_row,
                             shared.query_full(query.slot));
        }
        query.advance();
      }
      const Source from = source(kIsKeys ? p.k : p.v, m);
      // One entry ahead: a global load in this lane's path would cost 0.3 us a tile.
      const int4 *entries = static_cast<const int4 *>(p.entries) + m.begin;
      int4 next = make_int4(0, 0, 0, 0);
      if constexpr (Shape::kHandsEntry)
        next = handed;
      else if constexpr (Shape::kBlocks)
        next = __ldg(entries);
#pragma unroll 1
      for (int i = 0; i < m.count; ++i, stage.advance()) {
        if (kIsKeys && i == max(m.count - kStepsToDraw, 0)) ptx::barrier_arrive(shared.tile_ends());
        int key_tile = m.begin + m.count - 1 - i;
        const int4 entry = next;
        if constexpr (Shape::kBlocks) {
          key_tile = entry.x;
          if (i + 1 < m.count) next = __ldg(entries + i + 1);
        }
        int row[2] = {key_tile * Shape::kKeys, 0};
        if constexpr (Shape::kPairs) {
          row[0] = entry.x * BSRG_ATTENTION_PAIR_ROWS;
          row[1] = entry.y * BSRG_ATTENTION_PAIR_ROWS;
        }
        const SequenceRows keys = {m.first_key + row[0], m.first_key + m.keys};
        if constexpr (kIsKeys) {
          ptx::barrier_wait(shared.key_empty(stage.slot), stage.parity);
          if constexpr (Shape::kBlocks) ptx::store_shared(shared.entry(stage.slot), entry);
          if constexpr (Shape::kSequences)
            load_of_sequence<Shape, Shape::kKeys>(from.map, p.k_rows, from.head, keys,
                                                  shared.keys(stage.slot), shared.key_full(stage.slot));
          else
            load<Shape::kKeys>(from, shared.keys(stage.slot), row, shared.key_full(stage.slot));
        } else {
          ptx::barrier_wait(shared.value_empty(stage.slot), stage.parity);
          if constexpr (Shape::kEight)
            load_packed(from, shared.values(stage.slot), row, shared.value_full(stage.slot));
          else if constexpr (Shape::kSequences)
            load_of_sequence<Shape, Shape::kKeys>(from.map, p.v_rows, from.head, keys,
                                                  shared.values(stage.slot), shared.value_full(stage.slot));
          else
            load<Shape::kKeys>(from, shared.values(stage.slot), row, shared.value_full(stage.slot));
        }
      }
    }
  }

  // ---- stores: one lane -------------------------------------------------------------------------

  // For the consumers, who would wait 750 cycles a query tile for the fence, TMA and its answer whether it has read what
  // was stored before.
  __device__ void store() const {
    const uint64_t stream_out = ptx::policy_evict_first();
    int tile = 0;
    for (MessageSlot slot;; slot.advance()) {
      ptx::barrier_wait(shared.message_full(), slot.parity);
      const Message m = shared.read();
      ptx::barrier_arrive(shared.message_empty());
      if (m.last()) {
        if (!Shape::kAgain || m.begin != 0) break;
        continue;
      }
      const bool is_part = Shape::kParts && m.slot >= 0;
      if (Shape::kAgain && m.exact) ptx::bulk_wait<0>();  // what will be stored again has been stored
#pragma unroll 1
      for (int group = 0; group < Shape::kGroups; ++group) {
        int row = m.first_row[0] + group * 64;
        if constexpr (Shape::kPairs) row = group == 0 ? m.first_row[0] : m.first_row[1];
#pragma unroll 1
        for (int round = 0; round < L::kRounds; ++round) {
          ptx::barrier_wait(shared.output_full(group), L::round_parity(tile, round));
          if (!is_part) {
            ptx::fence_async_proxy();
#pragma unroll 1
            for (int panel = round * L::kPieces; panel < min((round + 1) * L::kPieces, L::kPanels); ++panel) {
              const uint32_t from = shared.output(group, panel);
              if constexpr (Shape::kSequences)
                store_of_sequence(p.out, p.out_rows, m.head, {row, m.end_row}, from, panel * 64, stream_out);
              else
                ptx::tma_store_4d(p.out, from, panel * 64, row, m.head, m.batch, stream_out);
            }
            ptx::bulk_commit();
            ptx::bulk_wait_read<0>();
          }
          ptx::barrier_arrive(shared.output_empty(group));
        }
      }
      ++tile;
    }
    ptx::bulk_wait<0>();
  }

  __device__ void run(int warp) const {
    if (warp == 0) produce<true>();
    if (warp == 1) produce<false>();
    if (warp == 2) schedule();
    if (warp == 3) store();
  }
};

template <typename Shape>
__device__ __forceinline__ void run(const bsrg_attention_params &p) {
  extern __shared__ char raw[];
  const Shared<Shape> shared{(ptx::shared_address(raw) + 1023) & ~1023u};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  ptx::follow_grid_before();

  const int warp = ptx::warp_index(), lane = threadIdx.x & 31;
  if (warp < 4) {
    ptx::give_back_registers<Shape::kProducerRegisters>();
    if (lane == 0) Producers<Shape>{p, shared}.run(warp);
  } else {
    ptx::take_registers<Shape::kConsumerRegisters>();
    Consumer<Shape> consumer(p, shared, warp - 4, lane);
    consumer.run();
  }
}

}  // namespace bsrg::attention

#define BSRG_ATTENTION_KERNEL(NAME, T, SIZE, KIND, ROWS, KEYS, LISTING, CAPPED)            \
  extern "C" __global__ void __launch_bounds__(BSRG_ATTENTION_THREADS(ROWS), 1)            \
      NAME##_h##SIZE##_##KIND(const __grid_constant__ bsrg_attention_params p) {           \
    bsrg::attention::run<bsrg::attention::Shape<T, SIZE, ROWS, KEYS, LISTING, CAPPED>>(p); \
  }
