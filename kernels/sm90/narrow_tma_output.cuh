// How narrow_tma.cuh writes its sums, which lie in shared memory, to Y or, of a piece, to memory of the launch.
#pragma once

#include "params.h"
#include "sm80/narrow_output.cuh"

namespace bsrg::narrow_tma {

constexpr int kPanel = 64;  // columns

// kGroups: warpgroups that multiply a strip.
template <typename T, int kPanels, int kStrip, int kGroups = BSRG_NARROW_TMA_GROUPS(kPanels)>
struct Output {
  static constexpr int kItem = sizeof(T);
  static constexpr bool kEight = kItem == 1;
  static constexpr int kColumns = kPanels * kPanel;
  static constexpr int kWarps = 4 * kGroups;
  // Floats of a line of sums in shared memory: a row or a column of Y, whichever has adjacent elements there. Lanes that
  // write accumulators or read runs of eight meet a bank twice at most.
  static constexpr int kRowPitch = kColumns + 4, kColumnPitch = kStrip + 4;
  static constexpr int kSumsByRows = kStrip * kRowPitch, kSumsByColumns = kColumns * kColumnPitch;
  static_assert(4 * (kSumsByRows > kSumsByColumns ? kSumsByRows : kSumsByColumns) <=
                    BSRG_NARROW_TMA_RING_BYTES(kPanels, BSRG_NARROW_TMA_MOST_CTAS(kPanels, kItem)),
                "sums fit in the ring");

  const bsrg_narrow_tma_params &p;

  // Of Y, where there are more than a CTA has.
  __device__ int first_panel_of_tile() const { return kPanels == 4 ? blockIdx.y * kPanels : 0; }
  __device__ int first_column_of_tile() const { return first_panel_of_tile() * kPanel; }

  static __device__ int place(int row, int column, bool by_columns) {
    return by_columns ? column * kColumnPitch + row : row * kRowPitch + column;
  }

  // Among those that multiply a strip. There may be several sets of these, for a strip each.
  static __device__ int writer() { return threadIdx.x % (32 * kWarps); }

  // Eight neighbours of a line.
  static __device__ void load_run(float (&run)[8], const float *from) {
    const float4 a = reinterpret_cast<const float4 *>(from)[0], b = reinterpret_cast<const float4 *>(from)[1];
    run[0] = a.x, run[1] = a.y, run[2] = a.z, run[3] = a.w;
    run[4] = b.x, run[5] = b.y, run[6] = b.z, run[7] = b.w;
  }

  // A piece's, as float32.
  __device__ void write_partial(const bsrg_narrow_item &item, const float *memory) const {
    const bsrg_narrow_params &narrow = p.narrow;
#pragma unroll 1
    for (int i = writer(); i < kStrip * kColumns / 8; i += 32 * kWarps) {
      const int row = i / (kColumns / 8), in_tile = i % (kColumns / 8) * 8;
      const int column = first_column_of_tile() + in_tile;
      if (row >= item.rows || column >= narrow.padded_n) continue;
      float run[8];
      load_run(run, memory + place(row, in_tile, false));
      const int64_t of_slots = static_cast<int64_t>(item.slot) * kStrip + row;
      float4 *const partial = reinterpret_cast<float4 *>(static_cast<float *>(narrow.partial) +
                                                         of_slots * narrow.padded_n + column);
      partial[0] = make_float4(run[0], run[1], run[2], run[3]);
      partial[1] = make_float4(run[4], run[5], run[6], run[7]);
    }
  }

  template <typename Out, bool kFused>
  __device__ void write_runs(const bsrg_narrow_item &item, const float *memory, bool by_columns) const {
    const bsrg_narrow_params &narrow = p.narrow;
    constexpr int kRuns = kStrip * kColumns / 8, kThreads = 32 * kWarps;
    static_assert(kRuns % kThreads == 0, "as many for each thread");
#pragma unroll(kFused ? 1 : kRuns / kThreads)
    for (int turn = 0; turn < kRuns / kThreads; ++turn) {
      const int i = turn * kThreads + writer();
      const int row = by_columns ? i % (kStrip / 8) * 8 : i / (kColumns / 8);
      const int in_tile = by_columns ? i / (kStrip / 8) : i % (kColumns / 8) * 8;
      const int column = first_column_of_tile() + in_tile;
      if (row >= item.rows || column >= narrow.n) continue;
      float run[8];
      load_run(run, memory + place(row, in_tile, by_columns));
      const int64_t y_row = static_cast<int64_t>(item.y_row) + row;
      if constexpr (kFused)
        narrow::store_fused_run<Out>(narrow, y_row, column, run, by_columns);
      else
        narrow::store_run<Out>(narrow, y_row, column, run);
    }
  }

  // One by one, neighbours in memory by neighbouring threads, which have read some before they write one.
  template <typename Out, bool kFused>
  __device__ void write_elements(const bsrg_narrow_item &item, const float *memory, bool by_columns) const {
    const bsrg_narrow_params &narrow = p.narrow;
    constexpr int kAtOnce = kFused ? 1 : 8, kThreads = 32 * kWarps;  // fused, the code of one is long
    // Those that there are: lines of Y, rows or columns, of so many elements.
    const int columns = min(kColumns, narrow.n - first_column_of_tile());
    const int length = by_columns ? item.rows : columns, lines = by_columns ? columns : item.rows;
    const int more_lines = kThreads / length, more = kThreads - more_lines * length;
    int line = writer() / length, in_line = writer() - line * length;
#pragma unroll 1
    while (line < lines) {
      float sums[kAtOnce];
      int row[kAtOnce], column[kAtOnce];
#pragma unroll
      for (int turn = 0; turn < kAtOnce; ++turn) {
        row[turn] = by_columns ? in_line : line, column[turn] = by_columns ? line : in_line;
        if (line < lines) sums[turn] = memory[place(row[turn], column[turn], by_columns)];
        line += more_lines, in_line += more;
        if (in_line >= length) in_line -= length, ++line;
      }
#pragma unroll
      for (int turn = 0; turn < kAtOnce; ++turn)
        if ((by_columns ? column[turn] : row[turn]) < lines)
          narrow::store_element<Out, kFused>(narrow, static_cast<int64_t>(item.y_row) + row[turn],
                                             first_column_of_tile() + column[turn], sums[turn]);
    }
  }

  template <typename Out>
  __device__ void write_as(const bsrg_narrow_item &item, const float *memory, bool by_columns) const {
    const bsrg_narrow_params &narrow = p.narrow;
    const bool fused = narrow.output.given;
    const bool runs = narrow.vector_y && (!by_columns || (item.y_row | item.rows) % 8 == 0);
    if constexpr (sizeof(Out) == 2) {
      // Of fewer columns few threads would have a run each, and what each of its elements takes one after the other.
      if (runs && fused && narrow.n >= 8) return write_runs<Out, true>(item, memory, by_columns);
      if (runs && !fused) return write_runs<Out, false>(item, memory, by_columns);
    }
    if (fused)
      write_elements<Out, true>(item, memory, by_columns);
    else
      write_elements<Out, false>(item, memory, by_columns);
  }

  __device__ void write(const bsrg_narrow_item &item, const float *memory, bool by_columns) const {
    if constexpr (!kEight)
      write_as<T>(item, memory, by_columns);
    else if (p.narrow.out == BSRG_KMAJOR_F32)
      write_as<float>(item, memory, by_columns);
    else if (p.narrow.out == BSRG_KMAJOR_F16)
      write_as<__half>(item, memory, by_columns);
    else
      write_as<__nv_bfloat16>(item, memory, by_columns);
  }
};

}  // namespace bsrg::narrow_tma
