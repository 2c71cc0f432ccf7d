// What the scheduler of a cluster, one lane of its first CTA, tells the other roles about their tiles.
#pragma once

#include "ptx/sync.cuh"
#include "sm90/tall_layout.cuh"

namespace bsrg::tall {

// Of 32 entries from `first` on, one a lane: where the strip's block lies, or -1. Entries of both kinds begin with the row
// of X and have the two blocks then.
template <typename Entry>
__device__ __forceinline__ int block_of(const Message &m, const Entry *entries, int strip, int first,
                                        int lane) {
  static_assert(sizeof(Entry) == 16, "x_row, two blocks, pad");
  if (first + lane >= m.entry_count) return -1;
  return __ldg(reinterpret_cast<const int *>(entries + m.entry_begin + first + lane) + 1 + strip);
}

// By the scheduler's warp.
template <typename Entry>
__device__ __forceinline__ void say_which_are_present(Message &m, const Entry *entries, int lane) {
  m.present0 = static_cast<int>(__ballot_sync(~0u, block_of(m, entries, 0, 0, lane) >= 0));
  m.present1 = static_cast<int>(__ballot_sync(~0u, block_of(m, entries, 1, 0, lane) >= 0));
}

// In a warp of a consumer: whether its strip has a block in the entry at hand. Bits for 32 entries, the first ones with the
// message, and the next 32 as each lane has loaded its own: a mask that comes with each stage would have to be read, and
// waited for, before every WGMMA. kUnion: otherwise it always has.
template <bool kUnion, typename Entry>
struct Present {
  const Message &m;
  const Entry *entries;
  const int strip, lane;
  uint32_t bits = kUnion ? static_cast<uint32_t>(m.present0) : 0;
  int entry = 0;
  int next = kUnion ? block_of(m, entries, strip, 32, lane) : 0;

  // The vote tells ptxas that the answer is uniform.
  __device__ bool here() const { return !kUnion || __any_sync(~0u, bits & 1); }
  __device__ void advance() {
    if constexpr (!kUnion) return;
    bits >>= 1;
    if (++entry % 32 != 0) return;
    bits = __ballot_sync(~0u, next >= 0);
    next = block_of(m, entries, strip, entry + 32, lane);
  }
};

// The stages of a tile as a consumer warp meets them, `steps` to an entry.
template <bool kUnion, typename Entry>
struct Stages {
  Present<kUnion, Entry> present;
  const int steps;
  int step = 0;

  // By a shuffle, so that ptxas keeps the number in a register: it would load the constant anew for every stage, which takes
  // long.
  __device__ Stages(const Message &m, const Entry *entries, int strip, int lane, int steps)
      : present{m, entries, strip, lane}, steps(__shfl_sync(~0u, steps, 0)) {}

  __device__ int count() const { return present.m.entry_count * steps; }
  __device__ bool takes_part() const { return present.here(); }
  // Whether the next stage is the last of its entry. The vote tells ptxas that the answer is uniform: without it every WGMMA
  // is serialised (C7520).
  __device__ bool next_is_last() { return __any_sync(~0u, ++step == steps); }
  __device__ void pass(bool last) {
    if (!last) return;
    step = 0;
    present.advance();
  }
};

// In a warp of a consumer of tall_pieces.cuh: which sixteens of an entry's k have a piece in its strip; one of them at least,
// since all warps meet at a stage's WGMMAs. Each lane has an entry's, and those 32 later. The first ones take all, so
// that nobody waits for what is loaded. kStepK: of a stage, 64 or that of a wide piece, which is there or not.
template <bool kPieces, int kStepK>
struct PiecedSteps {
  static constexpr uint32_t kAll = (1 << kStepK / 16) - 1;
  const uint8_t *source;
  const int count, shift, lane;
  int entry = 0;
  uint32_t now, next;

  __device__ PiecedSteps(const Message &m, const uint8_t *k16s, int strip, int lane)
      : source(k16s + m.entry_begin), count(m.entry_count), shift(4 * strip), lane(lane) {
    now = of(0);
    next = of(32);
  }
  __device__ uint32_t of(int first) const {
    return kPieces && first + lane < count ? __ldg(source + first + lane) >> shift & 15 : 0;
  }
  __device__ uint32_t take() {
    const uint32_t found = __shfl_sync(~0u, now, entry % 32);
    const uint32_t which = entry < 4 || (kAll > 15 && found > 0) ? kAll : max(found, 1);
    if (++entry % 32 == 0) {
      now = next;
      next = of(entry + 32);
    }
    return which;
  }
};

// A slot for a message: shared addresses of its 32 bytes and of its barriers. kCluster: CTAs. kParts: whether messages say
// where the sums of a part go. kUnion: whether they say which strips have blocks.
template <int kCluster, bool kParts, bool kUnion>
struct MessageSlot {
  const uint32_t message, full, empty;

  // By one lane, when the slot is full.
  __device__ Message take() const {
    const int4 head = ptx::load_shared_int4(message);
    int4 tail = make_int4(0, -1, 0, 0);
    if constexpr (kParts || kUnion)
      tail = ptx::load_shared_int4(message + 16);
    else
      tail.x = ptx::load_shared_int(message + 16);
    // The scheduler sits in rank 0, waits there for all readers, and replaces the message at once.
    if constexpr (kCluster > 1)
      ptx::barrier_arrive_cluster_behind(ptx::map_to_rank(empty, 0), max(head.w, tail.x));
    else
      ptx::barrier_arrive(empty);
    return {head.x, head.y, head.z, head.w, tail.x, kParts ? tail.y : -1, tail.z, tail.w};
  }

  // By a warp. The lane that reads is the one that arrives: racecheck would not see that others have read before. All
  // wait: after a loop of one lane's, ptxas takes nothing for uniform any more and the main loop grows by a third.
  // Of the bits of blocks only those of one strip are passed on, as present0.
  __device__ Message receive_by_warp(uint32_t parity, int lane, int strip) const {
    Message m = {};
    ptx::barrier_wait_by_warp(full, parity);
    if (lane == 0) m = take();
    return {__shfl_sync(~0u, m.strip0, 0),
            __shfl_sync(~0u, m.strip1, 0),
            __shfl_sync(~0u, m.entry_begin, 0),
            __shfl_sync(~0u, m.entry_count, 0),
            __shfl_sync(~0u, m.n_tile, 0),
            kParts ? __shfl_sync(~0u, m.slot, 0) : -1,
            kUnion ? __shfl_sync(~0u, strip == 0 ? m.present0 : m.present1, 0) : 0,
            0};
  }

  // To the CTA `rank`.
  __device__ void send(int rank, const Message &m) const {
    const int4 head = make_int4(m.strip0, m.strip1, m.entry_begin, m.entry_count);
    const int4 tail = make_int4(m.n_tile, m.slot, m.present0, m.present1);
    if constexpr (kCluster > 1) {
      const uint32_t barrier = ptx::map_to_rank(full, rank);
      const uint32_t target = ptx::map_to_rank(message, rank);
      ptx::barrier_arrive_expect_cluster(barrier, 32);
      ptx::store_async(target, head, barrier);
      ptx::store_async(target + 16, tail, barrier);
    } else {
      ptx::store_shared(message, head);
      ptx::store_shared(message + 16, tail);
      ptx::barrier_arrive(full);
    }
  }
};

}  // namespace bsrg::tall
