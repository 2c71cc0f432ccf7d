// What the scheduler of a cluster, one lane of its first CTA, tells the other roles about their tiles.
#pragma once

#include "ptx/sync.cuh"
#include "sm90/tall_layout.cuh"

namespace bsrg::tall {

// A slot for a message: shared addresses of its 32 bytes and of its barriers. kCluster: CTAs. kParts: whether messages say
// where the sums of a part go.
template <int kCluster, bool kParts>
struct MessageSlot {
  const uint32_t message, full, empty;

  // By one lane, when the slot is full.
  __device__ Message take() const {
    const int4 head = ptx::load_shared_int4(message);
    const int n_tile = ptx::load_shared_int(message + 16);
    const int part_slot = kParts ? ptx::load_shared_int(message + 20) : -1;
    // The scheduler sits in rank 0 and waits there for all readers.
    if constexpr (kCluster > 1)
      ptx::barrier_arrive_cluster(ptx::map_to_rank(empty, 0));
    else
      ptx::barrier_arrive(empty);
    return {head.x, head.y, head.z, head.w, n_tile, part_slot};
  }

  // By a warp. The lane that reads is the one that arrives: racecheck would not see that others have read before. All
  // wait: after a loop of one lane's, ptxas takes nothing for uniform any more and the main loop grows by a third.
  __device__ Message receive_by_warp(uint32_t parity, int lane) const {
    Message m = {};
    ptx::barrier_wait(full, parity);
    __syncwarp();
    if (lane == 0) m = take();
    return {__shfl_sync(~0u, m.strip0, 0),      __shfl_sync(~0u, m.strip1, 0),
            __shfl_sync(~0u, m.entry_begin, 0), __shfl_sync(~0u, m.entry_count, 0),
            __shfl_sync(~0u, m.n_tile, 0),      kParts ? __shfl_sync(~0u, m.slot, 0) : -1};
  }

  // To the CTA `rank`.
  __device__ void send(int rank, const Message &m) const {
    const int4 head = make_int4(m.strip0, m.strip1, m.entry_begin, m.entry_count);
    const int4 tail = make_int4(m.n_tile, m.slot, 0, 0);
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
