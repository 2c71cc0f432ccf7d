// BSR x 65 to 128 dense columns on Hopper, where rows of blocks differ in length: clusters of CTAs share evenly what they have
// to do.
//
// The planner deals strips of 64 rows out to the clusters so that all have about as many blocks, and cuts each cluster's
// list into as many equal shares as it has CTAs (bsrg_narrow_share). So the first strip of a share may have begun in the CTA
// before, and its last one may go on in the next. A CTA multiplies the strips of its share one after the other, as narrow_tma.cuh
// does, through one ring that does not rest between them. It begins with the strip that began before, and sends its sums to the
// CTA before, which has them long before it ends itself: who has a strip's first part adds what has come to its own sums, and
// writes them. A strip of three and four parts is a chain, in which each adds what came from behind before it sends.
#pragma once

#include "sm90/narrow_tma.cuh"

namespace bsrg::narrow_shares {

constexpr int kPanels = 2, kStrip = BSRG_NARROW_TMA_STRIP, kStepK = BSRG_NARROW_SHARES_STEP_K;

template <typename T, bool kTransposedX>
struct Kernel : narrow_tma::Kernel<T, kPanels, kStrip, kStepK, false, kTransposedX> {
  using Base = narrow_tma::Kernel<T, kPanels, kStrip, kStepK, false, kTransposedX>;
  using Base::kColumns, Base::kMine, Base::kWarps, Base::lane, Base::p, Base::shared, Base::warp;
  using typename Base::Sums;
  static constexpr int kThreads = 32 * kWarps, kSumsOfThread = kStrip / 2;
  static constexpr int kRing = BSRG_NARROW_SHARES_RING_BYTES;
  // Sums are written from shared memory, so many rows at a time.
  static constexpr int kRows = BSRG_NARROW_SHARES_ROWS_AT_ONCE;
  using Written = narrow_tma::Output<T, kPanels, kRows>;
  static_assert(4 * Written::kSumsByRows <= BSRG_NARROW_SHARES_STAGING_BYTES &&
                    4 * Written::kSumsByColumns <= BSRG_NARROW_SHARES_STAGING_BYTES,
                "room for sums");
  static_assert(4 * kThreads * kSumsOfThread == BSRG_NARROW_SHARES_RECEIVED_BYTES,
                "room for those that come");
  static_assert(kRing / BSRG_NARROW_SHARES_STAGE_BYTES < Base::kMostStages, "a barrier is left");

  const bsrg_narrow_share *shares;  // of this CTA

  // Where the sums of the next CTA come, four of a thread side by side.
  __device__ uint32_t received() const { return shared + 1024 + kRing; }
  __device__ uint32_t all_received() const { return this->full(Base::kMostStages - 1); }
  __device__ float *staging(char *memory) const {
    return reinterpret_cast<float *>(memory + kRing + BSRG_NARROW_SHARES_RECEIVED_BYTES);
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
    for (int i = 0; i < kSumsOfThread; i += 4) {
      const int4 v = ptx::load_shared_int4(received() + (i / 4 * kThreads + threadIdx.x) * 16);
      sums[0][i] += __int_as_float(v.x), sums[0][i + 1] += __int_as_float(v.y);
      sums[0][i + 2] += __int_as_float(v.z), sums[0][i + 3] += __int_as_float(v.w);
    }
  }

  __device__ void send(const Sums &sums) const {
    const int before = static_cast<int>(ptx::cluster_rank()) - 1;
    const uint32_t to = ptx::map_to_rank(received(), before) + threadIdx.x * 16;
    const uint32_t barrier = ptx::map_to_rank(all_received(), before);
#pragma unroll
    for (int i = 0; i < kSumsOfThread; i += 4)
      ptx::store_async(to + i / 4 * kThreads * 16,
                       make_int4(__float_as_int(sums[0][i]), __float_as_int(sums[0][i + 1]),
                                 __float_as_int(sums[0][i + 2]), __float_as_int(sums[0][i + 3])),
                       barrier);
  }

  // Which rows and columns a thread has: see Base::put.
  __device__ void write_all(const Sums &sums, const bsrg_narrow_share &share, float *memory) const {
    const bool by_columns = p.narrow.y_row_stride == 1;
    int thread = threadIdx.x;
    ptx::settle(thread);
    const int across = thread / 128 * kMine * narrow_tma::kPanel + thread / 32 % 4 * 16 + thread / 4 % 8;
    const int along = thread % 4 * 2;
#pragma unroll
    for (int first = 0; first < kStrip; first += kRows) {
      if (first >= share.rows) return;
      ptx::named_barrier_sync(1, kThreads);  // those before have been read
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i)
        memory[Written::place(along + i / 4 * 8 + i % 2, across + i / 2 % 2 * 8, by_columns)] =
            sums[0][first / 2 + i];
      ptx::named_barrier_sync(1, kThreads);
      bsrg_narrow_item item = as_item(share);
      item.y_row += first;
      item.rows = min(kRows, share.rows - first);
      Written{p}.write(item, memory, by_columns);
    }
  }

  __device__ void multiply_all(bsrg_narrow_share share, float *memory) const {
    OpenRingPosition stage;
#pragma unroll 1
    for (int i = 1; share.parts > 0; ++i) {
      const bsrg_narrow_share next = load_share(i);
      Sums sums = {};
      this->accumulate(sums, share.block_count * p.steps, stage);
      ptx::hold_accumulators(sums[0]);
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
      share = next;
    }
  }

  __device__ void run(char *memory) const {
    if (threadIdx.x == 0) {
      ptx::barrier_init(all_received(), 1);
      this->init_barriers();
      ptx::barrier_arrive_expect(all_received(), BSRG_NARROW_SHARES_RECEIVED_BYTES);
    }
    __syncthreads();
    ptx::cluster_arrive();
    const bsrg_narrow_params &narrow = p.narrow;
    narrow::ask_for_blocks(narrow);
    // How many blocks the share has, and their columns.
    const int32_t *const numbers = narrow::columns_of_item(narrow);
    int count = 0, column = 0;
    if (warp == kWarps + 1) {
      count = ptx::load_uploaded(numbers);
      if (lane + 1 < narrow.columns_stride) column = ptx::load_uploaded(numbers + 1 + lane);
    }
    const bsrg_narrow_share first = load_share(0);
    ptx::wait_for_grid_before();
    ptx::cluster_wait();  // the others' barriers are there
    if (warp < kWarps)
      multiply_all(first, staging(memory));
    else if (warp == kWarps)
      load_all_blocks(first);
    else
      this->load_x({0, count, 0, 0, 0, -1}, numbers + 1, lane < count ? column : 0);
    // A CTA that others send to waits for what they send, so none leaves too early.
  }
};

template <typename T, bool kTransposedX>
__device__ __forceinline__ void run(const bsrg_narrow_shares_params &params) {
  extern __shared__ char raw[];
  char *const base = raw + (-ptx::shared_address(raw) & 1023);
  const Kernel<T, kTransposedX> kernel{
      {{params.tma}, ptx::shared_address(base), ptx::warp_index(), static_cast<int>(threadIdx.x & 31)},
      params.shares + static_cast<int64_t>(blockIdx.x) * params.most_shares};
  kernel.run(base + 1024);
}

}  // namespace bsrg::narrow_shares

#define BSRG_NARROW_SHARES_KERNEL(NAME, T, SUFFIX, TRANSPOSED_X)               \
  extern "C" __global__ void __launch_bounds__(BSRG_NARROW_TMA_THREADS(2), 1)  \
      NAME##SUFFIX(const __grid_constant__ bsrg_narrow_shares_params params) { \
    bsrg::narrow_shares::run<T, TRANSPOSED_X>(params);                         \
  }
#define BSRG_NARROW_SHARES_KERNELS(NAME, T)   \
  BSRG_NARROW_SHARES_KERNEL(NAME, T, , false) \
  BSRG_NARROW_SHARES_KERNEL(NAME, T, _tx, true)
