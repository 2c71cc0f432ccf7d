// How the kernels of few columns on Hopper write a tile of sums that lies in shared memory.
#pragma once

#include "params.h"
#include "sm80/narrow_output.cuh"

namespace bsrg::narrow {

// Sums lie in lines, rows or columns of Y, whichever has adjacent elements there: lanes that write accumulators or read runs
// of eight meet a bank twice at most. Of the tile:
template <int kRows, int kColumns>
struct Lines {
  static constexpr int kFloats = kRows * (kColumns + 4) > kColumns *(kRows + 4) ? kRows * (kColumns + 4)
                                                                                : kColumns * (kRows + 4);
  const bool by_columns;

  __device__ int place(int row, int column) const {
    return by_columns ? column * (kRows + 4) + row : row * (kColumns + 4) + column;
  }
};

// Rows first_row + 0, 1, ... < rows of Y, by kThreads threads. sums.run(row, column, run) gives eight neighbours of a line,
// sums.element(row, column) one.
template <typename T, int kRows, int kColumns, int kThreads, typename Sums>
__device__ __forceinline__ void write_runs(const bsrg_narrow_params &p, int64_t first_row, int rows,
                                           bool by_columns, const Sums &sums) {
  constexpr int kRuns = kRows * kColumns / 8;
#pragma unroll
  for (int turn = 0; turn < (kRuns + kThreads - 1) / kThreads; ++turn) {
    const int i = turn * kThreads + threadIdx.x;
    const int row = by_columns ? i % (kRows / 8) * 8 : i / (kColumns / 8);
    const int column = by_columns ? i / (kRows / 8) : i % (kColumns / 8) * 8;
    if ((kRuns % kThreads != 0 && i >= kRuns) || row >= rows || column >= p.n) continue;
    float run[8];
    sums.run(row, column, run);
    store_run<T, 8>(p, first_row + row, column, run);
  }
}

template <typename T, bool kFused, int kRows, int kColumns, int kThreads, typename Sums>
__device__ __forceinline__ void write_elements(const bsrg_narrow_params &p, int64_t first_row, int rows,
                                               bool by_columns, const Sums &sums) {
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
    const int row = by_columns ? i % kRows : i / kColumns, column = by_columns ? i / kRows : i % kColumns;
    if (row < rows && column < p.n)
      store_element<T, kFused>(p, first_row + row, column, sums.element(row, column));
  }
}

template <typename T, int kRows, int kColumns, int kThreads, typename Sums>
__device__ __forceinline__ void write_tile(const bsrg_narrow_params &p, int64_t first_row, int rows,
                                           bool by_columns, const Sums &sums) {
  const bool runs =
      p.vector_y && !p.output.given && (!by_columns || (static_cast<int>(first_row) | rows) % 8 == 0);
  if (runs)
    write_runs<T, kRows, kColumns, kThreads>(p, first_row, rows, by_columns, sums);
  else if (p.output.given)
    write_elements<T, true, kRows, kColumns, kThreads>(p, first_row, rows, by_columns, sums);
  else
    write_elements<T, false, kRows, kColumns, kThreads>(p, first_row, rows, by_columns, sums);
}

__device__ __forceinline__ void set_run(float (&run)[8], const float4 &a, const float4 &b) {
  run[0] = a.x, run[1] = a.y, run[2] = a.z, run[3] = a.w;
  run[4] = b.x, run[5] = b.y, run[6] = b.z, run[7] = b.w;
}

}  // namespace bsrg::narrow
