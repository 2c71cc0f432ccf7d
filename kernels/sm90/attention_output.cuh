// What consumers of the attention kernels do with their sums: a warp leaves its 16 rows in shared memory, from where a
// lane of the producers has TMA store them (attention.cuh), or stores them itself where they are part of a query tile.
#pragma once

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "ptx/sync.cuh"
#include "sm90/attention_layout.cuh"

namespace bsrg::attention {

// What a consumer has its sums in and stores them with.
template <typename Shape>
class OutputRows {
  using L = Layout<Shape>;
  static constexpr int kSize = Shape::kSize;

 protected:
  __device__ OutputRows(const bsrg_attention_params &params, const Shared<Shape> &memory, int consumer_warp,
                        int my_lane)
      : p(params), shared(memory), warp(consumer_warp), lane(my_lane) {}

  const bsrg_attention_params &p;
  const Shared<Shape> shared;
  const int warp, lane;
  float sums[kSize / 2];  // accumulators of a thread

  // Of query tile number `tile` of this warp: sums times inverse; a row of which sum is 0 becomes zeros. is_part: nothing,
  // but storing goes on tile by tile.
  __device__ void hand_over(int tile, bool is_part, const float (&sum)[2], const float (&inverse)[2]) const {
#pragma unroll
    for (int round = 0; round < L::kRounds; ++round) {
      ptx::barrier_wait(shared.output_empty(warp / 4), L::round_parity(tile, round) ^ 1);
      if (!is_part) {
#pragma unroll
        for (int panel = round * L::kPieces; panel < min((round + 1) * L::kPieces, L::kPanels); ++panel)
          write_panel(panel, sum, inverse);
      }
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(shared.output_full(warp / 4));
    }
  }

  // The logarithm of the sum of exponentials, where somebody wants it.
  __device__ void store_lse(const Message &m, int row, const float (&shift)[2], const float (&sum)[2]) const {
    if (p.lse != nullptr && lane % 4 == 0) {
      constexpr float kLn2 = 0.693147181f;
      const int mine = row + lane / 4;
      const int end = Shape::kSequences ? m.end_row : p.bounds.queries;
      float *lse = p.lse + (static_cast<int64_t>(m.batch) * p.heads + m.head) * p.bounds.queries + mine;
      if (mine < end) lse[0] = (shift[0] + ptx::log2(sum[0])) * kLn2;
      if (mine + 8 < end) lse[8] = (shift[1] + ptx::log2(sum[1])) * kLn2;
    }
  }

 private:
  // 64 elements of 16 rows, or as many as there are.
  __device__ void write_panel(int panel, const float (&sum)[2], const float (&inverse)[2]) const {
    const int matrix = lane >> 3, piece_row = (matrix & 1) * 8 + (lane & 7);
    const uint32_t buffer = shared.output(warp / 4, panel) + warp % 4 * (16 * 128);
#pragma unroll
    for (int j = 0; j < min(8, kSize / 8 - 8 * panel); j += 2) {
      const float *v = sums + panel * 32 + j * 4;  // column group j, then j + 1: rows 0-7, rows 8-15
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = v[2 * i] * inverse[i % 2], high = v[2 * i + 1] * inverse[i % 2];
        packed[i] = sum[i % 2] == 0.f ? 0 : ptx::pack<typename Shape::Output>(low, high);
      }
      // 128-byte swizzle: 16-byte chunk c of row r lies at chunk c ^ (r % 8).
      const int chunk = (j + (matrix >> 1)) ^ (piece_row & 7);
      ptx::store_matrix_x4(buffer + piece_row * 128 + chunk * 16, packed[0], packed[1], packed[2], packed[3]);
    }
  }
};

}  // namespace bsrg::attention
