// BSR x few dense columns (up to 64) for strips of 64 rows, float16 and bfloat16, on Hopper (TMA, WGMMA).
//
//   Y[64 rows, 64 columns]  =  sum over block columns  A block[64 rows, bw] * X[bw rows, 64 columns]
//
// A CTA computes one item (bsrg_narrow_item): a strip, or a piece of a long one. One warp loads its blocks, one the rows of
// X that meet them, and a warpgroup multiplies, so that sums need not be added between warps and no thread has more to do
// than to wait. All meet at mbarriers, `full` and `empty` a stage. What limits it is memory: the ring is as large as the
// CTAs that share the SM allow.
//
// Columns beyond n and rows beyond X are zeros that TMA fills in, without reading anything. The last strip of a block row
// that is lower has a map of its own, so that blocks below are not read for nothing: of its other rows the shared memory
// holds anything, and nobody looks at their sums.
#pragma once

#include "params.h"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "sm80/narrow_output.cuh"

namespace bsrg::narrow_tma {

constexpr int kStrip = BSRG_NARROW_TMA_STRIP, kColumns = 64;
constexpr int kWarps = 4;  // that multiply

// kTransposedX: the rows of X are adjacent in memory, not its columns.
template <typename T, int kStepK, bool kTransposedX>
struct Kernel {
  static constexpr int kStageBytes = BSRG_NARROW_TMA_STAGE_BYTES(kStepK), kOperandBytes = kStageBytes / 2;
  static constexpr int kMostStages = BSRG_NARROW_TMA_RING_BYTES(1) / kStageBytes;
  static constexpr int kPitch = kColumns + 8;  // floats of a row of sums, so that lanes meet no bank twice
  static_assert(2 * 8 * kMostStages <= 1024, "barriers come before the ring");
  static_assert(kStrip * kPitch * 4 <= BSRG_NARROW_TMA_RING_BYTES(4), "sums fit in the ring");

  const bsrg_narrow_tma_params &p;
  const uint32_t shared;
  const int warp, lane;

  // Of a ring whose size the launch chooses.
  struct Stage {
    int slot = 0;
    uint32_t parity = 0;
    __device__ void advance(int stages) {
      if (++slot == stages) {
        slot = 0;
        parity ^= 1;
      }
    }
  };

  __device__ uint32_t full(int slot) const { return shared + 8 * slot; }
  __device__ uint32_t empty(int slot) const { return shared + 8 * (kMostStages + slot); }
  __device__ uint32_t blocks(int slot) const { return shared + 1024 + slot * kStageBytes; }
  __device__ uint32_t rows_of_x(int slot) const { return blocks(slot) + kOperandBytes; }

  __device__ void init_barriers() const {
    for (int i = 0; i < p.stages; ++i) {
      ptx::barrier_init(full(i), 2);  // both producers
      ptx::barrier_init(empty(i), kWarps);
    }
    ptx::barrier_init_fence();
  }

  // ---- producers --------------------------------------------------------------------------------

  // One lane.
  __device__ void load_blocks(const bsrg_narrow_item &item) const {
    const int height = p.narrow.block_height;
    const bool whole = item.row_in_block + kStrip <= height;
    const bsrg_tensor_map &map = whole ? p.a : p.a_tail;
    const int bytes = (whole ? kStrip : p.tail_rows) * kStepK * 2;
    int row = item.first_block * height + item.row_in_block;
    Stage stage;
    stage.parity = 1;
#pragma unroll 1
    for (int b = 0; b < item.block_count; ++b, row += height)
#pragma unroll 1
      for (int step = 0; step < p.steps; ++step, stage.advance(p.stages)) {
        ptx::barrier_wait(empty(stage.slot), stage.parity);
        ptx::barrier_arrive_expect(full(stage.slot), bytes);
        ptx::tma_load_2d(blocks(stage.slot), map, step * kStepK, row, full(stage.slot));
      }
  }

  // A warp, which has the columns of 32 blocks at a time, and of the next 32. `columns`: the item's.
  __device__ void load_x(const bsrg_narrow_item &item, const int32_t *columns, int first_columns) const {
    int mine = first_columns, next = 0;
    Stage stage;
    stage.parity = 1;
#pragma unroll 1
    for (int b = 0; b < item.block_count; ++b) {
      if (b % 32 == 0) {
        if (b > 0) mine = next;
        next = b + 32 + lane < item.block_count ? __ldg(columns + b + 32 + lane) : 0;
      }
      const int row = __shfl_sync(~0u, mine, b % 32) * p.narrow.block_width;
#pragma unroll 1
      for (int step = 0; step < p.steps; ++step, stage.advance(p.stages)) {
        if (lane != 0) continue;
        const bool tail = step == p.steps - 1;
        // By columns whole stages come, with k of what lies behind the block, which is not multiplied.
        const int k = tail && !kTransposedX ? p.tail_k16 * 16 : kStepK, at = row + step * kStepK;
        ptx::barrier_wait(empty(stage.slot), stage.parity);
        ptx::barrier_arrive_expect(full(stage.slot), k * kColumns * 2);
        ptx::tma_load_2d(rows_of_x(stage.slot), tail ? p.x_tail : p.x, kTransposedX ? at : 0,
                         kTransposedX ? 0 : at, full(stage.slot));
      }
    }
  }

  // ---- consumers --------------------------------------------------------------------------------

  // One stage of kSteps k16 instructions; see tall.cuh, whose operands these are.
  template <int kSteps>
  __device__ void multiply(float (&sums)[kColumns / 2], int slot) const {
    constexpr ptx::Swizzle kSwizzleK = kStepK == 64   ? ptx::Swizzle::k128
                                       : kStepK == 32 ? ptx::Swizzle::k64
                                                      : ptx::Swizzle::k32;
    constexpr int kNextX = kTransposedX ? 2 : 128;
    const uint64_t a = ptx::matrix_descriptor(blocks(slot), 16, 8 * kStepK * 2, kSwizzleK);
    const uint64_t x = ptx::matrix_descriptor(rows_of_x(slot), 16, kTransposedX ? 8 * kStepK * 2 : 1024,
                                              kTransposedX ? kSwizzleK : ptx::Swizzle::k128);
    ptx::warpgroup_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      ptx::Wgmma<T, kColumns, 0, !kTransposedX>::run(sums, a + 2 * k, x + kNextX * k, 1);
    ptx::warpgroup_commit();
  }

  template <int kSteps = kStepK / 16>
  __device__ void multiply_up_to(float (&sums)[kColumns / 2], int slot, int steps) const {
    if (kSteps == 1 || steps == kSteps)
      multiply<kSteps>(sums, slot);
    else if constexpr (kSteps > 1)
      multiply_up_to<kSteps - 1>(sums, slot, steps);
  }

  __device__ void release(int slot) const { ptx::barrier_arrive_if(empty(slot), lane == 0); }

  __device__ void accumulate(float (&sums)[kColumns / 2], int count) const {
    const int steps = __shfl_sync(~0u, p.steps, 0), tail_k16 = __shfl_sync(~0u, p.tail_k16, 0);
    const int stages = __shfl_sync(~0u, p.stages, 0);
    Stage stage;
    int in_flight = -1, left = steps;  // the slot that the last committed group reads; stages of this block
#pragma unroll 1
    for (int i = 0; i < count; ++i, stage.advance(stages)) {
      const bool tail = --left == 0;
      if (tail) left = steps;
      ptx::barrier_wait(full(stage.slot), stage.parity);
      multiply_up_to(sums, stage.slot, tail ? tail_k16 : kStepK / 16);
      ptx::warpgroup_wait<1>();
      if (in_flight >= 0) release(in_flight);
      in_flight = stage.slot;
    }
    ptx::warpgroup_wait<0>();
  }

  // ---- output -----------------------------------------------------------------------------------

  // A warp's 16 rows of sums, in shared memory.
  __device__ float *row_of_sums(char *ring, int row) const {
    return reinterpret_cast<float *>(ring) + (warp * 16 + row) * kPitch;
  }

  __device__ void share(const float (&sums)[kColumns / 2], char *ring) const {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<float2 *>(row_of_sums(ring, lane / 4 + 8 * r) + 8 * j + lane % 4 * 2) =
            make_float2(sums[4 * j + 2 * r], sums[4 * j + 2 * r + 1]);
  }

  __device__ void load_run(float (&run)[8], const float *from) const {
    const float4 a = *reinterpret_cast<const float4 *>(from), b = *reinterpret_cast<const float4 *>(from + 4);
    run[0] = a.x, run[1] = a.y, run[2] = a.z, run[3] = a.w;
    run[4] = b.x, run[5] = b.y, run[6] = b.z, run[7] = b.w;
  }

  // Runs of eight columns of a row, eight lanes a row.
  __device__ void store_runs(const bsrg_narrow_item &item, char *ring) const {
    const bsrg_narrow_params &narrow = p.narrow;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * i + lane / 8, column = lane % 8 * 8, of_item = warp * 16 + row;
      if (of_item >= item.rows) continue;
      float run[8];
      load_run(run, row_of_sums(ring, row) + column);
      if (item.slot >= 0) {
        if (column >= narrow.padded_n) continue;
        const int64_t of_slots = static_cast<int64_t>(item.slot) * kStrip + of_item;
        float4 *const partial = reinterpret_cast<float4 *>(narrow.partial + of_slots * narrow.padded_n + column);
        partial[0] = make_float4(run[0], run[1], run[2], run[3]);
        partial[1] = make_float4(run[4], run[5], run[6], run[7]);
      } else if (column < narrow.n) {
        narrow::store_run<T, 8>(narrow, static_cast<int64_t>(item.y_row) + of_item, column, run);
      }
    }
  }

  // One by one, neighbours in memory by neighbouring lanes.
  template <bool kFused>
  __device__ void store_elements(const bsrg_narrow_item &item, char *ring) const {
    const bsrg_narrow_params &narrow = p.narrow;
    const bool by_columns = narrow.y_row_stride == 1;
#pragma unroll 1
    for (int i = lane; i < 16 * kColumns; i += 32) {
      const int row = by_columns ? i % 16 : i / kColumns, column = by_columns ? i / 16 : i % kColumns;
      if (warp * 16 + row < item.rows && column < narrow.n)
        narrow::store_element<T, kFused>(narrow, static_cast<int64_t>(item.y_row) + warp * 16 + row, column,
                                         row_of_sums(ring, row)[column]);
    }
  }

  __device__ void consume(const bsrg_narrow_item &item, char *ring) const {
    float sums[kColumns / 2] = {};
    accumulate(sums, item.block_count * p.steps);
    // All have read the ring, in which no copy is under way any more.
    ptx::named_barrier_sync(1, 32 * kWarps);
    share(sums, ring);
    __syncwarp();
    if (item.slot >= 0 || (p.narrow.vector_y && !p.narrow.output.given))
      store_runs(item, ring);
    else if (p.narrow.output.given)
      store_elements<true>(item, ring);
    else
      store_elements<false>(item, ring);
  }

  __device__ void run(char *ring) const {
    if (threadIdx.x == 0) init_barriers();
    __syncthreads();
    ptx::wait_for_grid_before();
    // Where block columns have places of their own, they need not wait for the item.
    const bsrg_narrow_params &narrow = p.narrow;
    const int32_t *columns = narrow.columns + static_cast<int64_t>(blockIdx.x) * narrow.columns_stride;
    int first_columns = 0;
    if (warp == kWarps + 1 && lane < narrow.columns_stride) first_columns = __ldg(columns + lane);
    const bsrg_narrow_item item = narrow.items[blockIdx.x];
    if (warp < kWarps) {
      consume(item, ring);
    } else if (warp == kWarps) {
      if (lane == 0) load_blocks(item);
    } else {
      if (narrow.columns_stride == 0) {
        columns += item.first_block;
        if (lane < item.block_count) first_columns = __ldg(columns + lane);
      }
      load_x(item, columns, first_columns);
    }
  }
};

template <typename T, int kStepK, bool kTransposedX>
__device__ __forceinline__ void run(const bsrg_narrow_tma_params &params) {
  extern __shared__ char raw[];
  char *const base = raw + (-ptx::shared_address(raw) & 1023);
  const Kernel<T, kStepK, kTransposedX> kernel{params, ptx::shared_address(base), ptx::warp_index(),
                                               static_cast<int>(threadIdx.x & 31)};
  kernel.run(base + 1024);
}

}  // namespace bsrg::narrow_tma

// The k of a stage as for tall blocks.
#define BSRG_NARROW_TMA_KERNEL(NAME, T, STEP_K, SUFFIX, TRANSPOSED_X)                        \
  extern "C" __global__ void __launch_bounds__(BSRG_NARROW_TMA_THREADS, 1)                   \
      NAME##_k##STEP_K##SUFFIX(const __grid_constant__ bsrg_narrow_tma_params params) {      \
    bsrg::narrow_tma::run<T, STEP_K, TRANSPOSED_X>(params);                                  \
  }
#define BSRG_NARROW_TMA_KERNELS(NAME, T)             \
  BSRG_NARROW_TMA_KERNEL(NAME, T, 64, , false)       \
  BSRG_NARROW_TMA_KERNEL(NAME, T, 64, _tx, true)     \
  BSRG_NARROW_TMA_KERNEL(NAME, T, 32, , false)       \
  BSRG_NARROW_TMA_KERNEL(NAME, T, 32, _tx, true)     \
  BSRG_NARROW_TMA_KERNEL(NAME, T, 16, , false)       \
  BSRG_NARROW_TMA_KERNEL(NAME, T, 16, _tx, true)
