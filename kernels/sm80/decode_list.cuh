// Which keys a split of a masked decode kernel meets: a run of the entries of its unit's list.
//
// An entry is read from memory, and then its words: two waits, one after the other. So a warp fetches a turn of entries at
// a time, half a turn before the first of them is needed, and all threads find them in shared memory. With them are the
// keys that any query sees: others are not copied, and warps pass them over.
#pragma once

#include "params.h"
#include "params_decode.h"

namespace bsrg::decode {

// What is known of the keys of a stage. Bit c of `seen`: some query may see key first + c. words < 0: all see all of them.
struct StageKeys {
  int first, words;
  uint64_t seen;
};

// The lowest `count` bits; all of 64, none of 0 or less.
__device__ __forceinline__ uint64_t low_bits(int count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << max(count, 0)) - 1;
}

// In shared memory, as registers are short.
struct ListMemory {
  int4 entries[2 * BSRG_DECODE_TURN];  // those in use, and the next ones
  const int2 *tiles;                   // of the split
  int count;
};

// kKeys: of a stage, all or half of an entry's.
template <int kKeys>
class KeyList {
 public:
  __device__ __forceinline__ KeyList(const bsrg_masked_decode_params &p, ListMemory &memory)
      : p_(p), memory_(memory) {}

  // By all threads, first of all. How many stages the split has.
  __device__ __forceinline__ int find(int batch, int head, int split) const {
    const int q_head = head * p_.decode.group;  // the unit's first
    const int64_t list = static_cast<int64_t>(batch) * p_.list_batch_stride + q_head / p_.list_group;
    const int64_t begin = __ldg(p_.lists.tile_begin + list);
    const int2 *tiles = reinterpret_cast<const int2 *>(p_.lists.tiles) + begin;
    int count = static_cast<int>(__ldg(p_.lists.tile_end + list) - begin);
    if (p_.narrowed) {
      const int end_tile = (p_.decode.end_key + BSRG_ATTENTION_KEYS - 1) / BSRG_ATTENTION_KEYS;
      count = count_below(tiles, count, end_tile);
      const int before = count_below(tiles, count, p_.decode.first_key / BSRG_ATTENTION_KEYS);
      tiles += before;
      count -= before;
    }
    // The first count % splits of the splits have one entry more.
    const int each = count / p_.decode.splits, longer = count % p_.decode.splits;
    tiles += split * each + min(split, longer);
    count = each + (split < longer);
    if (threadIdx.x == 0) {
      memory_.tiles = tiles;
      memory_.count = count;
    }
    if (threadIdx.x < kTurn) fetch(tiles, count, threadIdx.x);
    __syncthreads();
    return count * kParts;
  }

  // By all threads, where this stage's copies set out, which is at most half a turn before it is computed. There is a
  // barrier between a stage and the next one.
  __device__ __forceinline__ void go_on(int stage) const {
    if (stage % (kTurn * kParts) == kTurn / 2 * kParts && threadIdx.x < kTurn)
      fetch(memory_.tiles, memory_.count, stage / kParts + kTurn / 2 + threadIdx.x);
  }

  __device__ __forceinline__ StageKeys stage(int stage) const {
    const int4 entry = memory_.entries[stage / kParts % kEntries];
    const int part = stage % kParts * kKeys;
    const uint64_t seen = static_cast<uint32_t>(entry.z) | static_cast<uint64_t>(entry.w) << 32;
    return {entry.x * BSRG_ATTENTION_KEYS + part, entry.y, seen >> part & low_bits(kKeys)};
  }

  // Bit c: query `query` sees key `key` + c, in an entry with words. Fetched before, so it is near.
  __device__ __forceinline__ uint64_t seen_by(int query, int words, int key) const {
    return __ldg(p_.lists.words + words + query / p_.mask_height) >> key % BSRG_ATTENTION_KEYS;
  }

 private:
  static constexpr int kParts = BSRG_ATTENTION_KEYS / kKeys, kTurn = BSRG_DECODE_TURN;
  static constexpr int kEntries = 2 * kTurn;
  static_assert(kParts == 1 || kParts == 2, "stages of an entry");
  static_assert(kTurn == 32, "a lane for each entry");

  __device__ __forceinline__ void fetch(const int2 *tiles, int count, int entry) const {
    if (entry >= count) return;
    const int2 tile = __ldg(tiles + entry);
    uint64_t seen = ~uint64_t{0};
    if (tile.y >= 0) {
      seen = 0;
#pragma unroll 1
      for (int row = 0; row < p_.block_rows; ++row) seen |= __ldg(p_.lists.words + tile.y + row);
    }
    memory_.entries[entry % kEntries] =
        make_int4(tile.x, tile.y, static_cast<int>(seen), static_cast<int>(seen >> 32));
  }

  // How many of the first `end` entries are of tiles below `tile`. By whole warps: 32 entries are looked at at a time.
  __device__ static __forceinline__ int count_below(const int2 *tiles, int end, int tile) {
    int begin = 0;
#pragma unroll 1
    while (begin < end) {
      const int step = (end - begin + 31) / 32, at = begin + static_cast<int>(threadIdx.x % 32) * step;
      const bool is_below = at < end && __ldg(&tiles[at].x) < tile;
      const int below = __popc(__ballot_sync(~0u, is_below));
      if (below == 0) return begin;
      end = min(end, begin + below * step);
      begin += (below - 1) * step + 1;
    }
    return begin;
  }

  const bsrg_masked_decode_params &p_;
  ListMemory &memory_;
};

// Of kernels without masks.
struct NoList {};

}  // namespace bsrg::decode
