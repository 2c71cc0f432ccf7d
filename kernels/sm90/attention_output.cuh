// How the attention kernels store: a warp its 16 rows, by way of shared memory and TMA, which clips what lies beyond the last
// row or element.
#pragma once

#include "params.h"
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "sm90/attention_layout.cuh"
#include "sm90/attention_sequences.cuh"

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

  // Sums times inverse, of 16 rows from `row` on; a row of which sum is 0 becomes zeros.
  __device__ void store_panels(const Message &m, int row, const float (&sum)[2],
                               const float (&inverse)[2]) const {
    // Panels of 128 bytes of a row, the last one perhaps half: all at a time, or each as soon as its buffer is free.
    constexpr int kPanels = (kSize + 63) / 64, kTogether = kPanels <= L::kPieces ? kPanels : 1;
    const uint64_t stream_out = ptx::policy_evict_first();
#pragma unroll
    for (int first = 0; first < kPanels; first += kTogether) {
      if (lane == 0) {  // what was stored from these buffers before has left them
        if (first == 0)
          ptx::bulk_wait_read<0>();
        else
          ptx::bulk_wait_read<L::kPieces - 1>();
      }
      __syncwarp();
#pragma unroll
      for (int panel = first; panel < first + kTogether; ++panel) write_panel(panel, sum, inverse);
      ptx::fence_async_proxy();
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int panel = first; panel < first + kTogether; ++panel) {
          if constexpr (Shape::kSequences)
            store_of_sequence(p.out, p.out_rows, m.head, {row, m.end_row}, panel_buffer(panel), panel * 64,
                              stream_out);
          else
            ptx::tma_store_4d(p.out, panel_buffer(panel), panel * 64, row, m.head, m.batch, stream_out);
        }
        ptx::bulk_commit();
      }
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
  __device__ uint32_t panel_buffer(int panel) const {
    return shared.pieces(warp) + panel % L::kPieces * L::kPieceBytes;
  }

  // 64 elements of 16 rows, or as many as there are.
  __device__ void write_panel(int panel, const float (&sum)[2], const float (&inverse)[2]) const {
    const int matrix = lane >> 3, piece_row = (matrix & 1) * 8 + (lane & 7);
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
      ptx::store_matrix_x4(panel_buffer(panel) + piece_row * 128 + chunk * 16, packed[0], packed[1],
                           packed[2], packed[3]);
    }
  }
};

}  // namespace bsrg::attention
