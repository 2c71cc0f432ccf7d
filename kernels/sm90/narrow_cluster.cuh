// BSR x 33 to 64 dense columns where blocks are 16 or 32 columns wide and at most 16 rows high, on Hopper.
//
// For so many columns low blocks need four times as many bytes of X as of A, and L2 is the limit where each CTA reads the
// rows of X that its blocks meet. Here up to 18 block rows, strips of 16 rows, share X, which passes through shared memory whole:
// a cluster has these strips, each of its CTAs a part of k, and a warp the blocks of one strip in that part. A comes by
// cp.async into a ring of the warp's own, and `mma.sync` multiplies. At last each CTA adds up its share of the rows,
// in the order of the parts; what the others have of these comes over the cluster's shared memory.
//
// X lies in shared memory as in device memory, a stage's rows of 64 columns or, column-major, 64 columns of 64 k for each 64 k:
// `ldmatrix` turns the one and not the other.
//
// Which of the block columns of a stage of X a strip has is a word of bits. The barriers of a stage are `full`, which TMA
// completes, and `empty`, at which all warps arrive: a warp passes every stage, whether it has blocks there or not.
//
// Of clusters of four 55 KB of sums leave each CTA and arrive there. As stores by lanes they took 3.1 us of 18, after all warps
// had met; bulk copies by each warp, to memory of their own, so that others may still read X, 1.
#pragma once

#include <type_traits>

#include "params.h"
#include "ptx/cp_async.cuh"
#include "ptx/load.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/sync.cuh"
#include "ptx/tma.cuh"
#include "sm80/narrow_begin.cuh"
#include "sm80/narrow_output.cuh"
#include "sm90/persistent.cuh"

namespace bsrg::narrow_cluster {

constexpr int kColumns = 64;
constexpr int kStrip = BSRG_NARROW_CLUSTER_STRIP;
constexpr int kProducer = BSRG_NARROW_CLUSTER_STRIPS;  // the warp that loads X
constexpr int kStageBytes = BSRG_NARROW_CLUSTER_STAGE_BYTES;
constexpr int kRowBytes = kColumns * 4;  // of sums
constexpr int kRun = 8;                  // elements that are written at once

// kParts: of k, the CTAs of a cluster. kWidth: columns of a block. kTransposedX: the rows of X are adjacent in memory, not
// its columns.
template <typename T, int kParts, int kWidth, bool kTransposedX>
class Kernel {
  static constexpr int kBox = BSRG_NARROW_CLUSTER_BOX, kBoxBytes = kBox * 128;  // k of a copy
  static constexpr int kPitch = kWidth * 2;                                     // bytes of a row of a block
  static constexpr int kPieceBytes = kStrip * kPitch;
  static constexpr int kDepth = BSRG_NARROW_CLUSTER_WARP_BYTES / kPieceBytes;  // pieces in a warp's ring
  static_assert(BSRG_NARROW_CLUSTER_STAGE_K / kWidth <= 16, "a stage's block columns are bits of a word");
  static_assert(kStrip * kRowBytes == BSRG_NARROW_CLUSTER_WARP_BYTES, "a strip's sums fit in the ring");

  const bsrg_narrow_cluster_params &p;
  const int warp, lane, part;
  const int first_strip;  // the cluster's
  const int rows;         // that this CTA adds up
  const uint32_t ring, blocks, received, barriers;

 public:
  __device__ Kernel(const bsrg_narrow_cluster_params &params, uint32_t shared)
      : p(params),
        warp(ptx::warp_index()),
        lane(threadIdx.x % 32),
        part(ptx::cluster_rank()),
        first_strip(blockIdx.x / kParts * params.strips),
        rows(params.strips * kStrip / kParts),
        ring(shared),
        blocks(shared + params.ring * kStageBytes),
        received(blocks + params.strips * BSRG_NARROW_CLUSTER_WARP_BYTES),
        barriers(received + (kParts - 1) * rows * kRowBytes) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < p.ring; ++i) {
        ptx::barrier_init(full(i), 1);
        ptx::barrier_init(empty(i), p.strips);
      }
      ptx::barrier_init(all_received(), 1);
      ptx::barrier_init_fence();
      ptx::barrier_arrive_expect(all_received(), (kParts - 1) * rows * kRowBytes);
    }
    __syncthreads();
    ptx::cluster_arrive();
    narrow::ask_for_blocks(p.narrow);
    // The plan is as cold as A.
    const int list = (first_strip + warp) * kParts + part;
    if (lane == 0 && first_strip + warp < p.all_strips) {
      ptx::prefetch_l2(p.masks + list * p.stages);
      ptx::prefetch_l2(p.first + list);
    }
    ptx::follow_grid_before();
    float sums[kColumns / 8][4] = {};
    if (warp == kProducer) {
      if (lane == 0) load_x();
      __syncwarp();
    } else if (warp < p.strips) {
      multiply(list, sums);
    }
    ptx::cluster_wait();  // the others' barriers are there
    if (warp < p.strips) send(sums);
    // Worked out while sums are on their way.
    static_assert(
        BSRG_NARROW_CLUSTER_STRIPS * kStrip / 2 * (kColumns / kRun) <= 2 * BSRG_NARROW_CLUSTER_THREADS,
        "a thread writes two runs at most");
    const Run runs[2] = {run_of(threadIdx.x), run_of(threadIdx.x + BSRG_NARROW_CLUSTER_THREADS)};
    __syncthreads();
    ptx::barrier_wait(all_received(), 0);
    ptx::cluster_arrive();  // what this CTA was sent has left the others
    write(runs[0]);
    write(runs[1]);
    ptx::cluster_wait();
  }

 private:
  __device__ uint32_t full(int slot) const { return barriers + 16 * slot; }
  __device__ uint32_t empty(int slot) const { return barriers + 16 * slot + 8; }
  __device__ uint32_t all_received() const { return barriers + 16 * BSRG_NARROW_CLUSTER_RING; }

  // ---- X ----------------------------------------------------------------------------------------

  __device__ void load_x() const {
    OpenRingPosition stage;
    stage.parity = 1;
#pragma unroll 1
    for (int i = 0; i < p.stages; ++i, stage.advance(p.ring)) {
      ptx::barrier_wait(empty(stage.slot), stage.parity);
      ptx::barrier_arrive_expect(full(stage.slot), BSRG_NARROW_CLUSTER_STAGE_K * p.x_columns * 2);
      const int first_k = (part * p.stages + i) * BSRG_NARROW_CLUSTER_STAGE_K;
#pragma unroll
      for (int box = 0; box < BSRG_NARROW_CLUSTER_STAGE_K / kBox; ++box) {
        const int k = first_k + box * kBox;
        ptx::tma_load_2d(ring + stage.slot * kStageBytes + box * kBoxBytes, p.x, kTransposedX ? k : 0,
                         kTransposedX ? 0 : k, full(stage.slot));
      }
    }
  }

  // ---- products ---------------------------------------------------------------------------------

  // Rows of a piece, of which 128 bytes cover all banks, have their 16 bytes permuted so that `ldmatrix` meets none twice.
  static __device__ int place_in_piece(int row, int chunk) {
    return row * kPitch + ((chunk ^ (row / (128 / kPitch) % (kPitch / 16))) << 4);
  }

  // The lane's 16 bytes of the first 16 k of a stage, and its first 16 columns. Lines of 128 bytes have these permuted by their
  // number modulo eight.
  __device__ uint32_t first_line() const {
    if constexpr (kTransposedX)
      return (lane / 16 * 8 + lane % 8) * 128 + ((lane / 8 % 2 ^ (lane & 7)) << 4);
    else
      return lane % 16 * 128 + ((lane / 16 ^ (lane & 7)) << 4);
  }

  // The same of 16 k from k on.
  static __device__ uint32_t line_of(uint32_t first, int k) {
    if constexpr (kTransposedX)
      return (first + k / kBox * kBoxBytes) ^ (k % kBox * 2);
    else
      return first + k * 128;
  }

  // list: the warp's, of the blocks of its strip and this part.
  __device__ void multiply(int list, float (&sums)[kColumns / 8][4]) const {
    int first = 0, count = 0, masks = 0;  // lane i has the bits of stage i
    if (first_strip + warp < p.all_strips) {
      if (lane < p.stages) masks = __ldg(p.masks + list * p.stages + lane);
      first = __ldg(p.first + list);
      count = __ldg(p.first + list + 1) - first;
    }

    // A lane copies 16 bytes of a piece, or of both of its halves. Blocks of fewer rows than 16 end
    // earlier. Addresses are hidden from the compiler, which would work them out anew for every block.
    constexpr int kHalves = kPieceBytes / 512;
    const uint32_t pieces = blocks + warp * BSRG_NARROW_CLUSTER_WARP_BYTES;
    const int block_bytes = p.narrow.block_height * kPitch;
    const char *a =
        static_cast<const char *>(p.narrow.values) + static_cast<int64_t>(first) * block_bytes + lane * 16;
    uint32_t to[kHalves];
    int copies[kHalves];
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const int row = (lane + 32 * i) / (kPitch / 16);
      to[i] = pieces + place_in_piece(row, lane % (kPitch / 16));
      copies[i] = row < p.narrow.block_height ? count : 0;
      ptx::settle(to[i]);
    }
    int copied = 0;
    const auto copy = [&](uint32_t offset) {
#pragma unroll
      for (int i = 0; i < kHalves; ++i)
        if (copied < copies[i]) ptx::cp_async_stream(to[i] + offset, a + i * 512, true);
      ptx::cp_async_commit();
      a += block_bytes;
      ++copied;
    };
#pragma unroll
    for (int i = 0; i < kDepth - 1; ++i) copy(i * kPieceBytes);

    // Of `ldmatrix`: the rows and the 16 bytes that lanes name, of a piece and of 16 lines of X.
    uint32_t from_a[kWidth / 16], first_of_x = ring + first_line();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      from_a[k] = pieces + place_in_piece(lane % 16, 2 * k + lane / 16);
      ptx::settle(from_a[k]);
    }
    ptx::settle(first_of_x);

    uint32_t offset = 0;  // of the next block in the ring
    // The next blocks of a stage: two at once where these are 16 wide, so that a warp waits half as often.
    const auto multiply_next = [&](auto how_many, uint32_t &mask, uint32_t x) {
      constexpr int kBlocks = decltype(how_many)::value;
      ptx::cp_async_wait<kDepth - 1 - kBlocks>();
      __syncwarp();
      uint32_t fragment[kBlocks][kWidth / 16][4], v[kBlocks][kWidth / 16][kColumns / 16][4];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const int k_of_block = (__ffs(mask) - 1) * kWidth;
        mask &= mask - 1;
#pragma unroll
        for (int k = 0; k < kWidth / 16; ++k) {
          ptx::load_matrix_x4(fragment[i][k],
                              from_a[k] + (offset + i * kPieceBytes) % BSRG_NARROW_CLUSTER_WARP_BYTES);
          const uint32_t line = line_of(x, k_of_block + 16 * k);
#pragma unroll
          for (int j = 0; j < kColumns / 16; ++j)
            if constexpr (kTransposedX)
              ptx::load_matrix_x4(v[i][k][j], line + j * (16 * 128));
            else
              ptx::load_matrix_x4_trans(v[i][k][j], line ^ (j << 5));
        }
      }
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
#pragma unroll
        for (int k = 0; k < kWidth / 16; ++k)
#pragma unroll
          for (int j = 0; j < kColumns / 16; ++j) {
            ptx::mma_m16n8k16<T>(sums[2 * j], fragment[i][k], v[i][k][j][0], v[i][k][j][1]);
            ptx::mma_m16n8k16<T>(sums[2 * j + 1], fragment[i][k], v[i][k][j][2], v[i][k][j][3]);
          }
      // Into the places of the block before these and of the first of two, which all lanes have read.
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        copy((offset - kPieceBytes) % BSRG_NARROW_CLUSTER_WARP_BYTES);
        offset = (offset + kPieceBytes) % BSRG_NARROW_CLUSTER_WARP_BYTES;
      }
    };

    OpenRingPosition stage;
#pragma unroll 1
    for (int s = 0; s < p.stages; ++s, stage.advance(p.ring)) {
      uint32_t mask = __shfl_sync(~0u, masks, s);
      const uint32_t x = first_of_x + stage.slot * kStageBytes;
      ptx::barrier_wait(full(stage.slot), stage.parity);
      if constexpr (kWidth == 16) {
#pragma unroll 1
        while ((mask & (mask - 1)) != 0) multiply_next(std::integral_constant<int, 2>(), mask, x);
      }
#pragma unroll 1
      while (mask != 0) multiply_next(std::integral_constant<int, 1>(), mask, x);
      __syncwarp();  // a lane that has not seen the stage full would wait a lap too long
      ptx::barrier_arrive_if(empty(stage.slot), lane == 0);
    }
  }

  // ---- sums -------------------------------------------------------------------------------------

  // Rows of 256 bytes, in groups of 8 columns permuted so that lanes of neighbouring rows write to different banks.
  static __device__ uint32_t place_in_row(int row, int column) {
    return row * kRowBytes + ((column / 8 ^ (row & 3)) * 32);
  }

  // The warp's sums, to its ring and from there to the CTAs that add them up, eight rows at a time.
  __device__ void send(const float (&sums)[kColumns / 8][4]) const {
    ptx::cp_async_wait<0>();
    __syncwarp();
    const uint32_t own = blocks + warp * BSRG_NARROW_CLUSTER_WARP_BYTES;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
        ptx::store_shared(own + place_in_row(8 * h + lane / 4, 8 * j) + lane % 4 * 8,
                          make_float2(sums[j][2 * h], sums[j][2 * h + 1]));
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane < 2) {
      const int row = warp * kStrip + 8 * lane, owner = row / rows;
      if (owner != part)
        ptx::bulk_send(ptx::map_to_rank(sums_of(part, owner) + (row - owner * rows) * kRowBytes, owner),
                       own + 8 * lane * kRowBytes, 8 * kRowBytes, ptx::map_to_rank(all_received(), owner));
    }
  }

  // Where a CTA that adds up has the sums of another part.
  __device__ uint32_t sums_of(int other, int owner) const {
    return received + (other < owner ? other : other - 1) * rows * kRowBytes;
  }

  // Of part s, where this CTA adds up.
  __device__ uint32_t place_of_sum(int s, int row, int column) const {
    return (s == part ? blocks + part * rows * kRowBytes : sums_of(s, part)) + place_in_row(row, column) +
           column % 8 * 4;
  }

  // Eight elements of Y, of a row or, if these are adjacent, of a column: from a row of this CTA and a column on.
  struct Run {
    int row, column, y_row;
    int count;   // of the eight that there are; 0: none
    bool whole;  // all, where they can be written at once
  };

  __device__ bool by_columns() const { return p.narrow.y_row_stride == 1; }

  __device__ Run run_of(int i) const {
    const bsrg_narrow_params &narrow = p.narrow;
    Run run = {by_columns() ? i / kColumns * kRun : i / (kColumns / kRun),
               by_columns() ? i % kColumns : i % (kColumns / kRun) * kRun, 0, 0, false};
    const int row = part * rows + run.row, index = first_strip + row / kStrip;
    if (run.row >= rows || index >= p.all_strips || run.column >= narrow.n) return run;
    run.y_row = index * narrow.block_height + row % kStrip;
    const int down = min(narrow.block_height - row % kStrip, p.y_rows - run.y_row);
    const int right = narrow.n - run.column;
    if (down > 0) run.count = min(kRun, by_columns() ? down : right);
    run.whole = run.count == kRun && narrow.vector_y && (!by_columns() || run.y_row % kRun == 0);
    return run;
  }

  __device__ void write(const Run &run) const {
    if (p.narrow.output.given) {
      write_fused(run);
    } else if (run.count > 0) {
      float total[kRun] = {};
      add_parts(run, total);
      if (__builtin_expect(run.whole, true)) {
        narrow::store_run<T, kRun>(p.narrow, run.y_row, run.column, total);
      } else {
#pragma unroll
        for (int j = 0; j < kRun; ++j)
          if (j < run.count) store_element<false>(run, j, total[j]);
      }
    }
  }

  __device__ void add_parts(const Run &run, float (&total)[kRun]) const {
#pragma unroll
    for (int s = 0; s < kParts; ++s) {
      float next[kRun];
      if (by_columns()) {
#pragma unroll
        for (int j = 0; j < kRun; ++j)
          next[j] = ptx::load_shared_float(place_of_sum(s, run.row + j, run.column));
      } else {
#pragma unroll
        for (int q = 0; q < kRun; q += 4) {
          const int4 v = ptx::load_shared_int4(place_of_sum(s, run.row, run.column) + 4 * q);
          next[q] = __int_as_float(v.x), next[q + 1] = __int_as_float(v.y);
          next[q + 2] = __int_as_float(v.z), next[q + 3] = __int_as_float(v.w);
        }
      }
#pragma unroll
      for (int j = 0; j < kRun; ++j) total[j] += next[j];
    }
  }

  // One by one, in a loop: the code of an element is long.
  __device__ void write_fused(const Run &run) const {
    if (run.whole) {
      float total[kRun] = {};
      add_parts(run, total);
      narrow::store_fused_run<T>(p.narrow, run.y_row, run.column, total, by_columns());
      return;
    }
#pragma unroll 1
    for (int j = 0; j < run.count; ++j) {
      const int down = by_columns() ? j : 0, right = by_columns() ? 0 : j;
      float total = 0;
#pragma unroll
      for (int s = 0; s < kParts; ++s)
        total += ptx::load_shared_float(place_of_sum(s, run.row + down, run.column + right));
      store_element<true>(run, j, total);
    }
  }

  template <bool kFused>
  __device__ void store_element(const Run &run, int j, float total) const {
    const int down = by_columns() ? j : 0, right = by_columns() ? 0 : j;
    narrow::store_element<T, kFused>(p.narrow, run.y_row + down, run.column + right, total);
  }
};

template <typename T, int kParts, int kWidth, bool kTransposedX>
__device__ __forceinline__ void run(const bsrg_narrow_cluster_params &params) {
  extern __shared__ char raw[];
  Kernel<T, kParts, kWidth, kTransposedX>(params, (ptx::shared_address(raw) + 1023) & ~1023u).run();
}

}  // namespace bsrg::narrow_cluster

#define BSRG_NARROW_CLUSTER_KERNEL(NAME, T, PARTS, WIDTH, SUFFIX, TRANSPOSED_X)                       \
  extern "C" __global__ void __launch_bounds__(BSRG_NARROW_CLUSTER_THREADS, 1)                        \
      NAME##_p##PARTS##_w##WIDTH##SUFFIX(const __grid_constant__ bsrg_narrow_cluster_params params) { \
    bsrg::narrow_cluster::run<T, PARTS, WIDTH, TRANSPOSED_X>(params);                                 \
  }
#define BSRG_NARROW_CLUSTER_KERNELS_OF(NAME, T, PARTS, WIDTH) \
  BSRG_NARROW_CLUSTER_KERNEL(NAME, T, PARTS, WIDTH, , false)  \
  BSRG_NARROW_CLUSTER_KERNEL(NAME, T, PARTS, WIDTH, _tx, true)
#define BSRG_NARROW_CLUSTER_KERNELS(NAME, T)     \
  BSRG_NARROW_CLUSTER_KERNELS_OF(NAME, T, 2, 16) \
  BSRG_NARROW_CLUSTER_KERNELS_OF(NAME, T, 2, 32) \
  BSRG_NARROW_CLUSTER_KERNELS_OF(NAME, T, 4, 16) \
  BSRG_NARROW_CLUSTER_KERNELS_OF(NAME, T, 4, 32)
