// Loads and stores of sequences that lie one behind the other, where neither must touch the next one.
#pragma once

#include <cstdint>

#include "params.h"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"

namespace bsrg::attention {

// Of all rows, from `row` on, but none from `end` on.
struct SequenceRows {
  int row, end;
  __device__ int count(int most) const { return min(max(end - row, 0), most); }
};

// By one lane: kRows rows, behind the last of which come zeros, in the panels of Shape. See bsrg_attention_map.
template <typename Shape, int kRows>
__device__ void load_of_sequence(const bsrg_tensor_map &windows, const bsrg_tensor_map &single, int head,
                                 SequenceRows rows, uint32_t target, uint32_t full) {
  const int count = rows.count(kRows), window = rows.row + count - kRows;
  ptx::barrier_arrive_expect(full, kRows * Shape::kRowBytes);
  if (window >= 0) {
#pragma unroll
    for (int panel = 0; panel < Shape::kPanels; ++panel)
      ptx::tma_load_4d(target + panel * kRows * Shape::kSpan, windows, panel * Shape::kPanel, kRows - count,
                       head, window, full);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int panel = 0; panel < Shape::kPanels; ++panel)
      // Elements behind the last one of the first row are zeros, too.
      ptx::tma_load_4d(target + (panel * kRows + i) * Shape::kSpan, single,
                       i < count ? panel * Shape::kPanel : Shape::kSize, i < count ? rows.row + i : 0, head,
                       0, full);
}

// By one lane: a piece, as far as its rows are the sequence's.
__device__ __forceinline__ void store_of_sequence(const bsrg_tensor_map &windows,
                                                  const bsrg_tensor_map &single, int head, SequenceRows rows,
                                                  uint32_t piece, int element, uint64_t policy) {
  constexpr int kRows = BSRG_ATTENTION_PIECE_ROWS;
  const int count = rows.count(kRows), window = rows.row + count - kRows;
  if (window >= 0) {
    ptx::tma_store_4d(windows, piece, element, kRows - count, head, window, policy);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i)
    ptx::tma_store_4d(single, piece + i * 128, element, rows.row + i, head, 0, policy);
}

}  // namespace bsrg::attention
