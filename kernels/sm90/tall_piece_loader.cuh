// What loads the blocks that tall_pieces.cuh puts together from pieces of smaller ones, and X with them.
#pragma once

#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "sm90/persistent.cuh"
#include "sm90/tall_layout.cuh"

namespace bsrg::tall {

// One of three warps, which take pieces in turn, a lane for one, and of which the first one loads X: a warp takes 65 cycles from
// one box to the next. Pieces lie in the order of the entries.
template <typename Kernel>
struct PieceLoader {
  using L = typename Kernel::L;
  static constexpr int kLoaders = Kernel::kLoaders;
  static constexpr int kStageK = Kernel::kStageK, kRestK = Kernel::kRestK;
  static constexpr Pairing kPairing = Kernel::kPairs;
  static constexpr int kBlockBytes = 2 * L::kStripBytes, kZeroBlocks = BSRG_TALL_ZERO_BYTES / kBlockBytes;

  const Kernel &kernel;
  const int loader;

  // For a pair along columns both CTAs get it.
  __device__ void load(uint32_t target, const bsrg_tensor_map &map, int x, int y, uint32_t barrier,
                       uint64_t policy) const {
    if constexpr (kPairing == Pairing::kColumns)
      ptx::tma_load_2d_multicast(target, map, x, y, barrier, Kernel::kBoth, policy);
    else
      ptx::tma_load_2d(target, map, x, y, barrier, policy);
  }

  // What no block has, out of memory that is zero: TMA would take 24 cycles for each row of a box beyond its map, and where lanes
  // store zeros, that and its fence keep their warp from asking for the next pieces.
  __device__ void load_zeros(uint32_t target, const uint8_t *zeros, int bytes, uint32_t barrier) const {
    if constexpr (kPairing == Pairing::kColumns)
      ptx::bulk_load_multicast(target, zeros, bytes, barrier, Kernel::kBoth, ptx::policy_evict_normal());
    else
      ptx::bulk_load(target, zeros, bytes, barrier);
  }

  __device__ void produce() const {
    const bsrg_tall_params &p = kernel.p;
    const int lane = kernel.lane, rank = kernel.rank;
    const uint64_t policy = p.keep_a ? ptx::policy_evict_last() : ptx::policy_evict_normal();
    const int of_block = 2 * p.strip_pieces, bytes = kBlockBytes / of_block;
    const int mine = kLoaders * lane + loader;
    // Of wide pieces a strip has the first 64 columns below one another, then the others.
    const int strip_at = mine / p.strip_pieces * L::kStripBytes, below = mine % p.strip_pieces;
    const int rest_bytes = bytes / kStageK * kRestK, first_bytes = bytes - rest_bytes;
    const int at = kRestK > 0 ? strip_at + below * first_bytes : mine * bytes;
    const int rest_at = strip_at + kStrip * Kernel::kRowK * 2 + below * rest_bytes;
    const bool is_any = mine < of_block, leads = loader == 0 && lane == 0;
    // A pair along columns loads a strip each, for both.
    const bool is_loader = kPairing != Pairing::kColumns || mine / p.strip_pieces == rank;
    const int expected = share_of(of_block, loader, kLoaders) * bytes;
    const uint8_t *zeros = static_cast<const uint8_t *>(p.zeros) + at;
    typename Kernel::Stage stage;
    stage.parity = 1;
    for (typename Kernel::Slot slot;; slot.advance()) {
      const Message m = kernel.at(slot).receive_by_warp(slot.parity, lane, 0);
      if (m.last()) break;
      const int column = m.n_tile * kTileN, columns = kernel.columns_from(column);
      const int expected_here = expected + (leads ? kStageK * Kernel::loaded(columns) * 2 : 0);
      const int4 *entries = reinterpret_cast<const int4 *>(p.entries) + m.entry_begin;
      const int2 *pieces =
          reinterpret_cast<const int2 *>(p.pieces) + static_cast<int64_t>(m.entry_begin) * of_block + mine;
      // One block ahead, as in Kernel::produce().
      int2 next = make_int2(-1, 0);
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
        ptx::barrier_wait(kernel.empty(stage.slot), stage.parity);
        if (leads)
          kernel.load_x(p.x_tail, p.x_rest_tail, kStageK, kernel.shared + L::kX + stage.slot * L::kStageX, x,
                        column, columns, barrier);
        if (is_any && is_loader && piece.x >= 0) {
          load(stage_a + at, p.a, piece.x, piece.y, barrier, policy);
          if constexpr (kRestK > 0)
            load(stage_a + rest_at, p.a_rest, piece.x + Kernel::kRowK, piece.y, barrier, policy);
        }
        if (is_any && is_loader && piece.x < 0 && piece.y > 0) {
          const uint8_t *source = zeros + (blockIdx.x + e) % kZeroBlocks * kBlockBytes;
          load_zeros(stage_a + at, source, piece.y * first_bytes, barrier);
          if constexpr (kRestK > 0) load_zeros(stage_a + rest_at, source, piece.y * rest_bytes, barrier);
        }
        __syncwarp();
        // What has arrived by now is counted as well: the phase does not end before this arrival.
        if (lane == 0) ptx::barrier_arrive_expect(barrier, expected_here);
      }
    }
    wait_until_released(kernel.empty(0), stage);
  }
};

}  // namespace bsrg::tall
