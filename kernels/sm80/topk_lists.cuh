// From the columns of a top-k mask to the lists of key tiles that the attention kernels walk over: one CTA a list, which
// ends up as the host makes it (csrc/attention_plan.c, attention_pairs.c, attention_lists.c). A CTA marks in shared
// memory what the columns of its block rows cover, then writes down in order what is marked. Long rows are taken in
// parts. Lists begin at multiples of the most that one can have, since where the others end is known on the device only.
#pragma once

#include <cstdint>

#include "params.h"
#include "sm80/topk_ranks.cuh"

namespace bsrg::topk {

// Calls mark(column) for the columns of a block row, each by one thread. What is no column, which scores that change
// meanwhile can leave behind, is passed over.
template <typename Mark>
__device__ __forceinline__ void for_columns(const bsrg_topk_shape &shape, const int32_t *columns, int pattern,
                                            int row, Mark mark) {
  const int32_t *const of_row =
      columns + (static_cast<int64_t>(pattern) * shape.block_rows + row) * shape.most;
  const int count = bsrg_topk_count(&shape, row);
  for (int i = threadIdx.x; i < count; i += BSRG_TOPK_THREADS) {
    const int32_t column = __ldg(of_row + i);
    if (static_cast<uint32_t>(column) < static_cast<uint32_t>(shape.block_cols)) mark(column);
  }
}

template <typename T>
__device__ __forceinline__ void clear(T *words, int count) {
  for (int i = threadIdx.x; i < count; i += BSRG_TOPK_THREADS) words[i] = 0;
}

// ---- the Hopper kernels -------------------------------------------------------------------------

struct HopperList {
  const bsrg_topk_lists_params &p;
  const int query_tile, pattern;
  const int begin;  // its first entry

  __device__ __forceinline__ explicit HopperList(const bsrg_topk_lists_params &params)
      : p(params),
        query_tile(blockIdx.x % params.order.query_tiles),
        pattern(blockIdx.x / params.order.query_tiles),
        begin(blockIdx.x * params.capacity) {}

  // For every head that has this pattern.
  __device__ __forceinline__ void describe(bsrg_attention_item item) const {
    const int heads = p.heads / p.mask_heads, batches = p.mask_batch == 1 ? p.batch : 1;
    const int first_head = pattern % p.mask_heads * heads, first_batch = pattern / p.mask_heads;
    item.entry_begin = begin;
    item.slot = -1;
    for (int i = threadIdx.x; i < heads * batches; i += BSRG_TOPK_THREADS) {
      item.head = (first_batch + i / heads) * p.heads + first_head + i % heads;
      p.tiles[bsrg_attention_tile_index(&p.order, item.head, query_tile)] = item;
    }
  }
};

// A 1 in each of the bytes begin .. end - 1.
__device__ __forceinline__ uint64_t row_groups(int begin, int end) {
  const uint64_t below_end = end < 8 ? (uint64_t{1} << 8 * end) - 1 : ~uint64_t{0};
  return uint64_t{0x0101010101010101} & below_end & (~uint64_t{0} << 8 * begin);
}

// Notes in flags 0 .. count - 1, which flags_at finds, how many follow one another with none of kMasks set: from each of them on,
// or with kBehind behind it, and itself. Flags of the others are read while theirs are written, which adds to what is above the
// masks.
template <int kMasks, bool kBehind, typename FlagsAt>
__device__ __forceinline__ void note_runs(int count, FlagsAt flags_at) {
  static_assert(BSRG_ATTENTION_RUN == 32, "a run ends in its warp's 32 entries or in the 32 behind them");
  const auto is_plain = [&](int i) { return i < count && (__ldcg(flags_at(i)) & kMasks) == 0; };
  const int lane = threadIdx.x % 32;
  for (int first = threadIdx.x - lane; first < count; first += BSRG_TOPK_THREADS) {
    const uint64_t mine = __ballot_sync(~0u, is_plain(first + lane));
    const uint64_t behind = __ballot_sync(~0u, is_plain(first + lane + 32));
    const auto plain = static_cast<uint32_t>((mine | behind << 32) >> (lane + kBehind));
    const int follow = plain == ~0u ? 32 : __ffs(static_cast<int>(~plain)) - 1;
    const int run = kBehind ? min(1 + follow, 32) : follow;
    if (first + lane < count) *flags_at(first + lane) += run * BSRG_ATTENTION_RUN_UNIT;
  }
}

// Entries with a bit for every 16 x 16 elements.
__device__ __forceinline__ void list_tiles(const bsrg_topk_lists_params &p) {
  constexpr int kGroup = BSRG_ATTENTION_GROUP, kTiles = BSRG_TOPK_GROUP_TILES;
  __shared__ uint32_t groups[2 * kTiles];  // of each tile, as in an entry
  __shared__ uint32_t totals[BSRG_TOPK_THREADS / 32];
  const HopperList list(p);
  const int first_row = list.query_tile * BSRG_ATTENTION_LIST_ROWS;
  const int end_row = min(first_row + BSRG_ATTENTION_LIST_ROWS, p.bounds.queries);
  const bsrg_attention_range range =
      bsrg_attention_key_range(&p.bounds, first_row, BSRG_ATTENTION_LIST_ROWS, p.tile_keys);
  const int64_t height = p.shape.block_height, width = p.shape.block_width / kGroup;
  const int across = p.tile_keys / kGroup;
  auto *const entries = static_cast<int4 *>(p.entries) + list.begin;
  int count = 0;
  for (int end = range.end; end > range.begin; end -= kTiles) {
    const int first = max(end - kTiles, range.begin);
    clear(groups, 2 * (end - first));
    __syncthreads();
    for (int64_t row = first_row / height; row <= (end_row - 1) / height; ++row) {
      const int above = static_cast<int>(max(row * height - first_row, int64_t{0}));
      const int below = static_cast<int>(min((row + 1) * height, static_cast<int64_t>(end_row)) - first_row);
      const uint64_t lanes = row_groups(above / kGroup, (below + kGroup - 1) / kGroup);
      for_columns(p.shape, p.columns, list.pattern, static_cast<int>(row), [&](int column) {
        const int64_t from = column * width, to = from + width;
        const int64_t last = min((to - 1) / across, static_cast<int64_t>(end - 1));
        for (int64_t tile = max(from / across, static_cast<int64_t>(first)); tile <= last; ++tile) {
          const int low = static_cast<int>(max(from - tile * across, int64_t{0}));
          const int high = static_cast<int>(min(to - tile * across, static_cast<int64_t>(across)));
          const uint64_t marks = lanes * (((1u << (high - low)) - 1) << low);
          uint32_t *const words = groups + 2 * (tile - first);
          if (static_cast<uint32_t>(marks)) atomicOr(words, static_cast<uint32_t>(marks));
          if (marks >> 32) atomicOr(words + 1, static_cast<uint32_t>(marks >> 32));
        }
      });
    }
    __syncthreads();
    const uint64_t all_rows = row_groups(0, (end_row - first_row + kGroup - 1) / kGroup);
    for (int base = end - 1; base >= first; base -= BSRG_TOPK_THREADS) {
      const int tile = base - static_cast<int>(threadIdx.x);
      uint64_t existing = 0, seen = 0;
      if (tile >= first) {
        const int keys = min(p.bounds.keys - tile * p.tile_keys, p.tile_keys);
        existing = all_rows * ((1u << (keys + kGroup - 1) / kGroup) - 1);
        const uint32_t *const words = groups + 2 * (tile - first);
        seen = (words[0] | static_cast<uint64_t>(words[1]) << 32) & existing;
      }
      const Ranks ranks = rank(seen != 0, false, false, totals);
      if (seen != 0) {
        const int flags = (tile >= range.above_begin ? BSRG_ATTENTION_ABOVE : 0) |
                          (tile < range.below_end ? BSRG_ATTENTION_BELOW : 0) |
                          (seen != existing ? BSRG_ATTENTION_PARTIAL : 0);
        entries[count + ranks.before(0)] =
            make_int4(tile, flags, static_cast<int>(seen), static_cast<int>(seen >> 32));
      }
      count += ranks.total(0);
    }
  }
  if (count == 0) {  // the attention kernel wants one, of which nothing is seen
    if (threadIdx.x == 0) entries[0] = make_int4(range.begin, BSRG_ATTENTION_PARTIAL, 0, 0);
    count = 1;
  }
  __syncthreads();
  note_runs<BSRG_ATTENTION_RUN_UNIT - 1, true>(count, [&](int i) { return &entries[i].y; });
  bsrg_attention_item item = {};
  item.first_row[0] = first_row;
  item.first_row[1] = first_row + BSRG_ATTENTION_LIST_ROWS / 2;
  item.steps = item.entry_count = count;
  list.describe(item);
}

// ---- pairs --------------------------------------------------------------------------------------

// Which entry is what, of a query tile of two query blocks: csrc/attention_pairs.c puts them in this order one after
// the other, here it is arithmetic. Of `steps` steps those are shared in which i * shared / steps grows.
struct PairOrder {
  int own_first, own_second, shared;  // key tiles that a query block needs alone, and both; shared is even
  int entries_first, entries_second;  // of one query block
  int steps;

  __device__ __forceinline__ PairOrder(int first, int second, int both) {
    const int odd = both % 2;  // half a pair fits better where each may have another half
    own_first = first + odd;
    own_second = second + odd;
    shared = both - odd;
    entries_first = (own_first + 1) / 2;
    entries_second = (own_second + 1) / 2;
    steps = max(entries_first, entries_second) + shared / 2;
  }
  __device__ __forceinline__ int own(int group) const { return group == 0 ? own_first : own_second; }
  __device__ __forceinline__ int own_entries(int group) const {
    return group == 0 ? entries_first : entries_second;
  }
  __device__ __forceinline__ int entries() const { return entries_first + entries_second + shared / 2; }
  __device__ __forceinline__ int shared_before(int step) const {
    return steps == 0 ? 0 : static_cast<int>(static_cast<int64_t>(step) * (shared / 2) / steps);
  }
  __device__ __forceinline__ bool is_shared(int step) const {
    return shared_before(step + 1) > shared_before(step);
  }
  // The first entry of a step before which there are so many shared and other steps.
  __device__ __forceinline__ int entry(int shared_steps, int own_steps) const {
    return shared_steps + min(own_steps, entries_first) + min(own_steps, entries_second);
  }
  __device__ __forceinline__ int shared_entry(int i) const {
    const int64_t pairs = shared / 2;
    const int step = static_cast<int>(((i + 1) * static_cast<int64_t>(steps) + pairs - 1) / pairs) - 1;
    return entry(i, step - i);
  }
  __device__ __forceinline__ int own_entry(int group, int i) const {
    const int step = static_cast<int>(i * static_cast<int64_t>(steps) / (steps - shared / 2));
    return entry(step - i, i) + (group == 1 && i < entries_first);
  }
  // Whether each warpgroup has an entry of its own in this step: the second one passes the first entry.
  __device__ __forceinline__ bool is_split(int step) const {
    const int i = step - shared_before(step);
    return step < steps && !is_shared(step) && i < min(entries_first, entries_second);
  }
};

class PairList {
 public:
  __device__ __forceinline__ explicit PairList(const bsrg_topk_lists_params &params)
      : p(params),
        list(params),
        pairs(static_cast<bsrg_attention_key_pair *>(params.entries) + list.begin),
        blocks((params.bounds.queries + kRows - 1) / kRows),
        key_tiles((params.bounds.keys + kRows - 1) / kRows) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      range[w] = {};
      if (block(w) < blocks) range[w] = bsrg_attention_key_range(&p.bounds, block(w) * kRows, kRows, kRows);
    }
    first_tile = range[0].begin;
    end_tile = range[0].end;
    if (block(1) < blocks) {
      first_tile = min(first_tile, range[1].begin);
      end_tile = max(end_tile, range[1].end);
    }
  }

  __device__ __forceinline__ void make() {
    int first = 0, second = 0, both = 0;
    for_tiles([&](const Ranks &ranks, int, int) {
      first += ranks.total(0);
      second += ranks.total(1);
      both += ranks.total(2);
    });
    const PairOrder order(first, second, both);
    first = second = both = 0;
    for_tiles([&](const Ranks &ranks, int tile, int kind) {
      if (kind == 0) place_own(order, 0, first + ranks.before(0), tile);
      if (kind == 1) place_own(order, 1, second + ranks.before(1), tile);
      if (kind == 2) place_shared(order, both + ranks.before(2), tile);
      first += ranks.total(0);
      second += ranks.total(1);
      both += ranks.total(2);
    });
#pragma unroll
    for (int w = 0; w < 2; ++w)
      if (threadIdx.x == w && order.own(w) % 2 != 0)  // no other half
        pairs[order.own_entry(w, order.own(w) / 2)].key_tile[1] = key_tiles;
    __syncthreads();
    for (int step = threadIdx.x; step < order.steps; step += BSRG_TOPK_THREADS) set_flags(order, step);
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 2; ++w)
      note_runs<kMasks, false>(order.steps, [&](int step) { return &taken(order, step, w)->flags[w]; });
    if (order.steps == 0 && threadIdx.x == 0) set_nothing();
    bsrg_attention_item item = {};
    item.first_row[0] = block(0) * kRows;
    item.first_row[1] = block(1) * kRows;
    item.steps = max(order.steps, 1);
    item.entry_count = max(order.entries(), 1);
    item.passes_first = order.is_split(0);
    list.describe(item);
  }

 private:
  static constexpr int kRows = BSRG_ATTENTION_PAIR_ROWS, kTiles = BSRG_TOPK_PAIR_TILES;
  static constexpr int kHidden =
      BSRG_ATTENTION_TAKES | BSRG_ATTENTION_HIDES_FIRST | BSRG_ATTENTION_HIDES_SECOND;
  static constexpr int kMasks =
      BSRG_ATTENTION_ABOVE | BSRG_ATTENTION_BELOW | BSRG_ATTENTION_HIDES_FIRST | BSRG_ATTENTION_HIDES_SECOND;

  const bsrg_topk_lists_params &p;
  const HopperList list;
  bsrg_attention_key_pair *const pairs;
  const int blocks, key_tiles;  // of 64 rows
  bsrg_attention_range range[2];
  int first_tile, end_tile;

  // Neighbours meet: a search for those with the most tiles in common, as on the host, is no work for a kernel.
  __device__ __forceinline__ int block(int w) const { return 2 * list.query_tile + w; }

  // Calls use(ranks, tile, kind) for all threads together, kind 0 and 1: a tile that the first or second query block
  // needs alone, 2: both; 3: none.
  template <typename Use>
  __device__ __forceinline__ void for_tiles(Use use) const {
    __shared__ uint32_t needs[2][kTiles / 32];
    __shared__ uint32_t totals[BSRG_TOPK_THREADS / 32];
    for (int first = first_tile; first < end_tile; first += kTiles) {
      const int end = min(first + kTiles, end_tile);
      clear(needs[0], kTiles / 32);
      clear(needs[1], kTiles / 32);
      __syncthreads();
#pragma unroll
      for (int w = 0; w < 2; ++w)
        if (block(w) < blocks) mark(w, first, end, needs[w]);
      __syncthreads();
      for (int base = first; base < end; base += BSRG_TOPK_THREADS) {
        const int tile = base + threadIdx.x, at = tile - first;
        const bool exists = tile < end;
        const bool one = exists && needs[0][at / 32] >> at % 32 & 1;
        const bool other = exists && needs[1][at / 32] >> at % 32 & 1;
        const int kind = one && other ? 2 : one ? 0 : other ? 1 : 3;
        const Ranks ranks = rank(kind == 0, kind == 1, kind == 2, totals);
        use(ranks, tile, kind);
      }
    }
  }

  __device__ __forceinline__ void mark(int w, int first, int end, uint32_t *needs) const {
    const int64_t width = p.shape.block_width / kRows;
    const int from = max(first, range[w].begin), to = min(end, range[w].end);
    const int row = static_cast<int>(static_cast<int64_t>(block(w)) * kRows / p.shape.block_height);
    for_columns(p.shape, p.columns, list.pattern, row, [&](int column) {
      const int64_t last = min((column + 1) * width, static_cast<int64_t>(to));
      for (int64_t tile = max(column * width, static_cast<int64_t>(from)); tile < last; ++tile) {
        const int at = static_cast<int>(tile) - first;
        atomicOr(&needs[at / 32], 1u << at % 32);
      }
    });
  }

  // Key tile number i of those that one query block needs alone.
  __device__ __forceinline__ void place_own(const PairOrder &order, int w, int i, int tile) const {
    pairs[order.own_entry(w, i / 2)].key_tile[i % 2] = tile;
  }

  __device__ __forceinline__ void place_shared(const PairOrder &order, int i, int tile) const {
    if (i < order.shared) {
      pairs[order.shared_entry(i / 2)].key_tile[i % 2] = tile;
    } else {  // left over: the last of either's own
      place_own(order, 0, order.own(0) - 1, tile);
      place_own(order, 1, order.own(1) - 1, tile);
    }
  }

  // How query block w sees an entry.
  __device__ __forceinline__ int flags_of(const bsrg_attention_key_pair &pair, int w) const {
    if (block(w) >= blocks) return kHidden;
    int flags = BSRG_ATTENTION_TAKES;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int tile = pair.key_tile[half];
      if (tile == key_tiles)
        flags |= half ? BSRG_ATTENTION_HIDES_SECOND : BSRG_ATTENTION_HIDES_FIRST;
      else
        flags |= (tile >= range[w].above_begin ? BSRG_ATTENTION_ABOVE : 0) |
                 (tile < range[w].below_end ? BSRG_ATTENTION_BELOW : 0);
    }
    return flags;
  }

  __device__ __forceinline__ void set_flags(const PairOrder &order, int step) const {
    const int shared_before = order.shared_before(step), i = step - shared_before;
    bsrg_attention_key_pair *pair = pairs + order.entry(shared_before, i);
    const int passes = order.is_split(step + 1) ? BSRG_ATTENTION_PASSES_NEXT : 0;
    if (order.is_split(step)) {
      pair->flags[0] = flags_of(*pair, 0) | BSRG_ATTENTION_PASSES_NEXT;
      pair->flags[1] = 0;
      ++pair;
      pair->flags[0] = 0;
      pair->flags[1] = flags_of(*pair, 1) | passes;
      return;
    }
    // Shared, or of one warpgroup, while the other takes part and sees nothing.
    const bool both = order.is_shared(step);
    pair->flags[0] = both || i < order.own_entries(0) ? flags_of(*pair, 0) : kHidden;
    pair->flags[1] = (both || i < order.own_entries(1) ? flags_of(*pair, 1) : kHidden) | passes;
  }

  // What warpgroup w takes in a step.
  __device__ __forceinline__ bsrg_attention_key_pair *taken(const PairOrder &order, int step, int w) const {
    const int shared_before = order.shared_before(step);
    return pairs + order.entry(shared_before, step - shared_before) + (w == 1 && order.is_split(step));
  }

  // The attention kernel wants an entry, of which nothing is seen.
  __device__ __forceinline__ void set_nothing() const {
    pairs[0].key_tile[0] = pairs[0].key_tile[1] = key_tiles;
    pairs[0].flags[0] = pairs[0].flags[1] = kHidden;
  }
};

// ---- the portable kernels -----------------------------------------------------------------------

// Bits begin .. end - 1, cut to a word.
__device__ __forceinline__ uint64_t key_bits(int64_t begin, int64_t end) {
  begin = max(begin, int64_t{0});
  end = min(end, int64_t{BSRG_ATTENTION_KEYS});
  return begin >= end ? 0 : ~uint64_t{0} << begin & ~uint64_t{0} >> (64 - end);
}

__device__ __forceinline__ void list_words(const bsrg_topk_words_params &p) {
  __shared__ unsigned long long words[BSRG_TOPK_WORDS];  // [block row of the query tile][key tile]
  __shared__ uint32_t totals[BSRG_TOPK_THREADS / 32];
  const int query_tile = blockIdx.x % p.query_tiles, pattern = blockIdx.x / p.query_tiles;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * p.capacity;
  const int64_t height = p.shape.block_height, width = p.shape.block_width;
  const int query = query_tile * p.tile_rows, last_query = min(query + p.tile_rows, p.queries) - 1;
  const int first_row = static_cast<int>(query / height);
  const int rows = static_cast<int>(last_query / height) - first_row + 1;
  const int key_tiles = (p.keys + BSRG_ATTENTION_KEYS - 1) / BSRG_ATTENTION_KEYS;
  const int at_a_time = BSRG_TOPK_WORDS / p.tile_words;
  int count = 0;
  for (int first = 0; first < key_tiles; first += at_a_time) {
    const int end = min(first + at_a_time, key_tiles);
    clear(words, BSRG_TOPK_WORDS);
    __syncthreads();
    for (int row = 0; row < rows; ++row) {
      for_columns(p.shape, p.columns, pattern, first_row + row, [&](int column) {
        const int64_t from = column * width, to = from + width;
        const int64_t last = min((to - 1) / BSRG_ATTENTION_KEYS, static_cast<int64_t>(end - 1));
        for (int64_t tile = max(from / BSRG_ATTENTION_KEYS, static_cast<int64_t>(first)); tile <= last;
             ++tile) {
          const int64_t key = tile * BSRG_ATTENTION_KEYS;
          atomicOr(&words[row * at_a_time + static_cast<int>(tile) - first],
                   static_cast<unsigned long long>(key_bits(from - key, to - key)));
        }
      });
    }
    __syncthreads();
    for (int base = first; base < end; base += BSRG_TOPK_THREADS) {
      const int tile = base + threadIdx.x;
      uint64_t any = 0, all = 0;
      if (tile < end) {
        all = ~uint64_t{0};
        for (int row = 0; row < rows; ++row) {
          const uint64_t seen = words[row * at_a_time + tile - first];
          any |= seen;
          all &= seen;
        }
      }
      const bool listed = any != 0, full = all == ~uint64_t{0};
      const Ranks ranks = rank(listed, false, false, totals);
      if (listed) {
        const int64_t at = begin + count + ranks.before(0);
        p.tiles[at] = {tile, full ? -1 : static_cast<int>(at * p.tile_words)};
        for (int row = 0; row < rows && !full; ++row)
          p.words[at * p.tile_words + row] = words[row * at_a_time + tile - first];
      }
      count += ranks.total(0);
    }
    __syncthreads();  // before the words are cleared
  }
  if (threadIdx.x == 0) {
    p.tile_begin[blockIdx.x] = begin;
    p.tile_end[blockIdx.x] = begin + count;
  }
}

}  // namespace bsrg::topk
