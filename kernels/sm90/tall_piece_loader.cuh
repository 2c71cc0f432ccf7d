// What loads blocks of 128 x 64 that tall_pieces.cuh puts together from pieces of smaller ones, and X with them.
#pragma once

#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "sm90/persistent.cuh"
#include "sm90/tall_layout.cuh"

namespace bsrg::tall {

// One of three warps, which take pieces in turn, a lane for one, and of which the first one loads X: a warp takes 65 cycles from
// one box to the next, and zeros and their fence would keep a single one too long. Pieces lie in the order of the entries.
template <typename Kernel>
struct PieceLoader {
  using L = typename Kernel::L;
  static constexpr int kLoaders = Kernel::kLoaders;
  static constexpr int kStageK = BSRG_TALL_STAGE_K;
  static constexpr Pairing kPairing = Kernel::kPairs;

  const Kernel &kernel;
  const int loader;

  // Zeros where no block has the pieces of these lanes: TMA would take 24 cycles for each row of a piece beyond its map.
  __device__ void clear(uint32_t lanes, uint32_t stage_a, int bytes) const {
    for (; lanes != 0; lanes &= lanes - 1) {
      const uint32_t target = stage_a + (kLoaders * (__ffs(lanes) - 1) + loader) * bytes;
      for (int at = 16 * kernel.lane; at < bytes; at += 16 * 32)
        ptx::store_shared(target + at, make_int4(0, 0, 0, 0));
    }
    ptx::fence_async_proxy();
  }

  __device__ void produce() const {
    const bsrg_tall_params &p = kernel.p;
    const int lane = kernel.lane, rank = kernel.rank;
    const uint64_t policy = p.keep_a ? ptx::policy_evict_last() : ptx::policy_evict_normal();
    const int of_block = 2 * p.strip_pieces, bytes = 2 * L::kStripBytes / of_block;
    const int mine = kLoaders * lane + loader;
    const bool is_any = mine < of_block, leads = loader == 0 && lane == 0;
    // A pair along columns loads a strip each, for both.
    const bool is_loader = kPairing != Pairing::kColumns || mine / p.strip_pieces == rank;
    typename Kernel::Stage stage;
    stage.parity = 1;
    for (typename Kernel::Slot slot;; slot.advance()) {
      const Message m = kernel.at(slot).receive_by_warp(slot.parity, lane, 0);
      if (m.last()) break;
      const int4 *entries = reinterpret_cast<const int4 *>(p.entries) + m.entry_begin;
      const int2 *pieces =
          reinterpret_cast<const int2 *>(p.pieces) + static_cast<int64_t>(m.entry_begin) * of_block + mine;
      // One block ahead, as in Kernel::produce().
      int2 next = make_int2(0, -1);
      int next_x = 0;
      if (m.entry_count > 0) {
        if (is_any) next = __ldg(pieces);
        if (leads) next_x = __ldg(&entries->x);
      }
      const int draw_at = max(m.entry_count - kDrawBefore / kStageK, 0);
      if (m.entry_count == 0 && leads && rank == 0) ptx::barrier_arrive(kernel.wanted());
      for (int e = 0; e < m.entry_count; ++e, stage.advance()) {
        if (e == draw_at && leads && rank == 0) ptx::barrier_arrive(kernel.wanted());
        const int2 piece = next;
        const int x = next_x;
        pieces += of_block;
        if (e + 1 < m.entry_count) {
          if (is_any) next = __ldg(pieces);
          if (leads) next_x = __ldg(&entries[e + 1].x);
        }
        const uint32_t stage_a = kernel.shared + L::kA + stage.slot * L::kStageA,
                       barrier = kernel.full(stage.slot);
        const bool is_stored = is_any && piece.y >= 0;
        const uint32_t stored = __ballot_sync(~0u, is_stored);
        ptx::barrier_wait(kernel.empty(stage.slot), stage.parity);
        if (leads)
          kernel.load_x(p.x_tail, kStageK, kernel.shared + L::kX + stage.slot * L::kStageX, x,
                        m.n_tile * kTileN, barrier);
        if (is_stored && is_loader) {
          if constexpr (kPairing == Pairing::kColumns)
            ptx::tma_load_2d_multicast(stage_a + mine * bytes, p.a, piece.x, piece.y, barrier, Kernel::kBoth,
                                       policy);
          else
            ptx::tma_load_2d(stage_a + mine * bytes, p.a, piece.x, piece.y, barrier, policy);
        }
        __syncwarp();
        const uint32_t missing = __ballot_sync(~0u, is_any) & ~stored;
        if (missing != 0) clear(missing, stage_a, bytes);
        __syncwarp();
        // What has arrived by now is counted as well: the phase does not end before this arrival.
        const int bytes_x = leads ? kStageK * (kPairing == Pairing::kRows ? kTileN : p.x_columns) * 2 : 0;
        if (lane == 0) ptx::barrier_arrive_expect(barrier, __popc(stored) * bytes + bytes_x);
      }
    }
    wait_until_released(kernel.empty(0), stage);
  }
};

}  // namespace bsrg::tall
