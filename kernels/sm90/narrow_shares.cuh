// BSR x up to 128 dense columns on Hopper, where rows of blocks differ in length: clusters of CTAs share evenly what they have
// to do.
//
// The planner deals strips of 64 rows out to the clusters so that all have about as many blocks, and cuts each cluster's
// list into as many equal shares as it has CTAs (bsrg_narrow_share). So the first strip of a share may have begun in the CTA
// before, and its last one may go on in the next. A CTA multiplies the strips of its share one after the other, as narrow_tma.cuh
// does, through one ring that does not rest between them. It begins with the strip that began before, and sends its sums to the
// CTA before, which has them long before it ends itself: who has a strip's first part adds what has come to its own sums, and
// writes them. A strip of three and four parts is a chain, in which each adds what came from behind before it sends.
//
// Two warpgroups take a CTA's strips by turns, so that one multiplies while the other writes, which takes as long as several
// stages do.
#pragma once

#include "sm90/narrow_tma.cuh"

namespace bsrg::narrow_shares {

constexpr int kStrip = BSRG_NARROW_TMA_STRIP, kStepK = BSRG_NARROW_SHARES_STEP_K;

// kPanels: of 64 columns, one or two.
template <typename T, int kPanels, bool kTransposedX>
struct Kernel : narrow_tma::Kernel<T, kPanels, kStrip, kStepK, false, kTransposedX, 1> {
  using Base = narrow_tma::Kernel<T, kPanels, kStrip, kStepK, false, kTransposedX, 1>;
  using Base::kWarps, Base::lane, Base::p, Base::shared;
  using typename Base::Sums;
  static constexpr int kTurns = BSRG_NARROW_SHARES_TURNS;
  static constexpr int kThreads = 32 * kWarps, kSumsOfPanel = kStrip / 2;  // of a turn, and of a thread
  static constexpr int kRing = BSRG_NARROW_SHARES_RING_BYTES(kPanels);
  static constexpr int kReceived = BSRG_NARROW_SHARES_RECEIVED_BYTES(kPanels);
  // Sums are written from shared memory, so many rows at a time.
  static constexpr int kRows = BSRG_NARROW_SHARES_ROWS_AT_ONCE;
  using Written = narrow_tma::Output<T, kPanels, kRows, 1>;
  static_assert(4 * Written::kSumsByRows <= BSRG_NARROW_SHARES_STAGING_BYTES(kPanels) &&
                    4 * Written::kSumsByColumns <= BSRG_NARROW_SHARES_STAGING_BYTES(kPanels),
                "room for sums");
  static_assert(4 * kThreads * kPanels * kSumsOfPanel == kReceived, "room for those that come");
  static_assert(BSRG_NARROW_SHARES_STAGES(kPanels) < Base::kMostStages - kTurns, "barriers are left");

  const bsrg_narrow_share *shares;  // of this CTA
  // The first strip of those that multiply, who take every kTurns-th. Behind them one warp loads blocks, and one X.
  const int turn;

  // Where the sums of the next CTA come, four of a thread side by side.
  __device__ uint32_t received() const { return shared + 1024 + kRing; }
  __device__ uint32_t all_received() const { return this->full(Base::kMostStages - 1); }
  // All stages of a strip of that turn have been seen full. Who looks earlier for those behind them takes what is a lap behind
  // for them.
  __device__ uint32_t seen(int of_turn) const { return this->full(Base::kMostStages - 2 - of_turn); }
  __device__ float *staging(char *memory) const {
    return reinterpret_cast<float *>(memory + kRing + kReceived +
                                     turn * BSRG_NARROW_SHARES_STAGING_BYTES(kPanels));
  }

  // ---- what there is to do ------------------------------------------------------------------------

  // parts is 0 behind the last one.
  __device__ bsrg_narrow_share load_share(int i) const {
    static_assert(sizeof(bsrg_narrow_share) == 32, "two loads");
    const auto *const words = reinterpret_cast<const int4 *>(shares + i);
    const int4 a = ptx::load_uploaded(words), b = ptx::load_uploaded(words + 1);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }

  static __device__ bsrg_narrow_item as_item(const bsrg_narrow_share &share) {
    return {share.first_block, share.block_count, share.y_row, share.row_in_block, share.rows, -1};
  }

  // ---- consumers ----------------------------------------------------------------------------------

  __device__ void add_received(Sums &sums) const {
    ptx::barrier_wait(all_received(), 0);
#pragma unroll
    for (int i = 0; i < kPanels * kSumsOfPanel; i += 4) {
      const int4 v = ptx::load_shared_int4(received() + (i / 4 * kThreads + this->writer()) * 16);
      float *const four = &sums[i / kSumsOfPanel][i % kSumsOfPanel];
      four[0] += __int_as_float(v.x), four[1] += __int_as_float(v.y);
      four[2] += __int_as_float(v.z), four[3] += __int_as_float(v.w);
    }
  }

  __device__ void send(const Sums &sums) const {
    const int before = static_cast<int>(ptx::cluster_rank()) - 1;
    const uint32_t to = ptx::map_to_rank(received(), before) + this->writer() * 16;
    const uint32_t barrier = ptx::map_to_rank(all_received(), before);
#pragma unroll
    for (int i = 0; i < kPanels * kSumsOfPanel; i += 4) {
      const float *const four = &sums[i / kSumsOfPanel][i % kSumsOfPanel];
      ptx::store_async(to + i / 4 * kThreads * 16,
                       make_int4(__float_as_int(four[0]), __float_as_int(four[1]), __float_as_int(four[2]),
                                 __float_as_int(four[3])),
                       barrier);
    }
  }

  // Which rows and columns a thread has: see Base::put.
  __device__ void write_all(const Sums &sums, const bsrg_narrow_share &share, float *memory) const {
    const bool by_columns = p.narrow.y_row_stride == 1;
    int thread = this->writer();
    ptx::settle(thread);
    const int across = thread / 32 * 16 + thread / 4 % 8;
    const int along = thread % 4 * 2;
#pragma unroll
    for (int first = 0; first < kStrip; first += kRows) {
      if (first >= share.rows) return;
      ptx::named_barrier_sync(1 + turn, kThreads);  // those before have been read
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i)
          memory[Written::place(along + i / 4 * 8 + i % 2,
                                panel * narrow_tma::kPanel + across + i / 2 % 2 * 8, by_columns)] =
              sums[panel][first / 2 + i];
      ptx::named_barrier_sync(1 + turn, kThreads);
      bsrg_narrow_item item = as_item(share);
      item.y_row += first;
      item.rows = min(kRows, share.rows - first);
      Written{p}.write(item, memory, by_columns);
    }
  }

  __device__ void multiply_all(bsrg_narrow_share share, float *memory) const {
#pragma unroll 1
    for (int i = turn; share.parts > 0; i += kTurns) {
      const bsrg_narrow_share next = load_share(i + kTurns);
      Sums sums = {};
      OpenRingPosition stage = position_after(share.blocks_before * p.steps, p.stages);
      if (i > 0) ptx::barrier_wait(seen(turn ^ 1), (i - 1) / kTurns & 1);
      this->accumulate(sums, share.block_count * p.steps, stage);
      ptx::barrier_arrive_if(seen(turn), lane == 0);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) ptx::hold_accumulators(sums[panel]);
      if (share.part < share.parts - 1) add_received(sums);
      if (share.part > 0)
        send(sums);
      else
        write_all(sums, share, memory);
      share = next;
    }
  }

  // ---- producers ----------------------------------------------------------------------------------

  __device__ void load_all_blocks(bsrg_narrow_share share) const {
#pragma unroll 1
    for (int i = 1; share.parts > 0; ++i) {
      const bsrg_narrow_share next = load_share(i);
      this->load_blocks(as_item(share), share.blocks_before * p.steps);
      __syncwarp();  // a lane that short strips pass by could be two laps ahead, where parities are the same
      share = next;
    }
  }

  __device__ void run(char *memory) const {
    if (threadIdx.x == 0) {
      ptx::barrier_init(all_received(), 1);
      for (int i = 0; i < kTurns; ++i) ptx::barrier_init(seen(i), kWarps);
      this->init_barriers();
      ptx::barrier_arrive_expect(all_received(), kReceived);
    }
    __syncthreads();
    ptx::cluster_arrive();
    const bsrg_narrow_params &narrow = p.narrow;
    narrow::ask_for_blocks(narrow);
    // How many blocks the share has, and their columns.
    const int32_t *const numbers = narrow::columns_of_item(narrow);
    int count = 0, column = 0;
    const bool loads_blocks = turn == kTurns && this->warp == 0, loads_x = turn == kTurns && this->warp == 1;
    if (loads_x) {
      count = ptx::load_uploaded(numbers);
      if (lane + 1 < narrow.columns_stride) column = ptx::load_uploaded(numbers + 1 + lane);
    }
    const bsrg_narrow_share first = load_share(turn < kTurns ? turn : 0);
    ptx::wait_for_grid_before();
    ptx::cluster_wait();  // the others' barriers are there
    if (turn < kTurns)
      multiply_all(first, staging(memory));
    else if (loads_blocks)
      load_all_blocks(first);
    else
      this->load_x({0, count, 0, 0, 0, -1}, numbers + 1, lane < count ? column : 0);
    // A CTA that others send to waits for what they send, so none leaves too early.
  }
};

template <typename T, int kPanels, bool kTransposedX>
__device__ __forceinline__ void run(const bsrg_narrow_shares_params &params) {
  extern __shared__ char raw[];
  char *const base = raw + (-ptx::shared_address(raw) & 1023);
  using Shares = Kernel<T, kPanels, kTransposedX>;
  const int warp = ptx::warp_index();
  const Shares kernel{
      {{{params.tma}, ptx::shared_address(base), warp % Shares::kWarps, static_cast<int>(threadIdx.x & 31)}},
      params.shares + static_cast<int64_t>(blockIdx.x) * params.most_shares,
      warp / Shares::kWarps};
  kernel.run(base + 1024);
}

}  // namespace bsrg::narrow_shares

#define BSRG_NARROW_SHARES_KERNEL(NAME, T, PANELS, SUFFIX, TRANSPOSED_X)       \
  extern "C" __global__ void __launch_bounds__(BSRG_NARROW_SHARES_THREADS, 1)  \
      NAME##SUFFIX(const __grid_constant__ bsrg_narrow_shares_params params) { \
    bsrg::narrow_shares::run<T, PANELS, TRANSPOSED_X>(params);                 \
  }
#define BSRG_NARROW_SHARES_KERNELS(NAME, T)         \
  BSRG_NARROW_SHARES_KERNEL(NAME, T, 1, , false)    \
  BSRG_NARROW_SHARES_KERNEL(NAME, T, 1, _tx, true)  \
  BSRG_NARROW_SHARES_KERNEL(NAME, T, 2, _p2, false) \
  BSRG_NARROW_SHARES_KERNEL(NAME, T, 2, _p2_tx, true)
