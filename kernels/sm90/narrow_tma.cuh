// BSR x few dense columns (up to 512, of 8 bits 256) on Hopper (TMA, WGMMA).
//
//   Y^T[columns, strip]  =  sum over block columns  X^T[columns, bw] * A block^T[bw, strip]
//
// A CTA computes one item (bsrg_narrow_item): a strip of rows of a block row, or a piece of a long one. One warp loads its
// blocks, one the rows of X that meet them, and one or two warpgroups multiply, with panels of 64 columns of X as the 64 rows of
// their instructions: so strips may be 32 rows, and sums need not be added between warps. All meet at mbarriers, `full` and
// `empty` a stage. What limits strips of 64 rows is memory: the ring is as large as the CTAs that share the SM allow. Lower ones ask
// TMA for as many rows of X for half of the blocks' bytes.
//
// Rows beyond X, and by rows of X columns beyond n, are zeros that TMA fills in, without reading anything. The last strip
// of a block row that is lower has a map of its own, so that blocks below are not read for nothing: of its other rows the
// shared memory holds anything, and nobody looks at their sums. Nor do they at those of columns beyond n of X by columns.
//
// Where the rows of X follow one another and are short, TMA loads lines that hold several of them, and the warp for X turns these to
// columns (narrow_tma_gapless.cuh).
//
// The blocks of a transposed view lie anywhere, with a strip's rows adjacent in memory: a stage of them is that many k of 64
// rows, which WGMMA reads as they lie, and the last stage of a block has a map of its own.
//
// Of 8 bits WGMMA takes K-major operands alone, so blocks are as they are stored and X is by columns. Their sums are taken over
// a stage, and added to float32 ones multiplied by the scale of the block, as in kmajor.cuh.
#pragma once

#include "params.h"
#include "ptx/load.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_attention.cuh"
#include "ptx/wgmma_kmajor.cuh"
#include "ptx/wgmma_small.cuh"
#include "sm80/narrow_begin.cuh"
#include "sm90/narrow_tma_ring.cuh"

namespace bsrg::narrow_tma {

// As Ring.
template <typename T, int kPanels, int kStrip, int kStepK, bool kTransposedA, bool kTransposedX,
          int kGroups = BSRG_NARROW_TMA_GROUPS(kPanels), bool kGapless = false>
struct Kernel : Ring<T, kPanels, kStrip, kStepK, kTransposedA, kTransposedX, kGroups, kGapless> {
  using Base = Ring<T, kPanels, kStrip, kStepK, kTransposedA, kTransposedX, kGroups, kGapless>;
  using Base::blocks, Base::cluster, Base::empty, Base::first_panel, Base::full, Base::lane, Base::p,
      Base::warp;
  using Base::kEight, Base::kInstructionK, Base::kItem, Base::kMine, Base::kPanelBytes, Base::kWarps;

  // ---- consumers --------------------------------------------------------------------------------

  // Of 256 columns and 64 rows the rows are an instruction's, which takes 64 cycles then for 128 columns and not 40 for 64.
  static constexpr bool kByRows = kPanels == 4 && kStrip == 64;
  static constexpr int kParts = kByRows ? 1 : kMine;
  using Sums = float[kParts][kMine * kStrip / 2 / kParts];

  // One stage of kSteps instructions a panel. K-major operands have rows of a stage's k, X by rows and the blocks of a transposed
  // view 64 elements for each k. Descriptors count 16 bytes: to the next instruction's k it is 32 bytes of a row, or 16 rows of
  // 128 bytes. Of 8 bits `sums` are the stage's alone.
  template <int kSteps>
  __device__ void multiply(Sums &sums, int slot) const {
    constexpr int kRowBytes = kStepK * kItem;
    constexpr ptx::Swizzle kSwizzleK = kRowBytes == 128  ? ptx::Swizzle::k128
                                       : kRowBytes == 64 ? ptx::Swizzle::k64
                                                         : ptx::Swizzle::k32;
    constexpr int kNextX = kTransposedX ? 2 : 128;
    const uint64_t x =
        ptx::matrix_descriptor(first_panel(slot), kPanelBytes, kTransposedX ? 8 * kRowBytes : 1024,
                               kTransposedX ? kSwizzleK : ptx::Swizzle::k128);
    const uint64_t a = ptx::matrix_descriptor(blocks(slot), 16, kTransposedA ? 1024 : 8 * kRowBytes,
                                              kTransposedA ? ptx::Swizzle::k128 : kSwizzleK);
    ptx::warpgroup_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int panel = 0; panel < kParts; ++panel) {
        const uint64_t mine = x + panel * (kPanelBytes >> 4);
        if constexpr (kByRows && kEight)
          ptx::WgmmaKMajor<T, kMine * kPanel>::run(sums[panel], a + 2 * k, mine + 2 * k, k > 0);
        else if constexpr (kByRows)
          ptx::Wgmma<T, kMine * kPanel, kTransposedA, !kTransposedX>::run(
              sums[panel], a + (kTransposedA ? 128 : 2) * k, mine + kNextX * k, true);
        else if constexpr (kEight)
          ptx::WgmmaKMajor<T, kStrip>::run(sums[panel], mine + 2 * k, a + 2 * k, k > 0);
        else if constexpr (kTransposedA)
          ptx::Wgmma<T, kStrip, !kTransposedX, true>::run(sums[panel], mine + kNextX * k, a + 128 * k, true);
        else
          ptx::WgmmaSmall<T, kStrip, !kTransposedX>::run(sums[panel], mine + kNextX * k, a + 2 * k);
      }
    ptx::warpgroup_commit();
  }

  template <int kSteps = kStepK / kInstructionK>
  __device__ void multiply_up_to(Sums &sums, int slot, int steps) const {
    if (kSteps == 1 || steps == kSteps)
      multiply<kSteps>(sums, slot);
    else if constexpr (kSteps > 1)
      multiply_up_to<kSteps - 1>(sums, slot, steps);
  }

  __device__ void release(int slot) const {
    ptx::barrier_arrive_if(empty(slot), lane == 0);
    if (cluster() > 1)
      ptx::barrier_arrive_cluster_if(ptx::map_to_rank(empty(slot), ptx::cluster_rank() ^ 1), lane == 0);
  }

  // `count` stages from `stage` on, all of which have been released then.
  __device__ void accumulate(Sums &sums, int count, OpenRingPosition &stage) const {
    const int steps = __shfl_sync(~0u, p.steps, 0), tail_steps = __shfl_sync(~0u, p.tail_steps, 0);
    const int stages = __shfl_sync(~0u, p.stages, 0);
    int in_flight = -1, left = steps;  // the slot that the last committed group reads; stages of this block
#pragma unroll 1
    for (int i = 0; i < count; ++i, stage.advance(stages)) {
      const bool tail = --left == 0;
      if (tail) left = steps;
      ptx::barrier_wait(full(stage.slot), stage.parity);
      multiply_up_to(sums, stage.slot, tail ? tail_steps : kStepK / kInstructionK);
      ptx::warpgroup_wait<1>();
      if (in_flight >= 0) release(in_flight);
      in_flight = stage.slot;
    }
    ptx::warpgroup_wait<0>();
    if (in_flight >= 0) release(in_flight);
  }

  // ---- 8 bits -----------------------------------------------------------------------------------

  // Stages that are multiplied side by side, each into sums of its own: one after the other a stage took 0.24 us. For several
  // panels registers do not suffice.
  static constexpr int kAtOnce = kPanels == 1 ? 2 : 1;

  // An item's stages in their order.
  class Stages {
   public:
    __device__ Stages(const bsrg_narrow_tma_params &p, const bsrg_narrow_item &item, int lane)
        : steps_(__shfl_sync(~0u, p.steps, 0)),
          tail_steps_(__shfl_sync(~0u, p.tail_steps, 0)),
          scaled_(p.block_scales != nullptr),
          scales_(p.block_scales + item.first_block, item.block_count,
                  scaled_ && lane < item.block_count ? __ldg(p.block_scales + item.first_block + lane) : 0.f,
                  lane) {}
    // Returns how many instructions the next one has; `scale` becomes that of its block.
    __device__ int next() {
      if (step_ == 0 && scaled_) scale = scales_.of(block_);
      if (++step_ < steps_) return kStepK / kInstructionK;
      step_ = 0;
      ++block_;
      return tail_steps_;
    }
    float scale = 1.f;

   private:
    const int steps_, tail_steps_;
    const bool scaled_;
    Numbers<float> scales_;
    int block_ = 0, step_ = 0;
  };

  template <int kCount>
  __device__ void add_stages(Sums &sums, Stages &of, OpenRingPosition &stage, int stages) const {
    Sums part[kCount];
    float scale[kCount];
    int slot[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i, stage.advance(stages)) {
      const int instructions = of.next();
      scale[i] = of.scale;
      slot[i] = stage.slot;
      ptx::barrier_wait(full(slot[i]), stage.parity);
      multiply_up_to(part[i], slot[i], instructions);
    }
    add_parts<kCount>(sums, part, scale, slot);
  }

  template <int kCount, int kFirst = 0>
  __device__ void add_parts(Sums &sums, Sums (&part)[kCount], const float (&scale)[kCount],
                            const int (&slot)[kCount]) const {
    ptx::warpgroup_wait<kCount - 1 - kFirst>();
#pragma unroll
    for (int j = 0; j < kParts; ++j) ptx::hold_accumulators(part[kFirst][j]);
    release(slot[kFirst]);
#pragma unroll
    for (int j = 0; j < kParts; ++j)
#pragma unroll
      for (int i = 0; i < kMine * kStrip / 2 / kParts; ++i)
        sums[j][i] = fmaf(part[kFirst][j][i], scale[kFirst], sums[j][i]);
    if constexpr (kFirst + 1 < kCount) add_parts<kCount, kFirst + 1>(sums, part, scale, slot);
  }

  __device__ void accumulate_promoted(Sums &sums, const bsrg_narrow_item &item) const {
    const int stages = __shfl_sync(~0u, p.stages, 0);
    Stages of(p, item, lane);
    OpenRingPosition stage;
    int left = item.block_count * p.steps;
#pragma unroll 1
    for (; left >= kAtOnce; left -= kAtOnce) add_stages<kAtOnce>(sums, of, stage, stages);
    if constexpr (kAtOnce > 1)
#pragma unroll 1
      for (; left > 0; --left) add_stages<1>(sums, of, stage, stages);
  }

  // What all sums are multiplied by, pieces' as well.
  __device__ float scale_of_all() const {
    float scale = 1.f;
    if (p.narrow.a_scale != nullptr) scale *= __ldg(p.narrow.a_scale);
    if (p.narrow.x_scale != nullptr) scale *= __ldg(p.narrow.x_scale);
    return scale;
  }

  // ---- sums ---------------------------------------------------------------------------------------

  // By threadIdx: with `warp`, from which descriptors come, ptxas serialises WGMMAs (C7515).
  static __device__ void put(const Sums &sums, float *memory, bool by_columns) {
    int thread = threadIdx.x;
    ptx::settle(thread);
    const int across = thread / 32 % 4 * 16 + thread / 4 % 8, along = thread % 4 * 2;
    const int first_column = thread / 128 * kMine * kPanel;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < kMine * kStrip / 2 / kParts; ++i) {
        const int m = across + i / 2 % 2 * 8, n = along + i / 4 * 8 + i % 2;
        const int row = kByRows ? m : n, column = kByRows ? n : part * kPanel + m;
        memory[Base::place(row, first_column + column, by_columns)] = sums[part][i];
      }
  }

  __device__ void consume(const bsrg_narrow_item &item, float *memory) const {
    const bsrg_narrow_params &narrow = p.narrow;
    const bool by_columns = item.slot < 0 && narrow.y_row_stride == 1;
    Sums sums = {};
    if constexpr (kEight) {
      const float all = scale_of_all();  // on its way meanwhile
      accumulate_promoted(sums, item);
#pragma unroll
      for (int j = 0; j < kParts; ++j)
#pragma unroll
        for (int i = 0; i < kMine * kStrip / 2 / kParts; ++i) sums[j][i] *= all;
    } else {
      OpenRingPosition stage;
      accumulate(sums, item.block_count * p.steps, stage);
    }
    // All have read the ring, in which no copy is under way any more.
    ptx::named_barrier_sync(1, 32 * kWarps);
    put(sums, memory, by_columns);
    ptx::named_barrier_sync(1, 32 * kWarps);
    if (item.slot >= 0)
      this->write_partial(item, memory);
    else
      this->write(item, memory, by_columns);
  }

  __device__ void run(float *memory) const {
    if (threadIdx.x == 0) this->init_barriers();
    if (cluster() > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
    const bsrg_narrow_params &narrow = p.narrow;
    narrow::ask_for_blocks(narrow);
    // Where block columns have places of their own, they need not wait for the item.
    const int32_t *columns = narrow::columns_of_item(narrow);
    int first_columns = 0;
    const bool loads_x = warp == (kGapless ? kWarps : kWarps + 1);
    if (loads_x && lane < narrow.columns_stride) first_columns = ptx::load_uploaded(columns + lane);
    const bsrg_narrow_item item = narrow::load_item(narrow);
    ptx::wait_for_grid_before();
    if (warp < kWarps) {
      consume(item, memory);
    } else if (!loads_x) {
      if constexpr (kGapless)
        this->turn_lines(item.block_count * p.steps);
      else
        this->load_blocks(item);
    } else {
      if (narrow.columns_stride == 0) {
        columns += item.first_block;
        if (lane < item.block_count) first_columns = __ldg(columns + lane);
      }
      if constexpr (kGapless)
        this->load_blocks_and_lines(item, columns, first_columns);
      else
        this->load_x(item, columns, first_columns);
      // No CTA may exit while the other can still arrive at its barriers, and cluster_sync orders no arrivals.
      if (cluster() > 1) this->wait_for_releases(item.block_count * p.steps);
    }
    __syncwarp();
    if (cluster() > 1) ptx::cluster_sync();
  }
};

template <typename T, int kPanels, int kStrip, int kStepK, bool kTransposedA, bool kTransposedX,
          bool kGapless = false>
__device__ __forceinline__ void run(const bsrg_narrow_tma_params &params) {
  extern __shared__ char raw[];
  char *const base = raw + (-ptx::shared_address(raw) & 1023);
  const Kernel<T, kPanels, kStrip, kStepK, kTransposedA, kTransposedX, BSRG_NARROW_TMA_GROUPS(kPanels),
               kGapless>
      kernel{{{params}, ptx::shared_address(base), ptx::warp_index(), static_cast<int>(threadIdx.x & 31)}};
  kernel.run(reinterpret_cast<float *>(base + 1024));
}

}  // namespace bsrg::narrow_tma

// The k of a stage as for tall blocks.
#define BSRG_NARROW_TMA_KERNEL_OF(NAME, T, PANELS, STRIP, STEP_K, TRANSPOSED_A, SUFFIX, LEAST_CTAS, ...) \
  extern "C" __global__ void __launch_bounds__(BSRG_NARROW_TMA_THREADS(PANELS), LEAST_CTAS)              \
      NAME##_r##STRIP##_k##STEP_K##SUFFIX(const __grid_constant__ bsrg_narrow_tma_params params) {       \
    bsrg::narrow_tma::run<T, PANELS, STRIP, STEP_K, TRANSPOSED_A, __VA_ARGS__>(params);                  \
  }
#define BSRG_NARROW_TMA_KERNEL(NAME, T, PANELS, STRIP, STEP_K, TRANSPOSED_A, SUFFIX, TRANSPOSED_X) \
  BSRG_NARROW_TMA_KERNEL_OF(NAME, T, PANELS, STRIP, STEP_K, TRANSPOSED_A, SUFFIX,                  \
                            BSRG_NARROW_TMA_LEAST_CTAS(PANELS, sizeof(T)), TRANSPOSED_X)
#define BSRG_NARROW_TMA_KERNELS(NAME, T, PANELS, STRIP, TRANSPOSED_A)         \
  BSRG_NARROW_TMA_KERNEL(NAME, T, PANELS, STRIP, 64, TRANSPOSED_A, , false)   \
  BSRG_NARROW_TMA_KERNEL(NAME, T, PANELS, STRIP, 64, TRANSPOSED_A, _tx, true) \
  BSRG_NARROW_TMA_KERNEL(NAME, T, PANELS, STRIP, 32, TRANSPOSED_A, , false)   \
  BSRG_NARROW_TMA_KERNEL(NAME, T, PANELS, STRIP, 32, TRANSPOSED_A, _tx, true) \
  BSRG_NARROW_TMA_KERNEL(NAME, T, PANELS, STRIP, 16, TRANSPOSED_A, , false)   \
  BSRG_NARROW_TMA_KERNEL(NAME, T, PANELS, STRIP, 16, TRANSPOSED_A, _tx, true)
// Of an X without gaps.
#define BSRG_NARROW_TMA_KERNEL_GAPLESS(NAME, T, STRIP, STEP_K, TRANSPOSED_A) \
  BSRG_NARROW_TMA_KERNEL_OF(NAME, T, 1, STRIP, STEP_K, TRANSPOSED_A, ,       \
                            BSRG_NARROW_TMA_MOST_CTAS(1, sizeof(T)), true, true)
#define BSRG_NARROW_TMA_KERNELS_GAPLESS(NAME, T, STRIP, TRANSPOSED_A) \
  BSRG_NARROW_TMA_KERNEL_GAPLESS(NAME, T, STRIP, 64, TRANSPOSED_A)    \
  BSRG_NARROW_TMA_KERNEL_GAPLESS(NAME, T, STRIP, 32, TRANSPOSED_A)    \
  BSRG_NARROW_TMA_KERNEL_GAPLESS(NAME, T, STRIP, 16, TRANSPOSED_A)
// Of 8 bits; the same bytes of a stage.
#define BSRG_NARROW_TMA_KERNELS_8(NAME, T, PANELS, STRIP)            \
  BSRG_NARROW_TMA_KERNEL(NAME, T, PANELS, STRIP, 128, false, , true) \
  BSRG_NARROW_TMA_KERNEL(NAME, T, PANELS, STRIP, 64, false, , true)  \
  BSRG_NARROW_TMA_KERNEL(NAME, T, PANELS, STRIP, 32, false, , true)
